"""What the catalogue says beyond the stream: the key's order, types of a database's own, NOT NULL and defaults [K6]."""

from __future__ import annotations

import json

import msgspec

from millrace.model.tables import Column, ColumnFacts, TableSchema, TypeFacts
from millrace.wire.pg.chunks import join
from millrace.wire.pg.facts import described, ordered, type_facts
from millrace.wire.pg.messages import Described, Relation, table_told
from millrace.wire.pg.pgoutput import Decoder
from support_pgoutput import begin, commit, message, relation, xlog

MOOD = TypeFacts(16500, "e", "mood", ("sad", "ok"))
ROWS = {16500: ("e", "mood", ["sad", "ok"], -1, 0), 16501: ("a", "_mood", None, -1, 16500),
        16502: ("d", "price", None, 655366, 1700)}
TABLE = TableSchema(16400, "public", "t", "d", (
    Column("zone", 23, -1, True), Column("tenant", 25, -1, True), Column("mood", 16500)))
TOLD = {
    "kind": "ddl", "oid": 16400, "schema": "public", "name": "t", "identity": "d", "key": ["tenant", "zone"],
    "columns": [[1, "zone", 23, -1, "integer", True, True], [2, "tenant", 25, -1, "text", True, True],
                [3, "mood", 16500, -1, "mood", False, False]],
    "defaults": [None, "'x'::text", None], "types": [[16500, "e", "mood", ["sad", "ok"], -1, 0]],
}


def test_K6_types_are_seen_through_to_what_they_stand_on() -> None:
    assert type_facts(16500, ROWS) == MOOD
    assert type_facts(16501, ROWS) == TypeFacts(16501, "a", "_mood", (), -1, MOOD, 16500)
    assert type_facts(16502, ROWS) == TypeFacts(16502, "d", "price", (), 655366, None, 1700)
    assert type_facts(23, ROWS) is None


def test_K6_a_key_has_its_own_order_and_only_another_order_names_another_version() -> None:
    assert ordered(TABLE, ["zone", "tenant"]) == TABLE
    other = ordered(TABLE, ["tenant", "zone"])
    assert (TABLE.key_order, other.key_order, other.keys) == ((0, 1), (1, 0), (0, 1))
    assert other.id != TABLE.id
    named = msgspec.structs.replace(TABLE, columns=tuple(
        msgspec.structs.replace(column, facts=ColumnFacts(not_null=True)) for column in TABLE.columns))
    assert named.id == TABLE.id, "what a catalogue says beside is no other version"


def test_K6_a_relation_message_keeps_what_was_known_of_its_columns() -> None:
    known = ordered(msgspec.structs.replace(TABLE, columns=(
        *TABLE.columns[:2], msgspec.structs.replace(TABLE.columns[2], facts=ColumnFacts(False, "'ok'", MOOD)))),
        ["tenant", "zone"])
    wider = msgspec.structs.replace(TABLE, columns=(*TABLE.columns, Column("second", 16500)))
    found = described(wider, known)
    assert found.key_order == (1, 0)
    assert found.columns[2].facts == ColumnFacts(False, "'ok'", MOOD)
    assert found.columns[3].facts == ColumnFacts(type=MOOD), "the type is known, the column is not"
    assert described(wider, None) == wider


def test_K6_our_event_trigger_tells_order_defaults_and_labels() -> None:
    table = table_told(json.dumps(TOLD).encode())
    assert table is not None
    assert table.key_order == (1, 0)
    assert [column.facts for column in table.columns] == [
        ColumnFacts(True), ColumnFacts(True, "'x'::text"), ColumnFacts(False, None, MOOD)]
    former = {key: value for key, value in TOLD.items() if key not in ("key", "defaults", "types")}
    earlier = table_told(json.dumps(former).encode())
    assert earlier is not None
    assert earlier.columns == TABLE.columns or [c.facts for c in earlier.columns] == [None] * 3


def test_K6_a_statement_that_changes_only_what_the_catalogue_says_is_no_schema_change() -> None:
    table = table_told(json.dumps(TOLD).encode())
    assert table is not None
    decoder = Decoder(tables=[table])
    again = {**TOLD, "defaults": [None, None, "'ok'::mood"]}
    items = decoder.decode(join([xlog(one) for one in (
        begin(100, 0, 7), relation(table), message("millrace", json.dumps(again).encode(), 90),
        relation(table), commit(100, 110, 0))])).items
    [found] = [item for item in items if isinstance(item, Described | Relation)]
    assert isinstance(found, Described)
    assert found.table.columns[2].facts == ColumnFacts(False, "'ok'::mood", MOOD)
    assert found.table.id == table.id
