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

IDENTITY_DEFAULT, IDENTITY_FULL, IDENTITY_NOTHING = "d", "f", "n"     # "i": by an index


class Place(NamedTuple):
    """Where a change stands inside one generation: all changes of one table are ordered by it [S3]."""

    commit_lsn: Lsn
    seq: int


NOWHERE = Place(-1, -1)


class Column(msgspec.Struct, frozen=True, array_like=True):
    """One column as the stream names it. `type_name` is for people; the type is (oid, typmod)."""

    name: str
    type_oid: Oid
    typmod: int = -1
    is_key: bool = False
    type_name: str = ""


class TableSchema(msgspec.Struct, frozen=True, dict=True):
    """One version of one table. Order of columns is the order of the stream. `dict`: for its id, made once."""

    oid: Oid
    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...]

    @cached_property
    def id(self) -> UUID:
        """Named by content; `type_name` is left out, since not every way of learning a schema tells it."""
        content = [self.oid, self.schema, self.name, self.identity,
                   [[c.name, c.type_oid, c.typmod, c.is_key] for c in self.columns]]
        return uuid5(_SCHEMAS, msgspec.json.encode(content).decode())

    @property
    def full_name(self) -> str:
        """For people; `quoted` is for SQL."""
        return f"{self.schema}.{self.name}"

    @property
    def keys(self) -> tuple[int, ...]:
        """Indexes of the key columns; none for a table that is carried whole (identity FULL without a key)."""
        return tuple(i for i, column in enumerate(self.columns) if column.is_key)


def lsn_text(lsn: Lsn) -> str:
    """As PostgreSQL writes it: 16/B374D848."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> Lsn:
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)
