"""A broker of the simulated world: the thinnest shell around the machines, as the real one is built.

Its disk survives a crash, everything else is made anew in each life. The clock of a broker drifts and has an offset
of its own; a paused broker hears nothing, and finds its clock moved on when it wakes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from millrace.core.cluster import ClusterState
from millrace.core.lease import Lease
from millrace.core.replication import ProposeIsr
from millrace.errors import MillraceError
from millrace.model.ids import ProcessIdentity, TopicPartition
from millrace.model.messages import (
    AlterIsr,
    AlterIsrDone,
    Heartbeat,
    HeartbeatOk,
    IsrChange,
    Message,
    MetadataPoll,
    MetadataRecords,
    Register,
    Registered,
    RemoteError,
)
from millrace.model.records import BrokerUnfenced, Endpoint, LogStartsAdvanced, PartitionChanged
from millrace_sim.machines.disk import Disk
from millrace_sim.machines.office import Office
from millrace_sim.machines.partition import Part
from millrace_sim.machines.wire import Call, Data, Fetch, NotProduced, Parted, Produce, Reply, StartOver

if TYPE_CHECKING:
    from millrace_sim.machines.world import World


class Proposal(NamedTuple):
    """What an answer to AlterIsr is about."""

    part: Part
    leader_epoch: int
    partition_epoch: int


class Node:
    def __init__(self, world: World, node_id: int, disk: Disk) -> None:
        self.world = world
        self.id = node_id
        self.disk = disk
        self.life = 0
        self.up = False
        self.paused_until = 0.0
        self.rate = 1.0
        self.offset = 0.0
        self.boot = 0
        self.clean = False
        self._begin()

    def _begin(self) -> None:
        self.cluster = ClusterState()
        self.parts: dict[TopicPartition, Part] = {}
        self.lease = Lease(self.world.times.lease_s)
        self.incarnation = -1
        self.since = -1          # metadata index of our registration; roles are taken from there on
        self.has_roles = False
        self.start_id = UUID(int=self.world.rng.getrandbits(128))
        self.controller = -1
        self.token = 0
        self.stopping = False
        self.office = Office(self)
        self._calls: dict[int, object] = {}
        self._beat_at = self._poll_at = 0.0
        self._sequence = 0
        self._syncing: list[Part] = []
        self._dirty: dict[TopicPartition, Part] = {}

    # -- life ---------------------------------------------------------------------------------------------------------

    def clock(self) -> float:
        return self.world.now * self.rate + self.offset

    def start(self) -> None:
        self.life += 1
        self.up = True
        self.paused_until = 0.0
        for log in self.disk.logs.values():
            log.recover()
        self._begin()
        self.world.at_node(0.0, self, self.tick)

    def down(self) -> None:
        self.up = False
        self.disk.is_new = False

    def tick(self) -> None:
        now = self.clock()
        self.office.tick(now)
        if now >= self._beat_at:
            self._beat_at = now + self.world.times.heartbeat_s
            self._beat(now)
        if self.incarnation >= 0 and now >= self._poll_at:
            self._poll(now)
        for part in self.parts.values():
            part.tick(now)
        self.world.at_node(self.world.times.tick_s / self.rate, self, self.tick)

    # -- membership ---------------------------------------------------------------------------------------------------

    def call(self, message: Message, context: object = None) -> None:
        """To the controller. No answer is no answer: whoever asked asks again."""
        if self.controller < 0:
            return
        call_id = self.world.next_id()
        self._calls[call_id] = context
        self.world.send(self.id, self.controller, Call(call_id, message))

    def _beat(self, now: float) -> None:
        if self.incarnation < 0:
            self.call(self._registration())
            return
        self._sequence += 1
        self.lease.sent(now)
        for part in self.parts.values():
            part.log.hw_saved = min(part.replica.hw, part.log.synced)
        self.call(
            Heartbeat(
                self.id, self.incarnation, self._sequence, now, self.cluster.index, self.has_roles, self.stopping, 0.0,
                1, tuple(part.report() for part in self.parts.values()),
            )
        )

    def _registration(self) -> Register:
        process = ProcessIdentity(f"boot-{self.id}-{self.boot}", self.id, self.life)
        return Register(
            self.id, self.start_id, Endpoint("b", 1, 2, 3), process, self.disk.directory_id, self.disk.is_new,
            self.clean, "group", "", f"host-{self.id}",
        )

    def _poll(self, now: float) -> None:
        self._poll_at = now + self.world.times.poll_s
        self.call(MetadataPoll(self.id, self.incarnation, self.cluster.index, self.world.times.poll_s))

    def _registered(self, m: Registered) -> None:
        if self.incarnation < 0:
            self.incarnation, self.since = m.incarnation, m.index
            self.world.struck(self, "registered")
            self._poll(self.clock())

    def _heartbeat_ok(self, m: HeartbeatOk) -> None:
        if m.incarnation != self.incarnation:
            return
        if m.may_stop and self.stopping:
            self.world.clean_stop(self)
        elif not m.fenced:
            self.lease.answered(m.sent_at)

    def _records(self, m: MetadataRecords) -> None:
        if m.start != self.cluster.index:
            return
        touched: dict[TopicPartition, None] = {}
        started: dict[TopicPartition, None] = {}
        for index, record in enumerate(m.records, m.start + 1):
            self.cluster.replay(index, record)
            if isinstance(record, LogStartsAdvanced):
                started.update((one.tp, None) for one in record.starts)
            elif isinstance(record, PartitionChanged):
                touched[TopicPartition(record.topic_id, record.partition)] = None
            elif isinstance(record, BrokerUnfenced) and record.broker == self.id:
                self._beat_at = 0.0
        if self.cluster.index >= self.since:
            if not self.has_roles:
                touched = dict.fromkeys(self.cluster.partitions_on(self.id))
                self.has_roles = True
                self._beat_at = 0.0
            self._take_roles(touched)
            for tp in started:
                if tp in self.parts:
                    self.parts[tp].start_recorded()
        self._poll(self.clock())

    def _take_roles(self, touched: dict[TopicPartition, None]) -> None:
        for tp in touched:
            state = self.cluster.partition(tp)
            if state is None or self.id not in state.replicas:
                continue
            part = self.parts.get(tp)
            if part is None:
                part = self.parts[tp] = Part(self, self.disk.log(tp))
            part.assigned(state)

    # -- messages -----------------------------------------------------------------------------------------------------

    def on_message(self, src: int, message: object) -> None:
        kind = type(message)
        if kind is Fetch or kind is Data or kind is Parted or kind is StartOver:
            part = self.parts.get(message.tp)  # type: ignore[attr-defined]
            if part is not None:
                part.on_message(src, message)
        elif kind is Produce:
            self._produce(src, message)  # type: ignore[arg-type]
        elif kind is Call:
            self.office.on_call(src, message)  # type: ignore[arg-type]
        elif kind is Reply:
            self._reply(src, message)  # type: ignore[arg-type]
        else:
            self.office.on_store(message)

    def _produce(self, client: int, m: Produce) -> None:
        part = self.parts.get(m.tp)
        if part is None:
            self.world.send(self.id, client, NotProduced(m.request_id, "not_leader", -1))
            return
        try:
            part.produce(client, m)
        except MillraceError as error:
            self.world.send(self.id, client, NotProduced(m.request_id, error.code, part.replica.leader))

    def _reply(self, src: int, reply: Reply) -> None:
        if reply.call_id not in self._calls:
            return
        context = self._calls.pop(reply.call_id)
        m = reply.message
        if isinstance(m, HeartbeatOk):
            self._heartbeat_ok(m)
        elif isinstance(m, MetadataRecords):
            self._records(m)
        elif isinstance(m, AlterIsrDone):
            if isinstance(context, Proposal):  # else the answer to a raised epoch: its record says it all
                context.part.replica.isr_answer(
                    leader_epoch=context.leader_epoch, partition_epoch=context.partition_epoch, error=m.results[0].error
                )
        elif isinstance(m, Registered):
            self._registered(m)
        elif isinstance(m, RemoteError) and m.code == "stale_incarnation" and self.incarnation >= 0:
            self.world.replaced(self)

    def propose_isr(self, part: Part, proposal: ProposeIsr) -> None:
        leader_epoch, partition_epoch, isr, incarnations = proposal
        change = IsrChange(*part.log.tp, leader_epoch, partition_epoch, isr, incarnations)
        context = Proposal(part, leader_epoch, partition_epoch)
        self.call(AlterIsr(self.id, self.incarnation, (change,)), context)
        self.world.struck(self, "proposed")

    # -- disk: one sync round at a time takes along all that waits ----------------------------------------------------

    def request_sync(self, part: Part) -> None:
        self._dirty[part.log.tp] = part
        if not self._syncing:
            self._sync()

    def _sync(self) -> None:
        self._syncing = list(self._dirty.values())
        self._dirty = {}
        for part in self._syncing:
            part.log.in_sync = part.log.end
        self.world.at_node(self.world.disk_s(), self, self._synced)

    def _synced(self) -> None:
        done, self._syncing = self._syncing, []
        for part in done:
            part.log.sync_done()
        if self._dirty:
            self._sync()
        for part in done:
            part.durable()
        self.world.struck(self, "synced")
