"""The demo's judge of the shop must be able to say no: what is lost, doubled or wrong in the log shows [A5]."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from millrace.cli.shop import last_row, rebuilt
from millrace.core.sources.registry import copy_topic, progress_topic, table_topic
from millrace.log.client import PlainClient, Record
from millrace.model.progress import CopyStarted, Manifest, ProgressRecord, Range, SchemaVersion, encode_progress
from millrace.model.tables import Column, TableSchema
from millrace.wire.changes import HEADER_KEY, BatchHeader, BatchKind, encode_header, encode_rows
from millrace.wire.pg.types import DELETE, INSERT, UPDATE, arrow_schema

SOURCE = "shop"
ORDERS = TableSchema(7, "public", "orders", "d", (Column("id", 20, is_key=True), Column("note", 25)))


class InMemory:
    """The three calls of a client that the judge makes, over lists of records."""

    def __init__(self) -> None:
        self.topics: dict[str, list[Record]] = {}

    def add(self, topic: str, value: bytes, *headers: tuple[str, bytes]) -> None:
        records = self.topics.setdefault(topic, [])
        records.append(Record(value, headers=headers, offset=len(records)))

    def topic(self, name: str) -> Any:
        return SimpleNamespace(partitions=(0,))

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        return 0, len(self.topics.get(topic, []))

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[list[Record]]:
        yield self.topics.get(topic, [])[start:end]


def log(*changes: tuple[int, int, int, str | None, int]) -> PlainClient:
    """A copy of orders 1 and 2, then changes (op, key, old key, note, place)."""
    client = InMemory()
    for record in (SchemaVersion(1, ORDERS, 0, 0), CopyStarted(1, 1, 7, copy_topic(SOURCE, 1), 1, 9, "snapshot"),
                   Manifest(1, 1, 0, 1, 7, "snapshot", ORDERS.id, (Range(0, 0, 1),), 2, 10)):
        client.add(progress_topic(SOURCE), encode_progress(cast("ProgressRecord", record)))
    _rows(client, copy_topic(SOURCE, 1), [(INSERT, 1, 1, "first", 0), (INSERT, 2, 2, "second", 1)])
    for change in changes:
        _rows(client, table_topic(SOURCE, 7), [change])
    return cast("PlainClient", client)


def _rows(client: InMemory, topic: str, changes: list[tuple[int, int, int, str | None, int]]) -> None:
    rows = [{"op": op, "lsn": 10 + place, "commit_lsn": 10 + place, "commit_ts": 0, "xid": 1, "seq": 0,
             "a:id": None if op == DELETE else key, "a:note": None if op == DELETE else note, "b:id": old}
            for op, key, old, note, place in changes]
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(ORDERS, before=True))
    first, last = 10 + changes[0][4], 10 + changes[-1][4]
    header = BatchHeader(kind=BatchKind.ROWS, schema_id=ORDERS.id.bytes, generation=1, epoch=1, first_lsn=first,
                         first_seq=0, last_lsn=last, last_seq=0, rows=len(rows), before=True)
    client.add(topic, encode_rows(batch), (HEADER_KEY, encode_header(header)))


def test_A5_a_copy_and_its_changes_give_the_table() -> None:
    client = log((INSERT, 3, 3, "third", 1), (UPDATE, 1, 1, "changed", 2), (DELETE, 2, 2, None, 3))
    orders = rebuilt(client, SOURCE)["orders"]
    assert orders.rows == {1: (1, "changed"), 3: (3, "third")}
    assert (orders.copied, orders.changes, orders.doubled) == (2, 3, 0)
    assert last_row(client, SOURCE, "orders")["a:note"] == "changed"


def test_A5_a_change_that_stands_twice_or_too_late_is_counted() -> None:
    twice = log((INSERT, 3, 3, "third", 1), (INSERT, 3, 3, "third", 1))
    assert rebuilt(twice, SOURCE)["orders"].doubled == 1
    late = log((INSERT, 3, 3, "third", 2), (UPDATE, 1, 1, "changed", 1))
    assert rebuilt(late, SOURCE)["orders"].doubled == 1


def test_A5_a_lost_change_leaves_another_table() -> None:
    real = rebuilt(log((UPDATE, 1, 1, "changed", 1), (DELETE, 2, 2, None, 2)), SOURCE)["orders"].rows
    assert rebuilt(log((UPDATE, 1, 1, "changed", 1)), SOURCE)["orders"].rows != real
    assert rebuilt(log((DELETE, 2, 2, None, 2)), SOURCE)["orders"].rows != real
