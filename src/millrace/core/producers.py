"""Idempotent producers and fenced writers of one partition [L20, L28].

In: every batch of a producer, in log order (`replay`), and where the log was cut (`truncated`).
Out: for a batch about to be appended: new, a repeat of a kept one, or refused (`check`, `check_fence`).
Promise: the state is what replaying the log's batches gives, also after truncation: each change keeps its undo until
`settled` says that the log can no longer be cut there. A writer's state, once fenced, never expires by time.

    plain producer                                   fenced writer
    unknown --any sequence--> known                  fence(epoch) --sequence 0--> known
    known --next sequence--> known                   known --next sequence--> known
    known --higher epoch, sequence 0--> known        known --fence(higher epoch)--> fence(epoch)
    known --silence for a day--> unknown             (only a fence raises its epoch)
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec

from millrace.errors import InvalidProducerEpoch, Malformed, NewerFormat, OutOfOrderSequence
from millrace.limits import PRODUCER_BATCHES_KEPT

NO_PRODUCER = -1
NO_FENCE = -1
SEQUENCE_MAX = 2**31 - 1
PRODUCER_EXPIRY_MS = 24 * 3600 * 1000
UNDO_MAX = 10_000  # batches of producers above the high watermark; beyond it truncation asks for a rebuild
FORMAT = 1


class Duplicate(NamedTuple):
    """The batch is already in the log, at `offset`."""

    offset: int


class KeptBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    offset: int


class Producer(NamedTuple):
    """`fence`: offset of the first fence of the present epoch, -1 for a plain producer."""

    epoch: int
    fence: int
    timestamp_ms: int
    batches: tuple[KeptBatch, ...]


class _Undo(NamedTuple):
    offset: int
    producer_id: int
    before: Producer | None


class _Snapshot(msgspec.Struct, array_like=True):
    format: int
    end: int
    producers: dict[int, tuple[int, int, int, tuple[tuple[int, int, int], ...]]]


class Producers:
    __slots__ = ("_floor", "_undo", "by_id", "end")

    def __init__(self) -> None:
        self.by_id: dict[int, Producer] = {}
        self.end = 0  # offset after the last replayed batch
        self._undo: deque[_Undo] = deque()
        self._floor = 0  # truncation to this offset or above can be undone exactly

    def check(self, producer_id: int, epoch: int, first_sequence: int, count: int) -> Duplicate | None:
        """None: append it. Changes nothing."""
        if producer_id == NO_PRODUCER:
            return None
        known = self.by_id.get(producer_id)
        if first_sequence < 0 or (known is None and epoch < 0):
            raise OutOfOrderSequence(f"producer {producer_id}: sequence {first_sequence}, epoch {epoch}")
        if known is None:
            return None
        if epoch != known.epoch:
            self._check_new_epoch(producer_id, known, epoch, first_sequence)
            return None
        last_sequence = advance(first_sequence, count - 1)
        expected = advance(known.batches[-1].last_sequence, 1) if known.batches else 0
        if first_sequence == expected:
            return None
        for batch in known.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return Duplicate(batch.offset)
        raise OutOfOrderSequence(f"producer {producer_id}: sequence {first_sequence}, expected {expected}")

    @staticmethod
    def _check_new_epoch(producer_id: int, known: Producer, epoch: int, first_sequence: int) -> None:
        if epoch < known.epoch:
            raise InvalidProducerEpoch(f"producer {producer_id}: epoch {epoch} is below {known.epoch}")
        if known.fence != NO_FENCE:
            raise InvalidProducerEpoch(f"writer {producer_id}: epoch {epoch} has no fence, {known.epoch} has")
        if first_sequence != 0:
            raise OutOfOrderSequence(f"producer {producer_id}: epoch {epoch} starts at {first_sequence}, not 0")

    def check_fence(self, writer_id: int, epoch: int) -> int | None:
        """The offset of the first fence of this epoch, or None: append one. Changes nothing."""
        known = self.by_id.get(writer_id)
        if known is None or epoch > known.epoch:
            return None
        if epoch < known.epoch:
            raise InvalidProducerEpoch(f"writer {writer_id}: epoch {epoch} is below {known.epoch}")
        return known.fence if known.fence != NO_FENCE else None

    def replay(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        last_sequence: int,
        base_offset: int,
        last_offset: int,
        timestamp_ms: int,
        *,
        fence: bool,
    ) -> None:
        """A batch is in the log. The only mutation forward; refuses nothing, the log has the last word."""
        self.end = last_offset + 1
        if producer_id == NO_PRODUCER:
            return
        before = self.by_id.get(producer_id)
        after: Producer
        if fence:
            first = base_offset
            if before is not None and before.epoch == epoch and before.fence != NO_FENCE:
                first = before.fence
            after = Producer(epoch, first, timestamp_ms, ())
        else:
            batch = KeptBatch(first_sequence, last_sequence, base_offset)
            if before is None:
                after = Producer(epoch, NO_FENCE, timestamp_ms, (batch,))
            elif before.epoch != epoch:
                after = Producer(epoch, before.fence, timestamp_ms, (batch,))
            else:
                kept = (*before.batches[1 - PRODUCER_BATCHES_KEPT :], batch)
                after = Producer(epoch, before.fence, timestamp_ms, kept)
        self.by_id[producer_id] = after
        self._undo.append(_Undo(base_offset, producer_id, before))
        if len(self._undo) > UNDO_MAX:
            self._floor = self._undo.popleft().offset + 1

    def settled(self, offset: int) -> None:
        """The log is never cut below `offset` (the high watermark): its undo is dropped."""
        undo = self._undo
        while undo and undo[0].offset < offset:
            undo.popleft()
        self._floor = max(self._floor, min(offset, self.end))

    def truncated(self, log_end: int) -> bool:
        """The log was cut to `log_end`. False: too deep, nothing was changed, rebuild from a snapshot and the log."""
        if log_end >= self.end:
            return True
        if log_end < self._floor:
            return False
        undo = self._undo
        while undo and undo[-1].offset >= log_end:
            _, producer_id, before = undo.pop()
            if before is None:
                self.by_id.pop(producer_id, None)
            else:
                self.by_id[producer_id] = before
        self.end = log_end
        return True

    def at(self, end: int) -> Producers | None:
        """A copy as it was when the log ended at `end`. None: too long ago, rebuild it from a snapshot and the log."""
        if end < self._floor:
            return None
        copy = Producers()
        copy.by_id, copy.end, copy._floor = dict(self.by_id), self.end, self._floor
        copy._undo = deque(self._undo)
        copy.truncated(end)
        return copy

    def before(self, start: int) -> bytes:
        """A snapshot for a log that begins at `start`: of each producer what batches below it said, as far as it is
        known here. Empty when that is nothing. Replaying on from there comes to the state there is here."""
        kept: dict[int, Producer] = {}
        for producer_id, known in self.by_id.items():
            batches = tuple(batch for batch in known.batches if batch.offset < start)
            if known.fence < start and (known.fence != NO_FENCE or batches):
                kept[producer_id] = known._replace(batches=batches)
        return msgspec.msgpack.encode(_Snapshot(FORMAT, start, dict(kept))) if kept else b""

    def log_started(self, log_start: int) -> None:
        """The front of the log was removed. What was learned from it stays: a repeat must still be recognised."""
        self.settled(log_start)
        self.end = max(self.end, log_start)

    def expire(self, now_ms: int) -> int:
        """Forgets plain producers silent for a day, never writers. How many."""
        before = len(self.by_id)
        horizon = now_ms - PRODUCER_EXPIRY_MS
        kept = {i: p for i, p in self.by_id.items() if p.fence != NO_FENCE or p.timestamp_ms >= horizon}
        self.by_id = kept
        return before - len(kept)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(_Snapshot(FORMAT, self.end, dict(self.by_id)))

    @classmethod
    def check_snapshot(cls, blob: bytes) -> None:
        """Of another process: Malformed or NewerFormat where it cannot be restored. Empty: nothing is known."""
        try:
            if blob:
                cls.restore(blob)
        except (msgspec.MsgspecError, TypeError, ValueError, IndexError) as error:
            raise Malformed(f"producer snapshot: {error}") from error

    @classmethod
    def restore(cls, blob: bytes) -> Producers:
        """The state at the snapshot's end; batches from `end` on are to be replayed."""
        header = msgspec.msgpack.decode(blob, type=list[msgspec.Raw])
        found = msgspec.msgpack.decode(header[0], type=int)
        if found > FORMAT:
            raise NewerFormat(f"producer snapshot of format {found}, this millrace reads up to {FORMAT}")
        snapshot = msgspec.msgpack.decode(blob, type=_Snapshot)
        self = cls()
        self.end = self._floor = snapshot.end
        for producer_id, (epoch, fence, timestamp_ms, batches) in snapshot.producers.items():
            kept = tuple(KeptBatch(*batch) for batch in batches)
            self.by_id[producer_id] = Producer(epoch, fence, timestamp_ms, kept)
        return self


def advance(sequence: int, count: int) -> int:
    """Sequences count from 0 to 2^31 - 1 and start over."""
    return (sequence + count) & SEQUENCE_MAX
