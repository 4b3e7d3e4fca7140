"""The shells of a simulated capture: one maintainer each, one dispatcher manager each.

A maintainer's host writes what its machine decides and carries out its effects; a manager's host runs take-overs and
rounds. What they have under way goes on in the world whatever becomes of their capture.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millrace.core.feeds import rewinding
from millrace.core.feeds.barrier import SchemaChange
from millrace.core.feeds.effects import (
    BeginTable,
    ClosePositions,
    CommitDdl,
    FailFeed,
    FeedEffect,
    GiveUp,
    Send,
    TakeDdl,
    TakeOver,
    WriteChange,
)
from millrace.core.feeds.feeds import office
from millrace.core.feeds.maintainer import Maintainer
from millrace.core.feeds.manager import Manager
from millrace.core.feeds.office import FeedState
from millrace.core.feeds.states import Health, classify
from millrace.errors import InvalidRequest, Refused
from millrace.model.changefeeds import DdlPosition, FeedError, FeedRecords, decode_feed, encode_record
from millrace.model.feed_messages import FeedFailing
from millrace.model.spans import Dispatcher, SpanId, TableId, TablePartition
from millrace_sim.control.rules import Spec

if TYPE_CHECKING:
    from millrace_sim.control.capture import Capture

SESSION_S = 6.0
Task = tuple[Dispatcher, TablePartition, int, int, int]          # whose, where, from, to, skip below


class StoreLost(Exception):
    """The store did not answer, or said no: whether the write stands is for the next reader."""


class MaintainerHost:
    def __init__(self, capture: Capture, feed: str, epoch: int) -> None:
        self.capture, self.world, self.feed, self.epoch = capture, capture.world, feed, epoch
        self.data = self.world.data[feed]
        self.broken = self.world.chance(self.world.faults.broken)       # its bootstrap never comes to an end
        self.ended = False
        self.wish: tuple[int, int] | None = None                        # a move that somebody asks for
        self.load()

    def load(self) -> None:
        """Everything that stands in the office, replayed."""
        world, state = self.world, FeedState()
        records = world.store.office(office(self.feed)).records
        for record in records:
            state.replay(decode_feed(record))
        self.index = len(records)
        entry = world.entry(self.feed)
        self.spec = Spec(entry.spec) if entry is not None else self.data.rules.now
        rewind = rewinding.due(state, entry, flaws=world.flaws) if entry is not None else None
        self.rewinding = Rewinding(self, rewind) if rewind is not None else None
        tables = {table: count for table, count in self.data.first_tables.items() if self.spec.takes(table)}
        self.machine = Maintainer(
            self.feed, state, capture=self.capture.id, epoch=self.epoch, now=world.now,
            session_s=SESSION_S, tables=tables, health=Health(), spec=self.spec.spec,
            changed=self.spec.changed(state.spec, self.data.tables), flaws=world.flaws)
        if self.rewinding is None:
            self.data.kept.register(self.epoch)

    @property
    def ready(self) -> bool:
        return self.machine.ready

    def tick(self) -> None:
        world, machine = self.world, self.machine
        if self.capture.member.view is not None:
            machine.on_view(self.capture.member.view)
        for send in machine.pings(world.now):
            world.send(self.capture.id, send)
        if self.broken or not self.capture.reaches_store():
            return
        if self.rewinding is not None:
            self.rewinding.step()
            return
        for gone in world.proved_gone():
            machine.sight.hearing.proved_gone(*gone)
        if world.healed or world.rng.random() < 0.8:                    # else what is read of the log is old
            for change in self.spec.told(self.data.known_changes()):
                machine.on_change(change)
            machine.on_mark(self.data.available, self.data.ends(), full=True)
            machine.on_positions(self.data.positions(self.spec.takes))
            self._tell_kept(machine)
        records = machine.decide(world.now) + self._wished()
        if records and not self.write(records):
            return
        for record in records:
            machine.replay(record)
        for effect in machine.effects(world.now):
            self._do(effect)

    def _tell_kept(self, machine: Maintainer) -> None:
        kept = self.data.kept
        kept.look(self.epoch)
        for table in filter(self.spec.takes, kept.lost()):
            machine.releasing.lost(table, "the log was cut", 0)
        for table in machine.state.needs:
            machine.releasing.based(table, kept.base(table))

    def _wished(self) -> list[FeedRecords]:
        wish, self.wish = self.wish, None
        spans = sorted(self.machine.state.spans)
        if wish is None or not self.machine.ready or not spans:
            return []
        try:
            return [self.machine.placing.move(spans[wish[0] % len(spans)], wish[1], self.world.now)]
        except InvalidRequest:
            return []

    def write(self, records: list[FeedRecords]) -> bool:
        """False: the machine is another now."""
        try:
            self.capture.append(
                office(self.feed), self.epoch, self.index, [encode_record(record) for record in records])
        except StoreLost:
            if self.world.store.office(office(self.feed)).token != self.epoch and "token" not in self.world.flaws:
                self.ended = True
            else:
                self.load()
            return False
        self.index += len(records)
        return True

    # -- effects ---------------------------------------------------------------------------------------------------
    def _do(self, effect: FeedEffect) -> None:
        world = self.world
        match effect:
            case Send():
                world.send(self.capture.id, effect)
            case GiveUp():
                self.ended = True
            case FailFeed():
                world.tell_coordinator(self.capture.id, FeedFailing(self.feed, self.epoch, effect.error))
            case TakeDdl() | WriteChange() | CommitDdl() | ClosePositions() | BeginTable():
                slow = world.chance(0.2)                                 # passes go by before it lands
                world.after(world.rng.uniform(0.5, 2.5) if slow else world.short(), self._land, self.machine, effect)

    def _land(
        self, machine: Maintainer, effect: TakeDdl | WriteChange | CommitDdl | ClosePositions | BeginTable
    ) -> None:
        """It takes effect, or is refused, wherever its maintainer is by now; then the answer travels back."""
        world, data = self.world, self.data
        world.note(f"{self.feed} maintainer {self.epoch}: {effect}")
        match effect:
            case TakeDdl():
                data.use_epoch(effect.epoch, ("ddl", self.capture.id, self.capture.incarnation, self.epoch))
                position = data.take_ddl(effect.epoch)
                written = [(table, number) for table, numbers in data.applied.items() for number in numbers]
                if position is None:
                    self._answer(machine, machine.overtaken)
                else:
                    changes = self.spec.told(data.known_changes())
                    self._answer(machine, self._taken, machine, changes, position, written)
            case WriteChange():
                if data.apply(effect.table, effect.change, effect.epoch):
                    self._answer(machine, machine.ddl.change_written, effect, world.now)
                else:
                    self._answer(machine, machine.ddl.unknown)
            case BeginTable():
                begun = None
                if effect.epoch >= data.ddl_fence:
                    begun = data.kept.begin(effect.table, effect.made, effect.number)
                if begun is None:
                    self._answer(machine, machine.ddl.unknown)
                else:
                    world.count["table begun"] += begun
                    self._answer(machine, partial(machine.table_begun, ok=begun), effect, world.now)
            case CommitDdl():
                if data.commit_ddl(effect.expected, effect.wanted):
                    self._count_isolation(effect)
                    self._answer(machine, machine.ddl_committed, effect, world.now)
                else:
                    self._answer(machine, machine.ddl.unknown)
            case ClosePositions():
                ok = data.raise_epoch(effect.span.parts, effect.epoch) or all(
                    data.epochs[part] == effect.epoch for part in effect.span.parts)
                if ok:
                    data.fence_and_scan(effect.span.parts, effect.epoch)
                    if effect.forget:
                        data.forget(effect.span.parts, effect.epoch)
                self.capture.later(world.short(), lambda: machine.closed(effect, ok=ok))

    def _taken(
        self, machine: Maintainer, changes: list[SchemaChange], position: DdlPosition,
        written: list[tuple[TableId, int]],
    ) -> None:
        """Everything that a former maintainer can have read is read by then, as the real home promises."""
        for change in changes:
            machine.on_change(change)
        machine.ddl_taken(position, written, self.world.now)

    def _count_isolation(self, effect: CommitDdl) -> None:
        before, after = dict(effect.expected.isolated), dict(effect.wanted.isolated)
        self.world.count["isolated"] += len(after.keys() - before.keys())
        self.world.count["rejoined"] += len(before.keys() - after.keys())

    def _answer(self, machine: Maintainer, do: object, *arguments: object) -> None:
        assert callable(do)
        if self.world.chance(self.world.faults.ddl_unknown):
            self.capture.later(1.0, machine.ddl.unknown)
        else:
            self.capture.later(self.world.short(), lambda: do(*arguments))


class Rewinding:
    """A maintainer that must do a wish for another position first. Positions are closed one by one, then made anew one
    by one: somewhere on the way its process may die, or stop and go on when another one has done it."""

    def __init__(self, host: MaintainerHost, rewind: rewinding.Rewind) -> None:
        self.host, self.rewind = host, rewind
        self._steps = ["close", "make"]                                  # to be begun
        self._left, self._refused = 0, False

    def step(self) -> None:
        rewind, host = self.rewind, self.host
        if self._refused:                                               # somebody else is at work: what stands is read
            host.load()
        elif self._left or (len(self._steps) == 2 and not host.write([rewind.begun])):
            return
        elif self._steps:
            parts, step = (*host.data.log, None), self._steps.pop(0)
            self._left = len(parts)
            for part in parts:
                host.world.after(host.world.short() * 2, self._land, step, part)
        elif host.write([rewind.done]):
            host.world.count["rewound"] += 1
            host.load()

    def _land(self, step: str, part: TablePartition | None) -> None:
        """It takes effect, or is refused, wherever its maintainer is by now; then the answer travels back."""
        rewind, data = self.rewind, self.host.data
        if step == "close":
            ok = data.close(part, rewind.epoch)
        else:
            ok = data.rewind(part, rewind.done.lsn, rewind.done.rewind, rewind.epoch)
        self.host.capture.later(self.host.world.short(), lambda: self._landed(ok=ok))

    def _landed(self, *, ok: bool) -> None:
        self._left -= 1
        self._refused = self._refused or not ok


class ManagerHost:
    def __init__(self, capture: Capture, feed: str) -> None:
        self.capture, self.world, self.feed = capture, capture.world, feed
        self.data = self.world.data[feed]
        self.machine = Manager(feed, capture.id, capture.incarnation, session_s=SESSION_S, flaws=self.world.flaws)
        self.skip: dict[Dispatcher, dict[TablePartition, int]] = {}
        self.settings: dict[Dispatcher, str] = {}                        # as they were when it was started
        self.rounds = 0                                                  # under way

    # -- take-overs
    def do(self, effects: list[FeedEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.world.send(self.capture.id, effect)
            elif isinstance(effect, TakeOver):
                self.world.after(self.world.short(), self._raise_epoch, effect)

    def _raise_epoch(self, effect: TakeOver) -> None:
        """First the epoch; fence and scan come later, and others may come between [V11]."""
        parts = effect.span.parts
        if not self._describe(effect):
            self.capture.later(0.0, lambda: self.machine.taken(effect.id, effect.epoch, ok=False))
        elif self.data.raise_epoch(parts, effect.epoch):
            self.data.use_epoch(effect.epoch, (effect.id, self.capture.id, self.capture.incarnation))
            self.world.after(self.world.short(), self._fence, effect)
        else:
            self.capture.later(0.0, lambda: self.machine.taken(effect.id, effect.epoch, ok=False))

    def _describe(self, effect: TakeOver) -> bool:
        """Its settings; False: they are not settled."""
        entry = self.world.entry(self.feed)
        try:
            spec = entry.spec_for(effect.maintainer, flaws=self.world.flaws) if entry is not None else None
        except Refused:
            return False
        if spec is not None:
            self.settings[Dispatcher(effect.id, effect.epoch)] = Spec(spec).settings(effect.span.table)
        return True

    def _fence(self, effect: TakeOver) -> None:
        found = self.data.fence_and_scan(effect.span.parts, effect.epoch)
        self.capture.later(self.world.short(), lambda: self._taken(effect, found))

    def _taken(self, effect: TakeOver, found: dict[TablePartition, int]) -> None:
        self.skip[Dispatcher(effect.id, effect.epoch)] = found
        self.machine.taken(effect.id, effect.epoch, ok=True)

    # -- rounds
    def tick(self) -> None:
        machine = self.machine
        machine.liveness = self.capture.member.liveness
        machine.tick(self.world.now, self.capture.member.view)
        for span_id, held in list(machine.held.items()):
            machine.overtaken(span_id, max(self.data.epochs[part] for part in held.span.parts))
        if self.rounds == 0:
            self._begin_round()

    def _begin_round(self) -> None:
        machine, data, tasks, world = self.machine, self.data, list[Task](), self.world
        for span_id in machine.free(world.now):
            held = machine.held[span_id]
            dispatcher = Dispatcher(span_id, held.epoch)
            for part in held.span.parts:
                start = data.next[part]
                if start < data.kept.start[part]:                        # gone: nobody skips it
                    if "released_goes_on" not in world.flaws:
                        continue
                    start = data.kept.start[part]
                end = data.end_of_round(part, start)
                if end > start:
                    tasks.append((dispatcher, part, start, end, self.skip[dispatcher].get(part, 0)))
        if not tasks:
            return
        self.rounds += 1
        machine.begin_round(dict.fromkeys(task[0].span for task in tasks))
        long = world.chance(world.faults.zombie)
        took_s = world.rng.uniform(0.05, 8.0 if long else 1.0)
        world.after(took_s, self._run, tasks)

    def _run(self, tasks: list[Task]) -> None:
        """The tasks, on Spark: they write whatever became of their capture. A failed one has written a prefix."""
        world, failed, reached = self.world, dict[Dispatcher, str](), dict[TablePartition, int]()
        for dispatcher, part, start, end, skip in tasks:
            sick = part.table in world.sick or self.feed in world.denied
            if sick or dispatcher in failed or world.chance(world.faults.round_fails):
                refused = "sink_denied" if self.feed in world.denied else "schema_refused"
                failed.setdefault(dispatcher, refused if sick else "sink_transient")
                end = start if sick else world.rng.randint(start, end)
            self.data.write(part, dispatcher.epoch, max(start, skip), end)
            reached[part] = max(end, skip)
        unknown = {task[0] for task in tasks if world.chance(world.faults.round_unknown)}
        self.capture.later(world.short(), lambda: self._ended(tasks, failed, reached, unknown))

    def _ended(
        self, tasks: list[Task], failed: dict[Dispatcher, str], reached: dict[TablePartition, int],
        unknown: set[Dispatcher],
    ) -> None:
        self.rounds -= 1
        machine, world = self.machine, self.world
        for dispatcher, part, start, end, _ in tasks:
            if not machine.is_present(dispatcher) or dispatcher in unknown:
                continue
            if dispatcher in failed:
                self.skip[dispatcher][part] = reached[part]
            else:
                self.data.commit(part, dispatcher.epoch, start, end)
        for dispatcher, part in {task[0]: task[1] for task in tasks}.items():
            if dispatcher in unknown:
                machine.unknown(dispatcher)
                continue
            error = self._error(dispatcher.span, part, failed[dispatcher]) if dispatcher in failed else None
            machine.round_ended(world.now, dispatcher, error=error, jitter=world.rng.random())

    def _error(self, span_id: SpanId, part: TablePartition, code: str) -> FeedError:
        return FeedError(
            code=code, kind=classify(code, "isolate"), table=part.table, span=span_id, capture=self.capture.id,
            first_ms=int(self.world.now * 1000), last_ms=int(self.world.now * 1000))
