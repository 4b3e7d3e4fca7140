"""Rows over time as a copy must show them: at its low mark, in the columns of any moment up to the next change [S5]."""

from __future__ import annotations

from typing import Any

from millrace.cli.prove_messages import Happened
from millrace.cli.prove_states import States
from millrace.core.sources.reader import SEQ_MAX
from millrace.model.tables import Place

NAME = ("public", "gauges")
INT, TEXT = 23, 25
UNSENT = "__debezium_unavailable_value"
COLUMNS, TYPES = ("id", "v", "amount"), (INT, TEXT, INT)


def one(lsn: int, op: str, after: dict[str, Any] | None = None, *, key: str | None = "1", old_key: str | None = None,
        columns: tuple[str, ...] = COLUMNS, types: tuple[int, ...] = TYPES) -> Happened:
    return Happened(7, NAME, Place(lsn, 0), op, None if key is None else (key,), columns, types, after=after,
                    old_key=None if old_key is None else (old_key,))


def at(lsn: int) -> Place:
    """Behind all changes of that commit."""
    return Place(lsn, SEQ_MAX)


def row(v: str, amount: Any = 5, number: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": number, "v": v, "amount": amount, **more}


def test_S5_a_row_is_shown_as_it_was_at_the_low_mark() -> None:
    states = States([one(0, "r", row("first")), one(10, "u", row("second")), one(20, "d"), one(30, "c", row("third"))])
    shown = {low: states.shown(NAME, ("1",), at(low)) for low in (5, 10, 25, 30)}
    assert shown == {5: [row("first")], 10: [row("second")], 25: [], 30: [row("third")]}
    assert states.shown(NAME, ("2",), at(30)) == []
    assert states.shown(("public", "other"), ("1",), at(30)) == []


def test_S5_what_a_truncation_took_is_not_shown() -> None:
    states = States([one(0, "r", row("first")), one(10, "t", key=None)])
    assert states.shown(NAME, ("1",), at(5)) == [row("first")]
    assert states.shown(NAME, ("1",), at(10)) == []


def test_S6_a_value_that_was_not_sent_is_the_one_that_the_row_had_also_under_another_key() -> None:
    states = States([
        one(0, "r", row("first")), one(10, "u", row(UNSENT, 6)), one(20, "d"),
        one(21, "c", row(UNSENT, 7, number=2), key="2", old_key="1")])
    assert states.shown(NAME, ("1",), at(10)) == [row("first", 6)]
    assert states.shown(NAME, ("2",), at(30)) == [row("first", 7, number=2)]


def test_S7_rows_that_were_there_have_the_default_of_a_new_column_and_the_new_type_of_another() -> None:
    wider, renamed = (*COLUMNS, "given 9"), (*COLUMNS, "kept 9")
    states = States([
        one(0, "r", row("first")), one(10, "alter", key=None, columns=wider, types=(*TYPES, TEXT)),
        one(20, "alter", key=None, columns=renamed, types=(INT, TEXT, TEXT, TEXT)), one(30, "d", columns=renamed)])
    given, kept = row("first", **{"given 9": "given 9"}), row("first", "5", **{"kept 9": "given 9"})
    assert states.shown(NAME, ("1",), at(5)) == [row("first"), given, kept], "a copy may have read behind the changes"
    assert states.shown(NAME, ("1",), at(20)) == [kept]


def test_S7_a_copy_reads_ahead_of_schema_changes_only_up_to_the_next_change_of_the_row() -> None:
    states = States([one(0, "r", row("first")), one(10, "u", row("second")),
                     one(20, "alter", key=None, columns=(*COLUMNS, "x"), types=(*TYPES, TEXT))])
    assert states.shown(NAME, ("1",), at(5)) == [row("first")]
