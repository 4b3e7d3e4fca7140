"""Rules that say which tables a source carries [S5, S10]."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.sources.table_rules import TableRules, quote_rule
from millrace.errors import InvalidTableRule


@pytest.mark.parametrize(
    ("rules", "taken", "left"),
    [
        (["*.*"], ["public.orders", "a.b"], []),
        (["public.*"], ["public.orders"], ["sales.orders", "publi.c"]),
        (["public.order_*"], ["public.order_", "public.order_items"], ["public.orders"]),
        (["*.orders"], ["a.orders"], ["a.order"]),
        (["public.*", "!public.tmp_*"], ["public.a"], ["public.tmp_a"]),
        (["public.*", "!public.tmp_*", "public.tmp_keep"], ["public.tmp_keep"], ["public.tmp_a"]),
        (["!public.a", "public.*"], ["public.a"], []),
        ([" public.a "], ["public.a"], ["public.A"]),
        (["public.a*b*c"], ["public.abc", "public.a--b--c"], ["public.acb"]),
        (["größe.*"], ["größe.t"], ["grosse.t"]),
        ([], [], ["public.a"]),
    ],
)
def test_S5_the_last_rule_that_matches_wins(rules: list[str], taken: list[str], left: list[str]) -> None:
    matcher = TableRules(rules)
    for name in taken:
        assert matcher.takes(*name.split(".")), name
    for name in left:
        assert not matcher.takes(*name.split(".")), name


@pytest.mark.parametrize(
    ("rule", "schema", "table"),
    [
        ('"my schema"."a.b"', "my schema", "a.b"),
        ('public."a""b"', "public", 'a"b'),
        ('"!x"."*"', "!x", "*"),
        ('public."../etc"', "public", "../etc"),
        ('!"a b".t', "a b", "t"),
    ],
)
def test_S5_quoted_names_mean_themselves(rule: str, schema: str, table: str) -> None:
    assert TableRules([rule]).deciding(schema, table) == rule
    assert TableRules([rule]).takes(schema, table) != rule.startswith("!")
    assert TableRules([rule]).deciding(schema, table + "x") is None


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("orders", "character 7: a '.' between schema and table is missing"),
        ("public.", "character 8: a table name or '*' is missing"),
        (".orders", "character 1: a schema name or '*' is missing"),
        ("", "character 1: a schema name"),
        ("!", "character 2: a schema name"),
        ("a.b.c", "character 4: the rule should end here"),
        ("a.b c", "character 4: the rule should end here"),
        ('a."b', "character 3: this quote is not closed"),
        ('"".b', "character 1: the schema name is empty"),
        ("!!a.b", "character 2: a schema name"),
        ('"a"b.c', "character 4: a '.' between"),
        ("a." + "x" * 64, "longer than 63 bytes"),
        ('a."\0"', "no zero byte"),
    ],
)
def test_S5_a_rule_that_cannot_be_read_says_where(rule: str, said: str) -> None:
    with pytest.raises(InvalidTableRule, match=re.escape(said)) as refused:
        TableRules([rule])
    assert repr(rule)[:10] in str(refused.value)


def test_S5_rules_that_match_nothing_can_be_shown() -> None:
    rules = TableRules(["public.*", "sales.*", "!public.b"])
    assert rules.idle([("public", "a")]) == ("sales.*", "!public.b")


@pytest.mark.timeout(20)
def test_S5_many_stars_cost_no_more_than_one() -> None:
    """Each of these would take years by trying all ways to share a name out among the stars."""
    rules = TableRules(["public." + "*a" * 31 + "*b"])
    assert not rules.takes("public", "a" * 63)
    assert rules.takes("public", "a" * 62 + "b")


@given(st.text("ab*", min_size=1, max_size=8), st.text("ab", min_size=1, max_size=8))
def test_S5_a_star_stands_for_any_characters(pattern: str, name: str) -> None:
    def matches(glob: str, text: str) -> bool:
        if not glob:
            return not text
        if glob[0] == "*":
            return any(matches(glob[1:], text[n:]) for n in range(len(text) + 1))
        return text[:1] == glob[0] and matches(glob[1:], text[1:])

    assert TableRules([f"s.{pattern}"]).takes("s", name) == matches(pattern, name)


names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=15)


@given(names, names, names)
def test_S5_any_name_can_be_written_as_a_rule_for_it_alone(schema: str, table: str, other: str) -> None:
    rules = TableRules([quote_rule(schema, table)])
    assert rules.takes(schema, table)
    assert rules.takes(schema, other) == (other == table)
