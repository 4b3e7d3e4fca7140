"""Which tables a changefeed takes while they come, go and are renamed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.feeds.choice import NOTHING_SAID, Came, Changed, ChosenTables, Left, Rules, Taken
from millrace.core.sources.table_rules import quote_rule
from millrace.errors import InvalidRequest, InvalidTableRule
from millrace.model.changefeeds import ChangefeedSpec, TableSettings
from millrace.model.tables import Column, TableSchema


def spec(*tables: str, settings: tuple[TableSettings, ...] = ()) -> ChangefeedSpec:
    return ChangefeedSpec(id="f", source="shop", sink="kafka:", tables=tables, settings=settings)


def table(oid: int, name: str, schema: str = "public") -> TableSchema:
    return TableSchema(oid, schema, name, "d", (Column("id", 20, -1, True),))


PAID = TableSettings(tables="public.order_*", filter="paid")
ENDS = "the rule should end here; quote names that hold dots, spaces, quotes or '!'"
ALL = TableSettings(tables="public.*", topic="all")


def test_A_tables_come_are_renamed_and_go() -> None:
    chosen = ChosenTables(spec("public.*", "!public.tmp_*", settings=(PAID, ALL)))
    assert chosen.on_table(table(1, "tmp_a")) is None
    orders = Taken(table(2, "order_items"), 0)
    assert chosen.on_table(table(2, "order_items")) == Came(orders)
    assert chosen.on_table(table(2, "order_items")) is None, "told again"
    assert chosen.settings_of(orders) == PAID
    renamed = Taken(table(2, "items"), 1)
    assert chosen.on_table(table(2, "items")) == Changed(renamed, orders)
    assert chosen.settings_of(renamed) == ALL
    assert chosen.on_table(table(2, "tmp_items")) == Left(renamed, dropped=False)
    assert chosen.on_table(table(1, "a")) == Came(Taken(table(1, "a"), 1)), "renamed into the rules"
    assert chosen.on_dropped(1) == Left(Taken(table(1, "a"), 1), dropped=True)
    assert chosen.on_dropped(1) is None
    assert chosen.on_dropped(2) is None, "it had left already"
    assert not chosen.taken
    assert not chosen.others


def test_A_a_new_spec_is_held_against_the_tables_there_are() -> None:
    chosen = ChosenTables(spec("public.*", settings=(PAID,)))
    for one in (table(1, "a"), table(2, "order_x"), table(3, "c", "sales")):
        chosen.on_table(one)
    with pytest.raises(InvalidTableRule):
        chosen.on_spec(spec("public"))
    assert set(chosen.taken) == {1, 2}, "a bad one changes nothing"
    unpaid = msgspec.structs.replace(PAID, filter="not paid")
    found = chosen.on_spec(spec("*.*", "!public.a", settings=(unpaid,)))
    order = Taken(table(2, "order_x"), 0)
    assert found == [Left(Taken(table(1, "a"), None), dropped=False), Came(Taken(table(3, "c", "sales"), None)),
                     Changed(order, order)]
    assert chosen.settings_of(chosen.taken[3]) == NOTHING_SAID


def test_A_rules_that_nobody_needs_are_shown() -> None:
    rules = Rules(spec("public.*", "sales.*", settings=(ALL, PAID)))
    assert rules.idle([("public", "order_x")]) == ("tables: sales.*", "settings[1]")
    assert rules.deciding("public", "x") == "public.*"
    assert rules.deciding("x", "x") is None


@pytest.mark.parametrize(("tables", "entry", "shown"), [
    (("a.*", "orders"), PAID.tables, "tables[1]: a '.' between schema and table is missing\norders\n      ^"),
    (("a.*",), 'a."b', "settings[0].tables: this quote is not closed\na.\"b\n  ^"),
    (('a."\n" b',), PAID.tables, f"tables[0]: {ENDS}\n\" b\n ^"),
])
def test_A_a_rule_that_cannot_be_read_is_shown_with_its_place(tables: tuple[str, ...], entry: str, shown: str) -> None:
    with pytest.raises(InvalidTableRule) as refused:
        Rules(spec(*tables, settings=(TableSettings(tables=entry),)))
    assert str(refused.value) == shown


def test_A_settings_say_what_they_are_for() -> None:
    with pytest.raises(InvalidRequest, match=r"not others\n !a\.b\n \^"):
        Rules(spec("a.*", settings=(TableSettings(tables=" !a.b"),)))


_HOSTILE = st.sampled_from(["a", "A", "a.b", 'a"b', " ", "../x", "*", "!a", "💥", "é", "x" * 63, "order_1", "\n"])
_TELLING = st.tuples(st.integers(1, 4), _HOSTILE, _HOSTILE, st.booleans())


@settings(max_examples=150)
@given(st.lists(_TELLING, max_size=12), st.lists(st.tuples(st.booleans(), _HOSTILE, _HOSTILE) | st.just(None),
                                                 min_size=1, max_size=4))
def test_A_it_holds_what_the_last_telling_of_each_table_says(tellings: list[Any], wanted: list[Any]) -> None:
    """Judged by names, not by patterns: rules here are of one table each, or of all."""
    texts = ["*.*" if one is None else ("!" if one[0] else "") + quote_rule(*one[1:]) for one in wanted]
    chosen = ChosenTables(spec(*texts))
    last: dict[int, tuple[str, str]] = {}
    held: set[int] = set()
    for oid, schema, name, dropped in tellings:
        choice = chosen.on_dropped(oid) if dropped else chosen.on_table(table(oid, name, schema))
        last.pop(oid, None)
        if not dropped:
            last[oid] = (schema, name)
        if isinstance(choice, Came):
            assert oid not in held
            held.add(oid)
        elif isinstance(choice, Left):
            held.remove(oid)
        elif choice is not None:
            assert oid in held

    def takes(name: tuple[str, str]) -> bool:
        speaking = [one for one in wanted if one is None or one[1:] == name]
        return bool(speaking) and (speaking[-1] is None or not speaking[-1][0])

    assert held == set(chosen.taken) == {oid for oid, name in last.items() if takes(name)}
