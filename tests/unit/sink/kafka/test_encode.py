"""Change batches into record batches: order, partitions, tombstones, headers, and rows that cannot be written."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

import support_json as judge
from millrace import __version__, limits
from millrace.model.positions import Point
from millrace.sink.kafka.canal import Canal
from millrace.sink.kafka.debezium import Debezium
from millrace.sink.kafka.encode import Encoded, Encoder, Rows, Target
from millrace.sink.kafka.formats import Origin
from millrace.sink.kafka.headers import NEW_KEY, OLD_KEY, Provenance, written
from millrace.sink.kafka.plain import Plain
from millrace.sink.kafka.routing import Routing
from millrace.wire.batches_out import sealed
from millrace.wire.pg.chunks import join
from millrace.wire.pg.messages import Rows as ItemRows
from millrace.wire.pg.pgoutput import Decoder
from millrace.wire.records import Record, parse_produced, records_of
from support_changes import histories

ORIGIN = Origin("shop", 'db"1')
NOW_US = 1_800_000_000_123_456
FROM = Provenance(bytes(range(16)), 3, 77, 2**40)
TEXTS = judge.TableSchema(1, "public", "t", "d", (judge.Column("id", 20, -1, True), judge.Column("x", 25)))


def rows_of(batch: pa.RecordBatch, *, first: int = 0) -> Rows:
    """Two log records: the rows from the third on are of the next offset."""
    count = batch.num_rows
    offset = np.where(np.arange(count) < 2, 500, 501)
    return Rows(batch, offset, np.where(np.arange(count) < 2, np.arange(count) + first, np.arange(count) - 2))


def records(encoded: Encoded) -> list[tuple[int, Record]]:
    """(partition, record) of all batches, read back; checks that `places` tells each record's row."""
    found = []
    for batch in encoded.batches:
        raw = b"".join(sealed(batch))
        [header] = parse_produced(raw)
        found += [(batch.partition, record) for record in records_of(raw, header)]
    return found


def point_of(record: Record) -> Point:
    told = written(record.headers)
    assert told is not None
    assert told.provenance == FROM
    return told.point


@settings(max_examples=40, deadline=None)
@given(judge.changes(rows_max=10), st.integers(1, 5), st.booleans(), st.sampled_from([300, 10_000_000]))
def test_K3_every_row_once_in_its_partition_in_order(
    changes: judge.Changes, count: int, tombstones: bool, encode_bytes: int
) -> None:
    form = Debezium(ORIGIN, changes.table, tombstones=tombstones)
    form.constant_bytes = 100 if encode_bytes == 300 else form.constant_bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SINK_ENCODE_BYTES", encode_bytes)
        encoded = Encoder(changes.table, form, Target(count)).encode(rows_of(changes.batch), FROM, now_us=NOW_US)
    assert encoded.refused == []
    places = {Point(500 if i < 2 else 501, i if i < 2 else i - 2): i for i in range(len(changes.rows))}
    per_partition: dict[int, list[int]] = defaultdict(list)
    values: dict[int, Any] = {}
    for at, (partition, record) in enumerate(records(encoded)):
        place = places[point_of(record)]
        assert encoded.places[at] == place
        row = changes.rows[place]
        wanted_key = judge.key_json(changes.table, row.key_image, judge.DEBEZIUM, numbers=False)
        assert (None if record.key is None else judge.loads(record.key)) == wanted_key
        hashed = record.key if record.key is not None else changes.table.full_name.encode()
        assert partition == (murmur2(hashed) & 0x7FFFFFFF) % count
        if record.value is None:
            assert per_partition[partition][-1] == place             # right behind its delete
            assert (row.op, tombstones) == (2, True)
            continue
        per_partition[partition].append(place)
        assert place not in values
        values[place] = judge.loads(record.value)
    for order in per_partition.values():
        assert order == sorted(order)
    assert [values[i] for i in range(len(changes.rows))] == [
        judge.debezium(changes.table, row, numbers=False, copy=False, now_us=NOW_US, version=__version__)
        for row in changes.rows]
    found = sum(record.value is None for _, record in records(encoded))
    wanted = sum(row.op == 2 for row in changes.rows) if tombstones and changes.table.keys else 0
    assert found == wanted


def test_K3_K1_rows_of_a_partition_keep_their_order_and_a_delete_is_followed_by_its_tombstone() -> None:
    """Many rows for few partitions, every third one deleted."""
    rows = [judge.Row(0, [judge._same(i, i, ""), judge._same("x", "x", "")], None) for i in range(60)]
    rows = [row if i % 3 else judge.Row(2, [], row.after) for i, row in enumerate(rows)]
    encoded = Encoder(TEXTS, Debezium(ORIGIN, TEXTS), Target(4)).encode(
        rows_of(judge.batch_of(TEXTS, rows)), FROM, now_us=NOW_US)
    found: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for (partition, record), place in zip(records(encoded), encoded.places.tolist(), strict=True):
        found[partition].append((place, record.value is None))
    assert len(found) == 4
    for partition, told in found.items():
        places = sorted({place for place, _ in told})
        assert told == [one for place in places for one in ([(place, False)] if place % 3 else
                                                            [(place, False), (place, True)])], partition
    assert sum(map(len, found.values())) == 60 + 20


@settings(max_examples=25, deadline=None)
@given(judge.changes(rows_max=10))
def test_K1_key_updates_name_both_keys(changes: judge.Changes) -> None:
    """The insert names the old key; the delete before it the new one, in one partition."""
    form = Canal(ORIGIN, changes.table)
    encoded = Encoder(changes.table, form, Target(1)).encode(rows_of(changes.batch), FROM, now_us=NOW_US)
    for (_, record), place in zip(records(encoded), encoded.places.tolist(), strict=True):
        headers = dict(record.headers)
        row = changes.rows[place]
        moved = row.op == 0 and row.before is not None and bool(changes.table.keys)
        assert (OLD_KEY in headers) == moved
        if moved:
            old, new = headers[OLD_KEY], dict(records(encoded)[place - 1][1].headers)[NEW_KEY]
            assert old is not None
            assert judge.loads(old) == judge.key_json(changes.table, row.before or [], judge.CANAL, numbers=False)
            assert new == record.key


def _texts(values: list[bytes]) -> pa.RecordBatch:
    """Values need not be UTF-8, as in a database with SQL_ASCII."""
    rows = [judge.Row(0, [judge._same(i, i, str(i)), judge.NULL], None) for i in range(len(values))]
    batch = judge.batch_of(TEXTS, rows)
    raw = pa.array(values, pa.binary())
    return batch.set_column(9, batch.schema.field(9), pa.Array.from_buffers(pa.string(), len(raw), raw.buffers()))


def test_P9_a_row_that_is_no_text_is_told_and_the_rest_goes_on() -> None:
    batch = _texts([b"ok", b"\xff", "é".encode(), b"\xc3", b"\xa9"])     # two halves that would join to one
    encoded = Encoder(TEXTS, Debezium(ORIGIN, TEXTS), Target(1)).encode(rows_of(batch), FROM, now_us=NOW_US)
    assert [(one.place, one.reason) for one in encoded.refused] == [(1, "not_utf8"), (3, "not_utf8"), (4, "not_utf8")]
    assert encoded.refused[0].detail == "column 'x' is not valid UTF-8"
    assert [one.key for one in encoded.refused] == [b'{"id":1}', b'{"id":3}', b'{"id":4}']
    assert [judge.loads(r.value or b"")["after"]["x"] for _, r in records(encoded)] == ["ok", "é"]
    assert encoded.places.tolist() == [0, 2]


def test_P9_a_key_that_is_no_text_is_not_told() -> None:
    table = judge.TableSchema(1, "public", "t", "d", (judge.Column("id", 20), judge.Column("x", 25, -1, True)))
    batch = _texts([b"ok", b"\xff"])
    encoded = Encoder(table, Debezium(ORIGIN, table), Target(2)).encode(rows_of(batch), FROM, now_us=NOW_US)
    assert [(one.place, one.reason, one.key) for one in encoded.refused] == [(1, "not_utf8", None)]
    assert [record.key for _, record in records(encoded)] == [b'{"x":"ok"}']


def test_P9_a_key_that_is_above_the_limit_itself_is_not_told() -> None:
    """The row's place in the quarantine would be refused for its key."""
    table = judge.TableSchema(1, "public", "t", "d", (judge.Column("id", 20), judge.Column("x", 25, -1, True)))
    target = Target(1, message_bytes_max=1000)
    encoded = Encoder(table, Plain(ORIGIN, table), target).encode(
        rows_of(_texts([b"ok", b"k" * 1100])), FROM, now_us=NOW_US)
    assert [(one.place, one.reason, one.key) for one in encoded.refused] == [(1, "too_large", None)]


def test_P9_a_message_of_just_the_limit_is_written() -> None:
    rows = rows_of(_texts([b"a" * 50, b"b" * 90]))
    form = Plain(ORIGIN, TEXTS)
    both = Encoder(TEXTS, form, Target(1, message_bytes_max=150)).encode(rows, FROM, now_us=NOW_US).refused
    assert [one.place for one in both] == [0, 1]
    just = int(both[0].detail.split()[0])
    encoded = Encoder(TEXTS, form, Target(1, message_bytes_max=just)).encode(rows, FROM, now_us=NOW_US)
    assert [one.place for one in encoded.refused] == [1]
    assert encoded.places.tolist() == [0]


def test_P9_rows_refused_in_a_later_slice_are_named_by_their_own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are encoded some at a time: the row that is put aside must be the one that cannot be written."""
    monkeypatch.setattr(limits, "SINK_ENCODE_BYTES", 1000)
    texts = [b"%d" % n for n in range(20)]
    texts[13] = texts[17] = b"\xff"
    form = Plain(ORIGIN, TEXTS)
    encoded = Encoder(TEXTS, form, Target(1)).encode(rows_of(_texts(texts)), FROM, now_us=NOW_US)
    assert 10 * form.constant_bytes > limits.SINK_ENCODE_BYTES, "more than two slices"
    assert [(one.place, one.key) for one in encoded.refused] == [(13, b'{"id":13}'), (17, b'{"id":17}')]
    good = [n for n in range(20) if n not in (13, 17)]
    assert encoded.places.tolist() == good
    assert [judge.loads(record.key or b"")["id"] for _, record in records(encoded)] == good
    firsts = [batch.first for batch in encoded.batches]
    assert [encoded.places[first] for first in firsts] == [
        judge.loads(records(encoded._replace(batches=[batch]))[0][1].key or b"")["id"] for batch in encoded.batches]


@pytest.mark.parametrize("text", [b"x" * 3000, b'"' * 1500, b"\x01" * 1400])
def test_P9_a_row_that_is_too_large_is_told_and_the_rest_goes_on(text: bytes) -> None:
    """By its text alone, or only once it is escaped."""
    target = Target(1, message_bytes_max=2500, batch_bytes=1000)
    batch = _texts([b"a", text, b"b" * 1000, b"c"])
    encoded = Encoder(TEXTS, Debezium(ORIGIN, TEXTS), target).encode(rows_of(batch), FROM, now_us=NOW_US)
    assert [(one.place, one.reason, one.key) for one in encoded.refused] == [(1, "too_large", b'{"id":1}')]
    assert encoded.places.tolist() == [0, 2, 3]
    assert all(batch.raw_bytes + 61 <= 2500 for batch in encoded.batches)


def test_P9_a_message_larger_than_the_batches_we_like_has_one_of_its_own() -> None:
    """The log may refuse it: what is behind it in the same batch would have to be cut out. The others keep their size,
    also where a large one is near, so that a part of a batch is one batch again."""
    sizes = [10, 2000, 2100, *[100] * 30, 2200, 10]
    encoded = Encoder(TEXTS, Plain(ORIGIN, TEXTS), Target(1, batch_bytes=1000)).encode(
        rows_of(_texts([b"x" * size for size in sizes])), FROM, now_us=NOW_US)
    assert not encoded.refused
    assert [judge.loads(record.key or b"")["id"] for _, record in records(encoded)] == list(range(len(sizes)))
    large = [batch for batch in encoded.batches if batch.raw_bytes + 61 > 1000]
    assert [encoded.places[batch.first:batch.first + batch.messages].tolist() for batch in large] == [[1], [2], [33]]
    assert len(encoded.batches) < len(sizes) - 10, "small ones stand together"


def test_K2_columns_of_the_key_choose_the_partition() -> None:
    table = judge.TableSchema(1, "public", "t", "d", (
        judge.Column("a", 20, -1, True), judge.Column("b", 20, -1, True)))
    rows = [judge.Row(0, [judge._same(i, i, ""), judge._same(i % 3, i % 3, "")], None) for i in range(30)]
    target = Target(7, routing=Routing("column", ("b",)))
    encoded = Encoder(table, Debezium(ORIGIN, table), target).encode(
        rows_of(judge.batch_of(table, rows)), FROM, now_us=NOW_US)
    for partition, record in records(encoded):
        key = judge.loads(record.key or b"")
        assert partition == (murmur2(b'{"b":%d}' % key["b"]) & 0x7FFFFFFF) % 7


@settings(max_examples=40, deadline=None)
@given(histories(), st.sampled_from([Debezium, Canal, Plain]))
def test_S6_what_the_decoder_of_the_stream_makes_can_be_encoded(
    case: tuple[list[bytes], dict[int, list[str]]], kind: Any
) -> None:
    messages, keys = case
    for item in Decoder(keys=keys).decode(join(messages)).items:
        if isinstance(item, ItemRows):
            encoded = Encoder(item.table, kind(ORIGIN, item.table), Target(3)).encode(
                rows_of(item.batch), FROM, now_us=NOW_US)
            assert encoded.refused == []
            values = [judge.loads(record.value) for _, record in records(encoded) if record.value is not None]
            assert len(values) == item.batch.num_rows


def test_nothing_becomes_nothing() -> None:
    batch = judge.batch_of(TEXTS, [])
    encoded = Encoder(TEXTS, Debezium(ORIGIN, TEXTS), Target(3)).encode(rows_of(batch), FROM, now_us=NOW_US)
    assert (encoded.batches, encoded.refused, len(encoded.places)) == ([], [], 0)
