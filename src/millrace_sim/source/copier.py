"""One attempt at one chunk: low mark, read, rows, manifest, high mark. It may be paused and go on much later."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from millrace.core.sources.copies import Attempt, ChunkId, Task
from millrace.model.progress import HighMark, Manifest, Range
from millrace.model.sources import ChunkSpan
from millrace_sim.source.database import Message, Stored, partition_of
from millrace_sim.source.log import PROGRESS

if TYPE_CHECKING:
    from millrace_sim.source.world import World

SCHEMA = UUID(int=1)


def keys_of(span: ChunkSpan) -> range:
    """Keys (low, high], or the one key that both bounds name."""
    assert span.low_key is not None
    assert span.high_key is not None
    low, high = int(span.low_key[0]), int(span.high_key[0])
    return range(low if low == high else low + 1, high + 1)


class CopyTask:
    def __init__(self, world: World, task: Task, attempt: Attempt) -> None:
        self.world, self.task, self.attempt = world, task, attempt
        self.keys = keys_of(task.span)
        self.generation = world.store.state.generation
        self.started_on = world.db.timeline
        self.next = self._low
        self.ended = self.paused = False
        self.writers: set[int] = set()
        self.left: list[tuple[int, Stored]] = []
        self.rows = 0
        self.ranges: dict[int, tuple[int, int]] = {}

    @property
    def chunk(self) -> ChunkId:
        return ChunkId(self.task.copy, self.task.chunk)

    def go(self) -> None:
        store = self.world.store
        why = store.state.copies.voided(
            self.task.copy, self.task.kind, generation=store.state.generation, started_on=self.started_on,
            timeline=self.world.db.timeline,
        )
        if why:
            self.ended = True
        else:
            self.next()

    def _message(self, kind: str) -> None:
        self.world.db.wal.append(Message(kind, self.generation, *self.attempt))

    def _low(self) -> None:
        if self.task.kind == "watermark":
            self._message("low")
            self.writers = {late.number for late in self.world.db.late}
        self.next = self._read

    def _read(self) -> None:
        """After every transaction that wrote to the table at the low mark has ended."""
        db, oid = self.world.db, self.task.oid
        if self.task.kind == "snapshot":
            snapshot = self.world.snapshots[self.task.copy]
            if not snapshot.alive:
                self.ended = True
                return
            seen = snapshot.rows
        else:
            if "h_writers" not in self.world.flaws and any(late.number in self.writers for late in db.late):
                return
            seen = db.visible[oid]
        self.left = sorted(
            ((key, seen[key]) for key in self.keys if key in seen), key=lambda row: partition_of(oid, row[0])
        )
        self.rows = len(self.left)
        self.next = self._write

    def _write(self) -> None:
        if not self.left:
            self.next = self._manifest
            return
        key, stored = self.left.pop(0)
        partition = partition_of(self.task.oid, key)[1]
        topic = self.world.copy_topics.setdefault((self.task.copy, partition), [])
        topic.append((self.task.chunk, self.attempt.attempt, key, stored))
        start, _ = self.ranges.setdefault(partition, (len(topic) - 1, 0))
        self.ranges[partition] = (start, len(topic))

    def _manifest(self) -> None:
        ranges = tuple(Range(partition, start, end) for partition, (start, end) in self.ranges.items())
        span = self.task.span
        self.world.log[PROGRESS].append_plain(Manifest(
            self.generation, *self.attempt, self.task.oid, self.task.kind, SCHEMA, ranges, self.rows, 0, span.low_key,
            span.high_key,
        ))
        self.next = self._high

    def _offset(self, kind: type[Manifest] | type[HighMark]) -> int | None:
        """Of our own record in `progress`."""
        for offset, record in enumerate(self.world.log[PROGRESS].records):
            if isinstance(record, kind) and (record.copy, record.chunk, record.attempt) == self.attempt:
                return offset
        return None

    def _high(self) -> None:
        offset = self._offset(Manifest)
        if offset is None:
            self.next = self._manifest  # lost in a fail-over
        elif offset < self.world.log[PROGRESS].hw:
            if self.task.kind == "watermark":
                self._message("high")
            self.next = self._done

    def _done(self) -> None:
        store, copies = self.world.store, self.world.store.state.copies
        if self.task.kind == "snapshot":
            decision = copies.manifest_acked(self.attempt, rows=self.rows, bytes_=0)
        else:
            offset = self._offset(HighMark)
            if "h_done" not in self.world.flaws and (offset is None or offset >= self.world.log[PROGRESS].hw):
                return
            decision = copies.high_mark_found(self.attempt, rows=self.rows, bytes_=0)
        store.write(decision, epoch=store.epoch)
        self.ended = True
