"""What Debezium writes for each value of every type: a fixture, recorded from its engine, for tests without Java.

    {case: {"type", "column": what the catalogue says, "texts": as PostgreSQL prints them,
            options: {"schema": of the column, "values": of the texts}}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import msgspec

from millrace.model.tables import Column, TableSchema, TypeFacts
from support_debezium import Peer
from support_debezium_corpus import TYPES

FIXTURE = os.path.join(os.path.dirname(__file__), "unit", "sink", "kafka", "debezium_examples.json")
NOT_WRITTEN = "(none)"                     # Debezium leaves the column out


def read_examples() -> dict[str, Any]:
    with open(FIXTURE, encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def write_examples(found: Mapping[str, Any]) -> None:
    lines = [f"{json.dumps(case)}: {json.dumps(example, ensure_ascii=True)}" for case, example in found.items()]
    with open(FIXTURE, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def examples_of(tables: Sequence[TableSchema], texts: Mapping[str, Sequence[str]],
                theirs: Mapping[str, Mapping[str, Sequence[Peer]]]) -> dict[str, Any]:
    """`texts` by table, `theirs` by options and table; both of the rows that came behind the snapshot."""
    by_name = {table.name: table for table in tables}
    found = {}
    for case, (kind, _) in TYPES.items():
        name = f"t_{case}"
        column = settled(by_name[name].columns[1])
        found[case] = {"type": kind, "column": json.loads(msgspec.json.encode(column)), "texts": list(texts[name]),
                       **{options: _of(messages[name]) for options, messages in theirs.items()}}
    return found


def _of(messages: Sequence[Peer]) -> dict[str, Any]:
    values = [json.loads(one.value or b"null") for one in messages]
    streamed = [value["payload"]["after"].get("v", NOT_WRITTEN) for value in values if value["payload"]["op"] == "c"]
    fields = {one["field"]: one for one in values[0]["schema"]["fields"][1]["fields"]}
    return {"schema": fields.get("v"), "values": streamed}


def settled(column: Column) -> Column:
    """Oids of a database's own types change from run to run."""
    facts = column.facts
    if facts is None or facts.type is None:
        return column
    known = _settled(facts.type)
    return msgspec.structs.replace(column, type_oid=known.oid, facts=msgspec.structs.replace(facts, type=known))


def _settled(known: TypeFacts) -> TypeFacts:
    inner = None if known.inner is None else _settled(known.inner)
    return msgspec.structs.replace(known, oid=1_000_000 + crc32(known.name.encode()) % 1_000_000, inner=inner,
                                   inner_oid=known.inner_oid if inner is None else inner.oid)
