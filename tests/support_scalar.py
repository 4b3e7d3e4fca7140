"""The same decoder row by row, in plain Python: what the vectorised one is compared with, and slow by design.

In: messages of pgoutput, or rows of COPY BINARY. Out: changes as plain values, written from the rules and not from the
other decoder: `Change.values` holds what `to_pylist` gives for the row of a change batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from struct import pack, unpack, unpack_from
from typing import Any, NamedTuple

from millrace.errors import Malformed
from millrace.model.tables import Oid, TableSchema
from millrace.wire.pg.binary import date_text, time_text, timestamp_text
from millrace.wire.pg.chunks import HEADER_BYTES
from millrace.wire.pg.messages import Begin, read_message, read_relation, read_truncate
from millrace.wire.pg.types import POSTGRES_EPOCH_US, Form, Kind, kinds_of, mask_bytes

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_POSTGRES_EPOCH = datetime(2000, 1, 1)
_EXACT = Context(prec=80)


class NotSent(NamedTuple):
    """The kind of a cell that was not sent."""


NOT_SENT = NotSent()
Cell = bytes | NotSent | None


class Change(NamedTuple):
    """One change: a row of a batch; or, with kind `relation`, `truncate`, `evicted` or `message`, what else has an
    order."""

    kind: str
    oid: Oid
    values: dict[str, Any]


class ScalarDecoder:
    """As Decoder; `decode` takes the messages themselves."""

    def __init__(self, *, tables: Iterable[TableSchema] = (), keys: dict[Oid, Sequence[str]] | None = None,
                 prefix: str = "millrace") -> None:
        self.tables = {table.oid: table for table in tables}
        self.open: Begin | None = None
        self._keys = keys or {}
        self._prefix = prefix
        self._seq: dict[Oid, int] = {}
        self._under: dict[tuple[str, str], int] = {}         # by name: the next seq behind all that was told under it

    def begin(self, begin: Begin) -> None:
        self.open, self._seq, self._under = begin, {}, {}

    def end(self) -> None:
        self.open = None

    def decode(self, messages: Iterable[bytes], *, streamed: bool = False) -> list[Change]:
        changes: list[Change] = []
        for message in messages:
            (lsn,) = unpack_from(">Q", message, 1)
            kind, body = message[HEADER_BYTES:HEADER_BYTES + 1], message[HEADER_BYTES + 1:]
            if streamed and kind != b"O":
                body = body[4:]
            changes += self._message(kind, body, lsn)
        return changes

    def _message(self, kind: bytes, body: bytes, lsn: int) -> list[Change]:
        if kind == b"B":
            commit_lsn, ts, xid = unpack(">QqI", body)
            self.begin(Begin(commit_lsn, ts + POSTGRES_EPOCH_US, xid))
        elif kind == b"C":
            self.end()
        elif kind == b"R":
            return self._relation(body)
        elif kind == b"T":
            oids, _ = read_truncate(body)
            return [Change("truncate", oid, {"seq": self._next(oid)}) for oid in oids]
        elif kind == b"M":
            prefix, content, at, _ = read_message(body)
            return [Change("message", 0, {"content": content, "lsn": at})] if prefix.startswith(self._prefix) else []
        elif kind in (b"I", b"U", b"D"):
            return self._row(kind, body, lsn)
        elif kind not in (b"O", b"Y"):
            raise Malformed(f"message of type {kind!r}")
        return []

    def _relation(self, body: bytes) -> list[Change]:
        message = read_relation(body)
        table = message.table(frozenset(self._keys.get(message.oid, ())), {})
        previous = self.tables.get(table.oid)
        self.tables[table.oid] = table
        if previous is not None and previous.id == table.id:
            return []
        evicted = self._evict(table, previous)
        if previous is None or (previous.schema, previous.name) != (table.schema, table.name):
            free = self._under.get((table.schema, table.name), 0)
            self._seq[table.oid] = max(free, self._seq.get(table.oid, 0))
        seq = -1 if previous is None else self._next(table.oid)
        if previous is not None:
            self._tell((previous.schema, previous.name), seq)
        return [*evicted, Change("relation", table.oid, {"seq": seq, "id": table.id})]

    def _evict(self, table: TableSchema, previous: TableSchema | None) -> list[Change]:
        """A table that takes a name ends what every other table told under that name."""
        name = table.schema, table.name
        if previous is not None and (previous.schema, previous.name) == name:
            return []
        others = [oid for oid, other in self.tables.items() if oid != table.oid and (other.schema, other.name) == name]
        return [Change("evicted", oid, {"seq": self._next(oid)}) for oid in others]

    def _next(self, oid: Oid) -> int:
        seq = self._seq.get(oid, 0)
        self._seq[oid] = seq + 1
        if (table := self.tables.get(oid)) is not None:
            self._tell((table.schema, table.name), seq)
        return seq

    def _tell(self, name: tuple[str, str], seq: int) -> None:
        self._under[name] = max(seq + 1, self._under.get(name, 0))

    def _row(self, kind: bytes, body: bytes, lsn: int) -> list[Change]:
        (oid,) = unpack_from(">I", body, 0)
        table = self.tables[oid]
        old: list[Cell] | None = None
        new: list[Cell] | None = None
        at = 4
        if body[at:at + 1] in (b"K", b"O"):
            old, at = _tuple(body, at + 1)
        if kind != b"D":
            new, at = _tuple(body, at + 1)
        if new is not None and old is not None:
            new = [o if n is NOT_SENT and isinstance(o, bytes) else n for n, o in zip(new, old, strict=True)]
        if new is None:
            return [self._change(table, 2, lsn, None, old)]
        if kind == b"I":
            return [self._change(table, 0, lsn, new, None)]
        if old is None or all(new[i] == old[i] for i in table.keys):
            return [self._change(table, 1, lsn, new, old)]
        return [self._change(table, 2, lsn, None, old), self._change(table, 0, lsn, new, old)]

    def _change(self, table: TableSchema, op: int, lsn: int, new: list[Cell] | None, old: list[Cell] | None) -> Change:
        assert self.open is not None
        values: dict[str, Any] = {
            "op": op, "lsn": lsn, "commit_lsn": self.open.commit_lsn,
            "commit_ts": _EPOCH + timedelta(microseconds=self.open.commit_ts),
            "xid": self.open.xid, "seq": self._next(table.oid), "unchanged": _mask(table, new), "odd": None}
        odd = []
        count = len(table.columns)
        for image, cells, base in (("a:", new, 0), ("b:", old, count)):
            for i, kind in enumerate(kinds_of(table)):
                cell = None if cells is None else cells[i]
                value, text = text_value(kind, cell) if isinstance(cell, bytes) else (None, None)
                values[image + table.columns[i].name] = value
                if text is not None:
                    odd.append({"column": base + i, "text": text})
        values["odd"] = odd or None
        return Change("row", table.oid, values)


def _tuple(body: bytes, at: int) -> tuple[list[Cell], int]:
    (count,) = unpack_from(">H", body, at)
    at += 2
    cells: list[Cell] = []
    for _ in range(count):
        kind = body[at:at + 1]
        at += 1
        if kind == b"t":
            (size,) = unpack_from(">I", body, at)
            cells.append(body[at + 4:at + 4 + size])
            at += 4 + size
        else:
            cells.append(NOT_SENT if kind == b"u" else None)
    return cells, at


def _mask(table: TableSchema, new: list[Cell] | None) -> bytes | None:
    bits = sum(1 << i for i, cell in enumerate(new or ()) if cell is NOT_SENT)
    return bits.to_bytes(mask_bytes(table), "little") if bits else None


def text_value(kind: Kind, cell: bytes) -> tuple[Any, str | None]:
    """The value, and its text if it is odd."""
    text = cell.decode()
    form = kind.form
    if form is Form.TEXT:
        return text, None
    if form is Form.BOOL:
        return {"t": True, "f": False}[text], None
    if form in (Form.INT16, Form.INT32, Form.INT64, Form.UINT32):
        return int(text), None
    if form is Form.FLOAT32:
        return unpack("f", pack("f", float(text)))[0], None
    if form is Form.FLOAT64:
        return float(text), None
    if form is Form.BYTES:
        return bytes.fromhex(text.removeprefix("\\x")), None
    try:
        return _exact(kind, text), None
    except ValueError:
        return None, text


def _exact(kind: Kind, text: str) -> Any:
    """ValueError where the type has values its column cannot hold."""
    if kind.form is Form.DECIMAL:
        value = Decimal(text)
        if not value.is_finite():
            raise ValueError(text)
        return value.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    if kind.form is Form.DATE:
        return date.fromisoformat(text)
    if kind.form is Form.TIME:
        if text.startswith("24"):
            raise ValueError(text)
        return time.fromisoformat(_padded(text))
    if kind.form is Form.TIMESTAMP:
        return datetime.fromisoformat(_padded(text))
    if not text.endswith("+00"):
        raise ValueError(text)
    return datetime.fromisoformat(_padded(text[:-3]) + "+00:00")


def _padded(text: str) -> str:
    """Six digits of a fraction."""
    whole, dot, fraction = text.partition(".")
    if dot and not fraction.isdigit():
        raise ValueError(text)
    return f"{whole}.{fraction:0<6}" if dot else whole


def binary_value(kind: Kind, cell: bytes) -> tuple[Any, str | None]:
    """As `text_value`, from the binary form."""
    form = kind.form
    if form is Form.TEXT:
        return cell.decode(), None
    if form is Form.BYTES:
        return cell, None
    if form is Form.DECIMAL:
        return _numeric(kind, cell)
    (value,) = unpack(_CODES[form], cell)
    if form is Form.DATE:
        return _day(value, kind)
    if form is Form.TIME:
        return text_value(kind, time_text(value).encode())
    if form in (Form.TIMESTAMP, Form.TIMESTAMPTZ):
        zone = "+00" if form is Form.TIMESTAMPTZ else ""
        return text_value(kind, timestamp_text(value, zone).encode())
    return value, None


def _day(days: int, kind: Kind) -> tuple[Any, str | None]:
    try:
        return (_POSTGRES_EPOCH + timedelta(days=days)).date(), None
    except OverflowError:
        return text_value(kind, date_text(days).encode())


_CODES = {
    Form.BOOL: ">?", Form.INT16: ">h", Form.INT32: ">i", Form.INT64: ">q", Form.UINT32: ">I", Form.FLOAT32: ">f",
    Form.FLOAT64: ">d", Form.DATE: ">i", Form.TIME: ">q", Form.TIMESTAMP: ">q", Form.TIMESTAMPTZ: ">q",
}


def _numeric(kind: Kind, cell: bytes) -> tuple[Any, str | None]:
    count, weight, sign, _ = unpack_from(">hhHH", cell, 0)
    special = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}.get(sign)
    if special is not None:
        return None, special
    groups = unpack_from(f">{count}h", cell, 8)
    value = 0
    for i, group in enumerate(groups):
        places = 4 * (weight - i) + kind.scale
        value += group * 10**places if places >= 0 else group // 10**-places
    return Decimal(-value if sign == 0x4000 else value).scaleb(-kind.scale, _EXACT), None
