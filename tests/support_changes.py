"""Random tables, rows and histories of PostgreSQL for tests of the decoders, and how their results are compared."""

from __future__ import annotations

import math
from decimal import Decimal
from struct import pack
from typing import Any

from hypothesis import strategies as st

import support_pgoutput as wire
from millrace.model.tables import Column, TableSchema
from millrace.wire.pg.messages import Evicted, Message, Relation, Rows, Truncate
from millrace.wire.pg.types import Form, Kind, kind_of
from support_scalar import Change

TYPES: list[tuple[int, int]] = [
    (16, -1), (17, -1), (20, -1), (21, -1), (23, -1), (26, -1), (28, -1), (700, -1), (701, -1), (1082, -1), (1083, -1),
    (1114, -1), (1184, -1), (25, -1), (2950, -1), (99999, -1), (1700, -1), (1700, (12 << 16 | 2) + 4),
    (1700, (38 << 16 | 10) + 4), (1700, (18 << 16) + 4), (1700, (38 << 16 | 38) + 4), (1700, (5 << 16 | 0x7FE) + 4)]

_ODD_DATES = ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "5874897-12-31", "4713-01-01 BC"]
_ODD_TIMESTAMPS = [
    "infinity", "-infinity", "0044-03-15 12:00:00{} BC", "10000-01-01 00:00:00.5{}", "294276-12-31 23:59:59{}"]


def _fraction(us: int) -> str:
    return f".{us:06}".rstrip("0") if us else ""


def _times() -> st.SearchStrategy[str]:
    parts = st.tuples(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999_999))
    return parts.map(lambda t: f"{t[0]:02}:{t[1]:02}:{t[2]:02}{_fraction(t[3])}")


def _timestamps(zone: str) -> st.SearchStrategy[str]:
    plain = st.tuples(st.dates(), _times()).map(lambda t: f"{t[0].isoformat()} {t[1]}{zone}")
    return plain | st.sampled_from(_ODD_TIMESTAMPS).map(lambda text: text.format(zone))


def _decimals(kind: Kind) -> st.SearchStrategy[str]:
    top = 10**kind.precision - 1

    def text(value: int) -> str:
        digits = f"{abs(value):0{kind.scale + 1}}"
        point = f"{digits[:-kind.scale]}.{digits[-kind.scale:]}" if kind.scale else digits
        return "-" * (value < 0) + point

    return st.integers(-top, top).map(text) | st.sampled_from(["NaN", "Infinity", "-Infinity"])


def float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value).removesuffix(".0")


def texts(type_oid: int, typmod: int) -> st.SearchStrategy[str]:
    """What the type's output function may print."""
    kind = kind_of(type_oid, typmod)
    ranges = {Form.INT16: (-2**15, 2**15 - 1), Form.INT32: (-2**31, 2**31 - 1), Form.INT64: (-2**63, 2**63 - 1),
              Form.UINT32: (0, 2**32 - 1)}
    if kind.form in ranges:
        return st.integers(*ranges[kind.form]).map(str)
    return {
        Form.BOOL: st.sampled_from("tf"),
        Form.BYTES: st.binary(max_size=20).map(lambda b: "\\x" + b.hex()),
        Form.FLOAT32: st.floats(width=32).map(float_text),
        Form.FLOAT64: st.floats().map(float_text),
        Form.DECIMAL: _decimals(kind) if kind.form is Form.DECIMAL else st.nothing(),
        Form.DATE: st.dates().map(str) | st.sampled_from(_ODD_DATES),
        Form.TIME: _times() | st.just("24:00:00"),
        Form.TIMESTAMP: _timestamps(""),
        Form.TIMESTAMPTZ: _timestamps("+00"),
        Form.TEXT: st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20),
    }[kind.form]


def cells(column: Column) -> st.SearchStrategy[bytes]:
    return texts(column.type_oid, column.typmod).map(str.encode)


@st.composite
def tables(draw: st.DrawFn, oid: int = 16400) -> TableSchema:
    types = draw(st.lists(st.sampled_from(TYPES), max_size=6))
    keys = draw(st.sets(st.integers(0, len(types)), max_size=2))
    columns = tuple(Column(f"c{i}", *kind, is_key=i in keys) for i, kind in enumerate(types))
    return TableSchema(oid, "public", f"t{oid}", draw(st.sampled_from("df")), columns)


@st.composite
def row_messages(draw: st.DrawFn, table: TableSchema) -> bytes:
    """One insert, update or delete, as the identity of the table has it sent."""
    def image(*, missing: bool) -> list[Any]:
        choices = [st.none(), st.just(wire.UNCHANGED)] if missing else [st.none()]
        return [draw(st.one_of(cells(c), *([] if c.is_key else choices))) for c in table.columns]

    what = draw(st.sampled_from(["insert", "update", "key", "delete"]))
    if what == "insert":
        return wire.insert(table.oid, image(missing=False))
    if what == "update" and table.identity != "f":
        return wire.update(table.oid, image(missing=True))
    old = image(missing=False)
    tag = b"O" if table.identity == "f" else b"K"
    if table.identity != "f":
        old = [cell if c.is_key else None for c, cell in zip(table.columns, old, strict=True)]
    if what == "delete":
        return wire.delete(table.oid, old, tag)
    new = image(missing=True)
    if what == "key":
        # A toasted key that did not change is sent as such, and the old tuple has it.
        new = [draw(st.sampled_from([cell, wire.UNCHANGED])) if c.is_key and old[i] is not None else cell
               for i, (c, cell) in enumerate(zip(table.columns, new, strict=True))]
        return wire.update(table.oid, new, old, tag)
    kept = [old[i] if c.is_key else cell for i, (c, cell) in enumerate(zip(table.columns, new, strict=True))]
    return wire.update(table.oid, kept, old, tag)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[bytes], dict[int, list[str]]]:
    """Messages of some transactions on one to three tables, and the keys of those with identity FULL."""
    known = {16400 + i: draw(tables(16400 + i)) for i in range(draw(st.integers(1, 3)))}
    keys = {oid: ["c0"] for oid in known}
    for oid, table in known.items():
        if table.identity == "f":
            known[oid] = _keyed(table, draw(st.booleans()))
            keys[oid] = [c.name for c in known[oid].columns if c.is_key]
    messages: list[bytes] = []
    lsn, sent = 1000, set()
    for xid in range(draw(st.integers(1, 4))):
        body = []
        for _ in range(draw(st.integers(0, 6))):
            oid = draw(st.sampled_from(sorted(known)))
            what = draw(st.sampled_from(["row"] * 8 + ["alter", "again", "truncate", "message", "other", "origin"]))
            if what == "alter":
                known[oid] = TableSchema(oid, "public", "renamed", known[oid].identity, known[oid].columns[::-1])
            if oid not in sent or what in ("alter", "again"):
                body.append(wire.relation(known[oid]))
                sent.add(oid)
            body.append(draw(_body(known, oid, what)))
        lsn += 1000
        messages += [wire.xlog(wire.begin(lsn, xid * 10, xid), lsn - 900)]
        messages += [wire.xlog(message, lsn - 800 + i) for i, message in enumerate(body)]
        messages += [wire.xlog(wire.commit(lsn, lsn + 50, xid * 10), lsn)]
    return messages, keys


def _keyed(table: TableSchema, keyed: bool) -> TableSchema:
    columns = tuple(Column(c.name, c.type_oid, c.typmod, keyed and i == 0) for i, c in enumerate(table.columns))
    return TableSchema(table.oid, table.schema, table.name, table.identity, columns)


@st.composite
def _body(draw: st.DrawFn, known: dict[int, TableSchema], oid: int, what: str) -> bytes:
    if what == "truncate":
        oids = draw(st.lists(st.sampled_from(sorted(known)), min_size=1, unique=True))
        return wire.truncate(oids, draw(st.integers(0, 3)))
    if what in ("message", "other"):
        prefix = "millrace.shop" if what == "message" else "app"
        return wire.message(prefix, draw(st.binary(max_size=9)), 7)
    if what == "origin":
        return b"O" + pack(">Q", 5) + b"node\0"
    return draw(row_messages(known[oid]))


def numeric_binary(text: str, scale: int) -> bytes:
    """A numeric as PostgreSQL sends it: groups of four digits, leading and trailing zero groups left out."""
    special = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}.get(text)
    if special is not None:
        return pack(">hhHH", 0, 0, special, 0)
    whole, _, fraction = text.lstrip("-").partition(".")
    whole = whole.zfill(-(-len(whole) // 4) * 4)
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int((whole + fraction)[i:i + 4]) for i in range(0, len(whole + fraction), 4)]
    weight = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    sign = 0x4000 if text.startswith("-") and groups else 0
    return pack(f">hhHH{len(groups)}h", len(groups), weight if groups else 0, sign, scale, *groups)


def comparable(value: Any) -> Any:
    """NaN is equal to itself, and 0 is not -0."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {name: comparable(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    return value


def vector_changes(items: list[Any]) -> list[Change]:
    """Items of the decoder as the scalar one gives them; images that a batch leaves out are null."""
    found: list[Change] = []
    for item in items:
        if isinstance(item, Rows):
            item.batch.validate(full=True)
            images = {f"b:{c.name}": None for c in item.table.columns}
            found += [Change("row", item.table.oid, {**images, **row}) for row in item.batch.to_pylist()]
        elif isinstance(item, Relation):
            found.append(Change("relation", item.table.oid, {"seq": item.seq, "id": item.table.id}))
        elif isinstance(item, Truncate):
            found += [Change("truncate", table.oid, {"seq": table.seq}) for table in item.tables]
        elif isinstance(item, Evicted):
            found += [Change("evicted", table.oid, {"seq": table.seq}) for table in item.tables]
        elif isinstance(item, Message):
            found.append(Change("message", 0, {"content": item.content, "lsn": item.lsn}))
    return found


def by_table(changes: list[Change]) -> dict[int, list[Any]]:
    """Order counts inside of a table only; 0 stands for logical messages."""
    found: dict[int, list[Any]] = {}
    for change in changes:
        found.setdefault(change.oid, []).append((change.kind, comparable(change.values)))
    return found
