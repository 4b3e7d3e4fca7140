"""COPY BINARY gives what the text stream gives."""

from __future__ import annotations

from datetime import date, datetime
from struct import pack
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import support_pgoutput as wire
from millrace.errors import Malformed
from millrace.model.tables import Column, TableSchema
from millrace.wire.pg.chunks import join
from millrace.wire.pg.copybinary import CopyDecoder, copy_query
from millrace.wire.pg.messages import Rows
from millrace.wire.pg.partition import partition_of
from millrace.wire.pg.pgoutput import Decoder
from millrace.wire.pg.types import Form, Kind, arrow_schema, kind_of, kinds_of
from support_changes import TYPES, comparable, numeric_binary, texts
from support_scalar import binary_value

BINARY = [(oid, typmod) for oid, typmod in TYPES if kind_of(oid, typmod).form is not Form.TEXT]
CODES = {
    Form.INT16: ">h", Form.INT32: ">i", Form.INT64: ">q", Form.UINT32: ">I", Form.FLOAT32: ">f", Form.FLOAT64: ">d"}
EPOCH = datetime(2000, 1, 1)


def far(year: int, month: int, day: int) -> int:
    """Days from 2000 to a date that Python's calendar cannot hold: the calendar is the same again after 400 years."""
    cycles, near = divmod(year - 1, 400)
    return (date(near + 1, month, day) - EPOCH.date()).days + cycles * 146_097


FAR_DATES = {
    "infinity": 2**31 - 1, "-infinity": -2**31, "0044-03-15 BC": far(-43, 3, 15), "10000-01-01": far(10_000, 1, 1),
    "5874897-12-31": far(5_874_897, 12, 31), "4713-01-01 BC": far(-4712, 1, 1), "294276-12-31": far(294_276, 12, 31)}


def to_binary(kind: Kind, text: str) -> bytes:
    form = kind.form
    if form in CODES:
        number = float(text) if form in (Form.FLOAT32, Form.FLOAT64) else int(text)
        return pack(CODES[form], number)
    if form is Form.BOOL:
        return b"\1" if text == "t" else b"\0"
    if form is Form.BYTES:
        return bytes.fromhex(text[2:])
    if form is Form.DECIMAL:
        return numeric_binary(text, kind.scale)
    if form is Form.DATE:
        return pack(">i", FAR_DATES[text] if text in FAR_DATES else (date.fromisoformat(text) - EPOCH.date()).days)
    if form is Form.TIME:
        return pack(">q", _time_us(text))
    return pack(">q", _timestamp_us(text.removesuffix("+00")))


def _time_us(text: str) -> int:
    whole, _, fraction = text.partition(".")
    hours, minutes, seconds = map(int, whole.split(":"))
    return ((hours * 60 + minutes) * 60 + seconds) * 10**6 + int(fraction.ljust(6, "0"))


def _timestamp_us(text: str) -> int:
    if text in ("infinity", "-infinity"):
        return 2**63 - 1 if text == "infinity" else -2**63
    era = " BC" if text.endswith(" BC") else ""
    day, time = text.removesuffix(" BC").removesuffix("+00").split(" ")
    days = FAR_DATES.get(day + era)
    if days is None:
        days = (date.fromisoformat(day) - EPOCH.date()).days
    return days * 86_400_000_000 + _time_us(time)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_S6_copy_gives_the_stream_s_values(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(BINARY), min_size=1, max_size=5))
    table = TableSchema(7, "s", "t", "d", tuple(Column(f"c{i}", *kind) for i, kind in enumerate(types)))
    rows = data.draw(st.lists(st.tuples(*[st.none() | texts(*kind) for kind in types]), min_size=1, max_size=6))
    streamed = _streamed(table, rows)
    messages = [wire.copy_row([None if text is None else to_binary(kind, text)
                               for kind, text in zip(kinds_of(table), row, strict=True)]) for row in rows]
    messages[0] = wire.COPY_HEADER + messages[0]
    copied = CopyDecoder(table).decode([*messages, wire.COPY_TRAILER])
    copied.validate(full=True)
    for name in [*streamed.schema.names[8:], "odd"]:
        assert comparable(copied.column(name).to_pylist()) == comparable(streamed.column(name).to_pylist())
        assert copied.column(name).null_count == streamed.column(name).null_count
    for i, kind in enumerate(kinds_of(table)):
        for j, row in enumerate(rows):
            value = None if row[i] is None else binary_value(kind, to_binary(kind, row[i]))[0]
            assert comparable(copied.column(8 + i)[j].as_py()) == comparable(value)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_S6_columns_of_one_width_are_read_together_whatever_stands_among_them(data: st.DataObject) -> None:
    """Tables wider than a strip; columns without nulls, with some, with nothing else."""
    types = data.draw(st.lists(st.sampled_from(BINARY), min_size=6, max_size=40))
    table = TableSchema(7, "s", "t", "d", tuple(Column(f"c{i}", *kind) for i, kind in enumerate(types)))
    cells = [data.draw(st.sampled_from([texts(*kind), st.none() | texts(*kind), st.none()])) for kind in types]
    rows = data.draw(st.lists(st.tuples(*cells), min_size=1, max_size=4))
    messages = [wire.copy_row([None if text is None else to_binary(kind, text)
                               for kind, text in zip(kinds_of(table), row, strict=True)]) for row in rows]
    copied = CopyDecoder(table).decode([wire.COPY_HEADER, *messages])
    copied.validate(full=True)
    for i, kind in enumerate(kinds_of(table)):
        wanted = [None if row[i] is None else binary_value(kind, to_binary(kind, row[i]))[0] for row in rows]
        assert comparable(copied.column(8 + i).to_pylist()) == comparable(wanted)


def _streamed(table: TableSchema, rows: list[tuple[Any, ...]]) -> Any:
    bodies = [wire.insert(7, [None if t is None else t.encode() for t in row]) for row in rows]
    messages = [wire.xlog(b) for b in (wire.begin(5, 0, 1), *bodies, wire.commit(5, 6, 0))]
    (item,) = Decoder(tables=[table]).decode(join(messages)).items
    assert isinstance(item, Rows)
    return item.batch


def test_S6_every_nan_is_the_one_that_text_has() -> None:
    table = TableSchema(7, "s", "t", "d", (Column("d", 701, is_key=True), Column("f", 700)))
    row = wire.copy_row([b"\xff\xf8\0\0\0\0\0\1", b"\xff\xc0\0\1"])
    copied = CopyDecoder(table).decode([wire.COPY_HEADER, row])
    streamed = _streamed(table, [("NaN", "NaN")])
    for name in ("a:d", "a:f"):
        assert copied.column(name).view(pa.binary(copied.column(name).type.bit_width // 8)).equals(
            streamed.column(name).view(pa.binary(streamed.column(name).type.bit_width // 8)))
    assert partition_of(copied, table, 97).tolist() == partition_of(streamed, table, 97).tolist()


TABLE = TableSchema(7, "we\"ird", "t", "d", (Column("id", 20, is_key=True), Column("v", 25), Column("j", 3802)))


def test_S4_rows_are_inserts_and_counted_over_batches() -> None:
    decoder = CopyDecoder(TABLE, at=77, commit_ts=5)
    row = wire.copy_row([pack(">q", 1), b"x", None])
    first = decoder.decode([wire.COPY_HEADER])
    second = decoder.decode([row, memoryview(row)])
    third = decoder.decode([row, wire.COPY_TRAILER])
    assert [b.num_rows for b in (first, second, third)] == [0, 2, 1]
    assert first.schema == third.schema == arrow_schema(TABLE, before=False)
    assert (decoder.finished, decoder.rows) == (True, 3)
    (last,) = third.to_pylist()
    assert [last[name] for name in ("op", "lsn", "commit_lsn", "seq", "a:id", "a:j")] == [0, 77, 77, 2, 1, None]


def test_S6_query_asks_for_text_where_binary_is_not_text() -> None:
    assert copy_query(TABLE, "ctid < '(8,0)'") == (
        'COPY (SELECT "id", "v", CASE WHEN "j" IS NOT DISTINCT FROM NULL THEN NULL ELSE format(\'%s\', "j") END'
        ' FROM ONLY "we""ird"."t" WHERE ctid < \'(8,0)\') TO STDOUT (FORMAT binary)')
    assert '"p"."leaf"' in copy_query(TABLE, relation=("p", "leaf"))


@pytest.mark.parametrize("messages", [
    [wire.copy_row([pack(">q", 1), b"x", None])],                                      # no signature
    [wire.COPY_HEADER[:12]],
    [wire.COPY_HEADER, wire.copy_row([b"123", b"x", None])],
    [wire.COPY_HEADER, wire.copy_row([pack(">q", 1), b"x"])],
    [wire.COPY_HEADER, wire.copy_row([pack(">q", 1), b"x", None]) + b"z"],
    [wire.COPY_HEADER, wire.copy_row([pack(">q", 1), b"\xff", None])],
    [wire.COPY_HEADER, pack(">hi", 3, 1 << 30)],
    [wire.COPY_HEADER, pack(">hi", 3, -2)],
    [wire.COPY_HEADER, b"\0"],
])
def test_S6_malformed_is_the_only_error(messages: list[bytes]) -> None:
    with pytest.raises(Malformed):
        CopyDecoder(TABLE).decode(messages)


@pytest.mark.parametrize("cell", [
    pack(">hhHH", 0, 0, 0xE000, 0), pack(">hhHHh", 1, 0, 0, 0, 10_000), pack(">hhHHh", 1, 0, 0, 0, -1),
    pack(">hhHHh", 2, 0, 0, 0, 1), pack(">hhHHh", 1, 9, 0, 0, 1), pack(">hhHHh", 1, -1, 0, 4, 1234),
    pack(">hhH", 0, 0, 0),
])
def test_S6_strange_decimals_are_malformed(cell: bytes) -> None:
    table = TableSchema(7, "s", "t", "d", (Column("n", 1700, (12 << 16 | 2) + 4),))
    with pytest.raises(Malformed):
        CopyDecoder(table).decode([wire.COPY_HEADER, wire.copy_row([cell])])
