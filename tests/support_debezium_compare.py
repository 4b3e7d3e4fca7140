"""Two lists of messages of one table, field by field, and the differences that docs/formats.md lists as wanted.

A difference has labels, from the broad to the narrow: `type box`, `type date 'infinity'`, `source.version`, `header x`,
`tombstone without key`. It is wanted if a pattern of the table in docs/formats.md matches one of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

FORMATS = "docs/formats.md"
HEADING = "### Where debezium-json differs from Debezium"


def wanted_differences(path: str = FORMATS) -> list[str]:
    """Patterns in the first column of the table."""
    with open(path, encoding="utf-8") as file:
        text = file.read().split(HEADING, 1)[1].split("\n#", 1)[0]
    return [pattern.replace("\\|", "|") for row in text.splitlines() if row.startswith("| `")
            for pattern in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


@dataclass
class Comparison:
    """Counts, and what is left."""

    wanted: Sequence[str]
    messages: int = 0
    fields: int = 0
    expected: int = 0                              # differences that are wanted
    left: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    _patterns: dict[tuple[str, ...], list[str]] = field(default_factory=dict)     # of `wanted`, by labels

    def same(self, ours: Any, theirs: Any, where: str, *labels: str) -> None:
        self.fields += 1
        if _equal(ours, theirs):
            return
        found = self._patterns.get(labels)
        if found is None:
            found = self._patterns[labels] = [
                pattern for pattern in self.wanted if any(fnmatchcase(label, pattern) for label in labels)]
            self.used.update(found)
        if found:
            self.expected += 1
        else:
            self.left.append(f"{where} {labels}: ours {_short(ours)}, Debezium's {_short(theirs)}")


def _equal(ours: Any, theirs: Any) -> bool:
    """Numbers by their value: 1.0E7 is 10000000.0."""
    if isinstance(ours, float | Decimal) and isinstance(theirs, float | Decimal):
        return float(ours) == float(theirs)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(_equal(*pair) for pair in zip(ours, theirs, strict=True))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_equal(value, theirs[name]) for name, value in ours.items())
    return type(ours) is type(theirs) and bool(ours == theirs)


def _short(value: Any) -> str:
    return repr(value)[:300]


class Columns:
    """Labels of a table's columns: `types` by column; `literals` by the id of the row, of a table of one type."""

    def __init__(self, table: str, types: Mapping[str, str], literals: Sequence[str] = (),
                 defaults: Collection[str] = ()) -> None:
        self.table, self._types, self._literals, self._defaults = table, types, literals, defaults

    def null_labels(self, column: str, value: Any) -> list[str]:
        return ["null of a column with a default"] if value is None and column in self._defaults else []

    def labels(self, column: str, row: Mapping[str, Any] | None = None) -> list[str]:
        kind = self._types.get(column, "")
        found = [f"column {self.table}.{column}", f"type {kind}"]
        place = row.get("id") if row is not None and self._literals and column == "v" else None
        return found if place is None else [*found, f"type {kind} {self._literals[place % 1000]}"]


def compare_value(found: Comparison, ours: bytes | None, theirs: bytes | None, columns: Columns, where: str, *,
                  schemas: bool) -> None:
    if ours is None or theirs is None:
        found.same(ours, theirs, where, "value")
        return
    mine, other = json.loads(ours), json.loads(theirs)
    if schemas:
        _compare_schema(found, mine["schema"], other["schema"], columns, where)
        mine, other = mine["payload"], other["payload"]
    found.same(list(mine), list(other), where, "envelope")
    for name in mine.keys() & other.keys():
        if name in ("before", "after") and mine[name] is not None and other[name] is not None:
            for column in _names(mine[name], other[name]):
                labels = columns.labels(column, mine[name])
                found.same(mine[name].get(column, "(none)"), other[name].get(column, "(none)"),
                           f"{where} {name}.{column}", *labels, *columns.null_labels(column, mine[name].get(column)),
                           *_unavailable(mine[name].get(column), other[name].get(column)))
        elif name == "source":
            for one in _names(mine[name], other[name]):
                found.same(mine[name].get(one, "(none)"), other[name].get(one, "(none)"), f"{where} source.{one}",
                           f"source.{one}", *([f"source.{one} of a copy"] if mine["op"] == "r" else []),
                           *([f"source.{one} of a truncation"] if mine["op"] == "t" else []))
        else:
            found.same(mine[name], other[name], f"{where} {name}", name)


def _unavailable(ours: Any, theirs: Any) -> list[str]:
    text = json.dumps(ours)
    is_marked = any(marker in text for marker in ("unavailable", "X19kZWJleml1bV91bm", "5f5f646562657a69756d5f"))
    return ["unavailable, and null with Debezium"] if is_marked and theirs is None else []


def _names(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    yield from dict.fromkeys([*one, *other])


def _compare_schema(found: Comparison, mine: dict[str, Any], other: dict[str, Any], columns: Columns,
                    where: str) -> None:
    outer = [{key: value for key, value in schema.items() if key != "fields"} for schema in (mine, other)]
    found.same(outer[0], outer[1], f"{where} schema", "schema")
    parts = [{one["field"]: one for one in schema["fields"]} for schema in (mine, other)]
    found.same(list(parts[0]), list(parts[1]), f"{where} schema fields", "schema")
    for name in _names(parts[0], parts[1]):
        if name in ("before", "after"):
            rows = [{one["field"]: one for one in part[name]["fields"]} for part in parts]
            found.same(parts[0][name]["name"], parts[1][name]["name"], f"{where} schema {name}", "schema")
            for column in _names(rows[0], rows[1]):
                found.same(rows[0].get(column), rows[1].get(column), f"{where} schema {name}.{column}",
                           *(f"schema of {label}" for label in columns.labels(column)), *columns.labels(column))
        else:
            found.same(parts[0].get(name), parts[1].get(name), f"{where} schema {name}", f"schema {name}")


def compare_key(found: Comparison, ours: bytes | None, theirs: bytes | None, columns: Columns, where: str, *,
                schemas: bool) -> None:
    """By their bytes: they decide partition and compaction."""
    if ours is None or theirs is None or not schemas:
        found.same(ours, theirs, f"{where} key", "key", *(columns.labels("v")))
        return
    found.same(json.loads(ours), json.loads(theirs), f"{where} key", "key")
    found.same(ours, theirs, f"{where} key's bytes", "key")


def compare_headers(found: Comparison, ours: Mapping[str, bytes], theirs: Mapping[str, bytes], where: str,
                    options: Mapping[str, str]) -> None:
    for name in _names(ours, theirs):
        found.same(ours.get(name), theirs.get(name), f"{where} header {name}", f"header {name}",
                   *(f"header {name} with {key}={value}" for key, value in options.items()))
