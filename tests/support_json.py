"""A judge of the encoders: random change batches whose every cell knows the JSON it must become, and plain Python that
builds the messages with dicts. Nothing here uses the encoders' code."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from millrace.model.tables import Column, TableSchema
from millrace.wire.pg.types import ODD_TYPE, arrow_schema, mask_bytes

DEBEZIUM, PLAIN, CANAL = "debezium", "plain", "canal"
UNAVAILABLE = "__debezium_unavailable_value"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Cell:
    """`arrow`: what the typed column holds; `odd`: the text beside it. `wanted`: by dialect; decimals apart."""

    arrow: Any = None
    odd: str | None = None
    wanted: dict[str, Any] = field(default_factory=dict)
    number: Any = None                 # wanted where decimals are numbers; None: as `wanted`
    sent: bool = True

    def json(self, dialect: str, *, numbers: bool) -> Any:
        if numbers and f"{dialect} number" in self.wanted:
            return self.wanted[f"{dialect} number"]
        if self.number is not None and numbers and dialect != CANAL:
            return self.number
        return self.wanted.get(dialect)


NULL = Cell()


def _same(arrow: Any, value: Any, text: str) -> Cell:
    return Cell(arrow, None, {DEBEZIUM: value, PLAIN: value, CANAL: text})


def _text(value: str) -> Cell:
    return _same(value, value, value)


def _fraction(us: int) -> str:
    return f".{us:06}".rstrip("0") if us else ""


def _clock(t: time) -> str:
    return f"{t.hour:02}:{t.minute:02}:{t.second:02}" + _fraction(t.microsecond)


def _us(t: time) -> int:
    return ((t.hour * 60 + t.minute) * 60 + t.second) * 1_000_000 + t.microsecond


def _float(width: int, value: float) -> Cell:
    if math.isnan(value) or math.isinf(value):
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return _same(value, name, name)
    shortest = repr(value) if width == 64 else str(np.float32(value))
    exact = Decimal(shortest)
    return Cell(value, None, {DEBEZIUM: exact, PLAIN: exact, CANAL: FloatText(exact)})


class FloatText:
    """A string that reads as this number, however it is spelt."""

    def __init__(self, value: Decimal) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and Decimal(other) == self.value

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"FloatText({self.value})"


def _decimal(precision: int, scale: int) -> st.SearchStrategy[Cell]:
    top = 10**precision - 1

    def cell(unscaled: int) -> Cell:
        exact = Decimal(f"{unscaled}E-{scale}")        # reading is exact, reckoning would round to 28 digits
        return Cell(exact, None, {DEBEZIUM: big_integer(unscaled), PLAIN: f"{exact:f}", CANAL: f"{exact:f}"}, exact)

    odd = st.sampled_from(["NaN", "Infinity", "-Infinity"]).map(_odd_text)
    return st.integers(-top, top).map(cell) | st.just(cell(0)) | odd


def big_integer(value: int) -> str:
    """As Java's BigInteger.toByteArray: the fewest bytes whose first bit is the sign."""
    size = 1
    while not -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1:
        size += 1
    return base64.b64encode(value.to_bytes(size, "big", signed=True)).decode()


def _odd_text(text: str) -> Cell:
    """NaN and infinities: Debezium's bytes have none."""
    return Cell(None, text, {DEBEZIUM: None, PLAIN: text, CANAL: text}, text)


def _odd(text: str, debezium: Any, plain: str) -> Cell:
    return Cell(None, text, {DEBEZIUM: debezium, PLAIN: plain, CANAL: text})


def _date(value: date) -> Cell:
    return Cell(value, None, {DEBEZIUM: (value - date(1970, 1, 1)).days, PLAIN: value.isoformat(),
                              CANAL: value.isoformat()})


def _time(unit: int, value: time) -> Cell:
    return Cell(value, None, {DEBEZIUM: _us(value) // unit, PLAIN: _clock(value), CANAL: _clock(value)})


def _stamp(unit: int, value: datetime) -> Cell:
    text = f"{value.date().isoformat()}T{_clock(value.time())}"
    us = (value.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    return Cell(value, None, {DEBEZIUM: us // unit, PLAIN: text, CANAL: text.replace("T", " ")})


def _zoned(value: datetime) -> Cell:
    text = f"{value.date().isoformat()}T{_clock(value.time())}Z"
    whole = f"{value.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    return Cell(value.replace(tzinfo=UTC), None, {DEBEZIUM: whole, PLAIN: text, CANAL: text.replace("T", " ")})


def _bytes(value: bytes) -> Cell:
    coded = base64.b64encode(value).decode()
    return Cell(value, None, {DEBEZIUM: coded, PLAIN: coded, CANAL: value.decode("latin-1")})


def _json(value: Any) -> Cell:
    text = json.dumps(value)
    return Cell(text, None, {DEBEZIUM: text, PLAIN: json.loads(text, parse_float=Decimal), CANAL: text})


def _loose(text: str) -> Cell:
    if text in ("NaN", "Infinity", "-Infinity"):
        return Cell(text, None, {DEBEZIUM: None, PLAIN: text, CANAL: text}, text)
    whole, _, fraction = text.partition(".")
    digits = fraction.rstrip("0")
    precise = {"scale": len(digits), "value": big_integer(int(whole + digits))}
    return Cell(text, None, {DEBEZIUM: precise, PLAIN: text, CANAL: text}, Decimal(text) if fraction else int(text))


def _interval(parts: tuple[int, int, int, int]) -> Cell:
    years, months, days, us = parts
    sign = "-" if us < 0 else ""
    seconds, micro = divmod(abs(us), 1_000_000)
    hours, minutes, seconds = seconds // 3600, seconds // 60 % 60, seconds % 60
    clock = f"{sign}{hours:02}:{minutes:02}:{seconds:02}{_fraction(micro)}"
    named = ((years, "year"), (months, "mon"), (days, "day"))
    words = [f"{n} {word}" + ("" if n == 1 else "s") for n, word in named if n]
    text = " ".join([*words, clock]) if us or not words else " ".join(words)

    def signed(number: str) -> str:
        return sign + number if number != "0" else number

    rest = f"{seconds}{_fraction(micro)}"
    iso = (f"P{years}Y{months}M{days}DT{signed(str(hours))}H{signed(str(minutes))}M{signed(rest)}S")
    whole = (12 * years + months) * 2_629_800_000_000 + days * 86_400_000_000 + us
    return Cell(text, None, {DEBEZIUM: whole, PLAIN: iso, CANAL: text})


def _array_text(value: list[Any], *, quoted: bool) -> str:
    def one(item: Any) -> str:
        if item is None:
            return "NULL"
        if isinstance(item, list):
            return _array_text(item, quoted=quoted)
        if not quoted:
            return str(item)
        return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return "{" + ",".join(one(item) for item in value) + "}"


def _ints(value: list[Any]) -> Cell:
    text = _array_text(value, quoted=False)
    return Cell(text, None, {DEBEZIUM: value, PLAIN: value, CANAL: text})


def _texts(value: list[str | None]) -> Cell:
    text = _array_text(value, quoted=True)
    return Cell(text, None, {DEBEZIUM: value, PLAIN: value, CANAL: text})


def _dates(value: list[date]) -> Cell:
    text = "{" + ",".join(day.isoformat() for day in value) + "}"
    return Cell(text, None, {DEBEZIUM: [(day - date(1970, 1, 1)).days for day in value],
                             PLAIN: [day.isoformat() for day in value], CANAL: text})


def _bit(value: bool) -> Cell:
    return Cell("1" if value else "0", None, {DEBEZIUM: value, PLAIN: value, CANAL: "1" if value else "0"})


def _timetz(value: tuple[time, int]) -> Cell:
    clock, hours = _clock(value[0]), f"{value[1]:+03}"
    iso = f"{clock}{hours}:00"
    utc = (datetime.combine(date(2000, 1, 2), value[0]) - timedelta(hours=value[1])).time()
    return Cell(clock + hours, None, {DEBEZIUM: _clock(utc) + "Z", PLAIN: iso, CANAL: clock + hours})


def _bits(text: str) -> Cell:
    octets = int(text, 2).to_bytes(len(text) // 8 + 1, "little").rstrip(bytes(1))
    return Cell(text, None, {DEBEZIUM: base64.b64encode(octets).decode(), PLAIN: text, CANAL: text})


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
_INT4 = st.integers(-2**31, 2**31 - 1)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10**20, 10**20) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3), max_leaves=4)

# Type oid, typmod -> its cells. Every form of S6 that the change log tells apart, and texts that formats treat apart.
CELLS: dict[tuple[int, int], st.SearchStrategy[Cell]] = {
    (16, -1): st.booleans().map(lambda v: _same(v, v, "true" if v else "false")),
    (21, -1): st.integers(-2**15, 2**15 - 1).map(lambda v: _same(v, v, str(v))),
    (23, -1): _INT4.map(lambda v: _same(v, v, str(v))),
    (20, -1): st.integers(-2**63, 2**63 - 1).map(lambda v: _same(v, v, str(v))),
    (26, -1): st.integers(0, 2**32 - 1).map(lambda v: _same(v, v, str(v))),
    (700, -1): st.floats(width=32).map(lambda v: _float(32, v)),
    (701, -1): st.floats().map(lambda v: _float(64, v)),
    (1700, (12 << 16 | 2) + 4): _decimal(12, 2),
    (1700, (38 << 16 | 10) + 4): _decimal(38, 10),
    (1700, (38 << 16 | 38) + 4): _decimal(38, 38),
    (1700, (18 << 16) + 4): _decimal(18, 0),
    (1700, -1): (
        st.integers(-10**50, 10**50).map(str) | st.sampled_from(["NaN", "Infinity", "-Infinity"])
        | st.decimals(allow_nan=False, allow_infinity=False, places=3).map(lambda d: f"{d:f}")).map(_loose),
    (1082, -1): st.dates().map(_date) | st.sampled_from([
        _odd("infinity", 2**31 - 1, "infinity"), _odd("-infinity", -2**31, "-infinity"),
        _odd("0044-03-15 BC", -735160, "-0043-03-15"), _odd("10000-01-01", 2932897, "+10000-01-01")]),
    (1083, -1): st.times().map(lambda v: _time(1, v)) | st.just(_odd("24:00:00", 86_400_000_000, "24:00:00")),
    (1083, 3): st.times().map(lambda v: _time(1000, v)),
    (1114, -1): st.datetimes().map(lambda v: _stamp(1, v)) | st.sampled_from([
        _odd("infinity", 9223372036825200000, "infinity"), _odd("-infinity", -9223372036832400000, "-infinity"),
        _odd("0001-12-31 23:59:59 BC", -62135596801000000, "0000-12-31T23:59:59"),
        _odd("10000-01-01 00:00:00.5", 253402300800500000, "+10000-01-01T00:00:00.5")]),
    (1114, 3): st.datetimes().map(lambda v: _stamp(1000, v)),
    (1184, -1): st.datetimes().map(_zoned) | st.sampled_from([
        _odd("infinity", "infinity", "infinity"),
        _odd("0044-03-15 12:00:00+00 BC", "-0043-03-15T12:00:00.000000Z", "-0043-03-15T12:00:00Z")]),
    (17, -1): st.binary(max_size=9).map(_bytes),
    (25, -1): _TEXT.map(_text),
    (2950, -1): st.uuids().map(str).map(_text),
    (99999, -1): _TEXT.map(_text),                                      # an enum, a domain, a composite …
    (3802, -1): _JSON.map(_json),
    (114, -1): _JSON.map(_json),
    (1186, -1): st.tuples(st.integers(-99, 99), st.integers(-11, 11), st.integers(-999, 999),
                          st.integers(-10**12, 10**12)).map(_interval),
    (1266, -1): st.tuples(st.times(), st.integers(-12, 12)).map(_timetz),
    (1560, 1): st.booleans().map(_bit),
    (1560, 8): st.text("01", min_size=8, max_size=8).map(_bits),
    (1007, -1): (st.lists(_INT4 | st.none(), max_size=3) | st.lists(st.lists(_INT4, min_size=2, max_size=2), min_size=1,
                                                                   max_size=2)).map(_ints),
    (1009, -1): st.lists(_TEXT | st.none(), max_size=3).map(_texts),
    (1182, -1): st.lists(st.dates(), max_size=2).map(_dates),
    (790, -1): st.just(Cell("-$1,234.50", None, {
        DEBEZIUM: big_integer(-123450), f"{DEBEZIUM} number": Decimal("-1234.50"), PLAIN: "-$1,234.50",
        CANAL: "-$1,234.50"})),
    (869, -1): st.just(_text("10.0.0.1/8")),
}
TOASTED = {25, 17, 3802, 114, 1009, 99999}         # types whose values may come as unchanged
# Made once: a strategy is slow to make and quick to draw from.
_NULLABLE = {kind: cells | st.just(NULL) for kind, cells in CELLS.items()}
# A key that is not a number has no place in Debezium's bytes.
_KEYED = {kind: cells.filter(lambda cell: cell.odd not in ("NaN", "Infinity", "-Infinity"))
          for kind, cells in CELLS.items()}
_UNSENT = {kind: cells | st.just(Cell(sent=False)) if kind[0] in TOASTED else cells
           for kind, cells in _NULLABLE.items()}
_OFTEN = [*CELLS, *(kind for kind in CELLS if kind[0] in TOASTED), *(kind for kind in CELLS if kind[0] in TOASTED)]
KEYS = [(20, -1), (25, -1), (2950, -1), (1082, -1), (1700, (12 << 16 | 2) + 4)]


@dataclass
class Row:
    op: int                            # 0 insert, 1 update, 2 delete
    after: list[Cell]
    before: list[Cell] | None          # None: not sent
    lsn: int = 0
    commit_lsn: int = 0
    commit_us: int = 0
    xid: int = 0
    seq: int = 0

    @property
    def key_image(self) -> list[Cell]:
        return self.before or [] if self.op == 2 else self.after


@dataclass
class Changes:
    table: TableSchema
    rows: list[Row]
    batch: pa.RecordBatch


@st.composite
def changes(draw: st.DrawFn, *, rows_max: int = 8) -> Changes:
    names = draw(st.lists(st.sampled_from(["id", "Ä\"b\\", "_seq", "x y", "a:b", "n", "\n", "z"]), min_size=1,
                          max_size=5, unique=True))
    with_key = draw(st.booleans())
    types = [draw(st.sampled_from(KEYS if with_key and i == 0 else _OFTEN)) for i in range(len(names))]
    columns = tuple(Column(name, *kind, is_key=with_key and i == 0)
                    for i, (name, kind) in enumerate(zip(names, types, strict=True)))
    table = TableSchema(16400, "public", draw(st.sampled_from(["t", "q\"t"])), draw(st.sampled_from("df")) if with_key
                        else "f", columns)
    rows: list[Row] = []
    commit = 0
    while len(rows) < rows_max and (not rows or draw(st.booleans())):
        if not rows or draw(st.booleans()):
            commit += 1
        rows += draw(_change(table, commit))
    for i, row in enumerate(rows):
        row.lsn, row.commit_lsn = 1000 + i, 5000 + row.xid
        row.seq = sum(other.xid == row.xid for other in rows[:i])
        row.commit_us = row.xid * 1_000_003
    return Changes(table, rows, batch_of(table, rows))


@st.composite
def _change(draw: st.DrawFn, table: TableSchema, commit: int) -> list[Row]:
    def image(*, unsent: bool) -> list[Cell]:
        cells = []
        for column in table.columns:
            some = _KEYED if column.is_key else _UNSENT if unsent else _NULLABLE
            cells.append(draw(some[column.type_oid, column.typmod]))
        return cells

    def old() -> list[Cell]:
        whole = image(unsent=False)
        return whole if table.identity == "f" else [
            cell if column.is_key else NULL for column, cell in zip(table.columns, whole, strict=True)]

    what = draw(st.sampled_from(["insert", "update", "delete", *(["move"] if table.keys else [])]))
    if what == "insert":
        return [Row(0, image(unsent=False), None, xid=commit)]
    if what == "update":
        return [Row(1, image(unsent=table.identity != "f"), old() if table.identity == "f" else None, xid=commit)]
    gone = old()
    if what == "delete":
        return [Row(2, [], gone, xid=commit)]
    return [Row(2, [], gone, xid=commit), Row(0, image(unsent=False), gone, xid=commit)]


def batch_of(table: TableSchema, rows: list[Row]) -> pa.RecordBatch:
    count = len(table.columns)
    before = any(row.before is not None for row in rows)
    schema = arrow_schema(table, before=before)
    nothing = [NULL] * count
    images = [[row.after or nothing for row in rows]] + ([[row.before or nothing for row in rows]] if before else [])
    vectors = [
        pa.array([row.op for row in rows], pa.uint8()), pa.array([row.lsn for row in rows], pa.int64()),
        pa.array([row.commit_lsn for row in rows], pa.int64()),
        pa.array([row.commit_us for row in rows], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([row.xid for row in rows], pa.uint32()), pa.array([row.seq for row in rows], pa.int64()),
        pa.array([_mask(table, row) for row in rows], pa.binary(mask_bytes(table))),
        pa.array([_odds(row, count) for row in rows], ODD_TYPE),
    ]
    cells = [pa.array([cells[i].arrow for cells in image], schema.field(8 + at * count + i).type)
             for at, image in enumerate(images) for i in range(count)]
    return pa.RecordBatch.from_arrays([*vectors, *cells], schema=schema)


def _mask(table: TableSchema, row: Row) -> bytes | None:
    bits = sum(1 << i for i, cell in enumerate(row.after) if not cell.sent)
    return bits.to_bytes(mask_bytes(table), "little") if bits else None


def _odds(row: Row, count: int) -> list[dict[str, Any]] | None:
    found = [{"column": i, "text": cell.odd} for i, cell in enumerate(row.after) if cell.odd is not None]
    found += [{"column": count + i, "text": cell.odd}
              for i, cell in enumerate(row.before or []) if cell.odd is not None]
    return found or None


# -- messages, the slow way ----------------------------------------------------------------------------------------


def loads(text: bytes) -> Any:
    """Fractions exactly; a name that stands twice is an error."""
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs), f"a name twice: {pairs}"
        return dict(pairs)

    return json.loads(text, parse_float=Decimal, object_pairs_hook=unique)


def image_json(table: TableSchema, cells: list[Cell], dialect: str, *, numbers: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for column, cell in zip(table.columns, cells, strict=True):
        if cell.sent:
            found[column.name] = cell.json(dialect, numbers=numbers)
        elif dialect == DEBEZIUM:
            stand_in: Any = UNAVAILABLE
            if column.type_oid == 17:
                stand_in = base64.b64encode(UNAVAILABLE.encode()).decode()
            found[column.name] = [stand_in] if column.type_oid == 1009 else stand_in
    return found


def unsent(table: TableSchema, row: Row) -> list[str]:
    return [column.name for column, cell in zip(table.columns, row.after, strict=False) if not cell.sent]


def key_json(table: TableSchema, cells: list[Cell], dialect: str, *, numbers: bool) -> dict[str, Any] | None:
    if not table.keys:
        return None
    whole = image_json(table, cells, dialect, numbers=numbers)
    return {table.columns[i].name: whole[table.columns[i].name] for i in table.keys}


def debezium(table: TableSchema, row: Row, *, numbers: bool, copy: bool, now_us: int, version: str) -> dict[str, Any]:
    shown = row.op == 2 or (row.op == 1 and row.before is not None)
    return {
        "before": image_json(table, row.before, DEBEZIUM, numbers=numbers) if shown and row.before else None,
        "after": None if row.op == 2 else image_json(table, row.after, DEBEZIUM, numbers=numbers),
        "source": {
            "version": version, "connector": "postgresql", "name": "shop", "ts_ms": row.commit_us // 1000,
            "snapshot": "true" if copy else "false", "db": "db\"1", "sequence": f'["{row.commit_lsn}","{row.seq}"]',
            "ts_us": row.commit_us, "ts_ns": row.commit_us * 1000, "schema": table.schema, "table": table.name,
            "txId": None if copy else row.xid, "lsn": row.lsn, "xmin": None, "origin": None, "origin_lsn": None,
        },
        "transaction": None, "op": "r" if copy else "cud"[row.op],
        "ts_ms": now_us // 1000, "ts_us": now_us, "ts_ns": now_us * 1000,
    }


def canal(table: TableSchema, row: Row, *, now_us: int) -> dict[str, Any]:
    old: Any = None
    if row.op == 1:
        old = [image_json(table, row.before, CANAL, numbers=False) if row.before else {}]
    data = row.before if row.op == 2 else row.after
    assert data is not None
    extra = {"unchanged": unsent(table, row)} if unsent(table, row) else {}
    return {
        "id": 0, "database": table.schema, "table": table.name,
        "pkNames": [table.columns[i].name for i in table.keys] or None, "isDdl": False,
        "type": ("INSERT", "UPDATE", "DELETE")[row.op], "es": row.commit_us // 1000, "ts": now_us // 1000, "sql": "",
        "old": old, "data": [image_json(table, data, CANAL, numbers=False)],
        "_tidb": {"commitTs": row.commit_lsn}, "_millrace": {"seq": row.seq, **extra},
    }


def plain(table: TableSchema, row: Row, *, numbers: bool, copy: bool) -> dict[str, Any]:
    data = row.before if row.op == 2 else row.after
    assert data is not None
    at = (EPOCH + timedelta(microseconds=row.commit_us)).replace(tzinfo=None)
    ours: dict[str, Any] = {
        "_change_type": "insert" if copy else ("insert", "update_postimage", "delete")[row.op],
        "_commit_version": row.commit_lsn, "_commit_timestamp": f"{at.date()}T{_clock(at.time())}Z", "_seq": row.seq,
        "_schema": table.schema, "_table": table.name,
    }
    if copy:
        ours["_copy"] = True
    if unsent(table, row):
        ours["_unchanged"] = unsent(table, row)
    taken = {column.name for column in table.columns}
    named = {("_" + name if name in taken else name): value for name, value in ours.items()}
    return {**named, **image_json(table, data, PLAIN, numbers=numbers)}
