"""The surroundings of all partitions of a broker: what they ask for is noted here and done once per turn of the loop.

In: notes of partitions (bytes to sync, readers to wake, ISR proposals, damage), sync rounds that ended.
Out: calls back to the partitions, messages to the controller about replicas.
Promises: an idle partition costs nothing here; a damaged replica leaves ISR and ELR, acknowledged, before it is emptied
and fetched again [L10]; a full disk refuses writes before they are appended [L23].
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from millrace import limits
from millrace.core import room
from millrace.core.cluster import ClusterState
from millrace.core.effects import DiskEpochAhead, ProposeIsr
from millrace.core.replication import Replica
from millrace.errors import DiskFailed, DiskFull, MillraceError, NotLeader
from millrace.link.pool import LinkPool
from millrace.log.config import BrokerConfig
from millrace.log.controller_client import ControllerClient
from millrace.log.fetchers import Followers
from millrace.log.files.log_dir import LogDir
from millrace.log.membership import Membership
from millrace.log.partition import Partition, Waiter
from millrace.log.proposals import Proposals
from millrace.log.retention import Retention
from millrace.log.roles import Roles
from millrace.log.sessions import Leaders
from millrace.log.stats import BrokerStats
from millrace.log.wheel import DeadlineWheel
from millrace.model.ids import NO_LEADER, BrokerId, TopicPartition
from millrace.model.messages import LeaveReplica, Message, RaiseEpoch, ReplicaReport
from millrace.model.records import Endpoint
from millrace.ops.ports import Ports

log = structlog.get_logger(__name__)

TICK_S = 0.25                  # ISR by time: a lag of ten seconds needs no finer grain
CHECKPOINT_S = 5.0             # high watermarks to disk: only saves work at the next start
RETRY_S = 0.2
REPORTS_PER_HEARTBEAT_MAX = 500
NAMED_HOLDERS_MAX = 3


class Keeper:
    def __init__(
        self, config: BrokerConfig, ports: Ports, stats: BrokerStats, logs: LogDir, pool: LinkPool,
        controller: ControllerClient, membership: Membership, fatal: Callable[[MillraceError], None],
    ) -> None:
        self.config, self.ports, self.stats, self.logs = config, ports, stats, logs
        self._pool, self._controller, self._membership, self._fatal = pool, controller, membership, fatal
        self._loop = asyncio.get_running_loop()
        self._grouped = config.flush == "group"
        self.lease_valid = membership.lease_valid
        self.roles = Roles(config.broker_id, self)
        self.wheel = DeadlineWheel(ports.clock, self._loop)
        self.leaders = Leaders(self, self.roles.partitions.get)
        self.followers = Followers(self, pool)
        self.proposals = Proposals(config.broker_id, controller, self._incarnation_of, stats)
        self._woken: dict[Partition, None] = {}
        self._ticking: dict[Partition, None] = {}
        self._moved: dict[Partition, None] = {}          # since the last heartbeat
        self._unsaved: dict[Partition, None] = {}        # high watermark since the last checkpoint
        self._saved: dict[Partition, None] = {}          # with the last checkpoint
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._disk_full: MillraceError | None = None     # what writers are told; None: they are not refused
        self._disk_full_since: float | None = None
        self.disk_trouble = ""
        self.disk_free_bytes = self.disk_total_bytes = 0
        self.retention = Retention(self, config.retention)
        self.look_at_disk()

    # -- retention.Surroundings ------------------------------------------------------------------------------------

    @property
    def me(self) -> BrokerId:
        return self.config.broker_id

    @property
    def incarnation(self) -> int:
        return self._membership.incarnation

    @property
    def cluster(self) -> ClusterState:
        return self.roles.cluster

    @property
    def partitions(self) -> dict[TopicPartition, Partition]:
        return self.roles.partitions

    async def ask_controller(self, message: Message) -> Message:
        return await self._controller.ask(message)

    def log_starts(self, partitions: list[TopicPartition]) -> None:
        self.retention.starts(partitions)

    def _incarnation_of(self, broker: BrokerId) -> int:
        if broker == self.config.broker_id:
            return self._membership.incarnation
        known = self.roles.cluster.brokers.get(broker)
        return known.incarnation if known is not None else -1

    # -- Host: what partitions ask for -----------------------------------------------------------------------------

    def refuse_disk(self) -> MillraceError | None:
        if self._disk_full is not None:
            self.stats.disk_full_refusals += 1
        return self._disk_full

    @property
    def refuses_writes(self) -> str:
        """Why, as they are told who write; empty while nobody is refused."""
        return str(self._disk_full or "")

    def request_sync(self, partition: Partition) -> None:
        if self._grouped:
            self.logs.request_sync(partition.log)
        else:
            partition.synced()                 # flush=os: what the page cache has counts as kept [L11]

    def woken(self, partition: Partition) -> None:
        if not self._woken:
            self._loop.call_soon(self._wake)
        self._woken[partition] = None

    def _wake(self) -> None:
        woken, self._woken = self._woken, {}
        waiters: dict[Waiter, None] = {}
        for partition in woken:
            waiters.update(dict.fromkeys(partition.waiters))
        for waiter in waiters:
            waiter.wake()

    def needs_tick(self, partition: Partition) -> None:
        self._ticking[partition] = None
        if "tick" not in self._timers:
            self._timers["tick"] = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        del self._timers["tick"]
        now = self.ports.clock.now()
        ticking, self._ticking = self._ticking, {}
        for partition in ticking:
            if partition.tick(now):
                self.needs_tick(partition)

    def propose_isr(self, partition: Partition, proposal: ProposeIsr) -> None:
        self.proposals.add(partition, proposal)
        self.needs_tick(partition)

    def role_changed(self, partition: Partition) -> None:
        replica = partition.replica
        if replica.is_leader or replica.leader == NO_LEADER:
            self.followers.unfollow(partition.tp)
        else:
            self.followers.follow(partition, replica.leader)
        self._moved[partition] = None

    def moved(self, partition: Partition) -> None:
        self._moved[partition] = None
        self._unsaved[partition] = None
        if "checkpoint" not in self._timers:
            self._timers["checkpoint"] = self._loop.call_later(CHECKPOINT_S, self._checkpoint)

    def _checkpoint(self) -> None:
        self._timers.pop("checkpoint", None)
        unsaved, self._unsaved = self._unsaved, {}
        self._saved = unsaved
        self.logs.checkpoint_hw({p.tp: p.replica.hw for p in unsaved if self.roles.partitions.get(p.tp) is p})

    def busy(self) -> list[TopicPartition]:
        """Partitions that moved within the last seconds."""
        return [partition.tp for partition in (*self._saved, *self._unsaved)]

    def acknowledge(self, partition: Partition) -> None:
        self.followers.durable(partition.tp)

    def damaged(self, partition: Partition, why: str) -> None:
        if partition.failed:
            return
        self.stats.replicas_damaged += 1
        log.error("replica is damaged: it leaves, then fetches everything again", partition=repr(partition), why=why)
        partition.failed = why
        partition.fail_waiting(NotLeader(f"{partition.name}/{partition.index}: {why}"))
        self._spawn(self._refetch(partition, why))

    def disk_failed(self, partition: Partition, error: DiskFailed) -> None:
        """As a database does: the page cache may hold what the disk has not, so only a new process can know."""
        partition.failed = partition.failed or str(error)
        self._fatal(DiskFailed(f"{partition.name}/{partition.index}: {error}"))

    def disk_epoch_ahead(self, partition: Partition, ahead: DiskEpochAhead) -> None:
        self.stats.disk_epochs_above += 1
        log.error(
            "a replica's disk knows a leader epoch that the controller does not: its epoch is raised past it",
            partition=repr(partition), disk_epoch=ahead.disk_epoch, leader_epoch=ahead.leader_epoch,
        )
        message = RaiseEpoch(
            self.config.broker_id, self._membership.incarnation, *partition.tp, disk_epoch=ahead.disk_epoch
        )
        self._spawn(self._ask_until_answered(message, partition))

    # -- the disk --------------------------------------------------------------------------------------------------

    @property
    def disk_is_full(self) -> bool:
        return self._disk_full_since is not None

    def look_at_disk(self) -> None:
        """With every heartbeat. A full disk is reported at once, so that leaders go elsewhere; whatever is still led
        here after that is refused, while some room is left for what was promised already."""
        free, total = self.ports.fs.usage(self.config.data_dir)
        first_look = not self.disk_total_bytes
        self.disk_free_bytes, self.disk_total_bytes = free, total
        used = (total - free) / total if total > 0 else 0.0
        if room.has_room(used, used_max=self.config.disk_used_max, had_room=self._disk_full_since is None):
            self._disk_has_room(free)
            return
        now = self.ports.clock.now()
        if self._disk_full_since is None:
            self._disk_full_since = now - limits.DISK_HAND_OVER_S if first_look else now
            share = f"{self.config.disk_used_max:.0%}"
            self.disk_trouble = f"more than {share} of the disk under {self.config.data_dir} is used"
            log.error("disk is full: leaders go elsewhere", free_bytes=free, total_bytes=total, above=share)
        over_half_left = used > (1 + self.config.disk_used_max) / 2
        if self._disk_full is None and (over_half_left or now - self._disk_full_since >= limits.DISK_HAND_OVER_S):
            log.error("disk is full: writes are refused", free_bytes=free, total_bytes=total)
            self._disk_full = DiskFull(self.disk_trouble + self._who_holds())

    def _disk_has_room(self, free: int) -> None:
        if self._disk_full_since is not None:
            log.info("disk has room again", free_bytes=free)
        self._disk_full_since, self._disk_full, self.disk_trouble = None, None, ""

    def _who_holds(self) -> str:
        """What the disk is full of, as far as somebody keeps it from going [L23]."""
        held = sorted(self.retention.held_by_owner().items(), key=lambda one: -one[1])[:NAMED_HOLDERS_MAX]
        return "; held for " + ", ".join(f"{owner}: {size} bytes" for owner, size in held) if held else ""

    async def _refetch(self, partition: Partition, why: str) -> None:
        """Out of ISR and ELR first; only when the metadata says so here, too, the bytes go."""
        me = self.config.broker_id
        await self._ask_until_answered(
            LeaveReplica(me, self._membership.incarnation, *partition.tp, why=why), partition
        )
        replica = partition.replica
        while replica.is_leader or me in replica.isr or me in replica.elr:
            await self.roles.wait_for_index(self.roles.applied + 1)
        if self.roles.partitions.get(partition.tp) is not partition:
            return
        partition.drop_damage()
        log.info("replica fetches again what was damaged", partition=repr(partition), at=partition.log.log_end)
        self.role_changed(partition)

    async def _ask_until_answered(self, message: Message, partition: Partition) -> None:
        while self.roles.partitions.get(partition.tp) is partition:
            try:
                await self._controller.ask(message)
                return
            except MillraceError as e:
                log.warning("the controller must know of a replica", partition=repr(partition), error=str(e))
                await asyncio.sleep(self.ports.random.uniform(RETRY_S / 2, RETRY_S))

    # -- roles.Keeper: partitions come and go ----------------------------------------------------------------------

    def open_partition(self, tp: TopicPartition, name: str) -> Partition:
        logged = self.logs.partition(tp)
        replica = Replica(
            self.config.broker_id, epochs=logged.epochs, brokers=self.roles.cluster.brokers,
            log_start=logged.log_start, log_end=logged.log_end, hw=self.logs.stored_hw(tp),
            lag_s=self.config.replica_lag_s,
        )
        return Partition(self, tp, name, logged, replica)

    def opened(self, partition: Partition) -> None:
        self.leaders.created(partition)
        if partition.log.damaged is not None:
            self.damaged(partition, f"damage at offset {partition.log.damaged} found when it was opened")

    def configure_partition(self, partition: Partition) -> None:
        config = self.roles.cluster.topic_config
        partition.replica.lag_s = int(config(partition.topic_id, "replica.lag.time.max.ms") or 0) / 1000
        partition.batch_bytes_max = int(config(partition.topic_id, "max.message.bytes") or 0)

    def remove_partition(self, partition: Partition, *, delete: bool) -> None:
        self.followers.unfollow(partition.tp)
        for noted in (self._ticking, self._moved, self._unsaved, self._saved):
            noted.pop(partition, None)
        if delete:
            self.logs.delete(partition.tp)
        else:
            self._set_aside(partition.tp)

    def set_aside_unknown(self) -> None:
        """After the first catch-up: what the controller does not know is kept, not served, not deleted [L19]."""
        for tp in self.logs.stored():
            if tp not in self.roles.partitions:
                self._set_aside(tp)

    def _set_aside(self, tp: TopicPartition) -> None:
        self.stats.replicas_set_aside += 1
        log.error("a partition on disk is unknown to the controller: set aside", partition=str(tp))
        self.logs.set_aside(tp)

    def forget_address(self, broker: BrokerId) -> None:
        """A member no more: nobody dials it."""
        self._pool.forget(broker)

    def set_address(self, broker: BrokerId, endpoint: Endpoint) -> None:
        if broker != self.config.broker_id:
            self._pool.set_address(broker, endpoint.host, endpoint.link_port)

    # -- heartbeats, lease -----------------------------------------------------------------------------------------

    def changed_replicas(self) -> tuple[ReplicaReport, ...]:
        """Soft state for one heartbeat, the longest waiting first."""
        taken = list(self._moved)[:REPORTS_PER_HEARTBEAT_MAX]
        for partition in taken:
            del self._moved[partition]
        return tuple(
            ReplicaReport(
                *p.tp, "leader" if p.replica.is_leader else "follower", p.replica.leo, p.replica.hw,
                p.replica.leader_epoch,
            )
            for p in taken
        )

    def lease_lost(self, why: str) -> None:
        """Whoever waits for an acknowledgement is told now: another leader may already take writes [L16]."""
        for tp in list(self.roles.cluster.partitions_led_by(self.config.broker_id)):
            partition = self.roles.partitions.get(tp)
            if partition is not None:
                partition.fail_waiting(NotLeader(f"{partition.name}/{partition.index}: {why}"))

    # -- end -------------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda t: self._tasks.pop(t, None))

    async def close(self, error: MillraceError) -> None:
        await self.retention.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.proposals.close()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.roles.close(error)
        self.leaders.close()
        self.followers.close()
        self.wheel.close()
        self._checkpoint()
