"""A reader's start on the side of the log: fence, read what stands there, know where to go on [S3, L28].

    fence `progress` ─▶ read it: last mark, schemas ─▶ fence every partition ─▶ read each from the mark on to its fence

In: the source's office, taken under a new epoch. Out: `Standing`, what `judge` needs of the log, and open lanes.
Promise: once it returns, no record of an earlier reader can enter any of these partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace import limits
from millrace.core.sources.copies import Attempt
from millrace.core.sources.reader import Folded, Found, P, ServerFacts, SlotFacts, Tails
from millrace.core.sources.registry import SourceState, Table, progress_topic
from millrace.errors import Malformed
from millrace.log.client import LogClient, Record
from millrace.model.progress import HighMark, SchemaVersion, decode_progress
from millrace.model.tables import Lsn, Place
from millrace.source.reading.lanes import Lanes, Opened, at_once
from millrace.source.reading.schemas import ProgressFold, Schemas
from millrace.wire.changes import HEADER_KEY, Assembler, BatchHeader, decode_header

SCANS_AT_ONCE = 8              # each may hold an answer of several MiB


@dataclass(slots=True, kw_only=True)
class Standing:
    """What the log holds of a source; kept up to date by the reader between its sessions."""

    mark: Folded | None
    schemas: Schemas
    tails: dict[P, Place]
    log_ends: dict[P, int]
    log_starts: dict[P, int] = field(default_factory=dict)
    high_marks: list[Attempt] = field(default_factory=list)
    named_lsn: Lsn = -1
    restate: list[SchemaVersion] = field(default_factory=list)   # to be said again: too much was to be read

    def found(self, *, generation: int, slot: SlotFacts | None, server: ServerFacts) -> Found:
        return Found(
            generation=generation, mark=self.mark, tails=self.tails, log_ends=self.log_ends,
            log_starts=self.log_starts, slot=slot, server=server,
            named_lsn=max(self.named_lsn, self.schemas.named_lsn))


async def scan(client: LogClient, lanes: Lanes, state: SourceState) -> Standing:
    opened = await lanes.open_progress()
    fold, high_marks = ProgressFold(state.generation), list[Attempt]()
    start = state.progress_base if opened.start <= state.progress_base < opened.end else opened.start
    async for records in client.read(progress_topic(state.name), 0, start, opened.end):
        for record in records:
            said = decode_progress(record.value or b"")
            fold.record(said)
            if isinstance(said, HighMark) and said.generation == state.generation:
                high_marks.append(Attempt(said.copy, said.chunk, said.attempt))
    tables = {table.oid: table for table in state.tables.values()}
    ends = await lanes.open_tables(tables.values())
    tails = await _tails(client, tables, ends, fold.mark, state.generation)
    resolved = fold.mark.resolved if fold.mark is not None else -1
    return Standing(
        mark=fold.mark, tails=tails,
        schemas=fold.schemas(resolved, [oid for oid, table in tables.items() if table.state == "dropped"]),
        restate=fold.restated(resolved) if fold.count > limits.PROGRESS_READ_RECORDS else [],
        log_ends={p: one.end for p, one in ends.items()}, log_starts={p: one.start for p, one in ends.items()},
        high_marks=high_marks, named_lsn=fold.named_lsn)


async def _tails(
    client: LogClient, tables: Mapping[int, Table], ends: Mapping[P, Opened], mark: Folded | None, generation: int
) -> dict[P, Place]:
    """The last place of each partition behind the mark's end; the last offset is our own fence."""
    tails = Tails(generation)

    async def one(p: P) -> None:
        start = max(mark.ends.get(p, 0) if mark is not None else 0, ends[p].start)
        if start >= ends[p].end - 1:
            return
        parts = Assembler()
        async for records in client.read(tables[p[0]].topic, p[1], start, ends[p].end):
            for record in records:
                header = header_of(record)
                if parts.add(header, b"") is not None:      # whole, or the last part of a whole run
                    tails.record(p, header.generation, header.last)

    await at_once(one, list(ends), SCANS_AT_ONCE)
    return tails.places


def header_of(record: Record) -> BatchHeader:
    for name, value in record.headers:
        if name == HEADER_KEY and value is not None:
            return decode_header(value)
    raise Malformed(f"record {record.offset} of a table's partition has no header")
