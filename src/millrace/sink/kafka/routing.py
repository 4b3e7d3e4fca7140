"""Partition of a message: by key, by table, or by columns of the key [K2].

In: images and their keys. Out: a partition per row; None where there is only one. The hash is that of Kafka's Java
clients (librdkafka: partitioner=murmur2_random), so another producer of the same keys agrees.
Promise: all changes of a key go to one partition, so that its order holds [K3]. Hence columns must be of the key:
another column may change, and then an update would overtake the row it updates.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

import numpy as np

from millrace.errors import InvalidRequest
from millrace.model.tables import TableSchema
from millrace.sink.kafka.images import Images
from millrace.sink.kafka.murmur import murmur2, murmur2_column
from millrace.wire.fragments import Fragments, Ints

_COLUMN: Final = "column:"
_NAME = re.compile(r'\s*"((?:[^"]|"")*)"\s*|([^,"]*)', re.DOTALL)
By = Literal["key", "table", "column"]


class Routing(NamedTuple):
    """`columns` only with "column"."""

    by: By = "key"
    columns: tuple[str, ...] = ()


def parse_routing(text: str) -> Routing:
    """key, table, or column:a,b; a name with commas, quotes or spaces at its ends is quoted, quotes in it doubled."""
    if text in ("key", "table"):
        return Routing("key" if text == "key" else "table")
    if not text.startswith(_COLUMN):
        raise _refusal(text, 0, "give key, table, or column:NAME,NAME")
    columns: list[str] = []
    at = len(_COLUMN)
    while True:
        found = _NAME.match(text, at)
        name = "" if found is None else found[1].replace('""', '"') if found[1] is not None else found[2].strip()
        if found is None or not name:
            raise _refusal(text, at, "the name of a column is missing: give key, table, or column:NAME,NAME")
        if name in columns:
            raise _refusal(text, at, f"{name!r} stands twice")
        columns.append(name)
        at = found.end()
        if at == len(text):
            return Routing("column", tuple(columns))
        if text[at] != ",":
            raise _refusal(text, at, "a comma is missing; a quote inside a quoted name is doubled")
        at += 1


def _refusal(text: str, at: int, why: str) -> InvalidRequest:
    return InvalidRequest(f"partition {text!r}, character {at + 1}: {why}", at=at, why=why)


def refuse_unless_routable(routing: Routing, table: TableSchema) -> None:
    """For every table of a changefeed, at its creation and when a table's schema changes."""
    keys = {table.columns[i].name for i in table.keys}
    for name in routing.columns:
        if name not in keys:
            what = "is not part of the key of" if name in {c.name for c in table.columns} else "is no column of"
            raise InvalidRequest(f"partition column:{name}: it {what} {table.full_name}; order per key holds only if "
                                 "the columns are of the key: choose among them, or partition=key")


def partitions(routing: Routing, images: Images, key: Fragments | None, shared: bytes, count: int) -> Ints | None:
    """`key`: as messages carry it, all beginning with `shared`; None for a table without one, which stays together."""
    if count == 1:
        return None
    if routing.by == "column":
        wanted = [i for i in images.table.keys if images.table.columns[i].name in routing.columns]
        part = images.object(tuple(wanted), images.key_cell)
        return murmur2_column(part.joined(), part.first_constant) % count
    if routing.by == "key" and key is not None:
        return murmur2_column(key.joined(), shared) % count
    return np.full(images.count, murmur2(images.table.full_name.encode()) % count, np.int64)

