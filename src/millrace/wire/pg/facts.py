"""What a catalogue says of columns beyond the stream: their types in full, the order of the key.

In: rows of a query over pg_type; names of the key's columns in its order. Out: facts that a schema version carries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from millrace.model.tables import Column, ColumnFacts, Oid, TableSchema, TypeFacts

TypeRows = Mapping[Oid, Sequence[Any]]     # kind, name, labels, typmod, inner oid

_DEPTH_MAX = 32                            # domains on domains on arrays …

# Of columns (pg_attribute a) that {columns} names: types that PostgreSQL does not bring with it, and what these stand
# on.
TYPES = """WITH RECURSIVE wanted(oid) AS (
    SELECT DISTINCT a.atttypid FROM pg_catalog.pg_attribute a
    WHERE {columns} AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT CASE y.typtype WHEN 'd' THEN y.typbasetype ELSE y.typelem END
    FROM wanted w JOIN pg_catalog.pg_type y ON y.oid = w.oid
    WHERE y.typtype = 'd' OR (y.typtype = 'b' AND y.typcategory = 'A'))
SELECT y.oid::int8 AS oid, CASE WHEN y.typtype = 'b' AND y.typcategory = 'A' THEN 'a' ELSE y.typtype::text END AS kind,
       y.typname::text AS name, (
         SELECT pg_catalog.array_agg(e.enumlabel::text ORDER BY e.enumsortorder)
         FROM pg_catalog.pg_enum e WHERE e.enumtypid = y.oid) AS labels, y.typtypmod AS typmod,
       CASE WHEN y.typtype = 'd' THEN y.typbasetype WHEN y.typtype = 'b' AND y.typcategory = 'A' THEN y.typelem
            ELSE 0 END::int8 AS inner_oid
FROM wanted w JOIN pg_catalog.pg_type y ON y.oid = w.oid WHERE y.oid >= 16384 ORDER BY y.oid"""


def type_facts(oid: Oid, rows: TypeRows, depth: int = 0) -> TypeFacts | None:
    """None: PostgreSQL's own, or not described."""
    if oid not in rows or depth > _DEPTH_MAX:
        return None
    kind, name, labels, typmod, inner_oid = rows[oid]
    return TypeFacts(oid, kind, name, tuple(labels or ()), typmod, type_facts(inner_oid, rows, depth + 1), inner_oid)


def ordered(table: TableSchema, key: Sequence[str]) -> TableSchema:
    """With the places of the key's columns, where they differ from the order of the columns."""
    places = {name: place for place, name in enumerate(key, 1)}
    inside = [name for name in (column.name for column in table.columns if column.is_key) if name in places]
    if sorted(inside, key=places.__getitem__) == inside:
        return table
    return msgspec.structs.replace(table, columns=tuple(
        msgspec.structs.replace(one, key_place=places[one.name]) if one.is_key and one.name in places else one
        for one in table.columns))


def described(table: TableSchema, known: TableSchema | None) -> TableSchema:
    """With the facts that `known` has of the same columns; and the order of its key, if it is of the same columns."""
    if known is None:
        return table
    by_name = {column.name: column for column in known.columns}
    by_type = {column.type_oid: column.facts.type for column in known.columns if column.facts is not None}
    same_key = _key_names(table.columns) == _key_names(known.columns)
    return msgspec.structs.replace(table, columns=tuple(
        _described(column, by_name.get(column.name), by_type, same_key) for column in table.columns))


def _described(column: Column, known: Column | None, by_type: Mapping[Oid, TypeFacts | None], same_key: bool) -> Column:
    is_same = known is not None and (known.type_oid, known.typmod) == (column.type_oid, column.typmod)
    place = known.key_place if known is not None and same_key else column.key_place
    facts = column.facts or (known.facts if known is not None and is_same else None)
    if facts is None and column.type_oid in by_type:
        facts = ColumnFacts(type=by_type[column.type_oid])
    return msgspec.structs.replace(column, key_place=place, facts=facts)


def _key_names(columns: Iterable[Column]) -> set[str]:
    return {column.name for column in columns if column.is_key}
