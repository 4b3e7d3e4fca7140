"""[L8, L12, L13, L18, L19] Any sequence of starts, fences, stops, lost directories, ISR changes and controllers that
die between two records: a candidate always has every acknowledged record, and no epoch has two leaders."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.core import admin, balance, election
from millrace.core.decision import Decision
from millrace.model.ids import NO_LEADER, TopicPartition
from millrace.model.messages import AlterConfigs, ConfigEdit, LeaveReplica, RaiseEpoch, Register
from millrace.model.records import PartitionChanged
from support_control import Control, register_message, violations

BROKERS = (1, 2, 3, 4)
brokers = st.sampled_from(BROKERS)
cuts = st.one_of(st.none(), st.integers(0, 4))


class Election(RuleBasedStateMachine):
    """Each replica holds a number of acknowledged records; an acknowledged write raises it on the whole ISR."""

    def __init__(self) -> None:
        super().__init__()
        self.c = Control()
        self.tps: list[TopicPartition] = []
        self.acked: dict[TopicPartition, int] = {}
        self.holds: dict[tuple[TopicPartition, int], int] = {}
        self.emptied: set[int] = set()                           # lost its directory, not registered since
        self.led: dict[tuple[TopicPartition, int], tuple[int, int]] = {}   # (partition, epoch) -> (broker, incarnation)
        self.directory = dict.fromkeys(BROKERS, 0)
        self.epochs: dict[TopicPartition, tuple[int, int]] = {}     # of the records checked so far
        self.checked = 0
        self.due: list[balance.Move] = []

    @initialize()
    def start(self) -> None:
        self.c.up(*BROKERS)
        for n, (replicas, minimum) in enumerate((
            ((1, 2, 3), "2"), ((2, 3, 4), "1"), ((3, 4, 1), "3"), ((4, 1), "1"), ((2,), "1"), ((1, 2, 3, 4), "2"),
        )):
            tp = self.c.assigned(replicas, name=f"t{n}", min_insync_replicas=minimum)
            self.tps.append(tp)
            self.acked[tp] = 0
            self.holds.update({(tp, broker): 0 for broker in replicas})
        self.note_leaders()

    def run(self, decision: Decision[Any], cut: int | None) -> None:
        """A controller that may die after `cut` records; the next one repairs, and may die too."""
        self.c.do(decision, upto=cut)
        self.note_leaders()
        if cut is not None and cut < len(decision.records):
            self.c.do(election.repair(self.c.state), upto=cut)
            self.c.do(election.repair(self.c.state))
            self.note_leaders()

    def note_leaders(self) -> None:
        for tp in self.tps:
            p = self.c.p(tp)
            if p.leader != NO_LEADER:
                now = (p.leader, self.c.state.brokers[p.leader].incarnation)
                assert self.led.setdefault((tp, p.leader_epoch), now) == now, "one leader and one start per epoch"

    # -- what happens --------------------------------------------------------------------------------------------------
    @rule(pick=st.integers(0, 5))
    def write(self, pick: int) -> None:
        """acks=all on the leader, if it can be."""
        tp = self.tps[pick]
        p = self.c.p(tp)
        runs = p.leader != NO_LEADER and not self.emptied & set(p.isr)     # who does not run acknowledges nothing
        if runs and len(p.isr) >= self.c.state.min_insync(tp.topic_id):
            self.acked[tp] += 1
            self.holds.update({(tp, broker): self.acked[tp] for broker in p.isr})

    @rule(broker=brokers, cut=cuts)
    def fence(self, broker: int, cut: int | None) -> None:
        self.run(election.fence(self.c.state, broker, "silent"), cut)

    @rule(broker=brokers, cut=cuts)
    def heartbeat(self, broker: int, cut: int | None) -> None:
        if broker not in self.emptied:
            self.run(election.heartbeat(self.c.state, self.c.heartbeat(broker)), cut)

    @rule(broker=brokers, cut=cuts)
    def stop(self, broker: int, cut: int | None) -> None:
        if broker not in self.emptied:
            self.run(election.heartbeat(self.c.state, self.c.heartbeat(broker, stopping=True)), cut)

    @rule(broker=brokers, cut=cuts)
    def restart(self, broker: int, cut: int | None) -> None:
        self.register(broker, cut)

    @rule(broker=brokers)
    def lose_directory(self, broker: int) -> None:
        self.emptied.add(broker)
        self.directory[broker] += 1
        for tp in self.tps:
            if (tp, broker) in self.holds:
                self.holds[tp, broker] = 0

    def register(self, broker: int, cut: int | None) -> None:
        self.c.starts += 1
        directory = 5000 + 10_000 * self.directory[broker] + broker if self.directory[broker] else 0
        message: Register = register_message(broker, self.c.starts, directory=directory)
        decision = election.register(self.c.state, message)
        self.run(decision, cut)
        if cut is not None and cut < len(decision.records):
            self.run(election.register(self.c.state, message), None)     # the process asks again
        self.emptied.discard(broker)

    @rule(pick=st.integers(0, 5), wanted=st.sets(brokers))
    def change_isr(self, pick: int, wanted: set[int]) -> None:
        """The leader proposes followers that have caught up."""
        tp = self.tps[pick]
        p = self.c.p(tp)
        if p.leader == NO_LEADER or self.emptied & {p.leader, *wanted}:
            return
        isr = tuple(b for b in p.replicas if b in wanted or b == p.leader)
        if self.c.propose(tp, *isr) == "":
            self.holds.update({(tp, broker): self.acked[tp] for broker in isr})

    @rule(pick=st.integers(0, 5), minimum=st.sampled_from(["1", "2", "3", None]), cut=cuts)
    def change_min_insync(self, pick: int, minimum: str | None, cut: int | None) -> None:
        edit = AlterConfigs((ConfigEdit(f"t{pick}", "min.insync.replicas", minimum),))
        self.run(admin.alter_configs(self.c.state, edit), cut)

    @rule(pick=st.integers(0, 5), broker=brokers)
    def damage(self, pick: int, broker: int) -> None:
        tp = self.tps[pick]
        if broker in self.emptied or (tp, broker) not in self.holds:
            return
        message = LeaveReplica(broker, self.c.state.brokers[broker].incarnation, *tp, why="damaged")
        self.run(election.leave_replica(self.c.state, message), None)
        self.holds[tp, broker] = 0

    @rule(pick=st.integers(0, 5), broker=brokers, ahead=st.integers(-1, 2))
    def raise_epoch(self, pick: int, broker: int, ahead: int) -> None:
        tp = self.tps[pick]
        if (tp, broker) in self.holds and broker not in self.emptied:
            epoch = self.c.p(tp).leader_epoch + ahead
            message = RaiseEpoch(broker, self.c.state.brokers[broker].incarnation, *tp, disk_epoch=epoch)
            self.run(election.raise_epoch(self.c.state, message), None)

    @rule(look=st.booleans(), cut=cuts)
    def balance(self, look: bool, cut: int | None) -> None:
        """Leaders go home, sometimes by a look that is older than what happened since."""
        if look:
            calm = balance.Balance(1.0)
            calm.due(self.c.state, 0.0)
            self.due = calm.due(self.c.state, 1.0)
        self.run(balance.move(self.c.state, self.due), cut)

    # -- what holds ----------------------------------------------------------------------------------------------------
    @invariant()
    def candidates_have_every_acknowledged_record(self) -> None:
        for tp in self.tps:
            p = self.c.p(tp)
            for broker in {*p.isr, *p.elr} - self.emptied:
                assert self.holds[tp, broker] == self.acked[tp], f"broker {broker} may lead {p} without all of it"

    @invariant()
    def state_is_sound(self) -> None:
        assert violations(self.c.state) == []

    @invariant()
    def epochs_only_grow(self) -> None:
        for record in self.c.written[self.checked :]:
            if isinstance(record, PartitionChanged):
                tp = TopicPartition(record.topic_id, record.partition)
                before = self.epochs.get(tp, (-1, -1))
                assert record.leader_epoch >= before[0]
                assert record.partition_epoch == before[1] + 1
                self.epochs[tp] = (record.leader_epoch, record.partition_epoch)
        self.checked = len(self.c.written)

    @precondition(lambda self: self.tps)
    @rule()
    def nothing_is_left_to_repair(self) -> None:
        assert election.repair(self.c.state).records == ()

    def teardown(self) -> None:
        """Heal the world, then demand convergence: whatever still has a complete copy comes back."""
        for broker in BROKERS if self.tps else ():
            self.register(broker, None)
            self.c.beat(broker)
        for tp in self.tps:
            p = self.c.p(tp)
            assert p.is_offline == (not p.isr and not p.elr), p


TestElection = Election.TestCase
TestElection.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
