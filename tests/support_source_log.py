"""The log of a source, read by a plain client and decoded to text; and the database's tables as text, to compare.

Values are rendered here by code of its own, from Arrow to what PostgreSQL prints, so that the decoder is judged and not
trusted. Floats are compared by value: both sides print the shortest text that reads back, in different styles.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from millrace.log.client import PlainClient
from millrace.model.progress import Change, ProgressRecord, decode_progress
from millrace.model.tables import Oid, Place, TableSchema
from millrace.wire.changes import HEADER_KEY, Assembler, BatchHeader, BatchKind, decode_header, decode_rows
from millrace.wire.records import Record
from support_rebuild import OPS, Copied, Logged, Marker, Rebuild, RowChange, Text, Values, differences

SESSION = {"DateStyle": "ISO", "TimeZone": "UTC", "IntervalStyle": "postgres", "extra_float_digits": "1",
           "bytea_output": "hex"}
FLOATS = {700: np.float32, 701: np.float64}


class SourceLog:
    """What support_rebuild.Rebuild reads, from real brokers."""

    def __init__(self, client: PlainClient, source: str) -> None:
        self._client, self._prefix = client, f"__millrace.{source}."
        self._kept: dict[tuple[str, int], tuple[int, list[Record], int]] = {}

    def progress(self) -> list[tuple[int, ProgressRecord]]:
        return [(record.offset, decode_progress(bytes(record.value or b""))) for record in
                self._read(f"{self._prefix}progress", 0, 0, None)]

    def partitions(self, oid: Oid) -> int:
        return len(self._client.topic(f"{self._prefix}{oid}").partitions)

    def records(self, oid: Oid, partition: int, start: int, end: int, schemas: dict[UUID, TableSchema]
                ) -> Iterator[Logged]:
        joined = Assembler()
        for record in self._read(f"{self._prefix}{oid}", partition, start, end):
            header = header_of(record)
            value = joined.add(header, bytes(record.value or b""))
            if value is not None:
                yield _logged(record.offset, header, value, schemas)

    def copied(self, topic: str, partition: int, start: int, end: int, schemas: dict[UUID, TableSchema]
               ) -> Iterator[Copied]:
        joined: dict[tuple[int, int], Assembler] = {}
        for record in self._read(topic, partition, start, end):
            header = header_of(record)
            _, chunk, attempt = msgspec.msgpack.decode(dict(record.headers)["c"] or b"")
            value = joined.setdefault((chunk, attempt), Assembler()).add(header, bytes(record.value or b""))
            if value is not None:
                batch = decode_rows(header, value, schemas)
                rows = [row.after for row in rows_of(batch, schemas[UUID(bytes=header.schema_id)])]
                yield Copied(record.offset, chunk, attempt, UUID(bytes=header.schema_id), rows)

    def _read(self, topic: str, partition: int, start: int, end: int | None) -> list[Record]:
        """A partition is fetched once and kept: a rebuild asks for it mark by mark."""
        log_start, records, high = self._kept.get((topic, partition), (0, [], -1))
        if end is None or end > high:
            log_start, high = self._client.ends(topic, partition)
            records = [r for page in self._client.read(topic, partition, log_start, high) for r in page]
            self._kept[topic, partition] = log_start, records, high
        assert log_start <= start, f"{topic}[{partition}]: {start} is below the log's start {log_start}"
        first = bisect_left(records, start, key=lambda r: r.offset)
        last = len(records) if end is None else bisect_left(records, end, key=lambda r: r.offset)
        return records[first:last]


def header_of(record: Record) -> BatchHeader:
    return decode_header(bytes(dict(record.headers)[HEADER_KEY] or b""))


def _logged(offset: int, header: BatchHeader, value: bytes, schemas: dict[UUID, TableSchema]) -> Logged:
    schema_id = UUID(bytes=header.schema_id)
    if header.kind == BatchKind.MARKER:
        change = decode_progress(value)
        assert isinstance(change, Change)
        return Logged(offset, header.generation, schema_id, header.first, header.last,
                      Marker(Place(change.commit_lsn, change.seq), change))
    batch = decode_rows(header, value, schemas)
    return Logged(offset, header.generation, schema_id, header.first, header.last, rows_of(batch, schemas[schema_id]))


# -- Arrow to text -------------------------------------------------------------------------------------------------


def rows_of(batch: pa.RecordBatch, table: TableSchema) -> list[RowChange]:
    names = [column.name for column in table.columns]
    after = [texts(batch.column(batch.schema.get_field_index(f"a:{name}"))) for name in names]
    has_before = f"b:{names[0]}" in batch.schema.names
    before = [texts(batch.column(batch.schema.get_field_index(f"b:{name}"))) for name in names] if has_before else []
    _put_odd(batch, [*after, *before])
    vectors = (batch.column(name).to_pylist() for name in ("op", "commit_lsn", "seq", "unchanged", "xid"))
    rows = []
    for at, (op, lsn, seq, mask, xid) in enumerate(zip(*vectors, strict=True)):
        unchanged = frozenset(n for i, n in enumerate(names) if mask is not None and mask[i // 8] >> (i % 8) & 1)
        new = {} if OPS[op] == "delete" else {n: after[i][at] for i, n in enumerate(names) if n not in unchanged}
        old = {n: before[i][at] for i, n in enumerate(names)} if has_before else {}
        rows.append(RowChange(OPS[op], Place(lsn, seq), new, old if any(v is not None for v in old.values()) else {},
                              unchanged, xid))
    return rows


def _put_odd(batch: pa.RecordBatch, columns: Sequence[list[Text]]) -> None:
    for at, cells in enumerate(batch.column("odd").to_pylist()):
        for cell in cells or ():
            assert columns[cell["column"]][at] is None, "an odd cell has a typed value as well"
            columns[cell["column"]][at] = cell["text"]


def texts(column: pa.Array) -> list[Text]:
    """As the type's output function prints it."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return [None if v is None else "t" if v else "f" for v in column.to_pylist()]
    if pa.types.is_floating(kind):
        number = np.float32 if kind == pa.float32() else np.float64
        return [None if v is None else repr(number(v)) for v in column.to_pylist()]
    if pa.types.is_decimal(kind):
        return [None if v is None else format(v, "f") for v in column.to_pylist()]
    if pa.types.is_binary(kind):
        return [None if v is None else "\\x" + v.hex() for v in column.to_pylist()]
    if pa.types.is_date32(kind):
        return [None if v is None else str(np.datetime64(v, "D")) for v in column.cast(pa.int32()).to_pylist()]
    if pa.types.is_time64(kind):
        return [None if v is None else _time(v) for v in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_timestamp(kind):
        zone = "+00" if kind.tz else ""
        return [None if v is None else _timestamp(v) + zone for v in column.cast(pa.int64()).to_pylist()]
    return [None if v is None else str(v) for v in column.to_pylist()]


def _time(us: int) -> str:
    seconds, us = divmod(us, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{us:06}".rstrip("0") if us else text


def _timestamp(us: int) -> str:
    days, rest = divmod(us, 86_400_000_000)
    return f"{np.datetime64(days, 'D')} {_time(rest)}"


# -- the database --------------------------------------------------------------------------------------------------


def database_rows(db: psycopg.Connection[Any], table: TableSchema) -> Counter[tuple[Text, ...]]:
    """Every row as text; columns as the log's schema has them."""
    # Not `IS NULL`: a composite value all of whose fields are null is not null.
    cell = sql.SQL("CASE WHEN num_nulls({0}) = 1 THEN NULL ELSE format('%s', {0}) END")
    query = sql.SQL("SELECT {} FROM {}").format(
        sql.SQL(", ").join(cell.format(sql.Identifier(column.name)) for column in table.columns),
        sql.Identifier(table.schema, table.name))
    floats = {i: FLOATS[c.type_oid] for i, c in enumerate(table.columns) if c.type_oid in FLOATS}
    found = Counter[tuple[Text, ...]]()
    for row in db.execute(query):
        cells = list(row)
        for i, number in floats.items():
            cells[i] = None if cells[i] is None else repr(number(cells[i]))
        found[tuple(cells)] += 1
    return found


TABLES = """
SELECT c.oid, n.nspname, c.relname, array_agg(a.attname ORDER BY a.attnum)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname NOT IN ('pg_catalog', 'information_schema')
GROUP BY 1, 2, 3"""


def compare(url: str, rebuild: Rebuild, *, ignore: Sequence[str] = ()) -> list[str]:
    """Every table of the database with its rebuilt self. Nobody writes meanwhile."""
    found: list[str] = []
    options = " ".join(f"-c {name}={value}" for name, value in SESSION.items())
    with psycopg.connect(url, options=options) as db:
        for oid, schema, name, columns in db.execute(TABLES).fetchall():
            table = rebuild.tables.get(oid)
            if name in ignore:
                continue
            if table is None:
                found.append(f"{schema}.{name}: not in the log")
            elif sorted(columns) != sorted(c.name for c in table.schema.columns):
                found.append(f"{schema}.{name}: columns {columns}, in the log {[c.name for c in table.schema.columns]}")
            else:
                found += differences(database_rows(db, table.schema), table)
    return found


def values_of(rows: Counter[tuple[Text, ...]], table: TableSchema) -> list[Values]:
    return [dict(zip((c.name for c in table.columns), row, strict=True)) for row in rows.elements()]
