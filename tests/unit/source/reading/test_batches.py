"""Runs of rows into records of partitions: once, in order, below the limit, whatever was there before [S3, S8]."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.core.sources.reader import P, Reader, Resume
from millrace.model.progress import Change, decode_progress
from millrace.model.tables import Column, Place, TableSchema
from millrace.source.reading.batches import Batcher, cut, split_at
from millrace.wire.changes import HEADER_KEY, Assembler, BatchKind, decode_header, decode_rows
from millrace.wire.pg.messages import Rows
from millrace.wire.pg.types import arrow_schema
from millrace.wire.records import Record

TABLE = TableSchema(7, "public", "t", "d", (Column("id", 20, -1, True), Column("v", 25)))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def rows_of(places: Sequence[tuple[int, int]], *, value: str = "v") -> Rows:
    """Inserts; the id of a row is its number."""
    n = len(places)
    columns: dict[str, list[Any]] = {
        "op": [0] * n, "lsn": [lsn for lsn, _ in places], "commit_lsn": [lsn for lsn, _ in places],
        "commit_ts": [NOW] * n, "xid": [1] * n, "seq": [seq for _, seq in places], "unchanged": [None] * n,
        "odd": [None] * n, "a:id": list(range(n)), "a:v": [value] * n}
    schema = arrow_schema(TABLE, before=False)
    return Rows(TABLE, False, pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in schema], schema=schema))


class Kept:
    """An outlet that keeps what it gets, and acknowledges at once."""

    has_room = True

    def __init__(self) -> None:
        self.records: dict[P, list[Record]] = {}

    async def room(self) -> None: ...

    def append(self, p: P, records: Sequence[Record], acked: Callable[[int], None]) -> None:
        self.records.setdefault(p, []).extend(records)
        acked(len(self.records[p]))

    def places(self, p: P) -> list[Place]:
        found, parts = [], Assembler()
        for record in self.records.get(p, []):
            header = decode_header(dict(record.headers)[HEADER_KEY] or b"")
            value = parts.add(header, record.value or b"")
            if value is None:
                continue
            if header.kind == BatchKind.MARKER:
                found.append(header.first)
                continue
            batch = decode_rows(header, value, {TABLE.id: TABLE})
            here = [Place(*place) for place in zip(*(batch.column(name).to_pylist() for name in ("commit_lsn", "seq")),
                                                   strict=True)]
            assert (here[0], here[-1], len(here)) == (header.first, header.last, header.rows)
            found += here
        return found


class Bench:
    def __init__(self, *, partitions: int = 1, resolved: int = 0, tails: dict[P, Place] | None = None) -> None:
        self.kept, self.oversize = Kept(), list[tuple[Place, int]]()
        places = [(TABLE.oid, number) for number in range(partitions)]
        resume = Resume(generation=3, resolved=resolved, tails=tails or {}, log_ends=dict.fromkeys(places, 0))
        self.core = Reader(resume, system_id="s", timeline=1)
        self.batcher = Batcher(self.core, self.kept, epoch=5, partitions={TABLE.oid: partitions},
                               acked=lambda: None, oversize=self._oversize)

    async def _oversize(self, table: TableSchema, place: Place, size: int) -> None:
        self.oversize.append((place, size))

    def put(self, rows: Rows) -> None:
        asyncio.run(self.batcher.rows(rows))


def histories() -> st.SearchStrategy[list[tuple[int, int]]]:
    """(commit LSN, seq) of some transactions, in order."""
    counts = st.lists(st.integers(1, 6), min_size=1, max_size=8)
    return counts.map(lambda found: [(10 * (n + 1), seq) for n, count in enumerate(found) for seq in range(count)])


@given(histories(), st.integers(1, 4), st.integers(0, 90), st.data())
def test_S3_every_row_is_handed_over_once_and_what_is_there_is_skipped(
    history: list[tuple[int, int]], partitions: int, resolved: int, data: st.DataObject
) -> None:
    whole = Bench(partitions=partitions)
    whole.put(rows_of(history))
    tails = {}
    for number in range(partitions):
        p = (TABLE.oid, number)
        there = [place for place in whole.kept.places(p) if place.commit_lsn > resolved]
        if there and data.draw(st.booleans()):
            tails[p] = data.draw(st.sampled_from(there))
    again = Bench(partitions=partitions, resolved=resolved, tails=tails)
    again.put(rows_of(history))
    total = []
    for number in range(partitions):
        p = (TABLE.oid, number)
        places = whole.kept.places(p)
        assert places == sorted(set(places))
        after = max(Place(resolved, 1 << 62), tails.get(p, Place(-1, -1)))
        assert again.kept.places(p) == [place for place in places if place > after]
        total += places
    assert sorted(total) == [Place(*place) for place in history]


@given(histories(), st.integers(0, 90))
def test_S3_a_run_is_cut_at_a_commit(history: list[tuple[int, int]], lsn: int) -> None:
    early, late = split_at(rows_of(history), lsn)
    found = [[] if part is None else part.batch.column("commit_lsn").to_pylist() for part in (early, late)]
    assert found == [[at for at, _ in history if at <= lsn], [at for at, _ in history if at > lsn]]


def test_S8_records_stay_below_the_limit() -> None:
    rows = rows_of([(10, seq) for seq in range(4000)], value="x" * 1000)
    pieces = list(cut(rows.batch, limits.CHANGE_RECORD_BYTES_MAX))
    assert all(piece.nbytes <= limits.CHANGE_RECORD_BYTES_MAX for piece in pieces)
    assert sum(piece.num_rows for piece in pieces) == 4000
    bench = Bench()
    bench.put(rows)
    assert all(len(record.value or b"") <= limits.CHANGE_RECORD_BYTES_MAX for record in bench.kept.records[7, 0])
    assert len(bench.kept.places((7, 0))) == 4000


def test_S8_rows_of_very_different_size_are_cut_apart() -> None:
    small, large = rows_of([(10, seq) for seq in range(100)]), rows_of([(11, 0)], value="y" * 900_000)
    joined = pa.concat_batches([small.batch, large.batch, large.batch])
    assert sum(piece.num_rows for piece in cut(joined, limits.CHANGE_RECORD_BYTES_MAX)) == 102
    assert all(p.num_rows == 1 or p.nbytes <= limits.CHANGE_RECORD_BYTES_MAX
               for p in cut(joined, limits.CHANGE_RECORD_BYTES_MAX))


def test_S8_a_huge_row_is_one_batch_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = random.Random(1).randbytes(3 * limits.MIB).hex()
    bench = Bench()
    bench.put(rows_of([(10, 0), (10, 1)], value=noise))
    assert len(bench.kept.records[7, 0]) > 2
    assert bench.kept.places((7, 0)) == [Place(10, 0), Place(10, 1)]
    monkeypatch.setattr(limits, "CHANGE_ROW_BYTES_MAX", 1 * limits.MIB)
    bench.put(rows_of([(11, 0), (12, 0)], value=noise))
    assert [place for place, _ in bench.oversize] == [Place(11, 0), Place(12, 0)]
    bench.put(rows_of([(13, 0)]))
    assert bench.kept.places((7, 0))[-1] == Place(13, 0)


def test_S7_a_marker_stands_once_in_every_partition() -> None:
    bench = Bench(partitions=3, tails={(7, 1): Place(20, 4)})
    change = Change(3, 7, 20, 4, "truncate", UUID(int=1))
    bench.batcher.marker(7, Place(20, 4), change, TABLE.id)
    assert [bench.kept.places((7, number)) for number in range(3)] == [[Place(20, 4)], [], [Place(20, 4)]]
    assert decode_progress(bench.kept.records[7, 0][0].value or b"") == change
