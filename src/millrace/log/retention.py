"""Retention on one broker: what may go is found, recorded at the controller, and then removed [L23, F10].

    pass, every so often          leaders here: files, settings, floors ─▶ core.retention ─▶ cuts and releases
      cuts, releases ─▶ controller: AdvanceLogStarts ─▶ record ─▶ every broker replays it
    record                        every replica here: files below the start go, a slice at a time
    the leader's log start        also rides on its followers' streams: who was behind hears of it there

In: partitions, the floors in the metadata, the time. Out: log starts, removed files, releases. Promises: a byte goes
only after the controller's record says so, and a partition nobody writes to costs one look at its newest time per
pass; the loop is never held for longer than a slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import structlog

from millrace import limits
from millrace.core import retention
from millrace.core.admin import is_internal
from millrace.core.cluster import ClusterState
from millrace.core.groups.placing import GROUP_TOPIC
from millrace.core.retention import Held, Plan, RetentionConfig, Settings
from millrace.errors import MillraceError, NotLeader, PolicyViolation
from millrace.log.groups.loading import replay_from
from millrace.log.partition import Partition
from millrace.log.stats import BrokerStats
from millrace.model.ids import BrokerId, TopicPartition
from millrace.model.messages import AdvanceLogStarts, Cut, FloorToRelease, LogStartsRecorded, Message
from millrace.ops.naps import next_look
from millrace.ops.ports import Ports

log = structlog.get_logger(__name__)

WAKE_S = 1.0
OWN_REPLAY = "groups"      # the group topic's floor: from where its coordinator would be replayed


class Surroundings(Protocol):
    """What retention uses of its broker."""

    ports: Ports
    stats: BrokerStats
    disk_total_bytes: int

    @property
    def me(self) -> BrokerId: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def cluster(self) -> ClusterState: ...
    @property
    def partitions(self) -> dict[TopicPartition, Partition]: ...
    async def ask_controller(self, message: Message) -> Message: ...


class Retention:
    def __init__(self, around: Surroundings, config: RetentionConfig) -> None:
        self._around, self._config = around, config
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting: dict[TopicPartition, None] = {}        # their recorded start is to be carried out
        self._starter: asyncio.Task[None] | None = None
        self.held: dict[TopicPartition, tuple[Held, ...]] = {}  # by the last pass, of partitions led here
        self._closed = False
        self._arm()

    # -- passes ----------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """A whole time after the start or the last pass, at a moment at which the process wakes anyway."""
        check_s = self._config.check_s
        if check_s > 0 and not self._closed:
            at = next_look(self._loop.time() + check_s, min(check_s, WAKE_S))
            self._timer = self._loop.call_at(at, self._begin)

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._run())
        self._arm()

    async def _run(self) -> None:
        try:
            await self.look()
        except MillraceError as error:
            log.warning("retention waits for its next pass", error=str(error), code=error.code)
        except Exception:
            log.exception("a pass of retention failed")

    async def look(self) -> None:
        """One pass over all partitions here."""
        turn = Slice(self._loop)
        cuts: list[Cut] = []
        held: dict[TopicPartition, tuple[Held, ...]] = {}
        for tp, partition in list(self._around.partitions.items()):
            await turn.step()
            if not self._is_here(partition) or not is_sound(partition):
                continue
            try:
                plan = self._look_at(partition)
            except MillraceError as error:
                log.warning("retention leaves a log alone for now", partition=repr(partition), error=str(error))
                continue
            if plan is None:
                continue
            if plan.held:
                held[tp] = plan.held
            if plan.start > max(partition.log.log_start, self._around.cluster.floors.log_start(tp)):
                cuts.append(Cut(*tp, partition.replica.leader_epoch, plan.start))
        self.held = held
        release = self._to_release(held)
        while cuts or release:
            await self._ask(cuts[: limits.CUTS_PER_CALL_MAX], release[: limits.CUTS_PER_CALL_MAX])
            cuts, release = cuts[limits.CUTS_PER_CALL_MAX :], release[limits.CUTS_PER_CALL_MAX :]

    def _is_here(self, partition: Partition) -> bool:
        """Also while a snapshot of the metadata is being taken in."""
        around = self._around
        return around.partitions.get(partition.tp) is partition and partition.topic_id in around.cluster.topics

    def _look_at(self, partition: Partition) -> Plan | None:
        """What could go; None: nothing, found without looking at a file."""
        logged = partition.log
        settings = self.settings_of(partition)
        now_ms = self._now_ms()
        recorded = self._around.cluster.floors.log_start(partition.tp)
        if recorded > logged.log_start:
            self.starts([partition.tp])
        expired = retention.may_have_expired(settings, newest_ms=logged.newest, now_ms=now_ms)
        if logged.log_end == logged.log_start and logged.has_one_file:
            return None
        if logged.has_one_file and not expired and not logged.is_loaded:
            return None
        first_ms, newest_ms = logged.active_span_ms()
        if newest_ms >= 0 and (expired or retention.is_due_to_roll(settings, first_ms=first_ms, newest_ms=newest_ms)):
            logged.roll()                              # not an empty file: a floor may hold what lies before it
        if logged.has_one_file:
            return None
        logged.delete_before(logged.log_start)         # files that were needed until something stood behind them
        return self._plan(partition, settings, now_ms) if partition.replica.is_leader else None

    def settings_of(self, partition: Partition) -> Settings:
        topic = self._around.cluster.topics[partition.topic_id]
        return retention.settings_of(
            internal=is_internal(topic.name), values=topic.values, defaults=self._config.defaults
        )

    def _plan(self, partition: Partition, settings: Settings, now_ms: int) -> Plan:
        floors: Mapping[str, int] = self._around.cluster.floors.on(partition.tp)
        if partition.name == GROUP_TOPIC:
            floors = {**floors, OWN_REPLAY: replay_from(partition, partition.replica.hw)}
        return retention.plan(
            partition.log.file_views(), settings=settings, now_ms=now_ms, log_start=partition.log.log_start,
            hw=partition.replica.hw, floors=floors, released=self._around.cluster.floors.was_released(partition.tp),
        )

    def _now_ms(self) -> int:
        return int(self._around.ports.clock.wall() * 1000)

    # -- budgets ---------------------------------------------------------------------------------------------------

    def _to_release(self, held: dict[TopicPartition, tuple[Held, ...]]) -> list[FloorToRelease]:
        where = list(held)
        found = [(n, one) for n, tp in enumerate(where) for one in held[tp] if one.owner != OWN_REPLAY]
        disk = self._around.disk_total_bytes
        budgets = {one.owner: self._config.budget_of(one.owner, disk) for _, one in found}
        return [
            FloorToRelease(r.owner, *where[r.where], r.offset, r.why) for r in retention.over_budget(found, budgets)
        ]

    def held_by_owner(self) -> dict[str, int]:
        """Bytes that could go but for a floor, as the last pass found them."""
        total: dict[str, int] = {}
        for holdings in self.held.values():
            for one in holdings:
                total[one.owner] = total.get(one.owner, 0) + one.size_bytes
        return total

    def age_by_owner(self) -> dict[str, float]:
        """Seconds, of the oldest that an owner holds back."""
        oldest: dict[str, float] = {}
        for holdings in self.held.values():
            for one in holdings:
                oldest[one.owner] = max(oldest.get(one.owner, 0.0), one.age_ms / 1000)
        return oldest

    # -- the controller --------------------------------------------------------------------------------------------

    async def _ask(self, cuts: list[Cut], release: list[FloorToRelease]) -> LogStartsRecorded:
        around = self._around
        message = AdvanceLogStarts(around.me, around.incarnation, tuple(cuts), tuple(release), self._now_ms())
        answer = await around.ask_controller(message)
        assert isinstance(answer, LogStartsRecorded)
        for one in answer.released:
            around.stats.floors_released += 1
            log.error("a floor was released: its holder kept more than its budget", owner=one.owner, why=one.why,
                      topic_id=str(one.topic_id), partition=one.partition, offset=one.offset)
        return answer

    async def delete_records(self, partition: Partition, offset: int) -> int:
        """At a client's wish: the log start, once it is recorded and carried out here. Not above the high watermark;
        PolicyViolation names who still needs what would go."""
        cut = Cut(*partition.tp, partition.replica.leader_epoch, offset)
        (result,) = (await self._ask([cut], [])).results
        if result.held_by:
            raise PolicyViolation(
                f"{partition.name}/{partition.index}: {result.held_by} still needs what lies below {offset}"
            )
        if result.start < offset:
            raise NotLeader(f"{partition.name}/{partition.index}: led by another broker, or anew, by now")
        self._carry_out(partition, result.start)
        return partition.log.log_start

    # -- what the metadata says ------------------------------------------------------------------------------------

    def starts(self, partitions: list[TopicPartition]) -> None:
        """Log starts were recorded: carried out here in slices."""
        self._starting.update((tp, None) for tp in partitions if tp in self._around.partitions)
        if self._starting and (self._starter is None or self._starter.done()) and not self._closed:
            self._starter = self._loop.create_task(self._start_all())

    async def _start_all(self) -> None:
        turn = Slice(self._loop)
        while self._starting:
            tp = next(iter(self._starting))
            del self._starting[tp]
            partition = self._around.partitions.get(tp)
            try:
                if partition is not None:
                    self._carry_out(partition, self._around.cluster.floors.log_start(tp))
            except MillraceError as error:
                log.warning("a log keeps its front for now", partition=repr(partition), error=str(error),
                            code=error.code)
            await turn.step()

    def _carry_out(self, partition: Partition, start: int) -> None:
        before = partition.log.log_start
        partition.start_recorded(start)
        if partition.log.log_start > before:
            self._around.stats.log_starts_moved += 1

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for task in (self._task, self._starter) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def is_sound(partition: Partition) -> bool:
    """What lies behind a damage is kept as it is until the replica may fetch it again [L10]."""
    return not partition.failed and partition.log.failed is None and partition.log.damaged is None


class Slice:
    """Lets the loop serve others after a slice of work."""

    __slots__ = ("_count", "_loop", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until = loop.time() + limits.RETENTION_SLICE_S
        self._count = 0

    async def step(self) -> None:
        self._count += 1
        if self._count >= limits.RETENTION_SLICE_LOGS or self._loop.time() >= self._until:
            await asyncio.sleep(0)
            self._count = 0
            self._until = self._loop.time() + limits.RETENTION_SLICE_S
