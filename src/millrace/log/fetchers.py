"""The follower's side of replication: one fetcher per leader broker, over the one link that is dialled to it.

In: partitions to follow, DATA frames, the link going up and down, durable ends. Out: ATTACH, FETCH, DETACH frames.

    idle ──link up, everything on disk──▶ attached(id, epoch) ──diverged──▶ truncated ──▶ idle
      ▲                                       │ data: append, sync, then FETCH with the durable end
      └── link lost, refused, new epoch ──────┘ (each attachment has a new id: late frames of an old one are ignored)

Promises: a FETCH names only what is durable [L5, L6]; after a broken link every stream goes on at its durable end [L4];
a stream that is refused or fails waits alone, the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from millrace.core.producers import Producers
from millrace.errors import CorruptBatch, Damaged, DiskFailed, DiskFull, OffsetOutOfRange
from millrace.link.pool import LinkPool
from millrace.model.ids import BrokerId, TopicPartition
from millrace.wire import links

if TYPE_CHECKING:
    from millrace.log.partition import Host, Partition

log = structlog.get_logger(__name__)

RETRY_S = 0.25                  # a refused stream asks again; a change of metadata comes sooner
ATTACHES_PER_TURN_MAX = 1_000   # ten thousand partitions that change their leader hold no loop up
CUTS_S = 0.01                   # a truncation waits for the disk: so long per turn, the rest in the next
IDLE = 0                        # stream ids count from 1


class Follow:
    """One partition followed from one leader."""

    __slots__ = ("epoch", "partition", "refusals", "stream")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.stream = IDLE
        self.epoch = -1          # the leader epoch it attached with
        self.refusals = 0        # in a row; said once


class Fetcher:
    """All partitions this broker follows from one leader."""

    __slots__ = (
        "_attach", "_cuts", "_detach", "_follows", "_host", "_loop", "_moved", "_next_stream", "_pool", "_refused",
        "_retry_timer", "_scheduled", "_streams", "leader",
    )

    def __init__(self, host: Host, pool: LinkPool, leader: BrokerId) -> None:
        self._host, self._pool, self.leader = host, pool, leader
        self._loop = asyncio.get_running_loop()
        self._follows: dict[TopicPartition, Follow] = {}
        self._streams: dict[int, Follow] = {}
        self._next_stream = IDLE
        self._attach: dict[Follow, None] = {}    # to be attached when the link is up and all they have is on disk
        self._moved: dict[Follow, None] = {}     # durable end moved since the last FETCH
        self._cuts: dict[Follow, tuple[int, int, int]] = {}   # (leader epoch, its epoch, where that ends)
        self._detach: list[int] = []
        self._refused: dict[Follow, None] = {}
        self._retry_timer: asyncio.TimerHandle | None = None
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._follows)

    # -- what the broker says --------------------------------------------------------------------------------------

    def follow(self, partition: Partition) -> None:
        """Follow from now on, or once more because the leader's epoch changed."""
        follow = self._follows.get(partition.tp)
        if follow is None or follow.partition is not partition:
            self.unfollow(partition.tp)
            follow = self._follows[partition.tp] = Follow(partition)
        self._again(follow)

    def unfollow(self, tp: TopicPartition) -> None:
        follow = self._follows.pop(tp, None)
        if follow is not None:
            self._release(follow)
            self._attach.pop(follow, None)
            self._refused.pop(follow, None)

    def durable(self, tp: TopicPartition) -> None:
        """The durable end of a followed partition moved."""
        follow = self._follows.get(tp)
        if follow is None:
            return
        if follow.stream != IDLE:
            self._moved[follow] = None
        self._schedule()

    def up(self) -> None:
        for follow in self._follows.values():
            follow.stream = IDLE
            self._attach[follow] = None
        self._refused.clear()
        self._streams.clear()
        self._detach.clear()
        self._schedule()

    def down(self) -> None:
        for follow in self._follows.values():
            follow.stream = IDLE
        self._streams.clear()
        self._moved.clear()
        self._detach.clear()

    def close(self) -> None:
        for tp in list(self._follows):
            self.unfollow(tp)
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    # -- streams ---------------------------------------------------------------------------------------------------

    def _again(self, follow: Follow) -> None:
        """Attach anew: positions are compared from the start."""
        self._release(follow)
        self._refused.pop(follow, None)
        self._attach[follow] = None
        self._schedule()

    def _release(self, follow: Follow) -> None:
        if follow.stream != IDLE:
            self._streams.pop(follow.stream, None)
            self._detach.append(follow.stream)
            follow.stream = IDLE
            self._schedule()
        self._moved.pop(follow, None)
        self._cuts.pop(follow, None)

    def _later(self, follow: Follow) -> None:
        """Attach after a while: the leader or this broker must first hear from the controller."""
        self._release(follow)
        follow.refusals += 1
        self._refused[follow] = None
        if self._retry_timer is None:
            delay_s = self._host.ports.random.uniform(RETRY_S / 2, RETRY_S)
            self._retry_timer = self._loop.call_later(delay_s, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        refused, self._refused = self._refused, {}
        self._attach.update(refused)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Once per turn: all that moved in one FETCH, all that begins in one ATTACH."""
        self._scheduled = False
        if not self._pool.connected(self.leader):
            return
        if self._detach:
            detach, self._detach = self._detach, []
            self._pool.send(self.leader, links.DETACH, [links.encode_detach(detach)])
        if self._moved:
            moved, self._moved = self._moved, {}
            self._pool.send(self.leader, links.FETCH, [links.encode_fetch(map(self._fetch_entry, moved))])
        if self._attach:
            entries = list(islice(self._attach_entries(), ATTACHES_PER_TURN_MAX))
            if entries:
                self._pool.send(self.leader, links.ATTACH, [links.encode_attach(entries)])
            if len(entries) == ATTACHES_PER_TURN_MAX:
                self._schedule()

    def _fetch_entry(self, follow: Follow) -> links.Fetch:
        return links.Fetch(follow.stream, follow.epoch, *follow.partition.replica.fetch_position())

    def _attach_entries(self) -> Iterator[links.Attach]:
        for follow in list(self._attach):
            partition = follow.partition
            if partition.log.durable_end < partition.log.log_end:
                continue                        # `durable` comes when the sync round under way has ended
            del self._attach[follow]
            if partition.failed:
                continue
            self._next_stream += 1
            follow.stream = self._next_stream & 0xFFFFFFFF
            follow.epoch = partition.replica.leader_epoch
            self._streams[follow.stream] = follow
            yield links.Attach(
                follow.stream, partition.topic_id, partition.index, follow.epoch, *partition.replica.fetch_position()
            )

    # -- what the leader says --------------------------------------------------------------------------------------

    def data(self, body: memoryview) -> None:
        stats = self._host.stats
        stats.replica_frames_in += 1
        stats.replica_bytes_in += len(body)
        for entry in links.decode_data(body):
            follow = self._streams.get(entry.stream)
            if follow is None:
                continue                        # of an attachment that has ended
            try:
                self._entry(follow, entry)
            except DiskFailed as e:
                self._failed(follow, e)
            except CorruptBatch as e:
                # the bytes came wrong; what is on disk is what was checked before: ask for them again
                log.error("a leader sent a damaged batch", partition=repr(follow.partition), error=str(e))
                self._later(follow)

    def _entry(self, follow: Follow, entry: links.Data) -> None:
        partition = follow.partition
        replica = partition.replica
        if entry.error == OffsetOutOfRange.kafka_code:
            self._restart(follow, entry)
        elif entry.error:
            self._refusal(follow, entry)
        elif entry.leader_epoch != replica.leader_epoch or replica.is_leader:
            self._later(follow)                 # one of us is behind the controller
        elif entry.diverging_end >= 0:
            if not self._cuts:
                self._loop.call_soon(self._cut)
            self._cuts[follow] = (entry.leader_epoch, entry.diverging_epoch, entry.diverging_end)
        else:
            follow.refusals = 0
            self._news(follow, entry)

    def _cut(self) -> None:
        """Cut what the leaders do not have, as many logs as a turn allows."""
        until = self._loop.time() + CUTS_S
        while self._cuts:
            follow = next(iter(self._cuts))
            epoch, at_epoch, end = self._cuts.pop(follow)
            try:
                self._diverged(follow, epoch=epoch, at_epoch=at_epoch, end=end)
            except DiskFailed as e:
                self._failed(follow, e)
            if self._cuts and self._loop.time() >= until:
                self._loop.call_soon(self._cut)
                return

    def _diverged(self, follow: Follow, *, epoch: int, at_epoch: int, end: int) -> None:
        """Then compare again; each round cuts something [L14]."""
        partition, before = follow.partition, follow.partition.log.log_end
        partition.take(partition.replica.diverged(epoch=epoch, at_epoch=at_epoch, end=end))
        if partition.log.log_end < before:
            self._again(follow)
        else:
            self._later(follow)

    def _failed(self, follow: Follow, error: DiskFailed) -> None:
        if isinstance(error, DiskFull):
            log.warning("no room for a replica's data", partition=repr(follow.partition), error=str(error))
            self._later(follow)                 # what is there is sound: go on when there is room again
        else:
            self._release(follow)
            self._host.disk_failed(follow.partition, error)

    def _news(self, follow: Follow, entry: links.Data) -> None:
        partition = follow.partition
        if len(entry.data) and not partition.append_replica(entry.data, epoch=entry.leader_epoch):
            self._again(follow)                 # not what comes next: compare positions again
            return
        partition.leader_said(epoch=entry.leader_epoch, hw=entry.hw, log_start=entry.log_start)

    def _refusal(self, follow: Follow, entry: links.Data) -> None:
        # A leader that was deposed says so to all its followers at once: thousands of lines about nothing.
        if follow.refusals == 0 and entry.leader_epoch <= follow.partition.replica.leader_epoch:
            log.info(
                "replication refused", partition=repr(follow.partition), leader=self.leader, error=entry.error,
                leader_epoch=entry.leader_epoch, my_epoch=follow.partition.replica.leader_epoch,
            )
        self._later(follow)

    def _restart(self, follow: Follow, entry: links.Data) -> None:
        """The leader's log starts above our end: what we have is of no use to anybody."""
        partition = follow.partition
        effects = partition.replica.out_of_range(epoch=entry.leader_epoch, log_start=entry.log_start)
        if not effects:
            self._later(follow)
            return
        producers = bytes(entry.data)
        try:
            Producers.check_snapshot(producers)
        except Damaged as e:
            log.error("a leader told of its writers what cannot be read", partition=repr(partition), error=str(e))
            self._later(follow)
            return
        log.warning("replica starts over at the leader's log start", partition=repr(partition), at=entry.log_start)
        partition.restart(entry.log_start, producers)
        self._again(follow)


class Followers:
    """All fetchers of this broker, one per leader it follows."""

    __slots__ = ("_fetchers", "_host", "_leader_of", "_pool")

    def __init__(self, host: Host, pool: LinkPool) -> None:
        self._host, self._pool = host, pool
        self._fetchers: dict[BrokerId, Fetcher] = {}
        self._leader_of: dict[TopicPartition, BrokerId] = {}

    def follow(self, partition: Partition, leader: BrokerId) -> None:
        before = self._leader_of.get(partition.tp)
        if before is not None and before != leader:
            self._fetchers[before].unfollow(partition.tp)
        self._leader_of[partition.tp] = leader
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = Fetcher(self._host, self._pool, leader)
        fetcher.follow(partition)

    def unfollow(self, tp: TopicPartition) -> None:
        leader = self._leader_of.pop(tp, None)
        if leader is not None:
            self._fetchers[leader].unfollow(tp)

    def durable(self, tp: TopicPartition) -> None:
        leader = self._leader_of.get(tp)
        if leader is not None:
            self._fetchers[leader].durable(tp)

    def on_data(self, leader: BrokerId, body: memoryview) -> None:
        self._tell(leader, lambda fetcher: fetcher.data(body))

    def on_up(self, leader: BrokerId) -> None:
        self._tell(leader, Fetcher.up)

    def on_down(self, leader: BrokerId) -> None:
        self._tell(leader, Fetcher.down)

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.close()

    def _tell(self, leader: BrokerId, what: Callable[[Fetcher], None]) -> None:
        fetcher = self._fetchers.get(leader)
        if fetcher is not None:
            what(fetcher)
