"""What one Spark partition reads: ranges of offsets, by value, and how a batch is cut into them.

    Cut, Cut, TableHistory ──▶ pieces ──▶ cut_pieces ──▶ Work, one per Spark partition
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from millrace.core.sources.table_history import Copied, Cut, TableHistory
from millrace.errors import CopyNotReadable
from millrace.model.tables import TableSchema


class Span(NamedTuple):
    """Offsets [start, end) of one partition. A run of parts belongs to the span that has its first part; `until`: how
    far its rest may stand."""

    topic: str
    partition: int
    start: int
    end: int
    until: int


class Piece(NamedTuple):
    """Changes of `span`; or, with `copy`, the rows of one attempt at one chunk, minus the keys changed in `changed`."""

    span: Span
    copy: int | None = None
    chunk: int = 0
    attempt: int = 0
    generation: int = 0
    low: int = 0
    changed: Span | None = None


@dataclass(frozen=True)
class Work(InputPartition):
    pieces: tuple[Piece, ...]
    schemas: tuple[TableSchema, ...]


def changes(topic: str, start: Cut, end: Cut) -> list[Piece]:
    return [Piece(Span(topic, partition, first, last, last)) for partition, (first, last) in
            enumerate(zip(start.offsets, end.offsets, strict=True)) if last > first]


def copies(topic: str, history: TableHistory, start: Cut, end: Cut) -> list[Piece]:
    """Chunks that became ready between the two, minus what the table's partitions changed since their low marks."""
    return [piece for copied in history.copied(start, end) for piece in _chunk(topic, history, copied, end)]


def _chunk(topic: str, history: TableHistory, copied: Copied, end: Cut) -> Iterable[Piece]:
    window = copied.window
    manifest = window.manifest
    is_window = manifest.kind == "watermark"
    schema = history.schemas.get(manifest.schema_id)
    if is_window and schema is not None and not schema.keys and manifest.rows:
        raise CopyNotReadable(
            f"{schema.full_name} has no key and was copied (copy {window.attempt.copy}) while it changed: rows of the "
            f"copy cannot be told from those before it. Set option includeCopy=false, or begin behind it with a new "
            f"checkpoint")
    changed = history.offsets_at(manifest.generation, window.low) if is_window else end.offsets
    for part in manifest.ranges:
        first, last = changed[part.partition], end.offsets[part.partition]
        if part.end > part.start:
            yield Piece(
                Span(copied.topic, part.partition, part.start, part.end, part.end), *window.attempt,
                manifest.generation, window.low,
                Span(topic, part.partition, first, last, last) if last > first else None)


def cut_pieces(pieces: Sequence[Piece], *, records_max: int, tasks_min: int) -> list[list[Piece]]:
    """Long ranges are cut, short pieces of copies share a task. A chunk is not cut: its parts may interleave."""
    total = sum(piece.span.end - piece.span.start for piece in pieces)
    most = max(1, min(records_max, -(-total // tasks_min)))
    tasks: list[list[Piece]] = []
    packed: list[Piece] = []
    room = 0
    for piece in pieces:
        first, last = piece.span.start, piece.span.end
        if piece.copy is None:
            tasks += [[piece._replace(span=piece.span._replace(start=at, end=min(at + most, last)))]
                      for at in range(first, last, most)]
            continue
        if not packed or room < last - first:
            packed, room = [], most
            tasks.append(packed)
        packed.append(piece)
        room -= last - first
    return tasks
