"""Values of the database as debezium-json spells them, by code of its own.

In: values of psycopg, or cells of pgoutput as text with the type of their column. Out: JSON values. Nothing of the
product takes part.
"""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from typing import Any

from psycopg import postgres
from psycopg.abc import Loader
from psycopg.adapt import Transformer
from psycopg.pq import Format

EPOCH = date(1970, 1, 1)
INTEGERS = frozenset(postgres.types[name].oid for name in ("int2", "int4", "int8"))
TEXT = postgres.types["text"].oid
_JSON = frozenset(postgres.types[name].oid for name in ("json", "jsonb"))


def spelt(value: Any) -> Any:
    match value:
        case Decimal():
            return _unscaled(value)
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        case date():
            return (value - EPOCH).days
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return [spelt(one) for one in value]
        case _:
            return value


def _unscaled(value: Decimal) -> str:
    """Of a column with a scale, which the value shows: the bytes of Java's BigInteger."""
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    size = 1
    while not -(1 << 8 * size - 1) <= number < 1 << 8 * size - 1:
        size += 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def spelt_cell(kind: int, text: bytes) -> Any:
    """`kind`: the oid of a type. JSON stays its text."""
    return text.decode() if kind in _JSON else spelt(_loader(kind).load(text))


@cache
def _loader(kind: int) -> Loader:
    return Transformer().get_loader(kind, Format.TEXT)


def retyped(value: Any, before: int, now: int) -> Any:
    """What the server makes of a value that was there when its column gets another type."""
    if value is None or before == now or {before, now} <= INTEGERS:
        return value
    if before in INTEGERS and now == TEXT:
        return str(value)
    if before == TEXT and now in INTEGERS:
        return int(value)
    raise ValueError(f"a column of type {before} that becomes one of {now} is not known here")
