"""The office of one changefeed: replayed as it was written, short, and its epochs for ever [C2, V9]."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import limits
from millrace.changefeed.feeds import history as module
from millrace.changefeed.feeds.history import FeedHistory, encode_snapshot, restored
from millrace.core.feeds.feeds import office
from millrace.core.feeds.office import FeedState
from millrace.errors import Deposed, Malformed, NewerFormat, StoreUnreachable
from millrace.model.changefeeds import (
    LEFT,
    ChangefeedSpec,
    CheckpointReached,
    EpochsTaken,
    FeedBegun,
    FeedError,
    FeedRecords,
    FeedRewound,
    SpanEnded,
    SpanPlaced,
    SpanRecorded,
    SpansReplaced,
    SpecSettled,
    TableEnds,
    TableTrouble,
)
from millrace.model.spans import Place, TableId, split, whole
from support_feeds import Alone, play_alone

T, U = TableId("shop", 1), TableId("shop", 2)
RECORDS: list[FeedRecords] = [
    EpochsTaken(3),
    SpanRecorded(0, whole(T, 3)),
    SpanRecorded(1, whole(U, 1), 4),
    FeedBegun(),
    SpanPlaced(0, Place(2, 9, 4)),
    FeedRewound(3, 60),
    SpecSettled(ChangefeedSpec(id="orders", source="shop", sink="kafka:")),
    SpanPlaced(0, Place(2, 9, 5)),
    SpansReplaced((0,), tuple(enumerate(split(whole(T, 3)), 2))),
    SpanPlaced(3, Place(2, 9, 6)),
    TableEnds(U, 8),
    TableEnds(T, LEFT),
    TableTrouble(U, FeedError(code="schema_refused", kind="isolate")),
    CheckpointReached(70),
    SpanEnded(4),
    EpochsTaken(11),
]


async def took(a: Alone, epoch: int) -> FeedHistory:
    return await FeedHistory.take(a.store, "orders", a.me, epoch)


def replayed(records: list[FeedRecords]) -> FeedState:
    state = FeedState()
    for record in records:
        state.replay(record)
    return state


def test_C2_what_was_written_is_replayed_by_the_next_owner_and_the_former_one_writes_nothing(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        first = await took(a, 1)
        await first.append(RECORDS[:4])
        second = await took(a, 2)
        assert second.state == replayed(RECORDS[:4])
        with pytest.raises(Deposed):
            await first.append(RECORDS[4:])
        await second.append(RECORDS[4:])
        assert (await took(a, 2)).state == replayed(RECORDS)
        with pytest.raises(Deposed):
            await took(a, 1)

    play_alone(tmp_path, story)


def test_C4_more_records_than_one_append_takes(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        many: list[FeedRecords] = [SpanRecorded(n, whole(TableId("shop", n), 1)) for n in range(5_000)]
        await (await took(a, 1)).append(many)
        assert (await took(a, 1)).state == replayed(many)

    play_alone(tmp_path, story)


@pytest.mark.parametrize("fault", ["refuse", "lose"])
def test_C4_after_a_write_without_answer_only_reading_again_tells(tmp_path: Path, fault: str) -> None:
    async def story(a: Alone) -> None:
        history = await took(a, 1)
        getattr(a.store, fault)["append"] = 1
        with pytest.raises(StoreUnreachable):
            await history.append(RECORDS[:2])
        with pytest.raises(AssertionError, match="read again"):
            await history.append(RECORDS[:2])
        again = await took(a, 1)
        assert again.state == replayed(RECORDS[:2] if fault == "lose" else [])
        await again.append(RECORDS[2:3])

    play_alone(tmp_path, story)


def test_C6_checkpoints_do_not_grow_the_office_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FEED_SNAPSHOT_EVERY_RECORDS", 20)

    async def story(a: Alone) -> None:
        history = await took(a, 1)
        for lsn in range(100):
            await history.append([CheckpointReached(lsn)])
            history.state.replay(CheckpointReached(lsn))
            await history.keep_short()
        found = await a.plain.load_snapshot(office("orders"))
        assert found is not None
        assert found[0] == 100
        again = await took(a, 2)
        assert (again.state, again.index) == (history.state, 100)

    play_alone(tmp_path, story)


def test_C6_a_snapshot_that_cannot_be_saved_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FEED_SNAPSHOT_EVERY_RECORDS", 1)

    async def story(a: Alone) -> None:
        history = await took(a, 1)
        a.store.refuse["save_snapshot"] = 1
        await history.append(RECORDS)
        await history.keep_short()
        assert await a.plain.load_snapshot(office("orders")) is None
        assert (await took(a, 1)).state == replayed(RECORDS)

    play_alone(tmp_path, story)


def test_C2_a_large_office_comes_back_from_its_snapshot(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        many: list[FeedRecords] = [SpanRecorded(n, whole(TableId("shop", n), 1)) for n in range(4_500)]
        history = await took(a, 1)
        await history.append(many)
        for record in many:
            history.state.replay(record)
        await history.keep_short()
        assert await a.plain.load_snapshot(office("orders")) is not None
        assert (await took(a, 2)).state == history.state

    play_alone(tmp_path, story)


def test_V9_an_emptied_office_keeps_its_counter_of_epochs(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        history = await took(a, 1)
        await history.append(RECORDS)
        await (await took(a, 2)).empty()
        assert await a.plain.read(office("orders"), len(RECORDS), 10) == []
        assert (await took(a, 3)).state == FeedState(epoch=11)

    play_alone(tmp_path, story)


def test_C4_a_snapshot_gives_the_same_state_again_and_no_id_twice() -> None:
    state = replayed(RECORDS)
    again = list(restored(encode_snapshot(state)))[-1]
    again.by_capture = {c: here for c, here in again.by_capture.items() if here}
    assert again == state
    assert again.next_id == 5
    assert 4 not in again.spans, "the last id was used, and is not used again"


def test_L19_another_version_is_refused() -> None:
    blob = encode_snapshot(FeedState())
    with pytest.raises(NewerFormat):
        list(restored(bytes([module.VERSION + 1]) + blob[1:]))
    for bad in (b"", blob[:1], blob[:1] + b"\xc1"):
        with pytest.raises(Malformed):
            list(restored(bad))
