"""What a column is to Debezium: domains seen through, arrays with their elements, enums with their labels.

In: a column with the facts that the catalogue gave. Out: its shape, by which values and schemas are written.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from millrace.model.tables import Column, Oid, TypeFacts
from millrace.sink.kafka.json_scalars import ELEMENTS

What = Literal[
    "bool", "int16", "int32", "int64", "float", "double", "decimal", "numeric", "money", "date", "time", "timestamp",
    "timestamptz", "timetz", "interval", "bytes", "flag", "bits", "string", "json", "xml", "uuid", "ltree", "tsvector",
    "enum", "hstore", "point", "array"]

_BIT, _VARBIT, _NUMERIC = 1560, 1562, 1700
_BY_OID: dict[Oid, What] = {
    16: "bool", 17: "bytes", 20: "int64", 21: "int16", 23: "int32", 26: "int64", 28: "int64", 114: "json", 142: "xml",
    600: "point", 700: "float", 701: "double", 790: "money", 1082: "date", 1083: "time", 1114: "timestamp",
    1184: "timestamptz", 1186: "interval", 1266: "timetz", 2950: "uuid", 3614: "tsvector", 3802: "json",
}
_BY_NAME: dict[str, What] = {"hstore": "hstore", "ltree": "ltree"}     # types of extensions


class Shape(NamedTuple):
    """`typmod`: of the type that a domain stands on. `scale`, `precision`: of a decimal."""

    what: What
    oid: Oid = 0
    typmod: int = -1
    precision: int = 0
    scale: int = 0
    labels: tuple[str, ...] = ()
    element: Shape | None = None

    @property
    def digits(self) -> int:
        """Of the fraction of a second."""
        return self.typmod if 0 <= self.typmod <= 6 else 6


@lru_cache(maxsize=16_384)
def shape_of(column: Column) -> Shape:
    facts = None if column.facts is None else column.facts.type
    return _shape(column.type_oid, column.typmod, facts)


def _shape(oid: Oid, typmod: int, facts: TypeFacts | None) -> Shape:
    if facts is not None and facts.kind == "d":
        return _shape(facts.inner_oid, facts.typmod, facts.inner)
    if facts is not None and facts.kind == "a":
        return Shape("array", oid, element=_shape(facts.inner_oid, typmod, facts.inner))
    if facts is not None and facts.kind == "e":
        return Shape("enum", oid, labels=facts.labels)
    if facts is not None:
        return Shape(_BY_NAME.get(facts.name, "string"), oid)
    if oid in ELEMENTS:
        return Shape("array", oid, element=_shape(ELEMENTS[oid], typmod, None))
    if oid == _NUMERIC:
        return _decimal(typmod)
    if oid in (_BIT, _VARBIT):
        return Shape("flag" if oid == _BIT and typmod == 1 else "bits", oid, typmod)
    return Shape(_BY_OID.get(oid, "string"), oid, typmod)


def _decimal(typmod: int) -> Shape:
    if typmod < 4:
        return Shape("numeric", _NUMERIC)
    scale = ((typmod - 4 & 0x7FF) ^ 1024) - 1024         # eleven bits with a sign
    return Shape("decimal", _NUMERIC, typmod, (typmod - 4) >> 16 & 0xFFFF, scale)
