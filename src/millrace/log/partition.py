"""One partition on one broker: the decider (core.replication.Replica), its bytes (PartitionLog), and who waits for it.

In: appends of clients, durable ends from the disk, assignments from the controller, fetches of followers.
Out: acknowledgements (each exactly once), wake-ups for readers, and what the decider wants done: ISR proposals,
truncations, role changes, high-watermark news for the followers' streams.

Promise: no write is acknowledged before it is durable here (acks 1) or committed (acks all), nor without the lease;
nothing at or above the high watermark is read by a consumer [L6, L9, L16].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from millrace import limits
from millrace.core.effects import (
    AdvanceLogStart,
    Assignment,
    BecameFollower,
    BecameLeader,
    DiskEpochAhead,
    Effect,
    HwMoved,
    LostLeadership,
    ProposeIsr,
    Restart,
    Truncate,
)
from millrace.core.replication import Replica
from millrace.errors import (
    CorruptBatch,
    Damaged,
    DiskFailed,
    DiskFull,
    FencedLeaderEpoch,
    MillraceError,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownLeaderEpoch,
)
from millrace.log.files.partition_log import Appended, Chunk, PartitionLog
from millrace.log.stats import BrokerStats
from millrace.log.wheel import DeadlineWheel
from millrace.model.ids import TopicPartition
from millrace.ops.ports import Ports
from millrace.wire import records

if TYPE_CHECKING:
    from millrace.log.sessions import Stream

log = structlog.get_logger(__name__)

Done = Callable[[MillraceError | None], None]


class Waiter(Protocol):
    """A reader that waits for news; woken at most once per turn of the loop."""

    def wake(self) -> None: ...


class Host(Protocol):
    """What a partition asks of its broker. Each call only notes; the work is done once per turn or by a timer."""

    ports: Ports
    stats: BrokerStats
    wheel: DeadlineWheel

    def lease_valid(self) -> bool: ...
    def refuse_disk(self) -> MillraceError | None: ...
    def request_sync(self, partition: Partition) -> None: ...
    def woken(self, partition: Partition) -> None: ...
    def needs_tick(self, partition: Partition) -> None: ...
    def propose_isr(self, partition: Partition, proposal: ProposeIsr) -> None: ...
    def role_changed(self, partition: Partition) -> None: ...
    def moved(self, partition: Partition) -> None:
        """LEO or HW moved: the next heartbeat and the next checkpoint tell."""

    def acknowledge(self, partition: Partition) -> None:
        """A follower's durable end moved: its leader is to be told."""

    def damaged(self, partition: Partition, why: str) -> None: ...
    def disk_failed(self, partition: Partition, error: DiskFailed) -> None:
        """A write or sync failed: this process must not go on [L10]."""

    def disk_epoch_ahead(self, partition: Partition, ahead: DiskEpochAhead) -> None: ...


class FetchRead(NamedTuple):
    """What a consumer's read found. `error` set: nothing else counts but what is known of hw and log start."""

    error: MillraceError | None
    hw: int
    log_start: int
    chunk: Chunk | None


class _Waiting(NamedTuple):
    """A write whose writer waits: answered when `end` is passed, or failed at `deadline`."""

    end: int
    deadline: float
    done: Done


_BASE_OFFSET = Struct(">q")


def _base_offset(data: memoryview) -> int:
    if len(data) < _BASE_OFFSET.size:
        raise CorruptBatch("fewer bytes than an offset")
    base: int = _BASE_OFFSET.unpack_from(data)[0]
    return base


class Partition:
    __slots__ = (
        "_committing", "_expires_at", "_host", "_on_disk", "_waiters", "appends", "batch_bytes_max", "bytes_in",
        "bytes_out", "elections", "failed", "index", "log", "name", "parked", "replica", "streams", "topic_id", "tp",
    )

    def __init__(self, host: Host, tp: TopicPartition, name: str, log: PartitionLog, replica: Replica) -> None:
        self._host = host
        self.tp = tp
        self.topic_id, self.index = tp
        self.name = name
        self.log = log
        log.on_durable = self._on_durable
        self.replica = replica
        self.streams: dict[int, Stream] = {}    # leader: one per follower broker
        self.parked: dict[int, Stream] = {}     # streams of followers that know an epoch we do not know yet
        self.failed = ""                        # why this replica serves nobody: damage or a failed disk
        self._on_disk: deque[_Waiting] = deque()      # acks 1
        self._committing: deque[_Waiting] = deque()   # acks all
        self.batch_bytes_max = limits.BATCH_BYTES_MAX
        self._expires_at = inf                  # the deadline this partition has in the wheel
        self._waiters: dict[Waiter, None] = {}
        self.appends = self.bytes_in = self.bytes_out = self.elections = 0

    def __repr__(self) -> str:
        return f"<Partition {self.name}/{self.index} of broker {self.replica.me}>"

    # -- writes of clients -----------------------------------------------------------------------------------------

    def append(self, view: memoryview, *, acks: int) -> Appended:
        """Write whole batches as they came. Raises what the client is to be told; then nothing was written."""
        self._refuse_write(acks)
        try:
            appended = self.log.append(view, epoch=self.replica.leader_epoch, batch_bytes_max=self.batch_bytes_max)
        except DiskFailed as e:
            self._write_failed(e)
            raise
        self.bytes_in += len(view)
        self._appended(appended)
        return appended

    def append_fence(self, writer_id: int, writer_epoch: int) -> Appended:
        """Shut out lower epochs of one writer; a repeat gives the first one's place [L28]."""
        self._refuse_write(-1)
        now_ms = int(self._host.ports.clock.wall() * 1000)
        try:
            appended = self.log.append_fence(
                writer_id, writer_epoch, epoch=self.replica.leader_epoch, timestamp_ms=now_ms
            )
        except DiskFailed as e:
            self._write_failed(e)
            raise
        self._appended(appended)
        return appended

    def _write_failed(self, error: DiskFailed) -> None:
        """No room is not a broken disk: what is there is sound, the writer may come again."""
        if self.log.failed is not None or not isinstance(error, DiskFull):
            self._host.disk_failed(self, error)

    def _refuse_write(self, acks: int) -> None:
        host = self._host
        error = self.replica.refuse_write(acks=acks, lease_valid=host.lease_valid())
        if error is None and self.failed:
            error = NotLeader(self.failed)
        if error is None:
            error = host.refuse_disk()
        if error is not None:
            raise error

    def _appended(self, appended: Appended) -> None:
        if appended.duplicate:
            return                              # already in the log; its writer still waits for it
        host, replica = self._host, self.replica
        self.appends += 1
        self.take(replica.appended(host.ports.clock.now(), appended.end))
        host.request_sync(self)
        host.needs_tick(self)
        for stream in self.streams.values():
            stream.more()

    def when_acked(self, end: int, *, acks: int, deadline: float, done: Done) -> None:
        """Call `done` once: None when what lies below `end` is safe as asked, else why not [L20]."""
        if acks == 1:
            queue, reached = self._on_disk, self.log.durable_end
        else:
            queue, reached = self._committing, self.replica.hw
        if reached >= end:
            done(None if self.may_acknowledge() else self._not_leader())
            return
        if not self.replica.is_leader:
            done(self._not_leader())
            return
        queue.append(_Waiting(end, deadline, done))
        if deadline < self._expires_at:
            self._expires_at = deadline
            self._host.wheel.add(deadline, self)

    def may_acknowledge(self) -> bool:
        return self.replica.is_leader and self._host.lease_valid()

    def _not_leader(self) -> NotLeader:
        return NotLeader(f"{self.name}/{self.index}: the leader is {self.replica.leader}")

    def _passed(self, queue: deque[_Waiting], reached: int) -> None:
        if not queue or queue[0].end > reached:
            return
        error = None if self.may_acknowledge() else self._not_leader()
        self._host.ports.buggify("before_ack")
        while queue and queue[0].end <= reached:
            queue.popleft().done(error)
        self._host.ports.buggify("after_ack")

    def fail_waiting(self, error: MillraceError, *, only_committing: bool = False) -> None:
        queues = (self._committing,) if only_committing else (self._on_disk, self._committing)
        for queue in queues:
            while queue:
                queue.popleft().done(error)

    def expire(self, now: float) -> None:
        """The wheel's call: fail what is overdue, register again for what is not."""
        self._expires_at = inf
        nearest = inf
        for queue in (self._on_disk, self._committing):
            kept: list[_Waiting] = []
            late: list[_Waiting] = []
            for waiting in queue:
                (late if waiting.deadline <= now else kept).append(waiting)
            if late:
                queue.clear()
                queue.extend(kept)
                for waiting in late:
                    waiting.done(RequestTimedOut(f"{self.name}/{self.index}: not acknowledged in time"))
            nearest = min([nearest, *(w.deadline for w in kept)])
        if nearest < inf:
            self._expires_at = nearest
            self._host.wheel.add(nearest, self)

    # -- reads of consumers ----------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, current_leader_epoch: int = -1) -> FetchRead:
        """Whole batches below the high watermark. Reads need no lease: what is committed stays so [L16]."""
        replica, log = self.replica, self.log
        error = self.refuse_read(current_leader_epoch)
        if error is None and not log.log_start <= offset <= log.log_end:
            error = OffsetOutOfRange(f"{offset} is outside {log.log_start}..{log.log_end}")
        if error is not None:
            return FetchRead(error, replica.hw, log.log_start, None)
        if offset >= replica.hw:
            return FetchRead(None, replica.hw, log.log_start, None)
        try:
            chunk = log.read(offset, max_bytes, upto=replica.hw)
        except Damaged as e:
            self._host.damaged(self, str(e))    # never served: another replica will lead [L10]
            return FetchRead(self._not_leader(), replica.hw, log.log_start, None)
        if chunk is not None:
            self.bytes_out += chunk.size
        return FetchRead(None, replica.hw, log.log_start, chunk)

    def refuse_read(self, current_leader_epoch: int) -> MillraceError | None:
        """The error for a client that knows `current_leader_epoch` (-1: does not say) [L15]."""
        replica = self.replica
        if self.failed:
            return NotLeader(f"{self.name}/{self.index}: {self.failed}")
        if 0 <= current_leader_epoch < replica.leader_epoch:
            return FencedLeaderEpoch(f"epoch {current_leader_epoch}, it is {replica.leader_epoch}")
        if current_leader_epoch > replica.leader_epoch:
            return UnknownLeaderEpoch(f"epoch {current_leader_epoch}, here it is {replica.leader_epoch}")
        return None if replica.is_leader else self._not_leader()

    def add_waiter(self, waiter: Waiter) -> None:
        self._waiters[waiter] = None

    def remove_waiter(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)

    @property
    def waiters(self) -> Iterable[Waiter]:
        return self._waiters

    def earliest_offset(self) -> int:
        return self.log.log_start

    def latest_offset(self) -> int:
        """The high watermark, once it has reached the start of this leader's epoch: else offsets seem to go back."""
        latest = self.replica.latest_offset()
        if latest is None:
            raise OffsetNotAvailable(f"{self.name}/{self.index}: the new leader is still catching up")
        return latest

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first committed record at or after the time."""
        self.latest_offset()
        found = self.log.offset_for_timestamp(timestamp_ms)
        return found if found is not None and found[0] < self.replica.hw else None

    def newest_record(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the newest committed record."""
        return self.log.newest_record(self.latest_offset())

    # -- what the disk, the controller and the decider say ---------------------------------------------------------

    def _on_durable(self, _: PartitionLog, error: DiskFailed | None) -> None:
        if error is not None:
            self._host.disk_failed(self, error)
        elif not self.failed:
            self.synced()

    def synced(self) -> None:
        """A sync round ended: the durable end may have moved."""
        host, end = self._host, self.log.durable_end
        self.take(self.replica.durable(host.ports.clock.now(), end))
        host.moved(self)
        if self.replica.is_leader:
            self._passed(self._on_disk, end)
        else:
            host.acknowledge(self)

    def assigned(self, assignment: Assignment) -> None:
        """The controller decided [L12]; what is older than what we know changes nothing."""
        replica, stats = self.replica, self._host.stats
        before, was_leader = replica.isr, replica.is_leader
        self.take(replica.assigned(self._host.ports.clock.now(), assignment))
        if not replica.is_leader:
            return
        if was_leader:
            stats.isr_shrinks += bool(before - replica.isr)
            stats.isr_expands += bool(replica.isr - before)
        self._fail_below_min_insync()
        self._unpark()
        self._host.needs_tick(self)

    def min_insync_changed(self, min_insync: int) -> None:
        self.take(self.replica.min_insync_changed(min_insync))
        if self.replica.is_leader:
            self._fail_below_min_insync()

    def _fail_below_min_insync(self) -> None:
        replica = self.replica
        if self._committing and len(replica.isr) < replica.min_insync:
            why = f"{len(replica.isr)} in sync, {replica.min_insync} needed"
            self.fail_waiting(NotEnoughReplicasAfterAppend(why), only_committing=True)

    def tick(self, now: float) -> bool:
        """ISR by time; True while the decider wants more ticks."""
        self.take(self.replica.tick(now))
        return self.replica.needs_tick

    # -- the front of the log --------------------------------------------------------------------------------------

    def start_recorded(self, start: int) -> None:
        """The controller's record allows it. What this replica does not know to be committed waits [L23]."""
        self.take(self.replica.start_recorded(start))

    def leads_from(self, start: int) -> None:
        """Before it leads: elected by command, its log may end below what was recorded [L13]. It goes on at the
        recorded start, for what is written below one is removed as soon as it is committed."""
        if start > self.log.log_end and not self.failed and self.log.damaged is None:
            log.error("the new leader's log ends below the recorded log start: it begins anew there",
                      partition=repr(self), end=self.log.log_end, start=start)
            try:
                self.restart(start, self.log.producers.before(start))
            except DiskFailed as error:
                self._host.disk_failed(self, error)

    def _start_at(self, start: int) -> None:
        try:
            self.log.delete_before(start)
        finally:
            self.replica.log_started(self.log.log_start)
        self._host.moved(self)
        for stream in self.streams.values():
            stream.news()

    # -- following -------------------------------------------------------------------------------------------------

    def append_replica(self, data: memoryview, *, epoch: int) -> bool:
        """Append what the leader sent, if it is what comes next; False: positions must be compared again."""
        base = _base_offset(data)
        if base < self.log.log_end == self.log.log_start:
            self._begin_within(data, epoch)
        if self.failed or not self.replica.data_arrived(epoch=epoch, base=base):
            return False
        try:
            end = self.log.append_replica(data)
        except DiskFailed as e:
            self._write_failed(e)
            raise
        self.replica.replicated(end)
        self._host.request_sync(self)
        return True

    def _begin_within(self, data: memoryview, epoch: int) -> None:
        """A client may have cut the log in the middle of a batch. Who starts over there begins with all of that batch,
        and cuts when it is committed here."""
        first = records.header_at(data)
        if first is None or self.failed:
            return
        if self.replica.begins_within(epoch=epoch, base=first.base_offset, end=first.next_offset):
            self.restart(first.base_offset, self.log.producers.before(first.base_offset))

    def restart(self, at: int, producers: bytes) -> None:
        """The leader has removed all we could go on from; `producers` is what it knows of writers from before."""
        self.log.restart_at(at, producers)
        self.replica.restarted(at)
        self._host.moved(self)

    def leader_said(self, *, epoch: int, hw: int, log_start: int) -> None:
        self.take(self.replica.leader_hw(epoch=epoch, hw=hw, log_start=log_start))

    def drop_damage(self) -> None:
        """The replica has left ISR and ELR: from the damage on it fetches everything again [L10]."""
        self.replica.truncated(self.log.reset_damaged())
        self.failed = ""
        self._host.moved(self)

    # -- effects ---------------------------------------------------------------------------------------------------

    def take(self, effects: Iterable[Effect]) -> None:
        """Carry out what the decider wants, in its order."""
        for effect in effects:
            if type(effect) is HwMoved:
                self._hw_moved()
            else:
                self._take_rare(effect)

    def _hw_moved(self) -> None:
        replica = self.replica
        self._host.stats.hw_advances += 1
        self.log.producers.settled(replica.hw)  # below the high watermark nothing is ever cut
        self._passed(self._committing, replica.hw)
        if replica.is_leader:
            for stream in self.streams.values():
                stream.news()
            if self._waiters:
                self._host.woken(self)
        self._host.moved(self)

    def _take_rare(self, effect: Effect) -> None:
        match effect:
            case ProposeIsr():
                self._host.propose_isr(self, effect)
            case BecameLeader():
                self._became_leader()
            case LostLeadership():
                self._lost_leadership()
            case BecameFollower():
                self._host.role_changed(self)
            case Truncate():
                self._truncate(effect)
            case Restart():
                self.restart(effect.at, b"")
            case AdvanceLogStart():
                self._start_at(effect.to)
            case DiskEpochAhead():
                self._host.disk_epoch_ahead(self, effect)

    def _became_leader(self) -> None:
        self.elections += 1
        self._host.stats.elections += 1
        self._drop_streams()                    # of an older epoch of ours
        self._host.role_changed(self)

    def _lost_leadership(self) -> None:
        self._host.stats.leaderships_lost += 1
        self.fail_waiting(self._not_leader())
        self._drop_streams()
        self._host.woken(self)

    def _drop_streams(self) -> None:
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.fenced(self.replica.leader_epoch)

    def _truncate(self, effect: Truncate) -> None:
        self._host.stats.truncations += 1
        if effect.below_hw:
            self._host.stats.truncations_below_hw += 1
            log.error(
                "replica is cut below its high watermark", partition=repr(self), to=effect.to, hw=self.replica.hw,
                leader=self.replica.leader, leader_epoch=self.replica.leader_epoch,
            )
        self.replica.truncated(self.log.truncate(effect.to))
        self._host.moved(self)

    def _unpark(self) -> None:
        parked, self.parked = self.parked, {}
        for stream in parked.values():
            stream.retry()

    def close(self, error: MillraceError) -> None:
        """The replica goes (deleted, or the broker stops): whoever waits is told."""
        self.fail_waiting(error)
        for streams in (self.streams, self.parked):
            for stream in list(streams.values()):
                stream.drop()
            streams.clear()
        self._host.woken(self)
