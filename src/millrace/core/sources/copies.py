"""The copies of one source: what was planned, what was tried, what is done, what to run next [S4, S5].

    planned ──attempt──▶ under way ──manifest acknowledged──────────────▶ done        (snapshot chunk)
       ▲                    │      ──manifest, high mark in `progress`──▶ done        (watermark chunk)
       └── failed, voided ──┘      ──snapshot lost──▶ planned again, as a watermark chunk

In: the records of the source's office (`replay`). Out: decisions, tasks to run, figures to show.
Promise: an attempt number is never used twice; a chunk is done only by proof, and never by an attempt of a snapshot
that was declared lost before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeVar

from millrace.core.decision import SourceDecision
from millrace.core.sources.reader import NO_FLAWS
from millrace.errors import InvalidRequest
from millrace.limits import COPY_PACK_BYTES
from millrace.model.progress import CopyStarted
from millrace.model.sources import (
    ChunkAttempted,
    ChunkDone,
    ChunkSpan,
    CopyPlanned,
    RowsMoved,
    SnapshotLost,
    SourceRecords,
)
from millrace.model.tables import Lsn, Oid

T = TypeVar("T")
Kind = Literal["snapshot", "watermark"]

_NEARLY = 0.95    # of a chunk: the most that one counts for while it is being read

FLAWS = {
    "h_done": "a watermark chunk is done when its high mark was written, and outlives its timeline",
    "h_abandon": "the manifest of a lost snapshot still counts",
}


class ChunkId(NamedTuple):
    copy: int
    chunk: int


class Attempt(NamedTuple):
    """One try at one chunk: low mark, rows, manifest and high mark carry these three numbers."""

    copy: int
    chunk: int
    attempt: int


@dataclass(slots=True)
class Chunk:
    span: ChunkSpan
    kind: Kind
    attempts: int = 0            # the last number used; the next try takes the next one
    snapshot_attempts: int = 0   # numbers up to here belong to a lost snapshot
    done_by: int = 0             # the attempt that counts; 0: none yet
    rows: int = 0
    bytes: int = 0

    @property
    def is_done(self) -> bool:
        return self.done_by > 0


@dataclass(slots=True)
class Copy:
    id: int
    generation: int
    oid: Oid
    topic: str
    partitions: int
    kind: Kind                   # as planned; chunks of a lost snapshot go on as watermark chunks
    at: Lsn
    chunks: list[Chunk]
    feeds: tuple[str, ...] = ()
    why: str = ""                # what broke; "": nothing did
    is_over: bool = False        # its table was dropped: nothing is there to copy, nobody to copy it for

    @property
    def is_done(self) -> bool:
        return self.is_over or all(chunk.is_done for chunk in self.chunks)

    @property
    def is_whole(self) -> bool:
        """Of the whole table; else of single keys, which are named, or whose bounds are equal."""
        spans = [chunk.span for chunk in self.chunks]
        return not all(span.keys or (span.low_key is not None and span.low_key == span.high_key) for span in spans)

    @property
    def is_large(self) -> bool:
        """More than goes into one pack, or nobody knows."""
        sizes = [chunk.span.bytes for chunk in self.chunks]
        return min(sizes) < 0 or sum(sizes) > COPY_PACK_BYTES

    def started(self) -> CopyStarted:
        """What `progress` must say before anything else of the copy counts; said again by every reader that starts."""
        return CopyStarted(
            generation=self.generation, copy=self.id, oid=self.oid, topic=self.topic, chunks=len(self.chunks),
            at=self.at, kind=self.kind, feeds=self.feeds, whole=self.is_whole, why=self.why,
        )

    @property
    def needs_snapshot(self) -> bool:
        """The exported snapshot must be held open while this is true."""
        return not self.is_over and any(chunk.kind == "snapshot" and not chunk.is_done for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Task:
    """What may be run now; `Copies.attempt` gives it its number."""

    copy: int
    chunk: int
    kind: Kind
    oid: Oid
    topic: str
    partitions: int
    span: ChunkSpan


@dataclass(frozen=True, slots=True)
class Figures:
    """How far a copy is; the share is by chunks, which are cut to equal sizes, and by what of them was read."""

    chunks: int
    chunks_done: int
    rows: int
    bytes: int
    chunk_bytes: float = 0.0     # what a chunk comes to, by those that are done or by the copy before; 0: not known
    under_way: float = 0.0       # of chunks that are being read, as a number of chunks

    def with_running(self, read_bytes: Iterable[int]) -> Figures:
        """`read_bytes` of each attempt under way. None counts as done before it is."""
        if not self.chunk_bytes:
            return self
        return replace(self, under_way=sum(min(_NEARLY, one / self.chunk_bytes) for one in read_bytes))

    @property
    def share(self) -> float:
        return min(1.0, (self.chunks_done + self.under_way) / self.chunks) if self.chunks else 1.0

    def remaining_s(self, elapsed_s: float, *, chunks_done_before: int = 0) -> float | None:
        """From the pace of this run, which found `chunks_done_before` done; None: nothing tells the pace yet."""
        if self.chunks_done == self.chunks:
            return 0.0
        passed = self.chunks_done + self.under_way
        ended = passed - chunks_done_before
        return elapsed_s / ended * (self.chunks - passed) if ended > 0 else None


def together(decisions: Iterable[SourceDecision[T]]) -> SourceDecision[list[T]]:
    """Of things that do not touch each other: written at once."""
    made = list(decisions)
    return SourceDecision(tuple(record for one in made for record in one.records), [one.reply for one in made])


@dataclass(slots=True)
class Copies:
    """Replayed state; decisions read it and change nothing."""

    flaws: frozenset[str] = NO_FLAWS
    by_id: dict[int, Copy] = field(default_factory=dict)
    moved: dict[Oid, dict[tuple[str, ...], None]] = field(default_factory=dict)     # keys to be read again, in order

    # -- replay
    def replay(self, record: SourceRecords) -> None:
        """Records about other things are passed over."""
        match record:
            case CopyPlanned():
                chunks = [Chunk(span, record.kind) for span in record.chunks]
                self.by_id[record.copy] = Copy(
                    record.copy, record.generation, record.oid, record.topic, record.partitions, record.kind,
                    record.at, chunks, record.feeds, record.why,
                )
                self._paid(self.by_id[record.copy])
            case RowsMoved():
                self.moved.setdefault(record.oid, {}).update(dict.fromkeys(record.keys))
            case ChunkAttempted():
                chunk = self._chunk(record.copy, record.chunk)
                chunk.attempts = max(chunk.attempts, record.attempt)
            case ChunkDone():
                chunk = self._chunk(record.copy, record.chunk)
                chunk.done_by, chunk.rows, chunk.bytes = record.attempt, record.rows, record.bytes
            case SnapshotLost():
                for number in record.chunks:
                    chunk = self._chunk(record.copy, number)
                    chunk.kind, chunk.snapshot_attempts = "watermark", chunk.attempts
            case _:
                pass

    def _paid(self, copy: Copy) -> None:
        """A copy of the whole table reads every row again; one of single keys, those: others may have come since."""
        owed = {} if copy.is_whole else self.moved.get(copy.oid, {})
        read = {key for chunk in copy.chunks for key in chunk.span.keys}
        self.moved.pop(copy.oid, None)
        if left := {key: None for key in owed if key not in read}:
            self.moved[copy.oid] = left

    def table_gone(self, oid: Oid) -> None:
        """Replayed from the table's own records."""
        self.moved.pop(oid, None)
        for copy in self.by_id.values():
            copy.is_over = copy.is_over or copy.oid == oid

    def _chunk(self, copy: int, chunk: int) -> Chunk:
        return self.by_id[copy].chunks[chunk]

    # -- what to run
    @property
    def next_id(self) -> int:
        return max(self.by_id, default=0) + 1

    def of_generation(self, generation: int) -> Iterator[Copy]:
        """Copies of an earlier generation are over, done or not: the one of the present replaces them."""
        return (copy for _, copy in sorted(self.by_id.items()) if copy.generation == generation)

    def is_done(self, generation: int) -> bool:
        return all(copy.is_done for copy in self.of_generation(generation))

    def next_tasks(self, generation: int, *, running: Collection[ChunkId], limit: int) -> list[Task]:
        """Up to `limit` at once with those running. Snapshot chunks first: their snapshot holds back VACUUM. Then small
        tables: none waits until a large one is copied."""
        free = limit - len(running)
        large = {copy.id for copy in self.of_generation(generation) if copy.is_large}
        waiting = [
            Task(copy.id, number, chunk.kind, copy.oid, copy.topic, copy.partitions, chunk.span)
            for copy in self.of_generation(generation)
            for number, chunk in enumerate(copy.chunks)
            if not copy.is_over and not chunk.is_done and (copy.id, number) not in running
        ]
        waiting.sort(key=lambda task: (task.kind != "snapshot", task.copy in large, task.copy, task.chunk))
        return waiting[: max(free, 0)]

    def figures(self, copy: int) -> Figures:
        chunks = self.by_id[copy].chunks
        done = [chunk for chunk in chunks if chunk.is_done]
        bytes_ = sum(chunk.bytes for chunk in done)
        chunk_bytes = bytes_ / len(done) if bytes_ else self._bytes_before(copy) / len(chunks)
        return Figures(len(chunks), len(done), sum(chunk.rows for chunk in done), bytes_, chunk_bytes)

    def _bytes_before(self, copy: int) -> int:
        """Of the last whole copy of the same table."""
        this = self.by_id[copy]
        if not this.is_whole:
            return 0
        for number, one in reversed(self.by_id.items()):     # there may be hundreds, and each is asked for its figures
            if number < copy and one.oid == this.oid and all(chunk.is_done for chunk in one.chunks) and one.is_whole:
                return sum(chunk.bytes for chunk in one.chunks)
        return 0

    # -- decisions
    def plan(
        self, *, generation: int, oid: Oid, topic: str, partitions: int, kind: Kind, at: Lsn,
        chunks: tuple[ChunkSpan, ...], feeds: tuple[str, ...] = (), copy: int | None = None, why: str = "",
    ) -> SourceDecision[int]:
        """A copy with a number of its own; an empty table has one chunk all the same: it says that nothing is there."""
        if not chunks:
            raise InvalidRequest(f"a copy of table {oid} without chunks")
        number = self.next_id if copy is None else copy
        if number in self.by_id:
            raise InvalidRequest(f"copy {number} is planned already")
        record = CopyPlanned(number, generation, oid, topic, partitions, kind, at, chunks, feeds, why)
        return SourceDecision((record,), number)

    def attempt(self, copy: int, chunk: int) -> SourceDecision[Attempt]:
        number = self._chunk(copy, chunk).attempts + 1
        return SourceDecision((ChunkAttempted(copy, chunk, number),), Attempt(copy, chunk, number))

    def manifest_acked(self, attempt: Attempt, *, rows: int, bytes_: int) -> SourceDecision[bool]:
        """The rows and the manifest of a snapshot attempt are acknowledged. Reply: the chunk is done."""
        chunk = self._chunk(attempt.copy, attempt.chunk)
        lost = chunk.kind != "snapshot" or attempt.attempt <= chunk.snapshot_attempts
        if chunk.is_done or (lost and "h_abandon" not in self.flaws):
            return SourceDecision((), chunk.is_done)
        return self._finished(attempt, rows, bytes_)

    def high_mark_found(self, attempt: Attempt, *, rows: int, bytes_: int) -> SourceDecision[bool]:
        """The high mark of a watermark attempt stands in `progress`, below its high watermark."""
        chunk = self._chunk(attempt.copy, attempt.chunk)
        if chunk.is_done or attempt.attempt <= chunk.snapshot_attempts:
            return SourceDecision((), chunk.is_done)
        return self._finished(attempt, rows, bytes_)

    @staticmethod
    def _finished(attempt: Attempt, rows: int, bytes_: int) -> SourceDecision[bool]:
        return SourceDecision((ChunkDone(attempt.copy, attempt.chunk, attempt.attempt, rows, bytes_),), True)

    def snapshot_lost(self, generation: int) -> SourceDecision[tuple[SnapshotLost, ...]]:
        """The exported snapshot is gone, with its connection or its reader: the rest becomes watermark chunks.

        The reply is also what `progress` must be told (ChunksAbandoned), by every reader that starts: a predecessor may
        have died before it said so.
        """
        records = tuple(
            SnapshotLost(copy.id, rest)
            for copy in self.of_generation(generation)
            if (rest := tuple(n for n, c in enumerate(copy.chunks) if c.kind == "snapshot" and not c.is_done))
        )
        return SourceDecision(records, records)

    def abandoned(self, generation: int) -> dict[int, tuple[int, ...]]:
        """Copy -> chunks whose snapshot was lost: dispatchers must not wait for them."""
        found: dict[int, tuple[int, ...]] = {}
        for copy in self.of_generation(generation):
            rest = tuple(number for number, chunk in enumerate(copy.chunks) if chunk.kind == "watermark")
            if copy.kind == "snapshot" and rest:
                found[copy.id] = rest
        return found

    def voided(self, copy: int, kind: Kind, *, generation: int, started_on: int, timeline: int) -> str:
        """Why an attempt under way must stop before its next step; "": it may go on. Asked before the high mark too.

        A new timeline may have cut away the low mark or what the chunk has read.
        """
        if self.by_id[copy].generation != generation:
            return f"generation {generation} has begun"
        if kind == "watermark" and started_on != timeline and "h_done" not in self.flaws:
            return f"the database went from timeline {started_on} to {timeline}"
        return ""
