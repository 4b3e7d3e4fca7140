"""The controller's shell in a broker of the simulated world: candidate or holder of the office.

Decide, write, replay, answer; one write at a time. A write without an answer may stand, or may land yet: it is sent
again until the store says which, and nothing is decided or answered before. (Reading the store instead would show it
missing while it is still on its way: a broker would be told that it is not fenced, and be fenced a moment later.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from millrace.core import balance, election, floor_calls
from millrace.core.cluster import ClusterState
from millrace.core.decision import Decision
from millrace.core.sessions import Sessions
from millrace.core.tenure import Tenure
from millrace.errors import MillraceError
from millrace.model.ids import TopicPartition
from millrace.model.messages import (
    AdvanceLogStarts,
    AlterIsr,
    AskFloors,
    FloorsAnswer,
    Heartbeat,
    Message,
    MetadataPoll,
    MetadataRecords,
    RaiseEpoch,
    Register,
    RemoteError,
)
from millrace.model.records import BrokerFenced, ControllerRecord
from millrace_sim.machines import store
from millrace_sim.machines.wire import STORE, Call, Reply

if TYPE_CHECKING:
    from millrace_sim.machines.node import Node

Decide = Callable[[], Decision[Message] | Decision[None]]


class Task(NamedTuple):
    """`src` -1: the controller's own idea, nobody waits for an answer."""

    decide: Decide
    src: int = -1
    call_id: int = -1


class Office:
    def __init__(self, node: Node) -> None:
        self.node = node
        times = node.world.times
        self.tenure = Tenure(tenure_s=times.tenure_s, renew_s=times.renew_s, drift=times.drift)
        self.sessions = Sessions(session_s=times.session_s, lease_s=times.lease_s, drift=times.drift)
        self.balance = balance.Balance(times.balance_s)
        self.state: ClusterState | None = None
        self.leos: dict[TopicPartition, dict[int, int]] = {}
        self._tasks: deque[Task] = deque()
        self._writing: tuple[int, Task, Decision[Message] | Decision[None]] | None = None
        self._reading = -1
        self._waiting_since = 0.0
        self._pollers: dict[int, tuple[int, int]] = {}
        self._asked_at = -1e9

    @property
    def active(self) -> bool:
        """Every answer needs this: past our tenure the store may have let another in."""
        return self.state is not None and self.tenure.valid(self.node.clock())

    def tick(self, now: float) -> None:
        times = self.node.world.times
        if self.tenure.holding and not self.tenure.valid(now):
            self._step_down(now)
        if self.tenure.due(now) and now - self._asked_at >= times.renew_s / 2:
            self._asked_at = now
            if self.tenure.holding:
                self._ask(store.Renew(self.tenure.token, now))
            else:
                self._ask(store.Acquire(self.node.id, now))
        if self._waits() and now - self._waiting_since > times.store_s:
            self._ask_again(now)
        if self.active and not self._waits():
            for broker in self.sessions.silent(now):
                self._tasks.append(Task(lambda b=broker: self._fence_silent(b)))  # type: ignore[misc]
            self._balance(now)
            self._pump()

    def _ask(self, call: store.Call) -> None:
        self.node.world.send(self.node.id, STORE, call)

    def _waits(self) -> bool:
        return self._writing is not None or self._reading >= 0

    def _ask_again(self, now: float) -> None:
        if self._writing is None:
            self._read(now)
        else:
            self._waiting_since = now
            self._append(*self._writing)

    def _read(self, now: float) -> None:
        self._writing = None
        self._reading = self.node.world.next_id()
        self._waiting_since = now
        self._ask(store.Read(self.state.index if self.state is not None else 0, self._reading))

    def _step_down(self, now: float) -> None:
        self.tenure.lost(now, again_in_s=self.node.world.times.renew_s)
        self.state = None
        self._tasks.clear()
        self._pollers.clear()
        self._writing, self._reading = None, -1

    # -- the store's answers ------------------------------------------------------------------------------------------

    def on_store(self, m: object) -> None:
        now = self.node.clock()
        if isinstance(m, store.Held):
            if not self.tenure.holding:  # else an old answer that was overtaken
                self.node.controller = m.holder
                self.tenure.held_by_other(now, again_in_s=self.node.world.times.renew_s)
        elif isinstance(m, store.Won):
            if not self.tenure.holding and m.token > self.tenure.token:
                self.tenure.won(m.sent_at, m.token)
                self.node.controller = self.node.id
                self.state = None
                self._read(now)
        elif isinstance(m, store.Renewed):
            self.tenure.renewed(m.sent_at)
        elif isinstance(m, store.DeposedAnswer):
            if self.tenure.holding and m.token == self.tenure.token:
                self._step_down(now)
        elif isinstance(m, store.Appended):
            self._appended(m)
        elif isinstance(m, store.Conflict):
            if self._writing is not None and self._writing[0] == m.append_id:
                self._read(now)  # an earlier copy of it stands
        elif isinstance(m, store.ReadDone):
            self._read_done(now, m)

    def _read_done(self, now: float, m: store.ReadDone) -> None:
        if m.read_id != self._reading or not self.tenure.holding:
            return
        self._reading = -1
        fresh = self.state is None
        state = self.state if self.state is not None else ClusterState()
        self.state = state
        self._replay(m.records)
        if fresh:
            self.leos = {}
            self.sessions.took_over(now, [b for b, known in state.brokers.items() if not known.fenced])
            self._tasks.append(Task(lambda: election.repair(state)))
        self._answer_pollers()
        self._pump()

    def _appended(self, m: store.Appended) -> None:
        if self._writing is None or self._writing[0] != m.append_id or self.state is None:
            return
        _, task, decision = self._writing
        self._writing = None
        self._replay(decision.records)
        if self.active:
            self._answer(task.src, task.call_id, decision.reply)
            self._answer_pollers()
            self.node.world.struck(self.node, "decided")
            self._pump()

    def _replay(self, records: tuple[ControllerRecord, ...]) -> None:
        assert self.state is not None
        for index, record in enumerate(records, self.state.index + 1):
            self.state.replay(index, record)
            if isinstance(record, BrokerFenced):
                self.sessions.forget(record.broker)  # not before the record stands: a lost write would be the last try

    # -- requests -----------------------------------------------------------------------------------------------------

    def on_call(self, src: int, call: Call) -> None:
        if not self.active:
            return
        m = call.message
        if isinstance(m, MetadataPoll):
            self._pollers[src] = (call.call_id, m.index)
            self._answer_poller(src)
            return
        if isinstance(m, Heartbeat):
            self._heard(m)
        self._tasks.append(Task(lambda: self._decide(m), src, call.call_id))
        self._pump()

    def _heard(self, m: Heartbeat) -> None:
        assert self.state is not None
        known = self.state.brokers.get(m.broker)
        if known is None or known.incarnation != m.incarnation:
            return
        self.sessions.heard(m.broker, self.node.clock())
        for report in m.changed:
            self.leos.setdefault(TopicPartition(report.topic_id, report.partition), {})[m.broker] = report.leo

    def _decide(self, m: Message) -> Decision[Message]:
        assert self.state is not None
        token, flaws = self.tenure.token, self.node.world.flaws
        if isinstance(m, Heartbeat):
            return election.heartbeat(self.state, m, token=token, flaws=flaws, leos=self.leos)
        if isinstance(m, AlterIsr):
            return election.alter_isr(self.state, m, token=token, flaws=flaws)
        if isinstance(m, Register):
            return election.register(self.state, m, token=token, flaws=flaws, leos=self.leos)
        if isinstance(m, AdvanceLogStarts):
            return floor_calls.advance(self.state, m, token=token, flaws=flaws)
        if isinstance(m, AskFloors):
            decision = floor_calls.decide(self.state, m.call)
            return Decision(decision.records, FloorsAnswer(token, decision.reply))
        assert isinstance(m, RaiseEpoch)
        return election.raise_epoch(self.state, m, token=token)

    def _fence_silent(self, broker: int) -> Decision[None]:
        assert self.state is not None
        if not self.sessions.is_silent(broker, self.node.clock()):
            return Decision((), None)
        return election.fence(self.state, broker, "silent", flaws=self.node.world.flaws, leos=self.leos)

    def _balance(self, now: float) -> None:
        state = self.state
        assert state is not None
        due = self.balance.due(state, now)
        if due:
            self._tasks.append(Task(lambda: balance.move(state, due)))

    def gone(self, broker: int, incarnation: int) -> None:
        """Proof that this incarnation's process no longer exists."""

        def decide() -> Decision[None]:
            assert self.state is not None
            known = self.state.brokers.get(broker)
            if known is None or known.incarnation != incarnation:
                return Decision((), None)
            return election.fence(self.state, broker, "gone", flaws=self.node.world.flaws, leos=self.leos)

        if self.active:
            self._tasks.append(Task(decide))
            self._pump()

    def propose(self, decide: Callable[[ClusterState], Decision[None]]) -> None:
        """A decision of the world itself: the topics it starts with."""
        state = self.state
        if self.active and state is not None:
            self._tasks.append(Task(lambda: decide(state)))
            self._pump()

    # -- decide, write, replay, answer --------------------------------------------------------------------------------

    def _pump(self) -> None:
        while self._tasks and not self._waits() and self.active:
            task = self._tasks.popleft()
            try:
                decision = task.decide()
            except MillraceError as error:
                self._answer(task.src, task.call_id, RemoteError(error.code, str(error)))
                continue
            if decision.records:
                self._write(task, decision)
            else:
                self._answer(task.src, task.call_id, decision.reply)

    def _write(self, task: Task, decision: Decision[Message] | Decision[None]) -> None:
        assert self.state is not None
        append_id = self.node.world.next_id()
        self._writing = (append_id, task, decision)
        self._waiting_since = self.node.clock()
        self._append(append_id, task, decision)

    def _append(self, append_id: int, _: Task, decision: Decision[Message] | Decision[None]) -> None:
        assert self.state is not None
        self._ask(store.Append(self.tenure.token, self.state.index, decision.records, append_id))

    def _answer(self, src: int, call_id: int, message: Message | None) -> None:
        if src >= 0 and message is not None:
            self.node.world.send(self.node.id, src, Reply(call_id, message))

    def _answer_pollers(self) -> None:
        for broker in list(self._pollers):
            self._answer_poller(broker)

    def _answer_poller(self, broker: int) -> None:
        assert self.state is not None
        call_id, index = self._pollers[broker]
        if index >= self.state.index:
            return
        del self._pollers[broker]
        records = tuple(self.node.world.store.records[index : self.state.index])
        answer = MetadataRecords(self.tenure.token, index, self.state.index, False, False, records)
        self._answer(broker, call_id, answer)
