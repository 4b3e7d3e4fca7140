"""Tables of a source: what a schema version is, and places in the order of changes.

A schema version is named by its content: the same columns give the same id, whoever read them and however often, so a
reader that starts again names what its predecessor named [S7].
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple
from uuid import UUID, uuid5

import msgspec

_SCHEMAS = UUID("9a5b1f0e-3c77-5d7e-8a2c-6f2f4b1d9e10")

Lsn = int
Oid = int

FIRST_MADE_OID = 16384       # of types and tables that are not PostgreSQL's own

IDENTITY_DEFAULT, IDENTITY_FULL, IDENTITY_NOTHING = "d", "f", "n"     # "i": by an index


class Place(NamedTuple):
    """Where a change stands inside one generation: all changes of one table are ordered by it [S3]."""

    commit_lsn: Lsn
    seq: int


NOWHERE = Place(-1, -1)


class TypeFacts(msgspec.Struct, frozen=True, array_like=True):
    """A type that PostgreSQL does not bring with it, as the catalogue describes it. `kind`: pg_type.typtype, or "a" for
    an array. `inner`: the type a domain stands on, or of an array's elements."""

    oid: Oid
    kind: str
    name: str = ""
    labels: tuple[str, ...] = ()         # of an enum, in their order
    typmod: int = -1                     # that a domain gives the type it stands on
    inner: TypeFacts | None = None       # None: a type that PostgreSQL brings with it, `inner_oid`
    inner_oid: Oid = 0


class ColumnFacts(msgspec.Struct, frozen=True, array_like=True):
    """What the stream does not say of a column: as the catalogue had it when the version was named, for descriptions of
    rows. No change of a schema is seen by it, and no id depends on it."""

    not_null: bool = False
    default: str | None = None           # the expression, as PostgreSQL prints it
    type: TypeFacts | None = None


class Column(msgspec.Struct, frozen=True, array_like=True):
    """One column as the stream names it. `type_name` is for people; the type is (oid, typmod)."""

    name: str
    type_oid: Oid
    typmod: int = -1
    is_key: bool = False
    type_name: str = ""
    key_place: int = 0                   # in the key, from 1 on; 0 in all: the key is in the order of the columns
    facts: ColumnFacts | None = None     # None: not known


class TableSchema(msgspec.Struct, frozen=True, dict=True):
    """One version of one table. Order of columns is the order of the stream. `dict`: for its id, made once."""

    oid: Oid
    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...]

    @cached_property
    def id(self) -> UUID:
        """Named by content; `type_name` and `facts` are left out, since not every way of learning a schema tells
        them."""
        content = [self.oid, self.schema, self.name, self.identity,
                   [[c.name, c.type_oid, c.typmod, c.is_key, *([c.key_place] if c.key_place else [])]
                    for c in self.columns]]
        return uuid5(_SCHEMAS, msgspec.json.encode(content).decode())

    @property
    def full_name(self) -> str:
        """For people; `quoted` is for SQL."""
        return f"{self.schema}.{self.name}"

    @property
    def keys(self) -> tuple[int, ...]:
        """Indexes of the key columns; none for a table that is carried whole (identity FULL without a key)."""
        return tuple(i for i, column in enumerate(self.columns) if column.is_key)

    @property
    def key_order(self) -> tuple[int, ...]:
        """Indexes of the key columns in the order that the key itself has."""
        return tuple(sorted(self.keys, key=lambda i: (self.columns[i].key_place, i)))


def lsn_text(lsn: Lsn) -> str:
    """As PostgreSQL writes it: 16/B374D848."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> Lsn:
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)
