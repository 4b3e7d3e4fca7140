"""Filters and projections as far as they are judged without Spark [P4]."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.core.feeds.drafts import Made, draft, read_settings
from millrace.core.feeds.expressions import column_of, needs, read_filter, read_projection
from millrace.core.feeds.functions import ALLOWED, REASONS, SYNTAX, why_not
from millrace.errors import InvalidExpression, InvalidRequest
from millrace.model.changefeeds import TableSettings
from millrace.model.table_plans import Output
from millrace.model.tables import Column, TableSchema

TABLE = TableSchema(1, "public", "t", "d", (
    Column("id", 20, -1, True), Column("a b", 25), Column("Note", 25), Column("n", 20), Column("N", 20),
    Column("user", 25)))


@pytest.mark.parametrize("text", [
    "a = 1", "`a b` = 'x'", "n BETWEEN 1 AND 2 OR (n IN (1, 2))", "CASE WHEN (n = 1) THEN (2) ELSE (3) END = 2",
    "note LIKE ANY ('a%', 'b%')", "cast(n AS decimal(10, 2)) > 1.5e3", "n::string = '(select 1)'",
    "trim(BOTH FROM note) = r'\\d('", "extract(YEAR FROM n) = 2", "note = 'it''s' AND NOT (n IS NULL)",
    "note RLIKE ('x') AND note = \"rand()\"", "`select` = 1 AND `over` = 2", "date '2020-01-01' < n",
    "note = '-- no comment /* here */'", "note = '\\' OR rand() > '",
])
def test_P4_ordinary_expressions_pass(text: str) -> None:
    assert read_filter("filter", text).sql == text


@pytest.mark.parametrize(("text", "marked", "why"), [
    ("n > rand()", "rand", "not the same each time"),
    ("n > RAND ( )", "RAND", "not the same each time"),
    ("`rand`() > n", "`rand`", "not the same each time"),
    ("n > now()", "now", "tells the time"),
    ("n > date 'today'", "'today'", "tells the time"),
    ("n > timestamp ' NOW '", "' NOW '", "tells the time"),
    ("sum(n) > 1", "sum", "is an aggregate"),
    ("any(n > 1)", "any", "is an aggregate"),
    ("explode(n) = 1", "explode", "makes several rows"),
    ("my_udf(n) = 1", "my_udf", "no function that filters and projections may call"),
    ("main.f(n) = 1", "f", "functions of your own"),
    ("main.abs(n) = 1", "abs", "functions of your own"),
    ('"abs"(n) = 1', '"abs"', "functions of your own"),
    ("identifier('rand')() > 1", "identifier", "no function"),
    ("reflect('java.lang.System', 'exit') = 1", "reflect", "does more than"),
    ("n IN (SELECT 1)", "SELECT", "queries are not allowed"),
    ("n IN (FROM t)", "FROM", "queries are not allowed"),
    ("n IN (VALUES 1)", "VALUES", "queries are not allowed"),
    ("n IN (TABLE t)", "TABLE", "queries are not allowed"),
    ("n IN (WITH x AS (1) SELECT 1)", "WITH", "queries are not allowed"),
    ("EXISTS (SELECT 1)", "EXISTS", "queries are not allowed"),
    ("length(note) OVER (x) > 1", "OVER", "windows are not allowed"),
    ("n = 1 -- or", "--", "comments are not allowed"),
    ("n /* x */ = 1", "/*", "comments are not allowed"),
    ("n = 1; DROP", ";", "not allowed here"),
    ("n = ?", "?", "not allowed here"),
    ("n = {x}", "{", "not allowed here"),
    ("rand\u200b() = 1", "·", "not allowed here"),
    ("n = 1) OR (n = 2", ")", "closes nothing"),
    ("(n = [1)", ")", "closes nothing"),
    ("((n = 1)", "(", "is not closed"),
    ("note = 'x", "'", "not closed"),
    ("`n = 1", "`", "not closed"),
    ("note = '${env:HOME}'", "${", "nothing is put in"),
    ("  ", " ", "empty"),
    ("(" * 65 + "n" + ")" * 65, "(", "nested deeper than 64"),
    ("CASE WHEN n THEN " * 65 + "1" + " END" * 65, "C", "nested deeper than 64"),
    ("n" * 8193, "n", "longer than 8192"),
])
def test_P4_what_may_not_be_is_refused_with_the_place(text: str, marked: str, why: str) -> None:
    with pytest.raises(InvalidExpression) as refused:
        read_filter("settings[0].filter", text)
    head, shown, marks = str(refused.value).split("\n")
    assert head.startswith("settings[0].filter: ")
    assert why in head
    at = marks.index("^")
    assert shown[at:at + marks.count("^")] == marked


def test_P4_lists_of_functions_do_not_contradict_each_other() -> None:
    assert not (ALLOWED | SYNTAX) & set(REASONS)
    assert why_not("abs") is why_not("try_cast") is None
    assert all(why_not(name) for name in REASONS)


@pytest.mark.parametrize(("text", "found"), [
    ("note = 'id' AND `a b` > 1", ("a b", "Note")),
    ("NOTE = \"a b\"", ("a b", "Note")),
    ("N > 1", ("N",)),
    ("`n` > 1", ("n",)),
    ("abs(ID) > 1", ("id",)),
    ("user = 'me'", ("user",)),
    ("1 = 1", ()),
])
def test_P4_the_columns_that_it_looks_at_are_known(text: str, found: tuple[str, ...]) -> None:
    assert tuple(TABLE.columns[i].name for i in needs(read_filter("f", text), TABLE)) == found


@pytest.mark.parametrize("text", ["current_date > 1", "`current_user` = 'x'", "id = session_user"])
def test_P4_functions_without_parentheses_are_refused_unless_columns(text: str) -> None:
    with pytest.raises(InvalidExpression, match=r"tells the time|depends on the session"):
        needs(read_filter("f", text), TABLE)


def test_P4_a_projection_is_a_column_an_expression_with_a_name_or_a_star() -> None:
    assert read_projection("p", "*").every
    assert read_projection("p", " `a b` ").name == "a b"
    found = read_projection("p", "CAST(n AS string) || 'AS x' AS `full name`")
    assert (found.name, found.expression.sql) == ("full name", "CAST(n AS string) || 'AS x' ")
    assert column_of(read_projection("p", "NOTE AS x").expression, TABLE) == 2
    for text in ("n + 1", "CAST(n AS string)", "n AS a.b", "AS x", "n AS 'x'", "a, b"):
        with pytest.raises(InvalidExpression, match="expression AS name"):
            read_projection("p", text)
    assert read_projection("p", "NULL AS x").expression.plain is None
    assert read_projection("p", "1 AS x").expression.plain is None


def settings(*projection: str, where: str = "") -> TableSettings:
    return TableSettings(tables="*.*", filter=where, projection=projection)


def test_P4_outputs_are_columns_as_they_are_or_made() -> None:
    found = draft("s", settings("ID AS key", "note", "n + 1 AS more", "id"), TABLE)
    assert [one.name if isinstance(one, Made) else (one.of, one.column.name, one.column.is_key)
            for one in found.outputs] == [(0, "key", True), (2, "Note", False), "more", (0, "id", False)]
    made = found.plan({"more": Column("more", 20)}).outputs[2]
    assert made == Output(Column("more", 20), None, "n + 1 ", (3,))
    every = draft("s", settings(), TABLE).outputs
    assert every == tuple(Output(column, i) for i, column in enumerate(TABLE.columns))


@pytest.mark.parametrize(("projection", "why"), [
    (("note",), "column 'id' of the key is missing"),
    (("id + 0 AS id",), "column 'id' of the key is missing"),
    (("id", "note AS id"), "there is a column 'id' already"),
    (("*", "note"), "there is a column 'Note' already"),
    (("id", "nope"), "'nope' is no column of public.t; it has id, a b, Note"),
    (("id", *(f"n + {i} AS c{i}" for i in range(63))), "63 expressions, 62 are allowed"),
    (("id",) * 1601, "1601 columns, 1600 are allowed"),
])
def test_P4_a_projection_that_does_not_fit_the_table_is_refused(projection: tuple[str, ...], why: str) -> None:
    with pytest.raises((InvalidExpression, InvalidRequest)) as refused:
        draft("settings[1]", settings(*projection), TABLE)
    assert why in str(refused.value)
    assert "settings[1].projection" in str(refused.value)


def test_P4_a_name_that_may_be_two_columns_is_refused() -> None:
    table = TableSchema(1, "s", "t", "f", (Column("Ab", 20), Column("aB", 20)))
    with pytest.raises(InvalidExpression, match="may be any of Ab, aB"):
        draft("s", settings("ab"), table)
    assert len(draft("s", settings("Ab"), table).outputs) == 1


@given(st.text(st.sampled_from("ab `'\"\\()[]-/*;${}rR.\n,é")) | st.text())
@example("FROM")
def test_P4_whatever_passes_stays_inside_its_parentheses(text: str) -> None:
    """Read again with others around it, its words are the same words: nothing of it gets out, nothing gets in."""
    try:
        words = read_filter("f", text).words
        read_settings("s", settings(text, where=text))
    except InvalidExpression:
        return
    around = read_filter("f", f"({text}\n)").words
    assert [word.text for word in around[1:-1]] == [word.text for word in words]
