"""What rounds, looks and fences say to the breaker of a sink, and what it does with dispatchers [V12, P5]."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from millrace import limits
from millrace.changefeed.dispatching.hosted import Hosted
from millrace.changefeed.dispatching.parts import Around, StreamPart
from millrace.changefeed.dispatching.plans import Sent
from millrace.changefeed.dispatching.sink_breaker import CODE, SinkBreaker, SinkTurns
from millrace.changefeed.feeds.ports import Work
from millrace.core.delivery.breaker import Pace
from millrace.core.delivery.failures import Whose
from millrace.core.delivery.rounds import Rounds
from millrace.errors import MillraceError, NotEnoughReplicas, Refused
from millrace.model.changefeeds import FeedError
from millrace.model.positions import Point
from millrace.model.rounds import WorkResult
from millrace.model.spans import Dispatcher, SpanId, TableId, whole
from millrace.model.writes import WriteResult
from millrace.ops.real import real_ports

TOPIC, FROM, TABLE = UUID(int=1), Point(5, 0), TableId("shop", 7)
WHY = "the time for sending is over: not_enough_replicas: 1 in sync, 2 needed"
MANY = range(limits.BREAKER_FAILED_MIN)


class Placer:
    """Whoever placed dispatchers (feeds.ports.Rounds): only who goes matters here."""

    def __init__(self) -> None:
        self.gone: list[Dispatcher] = []

    def free(self) -> list[Work]:
        return []

    def begin(self, span_ids: Iterable[SpanId]) -> tuple[Dispatcher, ...]:
        return ()

    def is_present(self, dispatcher: Dispatcher) -> bool:
        return dispatcher not in self.gone

    def ended(self, dispatcher: Dispatcher, *, error: FeedError | None = None) -> None: ...

    def unknown(self, dispatcher: Dispatcher) -> None:
        self.gone.append(dispatcher)


class World:
    """A breaker, and the clock of its changefeed: `now` of rounds, and the wall's."""

    def __init__(self, here: int = 100) -> None:
        self.now_s, self.here, self.woken = 10.0, here, 0
        self.decider, self.placer = Rounds(2), Placer()
        self.forgiven: list[frozenset[SpanId]] = []
        ports = replace(real_ports(), clock=self, random=self)
        self.breaker = SinkBreaker(
            "orders", ports, self.decider, Pace(), now=lambda: self.now_s, here=lambda: self.here,
            forgive=self._forgive, wake=self._wake)

    def now(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return 1_000.0 + self.now_s

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2

    def uuid(self) -> UUID:
        raise NotImplementedError

    def _forgive(self, spans: Collection[SpanId]) -> None:
        self.forgiven.append(frozenset(spans))

    def _wake(self) -> None:
        self.woken += 1

    def hosted(self, span: SpanId, *, ended: bool = False) -> Hosted:
        """`ended`: only a take-over can tell what its round did."""
        work = Work("orders", Dispatcher(span, 3), whole(TABLE, 1))
        around = Around(*cast(Any, (None, None, None)), work, SinkTurns(self.breaker, work.dispatcher), cast(Any, None))
        part = StreamPart(around, (TOPIC, "t"), 0)
        if ended:
            part.machine.refused(part.machine.wanted()[0], MillraceError("a result is lost"))
        return Hosted(work, self.placer, Whose(span, TABLE, "isolate"), *cast(Any, (None, None)), (part,))

    def heard(self, results: dict[SpanId, WorkResult], *, told: bool = True) -> frozenset[SpanId]:
        sent = dict.fromkeys((one.result.round for one in results.values()), Sent(*cast(Any, (None, None)), FROM))
        return self.breaker.heard({one.dispatcher: [one] for one in results.values()}, sent, told=told)

    def trip(self, spans: Iterable[SpanId] = MANY) -> None:
        self.heard({span: failed(span) for span in spans})
        assert self.breaker.is_open

    def probed(self, *ready: SpanId, under_way: bool = False) -> SpanId | None:
        self.now_s = max(self.now_s, self.breaker.machine.next_at())
        return self.breaker.probe(ready, lambda span: under_way)

    def close(self) -> None:
        self.heard({99: done(99)})
        assert not self.breaker.is_open


def failed(span: SpanId, error: str = WHY, **more: bool) -> WorkResult:
    return WorkResult(Dispatcher(span, 3), WriteResult(span + 1, "partial", FROM, error=error), **more)


def done(span: SpanId, rows: int = 1) -> WorkResult:
    return WorkResult(Dispatcher(span, 3), WriteResult(span + 1, "done", Point(9, 0), rows=rows))


def run(body: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        await body(World())

    asyncio.run(main())


# -- rounds ------------------------------------------------------------------------------------------------------------
def test_V12_a_job_whose_works_all_fail_by_the_sink_trips_it_and_nobody_is_blamed() -> None:
    world = World()
    (job,) = world.decider.start(10.0, dict.fromkeys(MANY, 1))
    world.decider.returned(job.number, now=11.0, failed=MANY)
    assert world.decider.alone == set(MANY)
    assert world.heard({span: failed(span) for span in MANY}) == set(MANY), "they are excused"
    assert (world.decider.alone, world.forgiven, world.woken) == (frozenset(), [frozenset(MANY)], 1)


def test_V12_an_outage_is_told_with_its_age_and_its_next_probe() -> None:
    world = World()
    assert world.breaker.outage() is None
    world.trip()
    world.now_s += 0.25
    told = world.breaker.outage()
    assert told is not None
    assert (told.error.code, told.error.kind, told.error.count) == (CODE, "retry", 1)
    assert told.error.message == f"the sink takes no writes: {WHY}"
    assert (told.error.first_ms, told.error.last_ms) == (1_010_000, 1_010_250)
    assert (told.age_s, told.probe_s) == (0.25, 0.5)
    assert world.probed(1) == 1
    told = world.breaker.outage()
    assert told is not None
    assert told.probe_s == 0.0, "it is under way"
    world.close()
    assert (world.breaker.outage(), world.woken) == (None, 2)


@pytest.mark.parametrize(("one", "told"), [
    ({"error": WHY}, False), ({"error": "ValueError: bad row"}, True), ({"unclaimed": True}, True),
    ({"untried": True}, True)], ids=["a lost job", "a fault of its own", "no claim", "not tried"])
def test_V12_what_says_nothing_of_the_sink_trips_nothing(one: dict[str, Any], told: bool) -> None:
    world = World()
    for _ in range(3):
        assert world.heard({span: failed(span, **one) for span in MANY}, told=told) == frozenset()
    assert not world.breaker.is_open


def test_V12_those_that_were_not_tried_did_not_run() -> None:
    world = World()
    tried = {span: failed(span) for span in MANY}
    assert world.heard(tried | {span: failed(span, untried=True) for span in range(20, 90)}) == set(MANY)


def test_V12_who_delivers_in_the_same_job_shows_that_the_sink_is_there() -> None:
    world = World()
    assert world.heard({span: failed(span) for span in MANY} | {99: done(99)}) == frozenset()
    assert not world.breaker.is_open


# -- probes ------------------------------------------------------------------------------------------------------------
def test_V12_one_probe_at_a_time_and_one_that_left_is_given_up() -> None:
    world = World()
    world.trip()
    assert world.breaker.probe([1, 50], lambda span: False) is None, "not before its time"
    assert world.probed(1, 50) == 50, "one that was not stopped by the outage"
    assert world.probed(1, 50) == 50, "while it has not begun"
    assert world.probed(1, under_way=True) is None
    assert world.probed(1) is None, "it left: the next one after a wait"
    assert world.probed(1) == 1


def test_P7_V12_passes_come_when_a_probe_is_due_and_not_all_the_time_while_it_runs_or_nobody_is_there() -> None:
    world = World()
    world.trip()
    assert world.breaker.wait_s() == 0.75
    world.now_s += 0.75
    assert world.probed() is None
    assert world.breaker.wait_s() == limits.BREAKER_PROBE_MIN_S
    assert world.probed(1) == 1
    world.now_s += 5.0
    assert world.breaker.wait_s() == limits.BREAKER_PROBE_MIN_S


def test_V12_a_look_of_the_probe_that_fails_is_no_error_of_its_own() -> None:
    world = World()
    assert not world.breaker.look_failed(1, WHY)
    world.trip()
    assert world.probed(1) == 1
    assert world.breaker.look_failed(1, WHY)
    assert world.breaker.machine.probing is None


# -- who would go ------------------------------------------------------------------------------------------------------
def test_V12_P5_who_must_be_taken_over_stays_until_the_sink_takes_writes() -> None:
    async def body(world: World) -> None:
        in_doubt, well, stopped = world.hosted(1, ended=True), world.hosted(2), world.hosted(3, ended=True)
        stopped.stopped = True
        assert not world.breaker.keep(in_doubt), "there is no outage"
        world.trip()
        assert [world.breaker.keep(one) for one in (in_doubt, well, stopped)] == [True, False, False]
        assert world.placer.gone == []
        world.close()
        assert world.placer.gone == [in_doubt.dispatcher]

    run(body)


def test_V12_where_nobody_is_ready_one_of_those_kept_is_placed_again_and_has_its_time() -> None:
    async def body(world: World) -> None:
        world.trip()
        for span in (1, 2):
            assert world.breaker.keep(world.hosted(span, ended=True))
        assert world.probed() is None
        assert world.placer.gone == [Dispatcher(1, 3)]
        world.now_s += limits.BREAKER_RELEASED_S - 1.0
        assert (world.probed(), world.breaker.machine.probing) == (None, 1)
        world.now_s += 1.0
        assert (world.probed(), world.breaker.machine.probing) == (None, None)
        assert world.probed() is None
        assert world.placer.gone == [Dispatcher(1, 3), Dispatcher(2, 3)]

    run(body)


def test_V12_who_is_kept_and_stopped_goes_at_once() -> None:
    async def body(world: World) -> None:
        world.trip()
        hosted = world.hosted(1, ended=True)
        assert world.breaker.keep(hosted)
        world.breaker.left(Dispatcher(1, 2))
        assert world.placer.gone == [], "an older one of that span"
        world.breaker.left(hosted.dispatcher)
        assert world.placer.gone == [hosted.dispatcher]

    run(body)


# -- take-overs --------------------------------------------------------------------------------------------------------
class Fencing:
    """A part of a dispatcher's take-over, as far as its turn."""

    def __init__(self, world: World, span: SpanId) -> None:
        self.turns, self.has_begun, self.may_end = SinkTurns(world.breaker, Dispatcher(span, 3)), False, asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.turns.fencing():
            self.has_begun = True
            await self.may_end.wait()

    async def end(self, error: MillraceError | None = None) -> None:
        self.may_end.set()
        await self.task
        if error is None:
            self.turns.took()
        else:
            self.turns.refused(error)


async def fencing(world: World, *spans: SpanId) -> list[Fencing]:
    made = [Fencing(world, span) for span in spans]
    await settled()
    return made


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


REFUSED = NotEnoughReplicas("1 in sync, 3 needed")


def test_V12_fences_that_are_refused_before_anybody_ran_trip_it() -> None:
    async def body(world: World) -> None:
        ones = await fencing(world, *MANY)
        assert all(one.has_begun for one in ones), "nobody waits while it is closed"
        for one in ones:
            assert not world.breaker.is_open
            await one.end(REFUSED)
        told = world.breaker.outage()
        assert told is not None
        assert "not_enough_replicas: 1 in sync, 3 needed" in told.error.message
        assert world.woken == 1, "somebody must look when the probe is due"

    run(body)


def test_V12_all_of_a_small_changefeed_that_are_refused_trip_it() -> None:
    async def body(world: World) -> None:
        world.here = 2
        for span in (1, 2):
            assert not world.breaker.is_open
            for part in await fencing(world, span, span):
                await part.end(REFUSED)
        assert world.breaker.is_open

    run(body)


def test_V12_parts_of_one_dispatcher_that_are_refused_together_are_one_failure() -> None:
    async def body(world: World) -> None:
        world.here = 1
        for part in await fencing(world, 1, 1):
            await part.end(REFUSED)
        assert not world.breaker.is_open, "once may be an accident"

    run(body)


def test_V12_a_fence_that_waiting_does_not_mend_says_nothing_of_the_sink() -> None:
    async def body(world: World) -> None:
        for one in await fencing(world, *MANY):
            await one.end(MillraceError("no such thing"))
        assert not world.breaker.is_open

    run(body)


def test_V12_fences_that_stand_between_refusals_are_no_outage() -> None:
    async def body(world: World) -> None:
        for span in range(3 * len(MANY)):
            (one,) = await fencing(world, span)
            await one.end(REFUSED if span % 4 else None)
        assert not world.breaker.is_open

    run(body)


def test_V12_take_overs_wait_while_it_is_open_one_probes_and_all_go_on_together() -> None:
    async def body(world: World) -> None:
        world.trip()
        ones = dict(zip((20, 21, 22), await fencing(world, 20, 21, 22), strict=True))

        def begun() -> list[SpanId]:
            return [span for span, one in ones.items() if one.has_begun]

        assert (begun(), world.woken) == ([], 4), "somebody may have waited for one that probes"
        assert world.probed() is None
        await settled()
        assert (begun(), world.breaker.machine.probing) == ([20], 20)
        world.now_s += 10 * limits.BREAKER_RELEASED_S
        assert (world.probed(), world.breaker.machine.probing) == (None, 20), "it is under way, however long"
        await ones[20].end(REFUSED)
        assert world.breaker.machine.probing is None
        assert world.probed() is None
        await settled()
        assert begun() == [20, 21], "another one"
        await ones[21].end()
        await settled()
        assert (begun(), world.breaker.is_open) == ([20, 21, 22], False)
        await ones[22].end()

    run(body)


def test_V12_whoever_is_placed_again_as_the_probe_does_not_wait() -> None:
    async def body(world: World) -> None:
        world.trip()
        assert world.breaker.keep(world.hosted(1, ended=True))
        assert world.probed() is None
        (again,) = await fencing(world, 1)
        assert again.has_begun
        await again.end()
        assert not world.breaker.is_open

    run(body)


def test_V12_who_has_work_probes_before_a_take_over_does() -> None:
    async def body(world: World) -> None:
        world.trip()
        (one,) = await fencing(world, 20)
        assert world.probed(3) == 3
        assert not one.has_begun
        world.breaker.left(Dispatcher(20, 3))
        await one.end(Refused("stopped"))
        assert one.has_begun, "who is stopped waits for nothing"

    run(body)


def test_a_take_over_that_is_given_up_while_it_waits_leaves_nothing() -> None:
    async def body(world: World) -> None:
        world.trip()
        (one,) = await fencing(world, 20)
        one.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one.task
        assert world.breaker._waiting == {}
        assert (world.probed(), world.breaker.machine.probing) == (None, None)

    run(body)
