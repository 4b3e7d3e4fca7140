"""One tenure of the controller, from the replayed state to the step down. Nothing of it outlives the office.

In: control messages from brokers, lost connections, time. Out: replies, and decisions through the writer.
Promises: a heartbeat is answered (and so extends a lease) only while the tenure is certainly ours and the broker is
not being fenced [L16, L18]; a silent broker is fenced once, after one full session of this reign; one whose process is
provably gone at once [L17]; reports in heartbeats overwrite nothing [L12]; leaders go home when all is calm [L3].
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import structlog

from millrace import limits
from millrace.core import admin, balance, election, floor_calls, removal, room
from millrace.core.activity import Activity
from millrace.core.cluster import BrokerState, ClusterState
from millrace.core.decision import Decision
from millrace.core.sessions import Sessions
from millrace.core.tenure import Tenure
from millrace.errors import IndexConflict, InvalidRequest, NotController, Refused
from millrace.log.controller.config import ControllerConfig
from millrace.log.controller.stats import ControllerStats
from millrace.log.controller.writer import Writer
from millrace.model.ids import BrokerId, TopicPartition
from millrace.model.messages import (
    AdminDone,
    AdminResult,
    AdvanceLogStarts,
    AlterConfigs,
    AlterIsr,
    AskFloors,
    AskProducerIds,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectUnclean,
    FloorsAnswer,
    Heartbeat,
    HeartbeatOk,
    LeaveReplica,
    Message,
    MetadataPoll,
    MetadataRecords,
    RaiseEpoch,
    Register,
    RemoveBroker,
    ReplicaReport,
)
from millrace.model.records import PartitionChanged
from millrace.ops.naps import nap, next_look
from millrace.ops.ports import Ports

log = structlog.get_logger(__name__)

Handler = Callable[[Any], Awaitable[Message]]
CONTROLLER_MESSAGES: tuple[type[Message], ...] = (
    Register, Heartbeat, MetadataPoll, AlterIsr, LeaveReplica, RaiseEpoch, CreateTopics, DeleteTopics, CreatePartitions,
    AlterConfigs, ElectUnclean, AskProducerIds, AskFloors,
    AdvanceLogStarts, RemoveBroker,
)
SPEAKS_FOR_ITSELF = (
    Register, Heartbeat, MetadataPoll, AlterIsr, LeaveReplica, RaiseEpoch, AskProducerIds, AdvanceLogStarts,
)

ACTIVE_S = 5.0      # how long a partition counts as busy after its log was seen to grow


class Reign:
    def __init__(
        self, ports: Ports, config: ControllerConfig, tenure: Tenure, writer: Writer, stats: ControllerStats
    ) -> None:
        self._ports, self._config, self._tenure, self._writer, self.stats = ports, config, tenure, writer, stats
        self.token = tenure.token
        self.sessions = Sessions(session_s=config.session_s, lease_s=config.lease_s, drift=config.clock_drift_max)
        self.reports: dict[TopicPartition, dict[BrokerId, ReplicaReport]] = {}
        self._being_fenced: set[BrokerId] = set()
        self._fences: dict[BrokerId, asyncio.Task[None]] = {}
        self.activity = Activity(ACTIVE_S)
        self.balance = balance.Balance(config.leader_balance_s)
        self._balance_at = 0.0
        self._crowded: set[BrokerId] = set()               # soft state: brokers that report a full disk
        self._trouble: dict[BrokerId, str] = {}            # what each broker reported as wrong with its last heartbeat
        self._balancing: asyncio.Task[None] | None = None
        self._eager_until = 0.0
        self._over = False
        self._look = asyncio.Event()
        self._handlers: dict[type[Message], Handler] = {
            Register: self._register,
            Heartbeat: self._heartbeat,
            MetadataPoll: self._metadata_poll,
            AlterIsr: self._alter_isr,
            LeaveReplica: self._leave_replica,
            RaiseEpoch: self._raise_epoch,
            CreateTopics: self._create_topics,
            DeleteTopics: self._delete_topics,
            CreatePartitions: self._create_partitions,
            AlterConfigs: self._alter_configs,
            ElectUnclean: self._elect_unclean,
            RemoveBroker: self._remove_broker,
            AskProducerIds: self._producer_ids,
            AskFloors: self._ask_floors,
            AdvanceLogStarts: self._advance_log_starts,
        }

    @property
    def state(self) -> ClusterState:
        return self._writer.state

    # -- life ------------------------------------------------------------------------------------------------------
    async def begin(self, busy: Iterable[TopicPartition] = ()) -> None:
        """Finish what the former controller began; everyone counts as just heard [L18]. `busy`: seen by this broker."""
        for tp in busy:
            self.activity.grew(tp, self._ports.clock.now())
        await self._writer.submit(lambda: election.repair(self.state))
        unfenced = [broker for broker, b in self.state.brokers.items() if not b.fenced]
        self.sessions.took_over(self._ports.clock.now(), unfenced)

    async def watch_brokers(self) -> None:
        """Silence and proof of death, looked for every tick, in shorter steps right after a connection was lost."""
        while True:
            now = self._ports.clock.now()
            self._fence_gone()
            self._fence_silent(now)
            self._relieve_crowded()
            self._balance_leaders(now)
            loop_now = asyncio.get_running_loop().time()
            eager = now < self._eager_until
            self._look.clear()
            await nap(self._look, loop_now + self._config.eager_step_s if eager
                      else next_look(loop_now, self._config.tick_s))

    async def end(self) -> None:
        """From here on every handler that still runs says NotController."""
        self._over = True
        self._writer.end()
        tasks = [*self._fences.values(), *([self._balancing] if self._balancing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def handle(self, sender: BrokerId, message: Message) -> Message:
        self._refuse_without_tenure()
        handler = self._handlers.get(type(message))
        if handler is None:
            raise InvalidRequest(f"the controller does not answer {type(message).__name__}")
        if isinstance(message, SPEAKS_FOR_ITSELF) and message.broker != sender:
            raise InvalidRequest(f"broker {sender} speaks for broker {message.broker}")
        return await handler(message)

    def _refuse_without_tenure(self) -> None:
        if self._over or not self._tenure.valid(self._ports.clock.now()):
            raise NotController("this broker's tenure is over")

    # -- fencing ---------------------------------------------------------------------------------------------------
    def connection_lost(self, broker: BrokerId) -> None:
        """Suspicion over a network; on one machine the reason to look for the process at once [L17]."""
        self.sessions.suspect(broker)
        self._eager_until = self._ports.clock.now() + self._config.eager_s
        self._look.set()

    def _fence_gone(self) -> None:
        for broker, b in self.state.brokers.items():
            if not b.fenced and broker not in self._fences and self._ports.processes.is_gone(b.process):
                self._begin_fence(b, "its process is gone", partial(self._is_current, b))

    def _fence_silent(self, now: float) -> None:
        for broker in self.sessions.silent(now):
            b = self.state.brokers.get(broker)
            if b is None or b.fenced:
                self.sessions.forget(broker)
            elif broker not in self._fences and self._tenure.valid(now):
                reason = f"silent for {self.sessions.age_s(broker, now):.1f} s"
                self._begin_fence(b, reason, partial(self._is_silent, b))

    def _is_current(self, b: BrokerState) -> bool:
        known = self.state.brokers.get(b.broker)
        return known is not None and known.incarnation == b.incarnation

    def _is_silent(self, b: BrokerState) -> bool:
        """After a pause of our own the heartbeats of others may lie unread: then the tenure is over too."""
        now = self._ports.clock.now()
        return self._is_current(b) and self._tenure.valid(now) and self.sessions.is_silent(b.broker, now)

    def _begin_fence(self, b: BrokerState, reason: str, still: Callable[[], bool]) -> None:
        task = asyncio.get_running_loop().create_task(self._fence(b.broker, reason, still))
        self._fences[b.broker] = task
        task.add_done_callback(lambda _: self._fences.pop(b.broker, None))

    async def _fence(self, broker: BrokerId, reason: str, still: Callable[[], bool]) -> None:
        def decide() -> Decision[bool]:
            # Asked again at the last moment: from here on its heartbeats are refused, so no lease outlives the fence.
            if not still():
                return Decision((), False)
            self._being_fenced.add(broker)
            why = self._with_trouble(broker, reason)
            return Decision(election.fence(self.state, broker, why, first=self.activity).records, True)

        try:
            if await self._writer.submit(decide):
                log.warning("broker fenced", broker=broker, reason=reason)
        except NotController:
            pass
        finally:
            self._being_fenced.discard(broker)

    def _with_trouble(self, broker: BrokerId, reason: str) -> str:
        """Whoever asks what became of a broker that is gone reads here what it reported last."""
        trouble = self._trouble.get(broker, "")
        return f"{reason}; it last reported: {trouble[:election.TEXT_CHARS_MAX]}" if trouble else reason

    # -- leaders ---------------------------------------------------------------------------------------------------
    def _relieve_crowded(self) -> None:
        """Leaders go where there is room, before their broker refuses writes [L23]."""
        crowded = {b for b in self._crowded if self.state.partitions_led_by(b)}
        if not crowded or self._fences or self._balancing is not None:
            return
        if room.hand_over(self.state, self._crowded).reply:
            self._balancing = asyncio.get_running_loop().create_task(self._hand_over())

    async def _hand_over(self) -> None:
        try:
            moved = await self._writer.submit(lambda: room.hand_over(self.state, self._crowded))
            log.warning("leaders moved away from full disks", partitions=moved, brokers=sorted(self._crowded))
        except NotController:
            pass
        finally:
            self._balancing = None

    def _balance_leaders(self, now: float) -> None:
        """Not while a broker is being fenced, nor right after a connection was lost: it may be the next one."""
        if now < max(self._balance_at, self._eager_until) or self._fences or self._balancing is not None:
            return
        self._balance_at = now + limits.LEADER_BALANCE_PASS_S
        due = self.balance.due(self.state, now, self._crowded)
        if due:
            self._balancing = asyncio.get_running_loop().create_task(self._move_leaders(due))

    async def _move_leaders(self, due: list[balance.Move]) -> None:
        try:
            await self._writer.submit(lambda: balance.move(self.state, due), independent=True)
            log.info("leaders moved back to their preferred brokers", partitions=len(due))
        except NotController:
            pass
        finally:
            self._balancing = None

    # -- brokers ---------------------------------------------------------------------------------------------------
    async def _register(self, m: Register) -> Message:
        return await self._writer.submit(lambda: election.register(self.state, m, token=self.token))

    async def _heartbeat(self, m: Heartbeat) -> Message:
        if m.broker in self._being_fenced:
            raise Refused(f"broker {m.broker} is being fenced")
        decision = election.heartbeat(self.state, m, token=self.token)
        self.stats.heartbeats += 1
        self.stats.heartbeat_gap_s[m.broker] = self.sessions.heard(m.broker, self._ports.clock.now())
        self._keep_reports(m)
        self._keep_trouble(m)
        if not decision.records:
            return decision.reply
        reply: HeartbeatOk = await self._writer.submit(
            lambda: election.heartbeat(self.state, m, token=self.token, first=self.activity)
        )
        self._refuse_without_tenure()
        return reply

    def _keep_trouble(self, m: Heartbeat) -> None:
        self._trouble[m.broker] = m.trouble
        if m.disk_is_full and m.broker not in self._crowded:
            self._crowded.add(m.broker)
            self._look.set()                # its leaders move now, not with the next tick
        elif not m.disk_is_full:
            self._crowded.discard(m.broker)

    def _keep_reports(self, m: Heartbeat) -> None:
        """Soft state: for status, metrics, and for what is done first."""
        now = self._ports.clock.now()
        for report in m.changed:
            tp = TopicPartition(report.topic_id, report.partition)
            p = self.state.partition(tp)
            if p is None or m.broker not in p.replicas:
                continue
            known = self.reports.setdefault(tp, {})
            before, known[m.broker] = known.get(m.broker), report
            if before is not None and report.leo > before.leo:
                self.activity.grew(tp, now)

    async def _metadata_poll(self, m: MetadataPoll) -> Message:
        if m.incarnation > 0:
            election.check_incarnation(self.state, m.broker, m.incarnation)
        self.stats.polls += 1
        history = self._writer.history
        if m.index > history.end:
            raise IndexConflict(f"broker {m.broker} has metadata up to {m.index}, the controller up to {history.end}")
        if m.index == history.end:
            await history.wait(min(max(m.wait_s, 0.0), limits.METADATA_WAIT_S))
            self._refuse_without_tenure()
        if m.index < history.start:
            self.stats.snapshot_answers += 1
            records = tuple(self.state.to_records())
            return MetadataRecords(self.token, m.index, history.end, snapshot=True, more=False, records=records)
        page = history.page(m.index, limits.RECORDS_PER_POLL_MAX)
        end = m.index + len(page)
        return MetadataRecords(self.token, m.index, end, snapshot=False, more=end < history.end, records=page)

    # -- replicas --------------------------------------------------------------------------------------------------
    async def _alter_isr(self, m: AlterIsr) -> Message:
        return await self._writer.submit(
            lambda: election.alter_isr(self.state, m, token=self.token), independent=True
        )

    async def _leave_replica(self, m: LeaveReplica) -> Message:
        log.warning("replica leaves", broker=m.broker, topic_id=str(m.topic_id), partition=m.partition, why=m.why)
        return await self._writer.submit(
            lambda: election.leave_replica(self.state, m, token=self.token), independent=True
        )

    async def _raise_epoch(self, m: RaiseEpoch) -> Message:
        log.error("a disk knows a higher epoch than the controller", broker=m.broker, topic_id=str(m.topic_id),
                  partition=m.partition, disk_epoch=m.disk_epoch)
        return await self._writer.submit(
            lambda: election.raise_epoch(self.state, m, token=self.token), independent=True
        )

    # -- admin -----------------------------------------------------------------------------------------------------
    async def _create_topics(self, m: CreateTopics) -> Message:
        return await self._writer.submit(
            lambda: admin.create_topics(
                self.state, m, new_id=self._ports.random.uuid, defaults=self._config.defaults, token=self.token,
                internal=m.internal,
            )
        )

    async def _create_partitions(self, m: CreatePartitions) -> Message:
        return await self._writer.submit(
            lambda: admin.create_partitions(self.state, m, defaults=self._config.defaults, token=self.token)
        )

    async def _delete_topics(self, m: DeleteTopics) -> Message:
        done = await self._writer.submit(
            lambda: admin.delete_topics(self.state, m, token=self.token, internal=m.internal)
        )
        for tp in [tp for tp in self.reports if tp.topic_id not in self.state.topics]:
            del self.reports[tp]
        return done

    async def _alter_configs(self, m: AlterConfigs) -> Message:
        return await self._writer.submit(lambda: admin.alter_configs(self.state, m, token=self.token))

    async def _elect_unclean(self, m: ElectUnclean) -> Message:
        elected: PartitionChanged = await self._writer.submit(lambda: election.elect_unclean(self.state, m))
        log.warning("unclean election", topic=m.topic, partition=m.partition, leader=elected.leader, why=elected.why)
        result = AdminResult(m.topic, "", elected.why, elected.topic_id)
        return AdminDone(self.token, self.state.index, (result,))

    async def _remove_broker(self, m: RemoveBroker) -> Message:
        def decide() -> Decision[AdminDone]:
            return removal.remove(self.state, m.broker, is_heard=self._is_heard(m.broker), token=self.token)

        done: AdminDone = await self._writer.submit(decide)
        self.sessions.forget(m.broker)
        self._crowded.discard(m.broker)
        self._trouble.pop(m.broker, None)
        self.stats.heartbeat_gap_s.pop(m.broker, None)
        log.warning("broker removed", broker=m.broker)
        return done

    def _is_heard(self, broker: BrokerId) -> bool:
        """Within a session, and its process is not provably gone; also of one that is fenced."""
        known, now = self.state.brokers.get(broker), self._ports.clock.now()
        if known is None or self._ports.processes.is_gone(known.process):
            return False
        return self.sessions.is_known(broker) and not self.sessions.is_silent(broker, now)

    async def _producer_ids(self, m: AskProducerIds) -> Message:
        return await self._writer.submit(lambda: admin.grant_producer_ids(self.state, m, token=self.token))

    # -- floors ----------------------------------------------------------------------------------------------------
    async def _ask_floors(self, m: AskFloors) -> Message:
        return FloorsAnswer(self.token, await self._writer.submit(lambda: floor_calls.decide(self.state, m.call)))

    async def _advance_log_starts(self, m: AdvanceLogStarts) -> Message:
        done = await self._writer.submit(lambda: floor_calls.advance(self.state, m, token=self.token))
        for one in done.released:
            self.stats.floors_released += 1
            log.error("a floor is released: its holder has lost what it had not read", owner=one.owner, why=one.why,
                      topic_id=str(one.topic_id), partition=one.partition, offset=one.offset)
        return done
