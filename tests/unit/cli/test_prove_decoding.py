"""The witness of the proof reads pgoutput by itself: places, keys, values that messages must show [S3, S6, S7]."""

from __future__ import annotations

from typing import Any

import support_pgoutput as pg
from millrace.cli.prove_decoding import happened
from millrace.model.tables import Column, Place, TableSchema

NAME = ("public", "orders")
TABLE = TableSchema(7, *NAME, "d", (Column("id", 20, is_key=True), Column("note", 25)))
FULL = TableSchema(7, *NAME, "f", TABLE.columns)
UNSENT = "__debezium_unavailable_value"


def images(*messages: bytes) -> list[tuple[Any, ...]]:
    return [(one.op, one.before, one.after) for one in happened(messages, {7: ("id",)})]


def seen_by_witness(*messages: bytes) -> list[tuple[Any, ...]]:
    return [(one.place, one.op, one.key) for one in happened(messages)]


def test_S3_the_witness_counts_changes_of_each_table_and_commit() -> None:
    other = TableSchema(8, "public", "other", "d", TABLE.columns)
    found = seen_by_witness(
        pg.begin(50, 0, 1), pg.relation(TABLE), pg.insert(7, [b"1", b"a"]), pg.relation(other),
        pg.insert(8, [b"1", None]), pg.update(7, [b"1", pg.UNCHANGED]), pg.commit(50, 60, 0),
        pg.begin(70, 0, 2), pg.delete(7, [b"1", None]), pg.commit(70, 80, 0))
    assert found == [(Place(50, 0), "c", ("1",)), (Place(50, 0), "c", ("1",)), (Place(50, 1), "u", ("1",)),
                     (Place(70, 0), "d", ("1",))]


def test_S6_the_witness_tells_a_key_update_as_delete_and_insert() -> None:
    found = seen_by_witness(pg.begin(50, 0, 1), pg.relation(TABLE), pg.update(7, [b"2", pg.UNCHANGED], [b"1", None]))
    assert found == [(Place(50, 0), "d", ("1",)), (Place(50, 1), "c", ("2",))]


def test_S7_the_witness_tells_a_schema_change_where_its_first_row_stands() -> None:
    wider = TableSchema(7, *NAME, "d", (*TABLE.columns, Column("more", 25)))
    found = seen_by_witness(
        pg.begin(50, 0, 1), pg.relation(TABLE), pg.insert(7, [b"1", b"a"]), pg.relation(TABLE), pg.relation(wider),
        pg.update(7, [b"1", b"a", b"b"]), pg.truncate([7]))
    assert found == [(Place(50, 0), "c", ("1",)), (Place(50, 1), "alter", None), (Place(50, 2), "u", ("1",)),
                     (Place(50, 3), "t", None)]


def test_S6_under_identity_full_the_catalogue_tells_the_key() -> None:
    update = pg.begin(50, 0, 1), pg.relation(FULL), pg.update(7, [b"1", b"b"], [b"1", b"a"], b"O")
    assert [one.key for one in happened(update)] == [None]
    assert [one.key for one in happened(update, {7: ("id",)})] == [("1",)]


def test_S6_values_are_told_as_messages_must_show_them() -> None:
    found = images(
        pg.begin(50, 0, 1), pg.relation(TABLE), pg.insert(7, [b"1", b"a"]), pg.update(7, [b"1", pg.UNCHANGED]),
        pg.update(7, [b"2", pg.UNCHANGED], [b"1", None]), pg.delete(7, [b"2", None]))
    assert found == [
        ("c", None, {"id": 1, "note": "a"}), ("u", None, {"id": 1, "note": UNSENT}),
        ("d", {"id": 1, "note": None}, None), ("c", None, {"id": 2, "note": UNSENT}),
        ("d", {"id": 2, "note": None}, None)]


def test_S6_under_identity_full_the_row_before_fills_what_was_not_sent() -> None:
    found = images(pg.begin(50, 0, 1), pg.relation(FULL), pg.update(7, [b"1", pg.UNCHANGED], [b"1", b"a"], b"O"))
    assert found == [("u", {"id": 1, "note": "a"}, {"id": 1, "note": "a"})]
