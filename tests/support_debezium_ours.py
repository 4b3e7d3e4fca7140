"""Our side of the comparison with Debezium: a slot, the decoder, copies and the encoder, without brokers or Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from struct import pack, unpack_from
from typing import NamedTuple

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from millrace.model.progress import Change
from millrace.model.tables import TableSchema
from millrace.sink.kafka.choice import change_message, format_of, target_of
from millrace.sink.kafka.encode import Encoder, Rows
from millrace.sink.kafka.formats import Origin
from millrace.sink.kafka.headers import NAME, Provenance
from millrace.sink.uri import KafkaSink
from millrace.source.database.catalog import find_tables
from millrace.wire.batches_out import sealed
from millrace.wire.pg.chunks import join
from millrace.wire.pg.copybinary import CopyDecoder, copy_query
from millrace.wire.pg.messages import Rows as ChangedRows
from millrace.wire.pg.messages import Truncate
from millrace.wire.pg.pgoutput import Decoder
from millrace.wire.pg.types import SESSION_SETTINGS
from millrace.wire.records import parse_produced, records_of

FROM = Provenance(bytes(16), 0, 1, 1)
NOW_US = 1_800_000_000_000_000


class Ours(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]                  # Debezium's
    copy: bool = False
    own: bytes = b""                           # header `millrace`


class OurSide:
    """`snapshot` where Debezium has taken its own, `changes` when all is written; then `messages` of any sink."""

    def __init__(self, url: str, publication: str) -> None:
        self._url, self._publication = url, publication
        self.tables: list[TableSchema] = []
        self._copied: list[tuple[TableSchema, Rows]] = []
        self._changed: list[ChangedRows | Truncate] = []
        self.texts: dict[str, list[str]] = {}               # of tables with two columns, behind the snapshot

    def snapshot(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            _prepare(connection)
            self.tables = asyncio.run(_tables(self._url))
            connection.execute("SELECT pg_create_logical_replication_slot('ours', 'pgoutput')")
            for table in self.tables:
                self._copied.append((table, _copied(connection, table)))

    def changes(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            _prepare(connection)
            found = connection.execute(
                "SELECT lsn - '0/0', data FROM pg_logical_slot_get_binary_changes('ours', NULL, NULL, 'proto_version',"
                " '1', 'publication_names', %s, 'messages', 'true')", [self._publication]).fetchall()
            connection.execute("SELECT pg_drop_replication_slot('ours')")
        decoder = Decoder(tables=self.tables)
        # One message at a time: rows of several tables keep the order of the stream.
        for lsn, data in found:
            decoded = decoder.decode(join([b"w" + pack(">QQQ", int(lsn), int(lsn), 0) + data]))
            self._changed += [item for item in decoded.items if isinstance(item, ChangedRows | Truncate)]
            if data[:1] == b"I":
                self._note(data)

    def _note(self, data: bytes) -> None:
        """The text of the second column, as PostgreSQL printed it."""
        oid, count, first = unpack_from(">IxHx", data, 1)[0], 2, unpack_from(">I", data, 9)[0]
        table = next(table for table in self.tables if table.oid == oid)
        at = 13 + first
        if len(table.columns) == count and data[at:at + 1] == b"t":
            (size,) = unpack_from(">I", data, at + 1)
            self.texts.setdefault(table.name, []).append(data[at + 5:at + 5 + size].decode())

    def messages(self, sink: KafkaSink, origin: Origin) -> dict[str, list[Ours]]:
        """By table."""
        found: dict[str, list[Ours]] = {table.name: [] for table in self.tables}
        for table, rows in self._copied:
            found[table.name] += _encoded(sink, origin, table, rows)
        for table, item in self._joined():
            if isinstance(item, Change):
                found[table.name].append(Ours(*change_message(sink, origin, table, item, now_us=NOW_US), {}))
            else:
                found[table.name] += _encoded(sink, origin, table, item)
        return found

    def _joined(self) -> Iterator[tuple[TableSchema, Rows | Change]]:
        """Changes in each table's own order; rows that follow each other there are encoded together."""
        by_oid = {table.oid: table for table in self.tables}
        waiting: dict[int, list[ChangedRows]] = {oid: [] for oid in by_oid}
        for item in self._changed:
            if isinstance(item, ChangedRows):
                before = waiting[item.table.oid]
                if before and (before[0].table, before[0].before) != (item.table, item.before):
                    yield _rows(before)
                    before.clear()
                before.append(item)
                continue
            for one in item.tables:
                table, begin = by_oid[one.oid], item.begin
                if waiting[one.oid]:
                    yield _rows(waiting[one.oid])
                    waiting[one.oid].clear()
                yield table, Change(1, one.oid, begin.commit_lsn, one.seq, "truncate", table.id, None, "",
                                    begin.commit_ts // 1000, begin.xid)
        yield from (_rows(last) for last in waiting.values() if last)


def _rows(changed: list[ChangedRows]) -> tuple[TableSchema, Rows]:
    batch = pa.concat_batches([one.batch for one in changed])
    return changed[0].table, Rows(batch, np.zeros(batch.num_rows, np.int64), np.arange(batch.num_rows))


def _prepare(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    for name, value in SESSION_SETTINGS.items():
        connection.execute(sql.SQL("SELECT set_config({}, {}, false)").format(name, value))


async def _tables(url: str) -> list[TableSchema]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        return [table.version for table in await find_tables(connection, lambda schema, name: schema == "public")]


def _copied(connection: psycopg.Connection[tuple[object, ...]], table: TableSchema) -> Rows:
    decoder = CopyDecoder(table)
    with connection.cursor().copy(copy_query(table).encode()) as copy:
        batch = decoder.decode(list(copy))
    return Rows(batch, np.zeros(batch.num_rows, np.int64), np.arange(batch.num_rows), copy=True)


def _encoded(sink: KafkaSink, origin: Origin, table: TableSchema, rows: Rows) -> list[Ours]:
    encoded = Encoder(table, format_of(sink, origin, table), target_of(sink, 1)).encode(rows, FROM, now_us=NOW_US)
    assert encoded.refused == []
    found = []
    for batch in encoded.batches:
        raw = b"".join(sealed(batch))
        [header] = parse_produced(raw)
        for record in records_of(raw, header):
            headers = {name: value or b"" for name, value in record.headers}
            own = headers.pop(NAME)
            found.append(Ours(record.key, record.value, headers, rows.copy, own))
    return found
