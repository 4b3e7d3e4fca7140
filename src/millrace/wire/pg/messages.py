"""What the decoder gives, and the messages of pgoutput that are rare enough to be read one by one.

In: the bytes of one message. Out: a value. Promise: Malformed is the only error, whatever the bytes.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from millrace.errors import Malformed
from millrace.model.tables import IDENTITY_FULL, Column, ColumnFacts, Lsn, Oid, TableSchema
from millrace.wire.pg.facts import ordered, type_facts

TRUNCATE_CASCADE, TRUNCATE_RESTART = 1, 2

_OID = Struct(">I")
_COUNT = Struct(">H")
_COLUMN_TYPE = Struct(">Ii")
_TRUNCATE = Struct(">IB")
_MESSAGE = Struct(">BQ")


class Begin(NamedTuple):
    """A transaction that is open. `commit_ts`: microseconds since 1970."""

    commit_lsn: Lsn
    commit_ts: int
    xid: int


class Relation(NamedTuple):
    """From here on rows of the table are of this schema. `previous`: what was known before, None for a new table.

    A changed schema is a change of its table and has a seq; the first sight of a table has none (-1).
    """

    table: TableSchema
    previous: TableSchema | None
    begin: Begin
    seq: int


class Truncated(NamedTuple):
    oid: Oid
    seq: int


class Truncate(NamedTuple):
    """All tables of one statement, each with its own seq."""

    tables: tuple[Truncated, ...]
    cascade: bool
    restart: bool
    begin: Begin
    lsn: Lsn


class Evicted(NamedTuple):
    """Tables whose name another table has from here on. Where they are named otherwise by now their next rows tell."""

    tables: tuple[Truncated, ...]
    begin: Begin


class Message(NamedTuple):
    """A logical message. `begin` is None if it is not transactional."""

    prefix: str
    content: bytes
    lsn: Lsn
    begin: Begin | None


class Rows(NamedTuple):
    """Changes of one table and one schema, of one or more transactions, in the order of the stream."""

    table: TableSchema
    before: bool           # whether the batch has before images
    batch: pa.RecordBatch  # of arrow_schema(table, before=before)


class Described(NamedTuple):
    """The catalogue says something else of the same schema: NOT NULL, a default, labels of an enum."""

    table: TableSchema
    begin: Begin


Item = Relation | Described | Truncate | Evicted | Message | Rows


class Decoded(NamedTuple):
    """One chunk. Items of one table are in order; rows of different tables between two barriers are grouped by table.

    `commits`: commit LSN of every transaction that ended in this chunk; all rows up to `commits[-1]` have been given.
    """

    items: list[Item]
    commits: NDArray[np.int64]
    end_lsn: Lsn           # of the last of them; 0 if none ended


class RelationMessage(NamedTuple):
    oid: Oid
    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...]

    def table(self, keys: frozenset[str] | None, type_names: dict[Oid, str]) -> TableSchema:
        """Under identity FULL every column is flagged as key: which ones really are, others must say."""
        flagged = self.identity != IDENTITY_FULL
        columns = tuple(
            Column(c.name, c.type_oid, c.typmod, c.is_key if flagged else c.name in (keys or ()),
                   type_names.get(c.type_oid, ""))
            for c in self.columns)
        return TableSchema(self.oid, self.schema, self.name, self.identity, columns)


def read_relation(data: bytes) -> RelationMessage:
    """`data` behind the type byte and, in a streamed block, behind the transaction id."""
    try:
        (oid,) = _OID.unpack_from(data, 0)
        schema, at = _text(data, 4)
        name, at = _text(data, at)
        identity = chr(data[at])
        (count,) = _COUNT.unpack_from(data, at + 1)
        at += 3
        columns = []
        for _ in range(count):
            flags = data[at]
            column, at = _text(data, at + 1)
            type_oid, typmod = _COLUMN_TYPE.unpack_from(data, at)
            at += _COLUMN_TYPE.size
            columns.append(Column(column, type_oid, typmod, bool(flags & 1)))
    except (StructError, IndexError) as error:
        raise Malformed(f"relation message cut short: {error}") from error
    _whole(data, at, "relation")
    # The wire leaves out the name of pg_catalog.
    return RelationMessage(oid, schema or "pg_catalog", name, identity, tuple(columns))


def read_type(data: bytes) -> tuple[Oid, str]:
    """A type's oid and its name, with its schema unless built in."""
    try:
        (oid,) = _OID.unpack_from(data, 0)
        schema, at = _text(data, 4)
        name, at = _text(data, at)
    except StructError as error:
        raise Malformed(f"type message cut short: {error}") from error
    _whole(data, at, "type")
    return oid, f"{schema}.{name}" if schema else name


def read_truncate(data: bytes) -> tuple[tuple[Oid, ...], int]:
    """Oids of the tables and the flags."""
    try:
        count, flags = _TRUNCATE.unpack_from(data, 0)
    except StructError as error:
        raise Malformed(f"truncate message cut short: {error}") from error
    _whole(data, _TRUNCATE.size + 4 * count, "truncate")
    oids = tuple(_OID.unpack_from(data, _TRUNCATE.size + 4 * i)[0] for i in range(count))
    return oids, flags


def read_message(data: bytes) -> tuple[str, bytes, Lsn, bool]:
    """Prefix, content, LSN, whether transactional."""
    try:
        flags, lsn = _MESSAGE.unpack_from(data, 0)
        prefix, at = _text(data, _MESSAGE.size)
        (size,) = _OID.unpack_from(data, at)
    except StructError as error:
        raise Malformed(f"logical message cut short: {error}") from error
    _whole(data, at + 4 + size, "logical")
    return prefix, data[at + 4:], lsn, bool(flags & 1)


class _Told(msgspec.Struct):
    """What our event trigger says of a table; of each column: attnum, name, type, typmod, type name, not null, key."""

    kind: str
    oid: Oid = 0
    schema: str = ""
    name: str = ""
    identity: str = ""
    columns: tuple[tuple[int, str, int, int, str, bool, bool], ...] = ()
    defaults: tuple[str | None, ...] = ()      # of each column; an earlier version's message has none of the last three
    key: tuple[str, ...] = ()                  # its columns in their order
    types: tuple[tuple[int, str, str, tuple[str, ...] | None, int, int], ...] = ()


_told = msgspec.json.Decoder(_Told)


def table_told(content: bytes) -> TableSchema | None:
    """A table as it is behind a statement, if a logical message of ours tells it; its key also under identity FULL,
    where relation messages do not."""
    try:
        told = _told.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if told.kind != "ddl" or not told.oid:
        return None
    types = {oid: rest for oid, *rest in told.types}
    knows = len(told.defaults) == len(told.columns)
    columns = tuple(
        Column(name, type_oid, typmod, is_key, type_name, 0,
               ColumnFacts(not_null, told.defaults[i], type_facts(type_oid, types)) if knows else None)
        for i, (_, name, type_oid, typmod, type_name, not_null, is_key) in enumerate(told.columns))
    return ordered(TableSchema(told.oid, told.schema, told.name, told.identity, columns), told.key)


class LifeTold(NamedTuple):
    """A table is dropped, or is back after it was told as dropped."""

    oid: Oid
    is_drop: bool


class _Life(msgspec.Struct):
    kind: str
    oid: Oid = 0
    back: bool = False


_life = msgspec.json.Decoder(_Life)


def life_told(content: bytes) -> LifeTold | None:
    """What a logical message of ours tells of a table's end or return."""
    try:
        told = _life.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not told.oid or not (told.kind == "drop" or (told.kind == "empty" and told.back)):
        return None
    return LifeTold(told.oid, told.kind == "drop")


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at)
    if end < 0:
        raise Malformed("text without end")
    try:
        return data[at:end].decode(), end + 1
    except UnicodeDecodeError as error:
        raise Malformed(f"name is not UTF-8: {error}") from error


def _whole(data: bytes, end: int, what: str) -> None:
    if end != len(data):
        raise Malformed(f"{what} message of {len(data)} bytes, {end} read")
