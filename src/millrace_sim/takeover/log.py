"""Partitions of our own log: append, a high watermark that follows, fail-over that cuts above it, outages, retention.

Which batches are taken is decided by the product's own `Producers`, what happens to a position by `Positions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from millrace.core.delivery.positions import Commit, Move, Positions
from millrace.core.producers import NO_FENCE, NO_PRODUCER, Duplicate, Producers
from millrace.errors import (
    InvalidProducerEpoch,
    LeaderNotAvailable,
    MessageTooLarge,
    MillraceError,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
)
from millrace.model.positions import Claim, Point, PositionKey, StoredPosition, decode_position, encode_position

if TYPE_CHECKING:
    from millrace_sim.takeover.world import World

Reply = Callable[[object], None]


class Row(NamedTuple):
    """A message with its headers: source partition and point; `writer` is the batch's."""

    writer: int
    partition: int
    point: Point


class Fence(NamedTuple):
    writer: int
    epoch: int


class Record(NamedTuple):
    """A stored position, as bytes."""

    key: PositionKey
    value: bytes


class Batch(NamedTuple):
    base: int
    writer: int
    epoch: int
    sequence: int
    rows: int
    is_fence: bool


class Waiting(NamedTuple):
    offset: int
    reply: Reply
    value: object


class Partition:
    def __init__(self, world: World) -> None:
        self.world = world
        self.records: list[Row | Fence | Record] = []
        self.batches: list[Batch] = []
        self.start = self.hw = self.leader = 0
        self.up = True
        self.waiting: list[Waiting] = []
        self.producers = Producers()

    @property
    def end(self) -> int:
        return len(self.records)

    # -- requests ------------------------------------------------------------------------------------------------------
    def produce(self, leader: int, writer: int, epoch: int, sequence: int, rows: list[Row], reply: Reply) -> None:
        tell = self.world.answer
        if leader != self.leader:
            tell(reply, NotLeader("moved"))
        elif not self.up:
            tell(reply, NotEnoughReplicas("outage") if self.world.rng.random() < 0.5 else LeaderNotAvailable("outage"))
        elif self.world.is_too_large(self, rows):
            tell(reply, MessageTooLarge("over the limit"))
        else:
            self._produce(writer, epoch, sequence, rows, reply)

    def _produce(self, writer: int, epoch: int, sequence: int, rows: list[Row], reply: Reply) -> None:
        try:
            known = self.producers.check(writer, epoch, sequence, len(rows))
        except OutOfOrderSequence as error:
            if self.world.on("sequence"):
                self.world.answer(reply, error)
                return
            known = None
        except InvalidProducerEpoch as error:
            self.world.answer(reply, error)
            return
        if isinstance(known, Duplicate) and self.world.on("sequence"):
            self.at_hw(known.offset, reply, known.offset)
            return
        base = self.append(rows, writer, epoch, sequence, is_fence=False)
        if sequence == 0:
            self.world.after_first_row(self)
        if self.world.on("acks_all"):
            self.waiting.append(Waiting(base + len(rows) - 1, reply, base))
        else:
            self.world.answer(reply, base)

    def fence(self, writer: int, epoch: int, reply: Reply) -> None:
        if not self.up:
            self.world.answer(reply, LeaderNotAvailable("outage"))
            return
        try:
            known = self.producers.check_fence(writer, epoch)
        except InvalidProducerEpoch as error:
            self.world.answer(reply, error)
            return
        if known is not None and self.world.on("fence_once"):
            self.at_hw(known, reply, known)
            return
        base = self.append([Fence(writer, epoch)], writer, epoch, 0, is_fence=True)
        self.world.after_fence(self)
        if self.world.on("fence_at_hw"):
            self.waiting.append(Waiting(base, reply, base))
        else:
            self.world.answer(reply, base)

    def append(
        self, rows: list[Row] | list[Fence] | list[Record], writer: int, epoch: int, sequence: int, *, is_fence: bool
    ) -> int:
        base = self.end
        self.records += rows
        batch = Batch(base, writer, epoch, sequence, len(rows), is_fence)
        self.batches.append(batch)
        self._learn(batch)
        return base

    def _learn(self, batch: Batch) -> None:
        base, writer, epoch, sequence, count, is_fence = batch
        self.producers.replay(
            writer, epoch, sequence, sequence + count - 1, base, base + count - 1, 0, fence=is_fence
        )

    def at_hw(self, offset: int, reply: Reply, value: object) -> None:
        if offset < self.hw:
            self.world.answer(reply, value)
        else:
            self.waiting.append(Waiting(offset, reply, value))

    # -- replication ---------------------------------------------------------------------------------------------------
    def advance(self) -> None:
        if not self.up or (self.hw == self.end and not self.waiting):
            return
        bounds = [batch.base for batch in self.batches if batch.base > self.hw]
        self.hw = self.world.rng.choice([self.hw, *bounds, self.end]) if self.world.faulty else self.end
        for waiting in [w for w in self.waiting if w.offset < self.hw]:
            self.world.answer(waiting.reply, waiting.value)
        self.waiting = [w for w in self.waiting if w.offset >= self.hw]
        self.producers.settled(self.hw)

    def fail_over(self) -> None:
        """Another replica leads: what is above the high watermark may be lost, its senders are told nothing sure."""
        cut = self.world.rng.choice([self.hw, *(b.base for b in self.batches if b.base > self.hw), self.end])
        del self.records[cut:]
        self.batches = [batch for batch in self.batches if batch.base < cut]
        self.leader += 1
        for waiting in self.waiting:
            self.world.answer(waiting.reply, NotLeader("fail-over"))
        self.waiting = []
        assert self.producers.truncated(cut)
        if not self.world.on("fence_survives"):
            self.producers = Producers()
            for batch in self.batches:
                if not batch.is_fence:
                    self._learn(batch)
            for writer, known in self.producers.by_id.items():
                self.producers.by_id[writer] = known._replace(fence=NO_FENCE)


class PositionLog(Partition):
    """The partition of the group: its leader answers by compare-and-set."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.home = Positions(world.off)
        self.stored: list[StoredPosition] = []      # beside `records`

    def append_record(self, key: PositionKey, position: StoredPosition) -> int:
        offset = self.append([Record(key, encode_position(position))], NO_PRODUCER, 0, 0, is_fence=False)
        self.home.replay(offset, key, position)
        self.stored.append(position)
        return offset

    def fail_over(self) -> None:
        super().fail_over()
        self.home = Positions(self.world.off)
        self.stored = []
        for offset, record in enumerate(self.records):
            assert isinstance(record, Record)
            self.stored.append(decode_position(record.value))
            self.home.replay(offset, record.key, self.stored[-1])

    def take(self, key: PositionKey, epoch: int, new_writer: int | None, reply: Reply) -> None:
        self._answer(key, lambda: self.home.take(key, epoch, new_writer_id=new_writer), reply)

    def claim(self, key: PositionKey, claim: Claim, reply: Reply) -> None:
        self._answer(key, lambda: self.home.claim(key, claim), reply)

    def commit(self, key: PositionKey, commit: Commit, reply: Reply) -> None:
        self._answer(key, lambda: self.home.commit(key, commit), reply)

    def _answer(self, key: PositionKey, decide: Callable[[], Move[object]], reply: Reply) -> None:
        try:
            move = decide()
        except MillraceError as error:
            self.world.answer(reply, error)
            return
        if move.record is not None:
            offset = self.append_record(key, move.record)
            self.waiting.append(Waiting(offset, reply, move.reply))
        else:
            self.at_hw(move.after, reply, move.reply)

    def committed(self, key: PositionKey) -> StoredPosition:
        """The last one below the high watermark."""
        last = next(offset for offset in range(self.hw - 1, -1, -1) if self._key(offset) == key)
        return self.stored[last]

    def history(self, key: PositionKey) -> list[StoredPosition]:
        return [self.stored[offset] for offset in range(self.hw) if self._key(offset) == key]

    def _key(self, offset: int) -> PositionKey:
        record = self.records[offset]
        assert isinstance(record, Record)
        return record.key
