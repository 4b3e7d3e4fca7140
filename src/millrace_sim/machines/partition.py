"""One replica in a broker of the simulated world: the machine, its log, and those who wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millrace.core.cluster import PartitionState
from millrace.core.producers import NO_PRODUCER
from millrace.core.replication import (
    AdvanceLogStart,
    Assignment,
    BecameFollower,
    BecameLeader,
    DiskEpochAhead,
    Diverged,
    Effects,
    HwMoved,
    LostLeadership,
    OutOfRange,
    ProposeIsr,
    Replica,
    Restart,
    Serve,
    Truncate,
)
from millrace.model.messages import RaiseEpoch, ReplicaReport
from millrace_sim.machines.disk import DiskLog
from millrace_sim.machines.wire import Data, Fetch, NotProduced, Parted, Produce, Produced, StartOver

if TYPE_CHECKING:
    from millrace_sim.machines.node import Node


class Waiter(NamedTuple):
    offset: int
    client: int
    request_id: int
    acks: int


class Part:
    __slots__ = ("_fetch_at", "_fetch_id", "_polls", "_waiters", "log", "node", "replica")

    def __init__(self, node: Node, log: DiskLog) -> None:
        self.node = node
        self.log = log
        times = node.world.times
        self.replica = Replica(
            node.id, epochs=log.epochs, brokers=node.cluster.brokers, log_start=log.start, log_end=log.end,
            hw=log.hw_saved,
            lag_s=times.lag_s, retry_s=times.propose_s, flaws=node.world.flaws,
        )
        self._waiters: list[Waiter] = []
        self._polls: dict[int, Fetch] = {}  # followers at the end of the log, by broker
        self._fetch_id = -1
        self._fetch_at = 0.0

    def report(self) -> ReplicaReport:
        r = self.replica
        return ReplicaReport(*self.log.tp, "leader" if r.is_leader else "follower", r.leo, r.hw, r.leader_epoch)

    def assigned(self, p: PartitionState) -> None:
        min_insync = self.node.cluster.min_insync(p.tp.topic_id)
        isr, elr = frozenset(p.isr), frozenset(p.elr)
        a = Assignment(p.leader, p.leader_epoch, p.partition_epoch, isr, p.replicas, min_insync, elr)
        self.take(self.replica.assigned(self.node.clock(), a))

    def tick(self, now: float) -> None:
        self.start_recorded()
        if self.replica.needs_tick:
            self.take(self.replica.tick(now))
        elif not self.replica.is_leader and now >= self._fetch_at:
            self._fetch()

    # -- effects ------------------------------------------------------------------------------------------------------

    def take(self, effects: Effects) -> None:
        node = self.node
        for effect in effects:
            if isinstance(effect, HwMoved):
                self._hw_moved()
            elif isinstance(effect, ProposeIsr):
                node.propose_isr(self, effect)
            elif isinstance(effect, BecameLeader):
                node.world.checker.on_leader(node, self.log.tp, effect.epoch)
                self._polls.clear()
                node.world.struck(node, "led")
            elif isinstance(effect, LostLeadership):
                self._fail_waiters()
            elif isinstance(effect, BecameFollower):
                self._polls.clear()
                self._fetch()
                node.world.struck(node, "followed")
            elif isinstance(effect, Truncate):
                self._truncate(effect)
            elif isinstance(effect, AdvanceLogStart):
                self.start_at(effect.to)
            elif isinstance(effect, DiskEpochAhead):
                node.call(RaiseEpoch(node.id, node.incarnation, *self.log.tp, effect.disk_epoch))

    def start_recorded(self) -> None:
        start = self.node.cluster.floors.log_start(self.log.tp)
        if start > self.log.start:
            self.take(self.replica.start_recorded(start))

    def start_at(self, start: int) -> None:
        start = min(start, self.log.synced)
        if start <= self.log.start:
            return
        self.node.world.retention.on_cut(self.node, self.log, start)
        self.log.start_at(start)
        self.replica.log_started(start)
        if self.replica.is_leader:
            self._answer_polls()
        self.node.world.struck(self.node, "cut")

    def _hw_moved(self) -> None:
        replica = self.replica
        self.node.world.checker.on_hw(self.node, self.log, replica)
        self.log.producers.settled(replica.hw)
        if replica.is_leader:
            self._release()
            self._answer_polls()

    def _truncate(self, effect: Truncate) -> None:
        node = self.node
        node.world.checker.on_truncate(node, effect.to, self.replica.hw, below_hw=effect.below_hw)
        self.log.truncate(effect.to)
        self.replica.truncated(effect.to)
        self._fetch()

    # -- clients ------------------------------------------------------------------------------------------------------

    def produce(self, client: int, m: Produce) -> None:
        node, replica, log = self.node, self.replica, self.log
        refused = replica.refuse_write(acks=m.acks, lease_valid=node.lease.valid(node.clock()))
        if refused is not None:
            raise refused
        entry = m.entry
        offset = self._known(m)
        if offset is None:
            offset = log.append(entry._replace(epoch=replica.leader_epoch))
            self._waiters.append(Waiter(offset, client, m.request_id, m.acks))
            self.take(replica.appended(node.clock(), log.end))
            node.request_sync(self)
            self._answer_polls()
            node.world.struck(node, "appended")
        else:
            self._waiters.append(Waiter(offset, client, m.request_id, m.acks))
            self._release()

    def _known(self, m: Produce) -> int | None:
        entry, producers = m.entry, self.log.producers
        if entry.producer_id == NO_PRODUCER:
            return None
        if entry.fence:
            return producers.check_fence(entry.producer_id, entry.producer_epoch)
        repeat = producers.check(entry.producer_id, entry.producer_epoch, entry.sequence, 1)
        return repeat.offset if repeat is not None else None

    def _release(self) -> None:
        replica, waiting = self.replica, []
        for waiter in self._waiters:
            if waiter.offset < (replica.hw if waiter.acks == -1 else replica.leo):
                self._ack(waiter)
            else:
                waiting.append(waiter)
        self._waiters = waiting

    def _ack(self, waiter: Waiter) -> None:
        node, world, log = self.node, self.node.world, self.log
        if waiter.acks == 1 and not node.lease.valid(node.clock()):
            world.send(node.id, waiter.client, NotProduced(waiter.request_id, "not_leader", -1))
            return
        entry = log.entries[waiter.offset]
        if waiter.offset >= log.start:          # else a repeat of what was removed since
            world.checker.on_ack(log.tp, waiter.offset, entry.value, waiter.acks)
            if waiter.acks == -1:
                world.check_copies(log.tp, waiter.offset, entry, self.replica.min_insync)
        world.send(node.id, waiter.client, Produced(waiter.request_id, waiter.offset))
        world.acks += 1
        world.struck(node, "acked")

    def _fail_waiters(self) -> None:
        waiting, self._waiters = self._waiters, []
        for waiter in waiting:
            self.node.world.send(
                self.node.id, waiter.client, NotProduced(waiter.request_id, "not_leader", self.replica.leader)
            )

    def durable(self) -> None:
        replica, log = self.replica, self.log
        if log.synced > replica.leo:
            self.take(replica.durable(self.node.clock(), log.synced))
        if replica.is_leader:
            self._release()
        else:
            self._fetch()

    # -- replication --------------------------------------------------------------------------------------------------

    def on_message(self, src: int, m: object) -> None:
        if isinstance(m, Fetch):
            self._fetched(src, m)
        elif isinstance(m, Data):
            self._data(m)
        elif isinstance(m, Parted):
            self.take(self.replica.diverged(epoch=m.epoch, at_epoch=m.at_epoch, end=m.end))
        elif isinstance(m, StartOver):
            self._start_over(m)

    def _fetched(self, follower: int, m: Fetch) -> None:
        node, replica = self.node, self.replica
        answer = replica.follower_fetched(
            node.clock(), follower=follower, incarnation=m.incarnation, epoch=m.epoch, offset=m.offset,
            last_epoch=m.last_epoch,
        )
        if isinstance(answer, Serve):
            self._polls[follower] = m
            self._answer_poll(follower, m)
            self.take(answer.effects)
        elif isinstance(answer, Diverged):
            node.world.send(
                node.id, follower, Parted(m.tp, m.fetch_id, replica.leader_epoch, answer.epoch, answer.end)
            )
        elif isinstance(answer, OutOfRange):
            told = b"" if node.world.flaws.writers_forgotten else self.log.producers_for_restart(replica.hw)
            node.world.send(
                node.id, follower, StartOver(m.tp, m.fetch_id, replica.leader_epoch, answer.log_start, told)
            )

    def _answer_polls(self) -> None:
        for follower, fetch in list(self._polls.items()):
            self._answer_poll(follower, fetch)

    def _answer_poll(self, follower: int, m: Fetch) -> None:
        """Answered when there is data or a higher HW; else the follower waits (long poll)."""
        replica, log = self.replica, self.log
        if m.offset < log.start:
            return                              # it is told when it asks again
        if m.offset >= log.end and m.hw >= replica.hw and m.log_start >= log.start:
            return
        del self._polls[follower]
        upto = m.offset + self.node.world.times.fetch_entries
        entries = tuple(log.entries[m.offset : upto])
        data = Data(m.tp, m.fetch_id, replica.leader_epoch, m.offset, entries, replica.hw, log.start)
        self.node.world.send(self.node.id, follower, data)

    def _fetch(self) -> None:
        """Only what is durable is asked on from; an unanswered fetch is repeated by the tick."""
        node, replica = self.node, self.replica
        if replica.leader < 0 or replica.leader == node.id or replica.log_end != replica.leo:
            return
        self._fetch_id = node.world.next_id()
        self._fetch_at = node.clock() + node.world.times.fetch_retry_s
        offset, last_epoch = replica.fetch_position()
        fetch = Fetch(
            self.log.tp, self._fetch_id, node.incarnation, replica.leader_epoch, offset, last_epoch, replica.hw,
            self.log.start,
        )
        node.world.send(node.id, replica.leader, fetch)

    def _data(self, m: Data) -> None:
        node, replica, log = self.node, self.replica, self.log
        if m.entries and replica.data_arrived(epoch=m.epoch, base=m.base):
            for entry in m.entries:
                log.append(entry)
            replica.replicated(log.end)
            node.request_sync(self)
            node.world.struck(node, "fetched")
        self.take(replica.leader_hw(epoch=m.epoch, hw=m.hw, log_start=m.log_start))
        if m.fetch_id == self._fetch_id:
            self._fetch()

    def _start_over(self, m: StartOver) -> None:
        for effect in self.replica.out_of_range(epoch=m.epoch, log_start=m.log_start):
            assert isinstance(effect, Restart)
            self.log.restart_at(effect.at, m.producers)
            self.replica.restarted(effect.at)
            self.node.world.struck(self.node, "cut")
            self._fetch()
