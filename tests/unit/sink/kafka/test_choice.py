"""From the URI to messages: every format, with the options it was given."""

from __future__ import annotations

import json

import numpy as np
import pytest

import support_json as judge
from millrace.model.progress import Change
from millrace.sink.kafka.choice import change_message, format_of, target_of, watermark_message
from millrace.sink.kafka.encode import Encoder, Rows
from millrace.sink.kafka.formats import Origin
from millrace.sink.kafka.headers import Provenance
from millrace.sink.uri import parse_sink
from millrace.wire.batches_out import Codec, sealed
from millrace.wire.records import parse_produced, records_of

ORIGIN = Origin("shop", "db")
TABLE = judge.TableSchema(1, "public", "t", "d", (
    judge.Column("id", 20, -1, True), judge.Column("price", 1700, (12 << 16 | 2) + 4)))
ROWS = [judge.Row(0, [judge.Cell(1), judge.Cell(judge.Decimal("1.50"))], None),
        judge.Row(2, [], [judge.Cell(1), judge.NULL])]


@pytest.mark.parametrize(("uri", "path", "price", "count"), [
    ("kafka:", ("after", "price"), "AJY=", 3),
    ("kafka:?decimal.handling.mode=string", ("after", "price"), "1.50", 3),
    ("kafka:?decimals=string", ("after", "price"), "1.50", 3),
    ("kafka:?decimal.handling.mode=double", ("after", "price"), judge.Decimal("1.5"), 3),
    ("kafka:?tombstones=false&decimals=number", ("after", "price"), judge.Decimal("1.50"), 2),
    ("kafka:?schema=true", ("payload", "after", "price"), "AJY=", 3),
    ("kafka:?format=canal-json", ("data", 0, "price"), "1.50", 2),
    ("kafka:?format=json&tombstones=true", ("price",), "1.50", 3),
    ("kafka:?format=json&decimals=number", ("price",), judge.Decimal("1.50"), 2),
])
def test_K1_rows_are_written_as_the_uri_says(uri: str, path: tuple[str | int, ...], price: object, count: int) -> None:
    sink = parse_sink(uri)
    encoder = Encoder(TABLE, format_of(sink, ORIGIN, TABLE), target_of(sink, 1))
    rows = Rows(judge.batch_of(TABLE, ROWS), np.zeros(2, np.int64), np.arange(2))
    [batch] = encoder.encode(rows, Provenance(bytes(16), 0, 1, 1), now_us=1).batches
    raw = b"".join(sealed(batch))
    found = records_of(raw, parse_produced(raw)[0])
    assert len(found) == count
    value = judge.loads(found[0].value or b"")
    for step in path:
        value = value[step]
    assert value == price


def test_K2_the_target_is_as_the_uri_says() -> None:
    found = target_of(parse_sink("kafka:?compression=lz4&message_bytes=4096&partition=table&partitions=3"), 12)
    assert (found.partitions, found.codec, found.message_bytes_max, found.routing.by) == (12, Codec.LZ4, 4096, "table")


@pytest.mark.parametrize(("name", "change", "mark"), [
    ("debezium-json", ("ddl", "ALTER …"), ("op", "m")), ("canal-json", ("sql", "ALTER …"), ("type", "TIDB_WATERMARK")),
    ("json", ("sql", "ALTER …"), ("_change_type", "watermark"))])
def test_C7_changes_and_watermarks_are_of_the_format(name: str, change: tuple[str, str], mark: tuple[str, str]) -> None:
    sink = parse_sink(f"kafka:?format={name}")
    altered = change_message(sink, ORIGIN, TABLE, Change(1, 1, 5, 0, "alter", text="ALTER …"), now_us=1)
    assert json.loads(altered.value)[change[0]] == change[1]
    told = watermark_message(sink, ORIGIN, 77, wall_ms=1, now_us=1)
    assert json.loads(told.value)[mark[0]] == mark[1]
