"""A maintainer's host: nothing is done that is not durable, and a machine whose write failed does nothing more [C2]."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from millrace import limits
from millrace.changefeed.feeds.maintainer_host import MaintainerHost
from millrace.changefeed.feeds.manager_host import ManagerHost
from millrace.changefeed.feeds.ports import DdlTaken, News
from millrace.changefeed.office import OFFICE, OfficeWriter
from millrace.core.feeds.effects import Send
from millrace.core.feeds.feeds import office
from millrace.errors import PositionRefused, Unreachable
from millrace.model.changefeeds import (
    CheckpointReached,
    EpochsTaken,
    ErrorClass,
    FeedBegun,
    FeedError,
    FeedRewound,
    SpanPlaced,
    SpanRecorded,
    decode_feed,
)
from millrace.model.feed_messages import (
    DispatcherRefused,
    MaintainerPing,
    ManagerAnswer,
    PrepareDispatcher,
    StartDispatcher,
    StopDispatcher,
    View,
)
from support_feeds import Alone, Home, Target, play_alone, until

FEED, EPOCH = "orders", 3
A = TypeVar("A")
VIEW = View(1, 1, schedulable=((1, 1),), living=(1,), running={FEED: EPOCH}, epochs_upto=EPOCH)


class Story:
    """A maintainer and a manager on one capture; what one sends the other gets, unless it is held back."""

    def __init__(self, a: Alone, *, epoch: int = EPOCH) -> None:
        self.a = a
        self.ended = False
        self.errors: list[FeedError] = []
        self.host = MaintainerHost(
            a.around, FEED, epoch, view=lambda: VIEW, failing=self.errors.append, ended=self._end)
        self.manager = ManagerHost(a.around, FEED)
        a.deliver = self.deliver

    def _end(self) -> None:
        self.ended = True

    def deliver(self, send: Send) -> None:
        match send.message:
            case ManagerAnswer() | DispatcherRefused():
                self.host.receive(send.message)
            case MaintainerPing() | PrepareDispatcher() | StartDispatcher() | StopDispatcher():
                self.manager.receive(1, send.message, "alive")

    def works(self) -> bool:
        machine = self.host.machine
        return machine is not None and machine.ready and bool(machine.state.spans) and all(
            span.place is not None and machine.sight.seen(span.id, span.place) == "working"
            for span in machine.state.spans.values() if self._is_there(span.born, span.span.table))

    def _is_there(self, born: int, table: Any) -> bool:
        machine = self.host.machine
        return machine is not None and machine.ddl.position is not None and machine.ddl.exists(table, born)

    def checkpoint(self) -> int:
        return self.host.machine.state.checkpoint if self.host.machine is not None else -1


def play(directory: Path, story: Callable[[Story], Awaitable[None]]) -> Alone:
    async def main(a: Alone) -> None:
        await a.created(FEED)
        s = Story(a)
        try:
            s.host.start()
            await story(s)
        finally:
            await s.host.stop()
            await s.manager.stop()

    alone = play_alone(directory, main)
    assert alone.target.found() == []
    return alone


def test_C2_its_first_records_stand_before_anything_is_asked_of_anybody(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        before, asked = s.a.deliver, []

        def deliver(send: Send) -> None:
            if isinstance(send.message, StartDispatcher):
                asked.append(send.message)
                records = [decode_feed(data) for data in s.a.store.appended]
                placed = [(r.id, r.place.epoch) for r in records if isinstance(r, SpanPlaced)]
                assert (send.message.id, send.message.epoch) in placed, "asked for what is not durable"
                stood.append(send.message)
            before(send)

        stood: list[StartDispatcher] = []
        s.a.deliver = deliver
        await until(s.works)
        assert stood == asked
        assert len(stood) >= 3
        records = await s.a.records()
        assert [type(r) for r in records[:5]] == [EpochsTaken, SpanRecorded, SpanRecorded, SpanRecorded, FeedBegun]
        holder = await s.a.plain.holder(office(FEED))
        assert holder is not None
        assert holder.token == EPOCH

    play(tmp_path, story)


def test_C6_C7_the_checkpoint_follows_positions_and_schema_changes_pass_by_their_markers(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        for lsn in (15, 30, 59):
            s.a.target.advance(lsn)
            await until(lambda lsn=lsn: s.a.target.is_eaten() and s.checkpoint() >= lsn)  # type: ignore[misc]
        lsns = [r.lsn for r in await s.a.records() if isinstance(r, CheckpointReached)]
        assert lsns == sorted(set(lsns))

    world = play(tmp_path, story).target.data
    assert world.ddl.next == len(world.changes) > 2


def test_C7_without_markers_in_positions_no_schema_change_passes(tmp_path: Path) -> None:
    class Blind(Home):
        def news(self) -> News:
            news = super().news()
            return news._replace(positions={p: c._replace(marker=None) for p, c in news.positions.items()})

    async def main(a: Alone) -> None:
        async def open_(*opened: object) -> Blind:
            return Blind(a.target)

        a.homes.open = open_  # type: ignore[method-assign]
        await a.created(FEED)
        s, data = Story(a), a.target.data
        first = next(change for change in data.changes if change.kind == "alter")
        a.target.advance(first.lsn + 5)
        s.host.start()

        def arrived() -> bool:
            return all(c.marker == first.number for p, c in data.positions().items() if p.table in first.tables)

        await until(arrived)
        pinged = len(a.said(MaintainerPing))
        await until(lambda: len(a.said(MaintainerPing)) > pinged + 5)      # it had its chances
        assert s.works()
        assert data.ddl.next <= first.number
        assert s.checkpoint() < first.lsn
        await s.host.stop()
        await s.manager.stop()

    play_alone(tmp_path, main)


def test_C7_who_comes_to_a_marker_is_looked_at_before_the_next_heartbeat(tmp_path: Path) -> None:
    class Telling(Home):
        def __init__(self, target: Target) -> None:
            super().__init__(target)
            self.came, self.looks = asyncio.Event(), 0

        def news(self) -> News:
            self.looks += 1
            return super().news()

        async def arrived(self) -> None:
            await self.came.wait()
            self.came.clear()

    async def main(a: Alone) -> None:
        home = Telling(a.target)

        async def open_(*opened: object) -> Telling:
            return home

        a.homes.open = open_  # type: ignore[method-assign]
        a.around = dataclasses.replace(a.around, heartbeat_s=3600.0)
        await a.created(FEED)
        s = Story(a)
        s.host.start()
        await until(lambda: home.looks)
        for _ in range(30):                                  # its beginning brings some passes, but not so many
            looks = home.looks
            home.came.set()
            await until(lambda looks=looks: home.looks > looks, 10)  # type: ignore[misc]
        await s.host.stop()
        await s.manager.stop()

    play_alone(tmp_path, main)


@pytest.mark.parametrize("fault", ["refuse", "lose"])
def test_C4_a_machine_whose_write_failed_is_thrown_away_and_another_goes_on(tmp_path: Path, fault: str) -> None:
    async def story(s: Story) -> None:
        await until(s.works)
        first = s.host.machine
        getattr(s.a.store, fault)["append"] = 1
        s.a.target.advance(20)
        await until(lambda: s.host.lives == 2)
        assert s.host.machine is not first
        await until(lambda: s.works() and s.checkpoint() >= 20)
        assert not s.ended
        epochs = [r.upto for r in await s.a.records() if isinstance(r, EpochsTaken)]
        assert epochs == sorted(set(epochs)), "each epoch is given out once [V9]"
        assert len(epochs) >= 2

    play(tmp_path, story)


def test_C2_a_maintainer_ends_when_its_office_was_granted_to_another(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        await until(s.works)
        await s.a.plain.grant(office(FEED), s.a.me, EPOCH + 1)
        known = len(await s.a.records())
        s.a.target.advance(20)
        await until(lambda: s.ended)
        assert not s.host.ready
        assert len(await s.a.records()) == known

    play(tmp_path, story)


def test_C2_a_maintainer_that_was_overtaken_before_it_began_never_works(tmp_path: Path) -> None:
    async def main(a: Alone) -> None:
        await a.created(FEED)
        await a.plain.grant(office(FEED), a.me, EPOCH + 1)
        s = Story(a)
        s.host.start()
        await until(lambda: s.ended)
        assert s.host.lives == 0
        assert a.sent == []
        await s.host.stop()

    play_alone(tmp_path, main)


def test_C1_a_changefeed_that_is_not_there_is_not_maintained(tmp_path: Path) -> None:
    async def main(a: Alone) -> None:
        s = Story(a)
        s.host.start()
        await until(lambda: s.ended)
        assert s.host.lives == 0
        await s.host.stop()

    play_alone(tmp_path, main)


def test_C9_a_store_that_is_silent_for_a_while_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FEED_RETRY_MIN_S", 0.05)

    async def main(a: Alone) -> None:
        await a.created(FEED)
        a.store.lose["grant"] = 2
        a.store.refuse["read"] = 1
        s = Story(a)
        s.host.start()
        await until(s.works)
        assert s.host.lives == 1
        await s.host.stop()
        await s.manager.stop()

    play_alone(tmp_path, main)


def test_C7_after_a_change_of_unknown_outcome_the_ddl_position_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FEED_RETRY_MIN_S", 0.05)

    class Losing(Home):
        """The answers of three calls are lost, after they took effect."""

        async def take_ddl(self, epoch: int) -> DdlTaken | None:
            return self._lose(await super().take_ddl(epoch))

        async def write_change(self, epoch: int, table: Any, change: int) -> bool:
            return self._lose(await super().write_change(epoch, table, change))

        async def commit_ddl(self, expected: Any, wanted: Any) -> bool:
            return self._lose(await super().commit_ddl(expected, wanted))

        def _lose(self, answer: A) -> A:
            calls.append(1)
            if len(calls) in (1, 3, 5):
                raise Unreachable("no answer")
            return answer

    calls: list[int] = []

    async def main(a: Alone) -> None:
        async def open_(*opened: object) -> Losing:
            return Losing(a.target)

        a.homes.open = open_  # type: ignore[method-assign]
        await a.created(FEED)
        s = Story(a)
        s.host.start()
        a.target.advance(59)
        await until(lambda: a.target.is_eaten() and s.checkpoint() >= 59)
        assert s.host.lives == 1
        assert len(calls) > 5
        await s.host.stop()
        await s.manager.stop()

    assert play_alone(tmp_path, main).target.found() == []


def test_K4_watermarks_tell_what_is_persisted_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_EVERY_S", 0.05)

    class Checked(Home):
        async def write_watermark(self, epoch: int, checkpoint: int, tables: Any) -> bool:
            records = [decode_feed(data) for data in alone.store.appended]
            durable = [record.lsn for record in records if isinstance(record, CheckpointReached)]
            assert checkpoint == durable[-1]
            return await super().write_watermark(epoch, checkpoint, tables)

    async def main(a: Alone) -> None:
        nonlocal alone
        alone = a

        async def open_(*opened: object) -> Checked:
            return Checked(a.target, watermarks=True)

        a.homes.open = open_  # type: ignore[method-assign]
        await a.created(FEED)
        s = Story(a)
        s.host.start()
        for lsn in (20, 40, 59):
            a.target.advance(lsn)
            await until(lambda lsn=lsn: any(told >= lsn for told, _ in a.target.told))
        assert s.host.lives == 1
        assert [told for told, _ in a.target.told] == sorted({told for told, _ in a.target.told}), "each once, in order"
        await s.host.stop()
        await s.manager.stop()

    alone: Any = None
    assert play_alone(tmp_path, main).target.found() == []


async def set_back(a: Alone, position: int) -> None:
    """As the coordinator's office has it then."""
    token = await a.plain.acquire(OFFICE, a.me, 60.0)
    writer = await OfficeWriter.load(a.plain, token)
    await writer.submit_feeds(lambda state: state.pause(FEED))
    await writer.submit_feeds(lambda state: state.resume(FEED, position=position))
    await a.plain.release(OFFICE, token)


def test_C4_another_position_is_taken_once_whatever_is_lost_on_the_way(tmp_path: Path) -> None:
    async def main(a: Alone) -> None:
        await a.created(FEED)
        first = Story(a)
        first.host.start()
        a.target.advance(40)
        await until(lambda: a.target.is_eaten() and first.checkpoint() >= 40)
        await first.host.stop()
        await first.manager.stop()
        await set_back(a, 20)

        epochs, rewind = list[int](), a.homes.rewind

        async def lost(spec: Any, position: int, epoch: int) -> None:
            epochs.append(epoch)
            await rewind(spec, position, epoch)
            if len(epochs) == 1:
                raise Unreachable("no answer")

        a.homes.rewind = lost  # type: ignore[method-assign]
        a.store.lose["append"] = 1                               # of the first record of its life
        s = Story(a, epoch=EPOCH + 1)
        s.host.start()
        await until(lambda: a.target.is_eaten() and s.checkpoint() >= 40)
        records = await a.records()
        at = [n for n, record in enumerate(records) if isinstance(record, FeedRewound)]
        assert [records[n] for n in at] == [FeedRewound(1, 20)]
        assert len(epochs) == 2
        assert epochs == sorted(set(epochs))
        placed = [record.place.epoch for record in records[at[0]:] if isinstance(record, SpanPlaced)]
        assert placed
        assert min(placed) > epochs[-1], "under greater epochs than the positions have"
        assert CheckpointReached(40) in records[at[0]:], "it came that far again"
        await s.host.stop()
        again = Story(a, epoch=EPOCH + 2)
        again.host.start()
        await until(again.works)
        assert len(epochs) == 2
        await again.host.stop()
        await s.manager.stop()

    assert play_alone(tmp_path, main).target.found() == []


def test_C8_a_position_that_is_not_there_any_more_fails_the_changefeed_with_the_remedy(tmp_path: Path) -> None:
    async def main(a: Alone) -> None:
        async def gone(*asked: object) -> None:
            raise PositionRefused("give a later one")

        a.homes.rewind = gone  # type: ignore[method-assign]
        await a.created(FEED)
        await set_back(a, 20)
        s = Story(a)
        s.host.start()
        await until(lambda: s.errors)
        assert (s.errors[0].code, s.errors[0].kind, s.errors[0].message) == (
            "position_refused", "fail", "give a later one")
        assert not [record for record in await a.records() if not isinstance(record, EpochsTaken)]
        await s.host.stop()

    play_alone(tmp_path, main)


def test_C8_an_error_that_only_a_person_can_mend_goes_to_the_coordinator(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        await until(s.works)
        span = next(iter(s.manager.machine.held))
        work = next(w for w in s.manager.free() if w.dispatcher.span == span)
        s.a.dispatching.taken.clear()                             # nobody else works with it
        error = FeedError(code="sink_denied", kind="fail", table=work.span.table, span=span)
        s.manager.begin([span])
        s.manager.ended(work.dispatcher, error=error)
        await until(lambda: error in s.errors)

    play(tmp_path, story)


@pytest.mark.parametrize(("code", "kind"), [("log_released", "retry"), ("cannot_prove", "isolate")])
def test_F10_the_home_looks_for_what_a_dispatcher_did_not_find(tmp_path: Path, code: str, kind: ErrorClass) -> None:
    async def story(s: Story) -> None:
        await until(s.works)
        assert (s.a.target.doubts, s.a.target.unproved) == (0, set())
        span = next(iter(s.manager.machine.held))
        work = next(w for w in s.manager.free() if w.dispatcher.span == span)
        s.a.dispatching.taken.clear()                             # nobody else works with it
        s.manager.begin([span])
        s.manager.ended(work.dispatcher, error=FeedError(code=code, kind=kind, table=work.span.table, span=span))
        await until(lambda: s.a.target.doubts or s.a.target.unproved)
        assert s.a.target.unproved == ({work.span.table} if code == "cannot_prove" else set())
        assert bool(s.a.target.doubts) == (code == "log_released")

    play(tmp_path, story)
