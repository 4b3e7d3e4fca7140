"""One office, two kinds of records: sources and changefeeds stand in one history and come back from it [C1]."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from millrace.changefeed import office
from millrace.changefeed.office import OFFICE, OfficeWriter, read_office
from millrace.changefeed.office_snapshot import decode_snapshot, encode_snapshot
from millrace.core.feeds.feeds import FeedsDecision, FeedsState
from millrace.core.sources.registry import CoordinatorState
from millrace.errors import ChangefeedExists, Malformed, NotCoordinator
from millrace.model.changefeeds import (
    ChangefeedChanged,
    ChangefeedCreated,
    ChangefeedFailed,
    ChangefeedFinished,
    ChangefeedPaused,
    ChangefeedRemoved,
    ChangefeedRemoving,
    ChangefeedResumed,
    FeedError,
    MaintainerPlaced,
    encode_record,
)
from millrace.model.sources import ReaderPlaced, SourceCreated, SourceSpec
from millrace.model.spans import Place
from support_feeds import Alone, play_alone, spec

SOURCE = SourceSpec(name="shop", url="postgresql://u@h/db")
DENIED = FeedError(code="sink_denied", kind="fail", first_ms=3)


async def writer(a: Alone) -> OfficeWriter:
    return await OfficeWriter.load(a.store, await a.plain.acquire(OFFICE, a.me, 60.0))


def test_C1_sources_and_changefeeds_stand_in_one_history(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        pen = await writer(a)
        await pen.submit(lambda state: state.create(SOURCE, wall_ms=1))
        await pen.submit_feeds(lambda state: state.create(spec("orders"), wall_ms=2))
        await pen.submit(lambda state: state.place("shop", capture=1, incarnation=5))
        place = await pen.submit_feeds(lambda state: state.place("orders", capture=2, incarnation=6))
        with pytest.raises(ChangefeedExists):
            await pen.submit_feeds(lambda state: state.create(spec("orders"), wall_ms=2))
        again = await read_office(a.store)
        assert again.index == 4
        assert again.sources == pen.state
        assert again.feeds == pen.feeds
        assert again.feeds.entry("orders").place == place == Place(2, 6, 1)

    play_alone(tmp_path, story)


def test_C1_a_machine_over_the_office_hears_every_record_of_changefeeds_after_it_stands(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        pen, heard = await writer(a), []

        def replay(record: object) -> None:
            heard.append((record, pen.index))

        pen.replay_feed = replay
        await pen.submit(lambda state: state.create(SOURCE, wall_ms=1))
        await pen.submit_feeds(lambda state: state.create(spec("orders"), wall_ms=2))
        assert heard == [(ChangefeedCreated(spec("orders"), 2), 2)]

    play_alone(tmp_path, story)


@pytest.mark.parametrize("fault", ["refuse", "lose"])
def test_C1_after_a_write_without_answer_nothing_more_is_decided(tmp_path: Path, fault: str) -> None:
    async def story(a: Alone) -> None:
        pen = await writer(a)
        getattr(a.store, fault)["append"] = 1
        with pytest.raises(NotCoordinator):
            await pen.submit_feeds(lambda state: state.create(spec("orders"), wall_ms=2))
        assert "a write failed" in await pen.failed
        with pytest.raises(NotCoordinator):
            await pen.submit(lambda state: state.create(SOURCE, wall_ms=1))
        assert set((await read_office(a.plain)).feeds.feeds) == ({"orders"} if fault == "lose" else set())

    play_alone(tmp_path, story)


def test_C1_more_records_than_one_append_takes(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        pen = await writer(a)
        many = tuple(ChangefeedCreated(spec(f"f{n}"), 1) for n in range(4_500))
        await pen.submit_feeds(lambda _: FeedsDecision(many, None))
        assert len((await read_office(a.plain)).feeds.feeds) == 4_500

    play_alone(tmp_path, story)


def test_C1_a_short_history_forgets_nothing_of_changefeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office, "SNAPSHOT_EVERY_RECORDS", 5)

    async def story(a: Alone) -> None:
        pen = await writer(a)
        for feed in ("a", "b", "c", "gone"):
            await pen.submit_feeds(lambda state, feed=feed: state.create(spec(feed), wall_ms=2))  # type: ignore[misc]
            await pen.submit_feeds(
                lambda state, feed=feed: state.place(feed, capture=1, incarnation=1))  # type: ignore[misc]
        await pen.submit_feeds(lambda state: state.remove("gone"))
        await pen.submit_feeds(lambda state: state.removed("gone"))
        found = await a.plain.load_snapshot(OFFICE)
        assert found is not None
        assert found[0] == 10
        again = await read_office(a.plain)
        assert again.feeds == pen.feeds
        assert again.feeds.epoch_floor == 4, "epochs of a removed changefeed are not given out again"

    play_alone(tmp_path, story)


def states() -> tuple[CoordinatorState, FeedsState]:
    """Each state that a changefeed can be in."""
    sources, feeds = CoordinatorState(), FeedsState()
    sources.replay(SourceCreated(SOURCE, 1))
    sources.replay(ReaderPlaced("shop", 1, 2, 7))
    for feed in ("plain", "paused", "failed", "finished", "removing", "resumed", "changed", "gone"):
        feeds.replay(ChangefeedCreated(spec(feed), 9, feed == "paused"))
    feeds.replay(MaintainerPlaced("plain", Place(1, 2, 3)))
    feeds.replay(MaintainerPlaced("changed", Place(1, 2, 4)))
    feeds.replay(ChangefeedChanged(spec("changed")))
    feeds.replay(ChangefeedFailed("failed", DENIED))
    feeds.replay(ChangefeedFinished("finished"))
    feeds.replay(ChangefeedResumed("resumed", 77, 2))
    feeds.replay(ChangefeedPaused("resumed"))
    feeds.replay(MaintainerPlaced("gone", Place(1, 2, 40)))
    feeds.replay(ChangefeedRemoving("removing"))
    feeds.replay(ChangefeedRemoved("gone"))
    return sources, feeds


def test_C1_a_snapshot_gives_the_same_state_again() -> None:
    sources, feeds = states()
    assert decode_snapshot(encode_snapshot(sources, feeds)) == (sources, feeds)
    assert feeds.epoch_floor == 40


def test_L19_a_snapshot_of_a_time_without_changefeeds_is_read() -> None:
    blob = msgspec.msgpack.encode([5, [encode_record(SourceCreated(SOURCE, 1))]])
    sources, feeds = decode_snapshot(blob)
    assert (set(sources.sources), sources.epoch_floor, feeds) == ({"shop"}, 5, FeedsState())
    with pytest.raises(Malformed, match="snapshot"):
        decode_snapshot(b"\x01")
