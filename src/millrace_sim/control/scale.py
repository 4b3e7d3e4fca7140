"""One changefeed with very many dispatchers, no faults: what a pass of its maintainer costs [C5].

`python -m millrace_sim.control.scale [--json]` prints the figures. Messages are delivered at once; the managers are the
product's, their take-overs succeed.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from millrace.core.feeds.checkpoint import Committed
from millrace.core.feeds.effects import CommitDdl, FeedEffect, Send, TakeDdl, TakeOver
from millrace.core.feeds.maintainer import Maintainer
from millrace.core.feeds.manager import Manager
from millrace.core.feeds.office import FeedState
from millrace.core.feeds.states import Health
from millrace.model.changefeeds import DdlPosition, FeedRecords, decode_feed, encode_record
from millrace.model.feed_messages import MaintainerPing, PrepareDispatcher, StartDispatcher, StopDispatcher, View
from millrace.model.spans import Dispatcher, TableId, TablePartition

SESSION_S = 6.0
FEED = "wide"


class Figures(NamedTuple):
    """CPU seconds of single passes; `placing`: all passes until every dispatcher works."""

    dispatchers: int
    captures: int
    replay_s: float
    first_pass_s: float
    longest_pass_s: float
    placing_s: float
    passes: int
    idle_pass_s: float
    one_change_s: float
    lost_capture_s: float
    checkpoint_s: float
    memory_mib: float

    def __str__(self) -> str:
        return (
            f"{self.dispatchers} dispatchers on {self.captures} captures: first pass {self.first_pass_s:.3f} s, "
            f"longest {self.longest_pass_s:.3f} s, all working after {self.passes} passes and {self.placing_s:.2f} s; "
            f"idle pass {self.idle_pass_s * 1000:.2f} ms, after one change {self.one_change_s * 1000:.2f} ms, after a "
            f"lost capture {self.lost_capture_s:.3f} s; checkpoint {self.checkpoint_s * 1000:.1f} ms; replay "
            f"{self.replay_s:.2f} s; {self.memory_mib:.0f} MiB")


class Wide:
    def __init__(self, captures: int, dispatchers: int) -> None:
        self.now = 0.0
        self.tables = {TableId("shop", oid): 1 for oid in range(dispatchers)}
        self.managers = {n: Manager(FEED, n, 1, session_s=SESSION_S) for n in range(captures)}
        self.records: list[bytes] = []
        self.machine = self.maintainer(FeedState(), 1)
        self.silent: set[int] = set()

    def maintainer(self, state: FeedState, epoch: int) -> Maintainer:
        machine = Maintainer(
            FEED, state, capture=0, epoch=epoch, now=self.now, session_s=SESSION_S, tables=self.tables, health=Health())
        names = tuple(self.managers)
        machine.on_view(View(1, epoch, tuple((n, 1) for n in names), names, {FEED: epoch}, (), epoch))
        return machine

    def one_pass(self) -> float:
        """CPU seconds of deciding, replaying and making commands; pings, answers and bytes are not in it."""
        machine = self.machine
        self.now += 0.5
        for send in machine.pings(self.now):
            assert isinstance(send.message, MaintainerPing)
            if send.to not in self.silent:
                for answer in self.managers[send.to].on_ping(0, send.message):
                    assert isinstance(answer, Send)
                    machine.on_answer(answer.message)  # type: ignore[arg-type]
        started = time.process_time()
        records = machine.decide(self.now)
        for record in records:
            machine.replay(record)
        effects = machine.effects(self.now)
        took_s = time.process_time() - started
        self.records += [encode_record(record) for record in records]
        for effect in effects:
            self._do(effect)
        return took_s

    def _do(self, effect: FeedEffect) -> None:
        machine = self.machine
        match effect:
            case TakeDdl():
                machine.ddl_taken(DdlPosition(effect.epoch), (), self.now)
                positions = {TablePartition(table, 0): Committed(0, 0) for table in self.tables}
                machine.on_mark(1, {}, full=True)
                machine.on_positions(positions)
            case CommitDdl():
                machine.ddl_committed(effect, self.now)
            case Send() if effect.to not in self.silent:
                self._command(effect)

    def _command(self, send: Send) -> None:
        manager, message = self.managers[send.to], send.message
        match message:
            case PrepareDispatcher():
                manager.on_prepare(self.now, 0, message)
            case StartDispatcher():
                for effect in manager.on_start(self.now, 0, message):
                    assert isinstance(effect, TakeOver)
                    manager.taken(effect.id, effect.epoch, ok=True)
            case StopDispatcher():
                manager.on_stop(0, message)

    @property
    def working(self) -> bool:
        placing = self.machine.placing
        return self.machine.ready and not placing.operators and not placing.absent and bool(placing.state.spans)


def measure(captures: int = 100, dispatchers: int = 100_000) -> Figures:
    world = Wide(captures, dispatchers)
    times: list[float] = []
    while not world.working:
        times.append(world.one_pass())
        assert len(times) < 200, "placing does not come to an end"
    assert {len(m.held) for m in world.managers.values()} == {dispatchers // captures}, "loads are equal"
    while world.machine.placing.dirty:
        world.one_pass()
    idle_s = min(world.one_pass() for _ in range(3))
    one_change_s = _one_change(world)
    checkpoint_s = _timed(world.machine.done_upto)
    lost_s = _lost_capture(world)
    replay_s = _replay(world)
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Figures(
        dispatchers, captures, replay_s, times[0], max(times), sum(times), len(times), idle_s,
        one_change_s, lost_s, checkpoint_s, memory_mib)


def _one_change(world: Wide) -> float:
    """One dispatcher is gone: the pass that finds out and places it again."""
    manager = world.managers[1]
    span_id = next(iter(manager.held))
    manager.unknown(Dispatcher(span_id, manager.held[span_id].epoch))
    longest = max(world.one_pass() for _ in range(4))
    assert world.working
    return longest


def _lost_capture(world: Wide) -> float:
    """A capture falls silent: its dispatchers are placed on the others."""
    world.silent.add(2)
    longest = max(world.one_pass() for _ in range(int(SESSION_S / 0.5) + 6))
    assert world.working
    assert not world.machine.state.by_capture[2]
    return longest


def _replay(world: Wide) -> float:
    state = FeedState()
    records: list[FeedRecords] = [decode_feed(record) for record in world.records]

    def replay() -> None:
        for record in records:
            state.replay(record)
        world.maintainer(state, 2)

    return _timed(replay)


def _timed(do: Callable[[], object]) -> float:
    started = time.process_time()
    do()
    return time.process_time() - started


if __name__ == "__main__":
    figures = measure()
    print(json.dumps(figures._asdict()) if "--json" in sys.argv else figures)
