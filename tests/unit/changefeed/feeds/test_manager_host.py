"""A manager's host tells the data path what its machine decides, and its machine what the data path shows [C2, C3]."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace import limits
from millrace.changefeed.feeds.manager_host import ManagerHost
from millrace.changefeed.feeds.ports import Rounds, Work
from millrace.errors import DeliveryTransient
from millrace.model.changefeeds import FeedError
from millrace.model.feed_messages import (
    DispatcherRefused,
    DispatcherState,
    Liveness,
    MaintainerPing,
    ManagerAnswer,
    PrepareDispatcher,
    StartDispatcher,
    StopDispatcher,
    View,
)
from millrace.model.spans import Dispatcher, TableId, whole
from support_feeds import Alone, play_alone, until

FEED, MAINTAINER = "orders", 2
SPAN = whole(TableId("shop", 2), 1)


class Story:
    def __init__(self, a: Alone) -> None:
        self.a, self.host = a, ManagerHost(a.around, FEED)
        self.liveness: Liveness = "alive"

    def prepare(self, epoch: int, *, span_id: int = 0, by: int = 5) -> None:
        self.host.receive(MAINTAINER, PrepareDispatcher(FEED, by, 1, span_id, SPAN, epoch), self.liveness)

    def start(self, epoch: int, *, span_id: int = 0, by: int = 5) -> None:
        self.host.receive(MAINTAINER, StartDispatcher(FEED, by, 1, span_id, SPAN, epoch), self.liveness)

    def stop(self, epoch: int, *, by: int = 5) -> None:
        self.host.receive(MAINTAINER, StopDispatcher(FEED, by, 1, 0, epoch), "alive")

    def state(self) -> tuple[int, DispatcherState] | None:
        held = self.host.machine.held.get(0)
        return (held.epoch, held.state) if held is not None else None


def work(epoch: int) -> Work:
    return Work(FEED, Dispatcher(0, epoch), SPAN)


def test_C4_prepared_started_and_stopped_as_commands_say(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        s = Story(a)
        s.prepare(7)
        s.prepare(7)
        assert list(a.dispatching.prepared.values()) == [work(7)]
        assert a.target.owners() == []
        s.start(7)
        await until(lambda: s.state() == (7, "working"))
        assert a.target.owners() == [((1, 0), 7)]
        assert s.host.is_busy
        s.stop(7)
        await until(lambda: s.state() is None)
        assert a.dispatching.stopped == [work(7)]
        assert not s.host.is_busy
        await s.host.stop()

    play_alone(tmp_path, story)


def test_C2_a_former_maintainer_changes_nothing_and_the_answer_goes_to_the_present_one(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        s = Story(a)
        s.prepare(7, by=5)
        s.start(9, by=4)
        assert s.state() == (7, "prepared")
        s.host.receive(3, MaintainerPing(FEED, 6, 12.5), "alive")
        s.stop(7, by=5)
        assert s.state() == (7, "prepared")
        assert [send.to for send in a.sent] == [3]
        answer = a.said(ManagerAnswer)[0]
        assert (answer.maintainer_epoch, answer.ping_sent_at, answer.full) == (6, 12.5, True)
        assert [(r.id, r.epoch, r.state) for r in answer.changed] == [(0, 7, "prepared")]
        await s.host.stop()

    play_alone(tmp_path, story)


def test_C7_whoever_waits_at_a_barrier_is_told_when_the_ddl_position_has_moved(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        s = await working(a)
        s.host.receive(MAINTAINER, MaintainerPing(FEED, 5, 1.0), "alive")
        assert a.dispatching.looks == []
        s.host.receive(MAINTAINER, MaintainerPing(FEED, 5, 1.1, moved=True), "alive")
        assert a.dispatching.looks == [FEED]
        await s.host.stop()

    play_alone(tmp_path, story)


def test_C3_a_take_over_that_finds_a_greater_epoch_is_none(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        s = Story(a)
        assert a.target.close(SPAN.parts, 8)
        s.start(7)
        await until(lambda: s.state() is None)
        assert a.dispatching.stopped == [work(7)]
        await s.host.stop()

    play_alone(tmp_path, story)


def test_C3_a_take_over_that_failed_is_never_taken_for_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FEED_RETRY_MIN_S", 0.05)

    async def story(a: Alone) -> None:
        s = Story(a)
        for error in (DeliveryTransient("gone"), ValueError("a mistake of ours")):
            a.dispatching.error = error
            s.start(7)
            assert s.state() == (7, "taking_over")
            await until(lambda: s.state() is None)
        assert a.dispatching.stopped == [work(7), work(7)]
        a.dispatching.error = None
        s.start(8)
        await until(lambda: s.state() == (8, "working"))
        await s.host.stop()

    play_alone(tmp_path, story)


def test_C3_an_idle_dispatcher_whose_positions_carry_a_greater_epoch_removes_itself(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        s = Story(a)
        s.start(7)
        await until(lambda: s.state() == (7, "working"))
        s.host.tick(None, "alive")
        assert s.state() is not None
        assert a.target.close(SPAN.parts, 8)

        def gone() -> bool:
            s.host.tick(None, "alive")
            return s.state() is None

        await until(gone)
        assert a.dispatching.stopped == [work(7)]
        await s.host.stop()

    play_alone(tmp_path, story)


def test_C4_a_later_epoch_replaces_an_earlier_one_at_the_data_path(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        s = Story(a)
        s.start(7)
        await until(lambda: s.state() == (7, "working"))
        s.start(9)
        await until(lambda: s.state() == (9, "working"))
        assert a.dispatching.stopped == [work(7)]
        assert list(a.dispatching.prepared.values()) == [work(9)]
        assert not s.host.is_present(Dispatcher(0, 7))
        await s.host.stop()
        assert a.dispatching.stopped == [work(7), work(9)]

    play_alone(tmp_path, story)


class Quiet:
    """A data path that begins no rounds by itself."""

    async def start(self, work: Work, rounds: Rounds) -> bool:
        return True


async def working(a: Alone) -> Story:
    a.dispatching.start = Quiet().start  # type: ignore[method-assign]
    s = Story(a)
    s.start(7)
    await until(lambda: s.state() == (7, "working"))
    return s


def test_P2_a_stopped_dispatcher_goes_when_its_round_has_ended(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        s = await working(a)
        assert s.host.free() == [work(7)]
        assert s.host.begin([0]) == (Dispatcher(0, 7),)
        assert s.host.free() == []
        s.stop(7)
        assert s.state() == (7, "stopping")
        assert a.dispatching.stopped == [work(7)]
        assert s.host.is_present(Dispatcher(0, 7))
        s.host.ended(Dispatcher(0, 7))
        assert s.state() is None
        assert a.dispatching.stopped == [work(7)], "told once"
        await s.host.stop()

    play_alone(tmp_path, story)


def test_C8_an_error_is_reported_and_makes_it_wait(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        s = await working(a)
        s.host.begin([0])
        error = FeedError(code="sink_transient", kind="retry")
        s.host.ended(Dispatcher(0, 7), error=error)
        assert s.host.free() == []
        s.host.receive(MAINTAINER, MaintainerPing(FEED, 5, 1.0), "alive")
        assert a.said(ManagerAnswer)[-1].changed[0].error == error
        await until(s.host.free)
        await s.host.stop()

    play_alone(tmp_path, story)


def test_P5_after_a_round_of_unknown_outcome_it_is_gone(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        s = await working(a)
        s.host.begin([0])
        s.host.unknown(Dispatcher(0, 7))
        assert s.state() is None
        assert a.dispatching.stopped == [work(7)]
        await s.host.stop()

    play_alone(tmp_path, story)


def test_D6_a_capture_that_is_not_alive_refuses(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        s = Story(a)
        s.liveness = "draining"
        s.start(7)
        assert s.state() is None
        assert [(r.id, r.epoch) for r in a.said(DispatcherRefused)] == [(0, 7)]
        assert not a.dispatching.prepared
        await s.host.stop()

    play_alone(tmp_path, story)


def test_C8_what_the_coordinator_does_not_run_is_stopped(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        s = await working(a)
        s.host.tick(View(1, 1, running={FEED: 5}, epochs_upto=5), "alive")
        assert s.state() == (7, "working")
        s.host.tick(View(1, 2, epochs_upto=5), "alive")
        assert s.state() is None
        assert a.dispatching.stopped == [work(7)]
        await s.host.stop()

    play_alone(tmp_path, story)


def test_a_host_that_ends_in_the_middle_of_a_take_over_leaves_no_task(tmp_path: Path) -> None:
    async def story(a: Alone) -> None:
        s, begun = Story(a), asyncio.Event()

        async def start(work: Work, rounds: Rounds) -> bool:
            begun.set()
            await asyncio.get_running_loop().create_future()
            return True

        a.dispatching.start = start  # type: ignore[method-assign]
        s.start(7)
        await begun.wait()
        await s.host.stop()
        assert a.dispatching.stopped == [work(7)]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    play_alone(tmp_path, story)


