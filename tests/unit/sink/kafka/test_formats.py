"""Every format against a plain Python encoder, over every type [K1, S6]."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import support_json as judge
from millrace import __version__
from millrace.sink.kafka.canal import Canal
from millrace.sink.kafka.debezium import Debezium
from millrace.sink.kafka.debezium_modes import Modes
from millrace.sink.kafka.formats import Format, Origin
from millrace.sink.kafka.images import Images
from millrace.sink.kafka.plain import Plain

ORIGIN = Origin("shop", 'db"1')
NOW_US = 1_800_000_000_123_456


def values(form: Format, changes: judge.Changes, *, copy: bool = False) -> list[Any]:
    # A slice of a longer batch: nothing may count from the start of a buffer.
    longer = pa.concat_batches([changes.batch.slice(len(changes.rows) - 1), changes.batch])
    images = Images(longer.slice(1), changes.table, form.style)
    column = form.value(images, copy=copy, now_us=NOW_US)
    joined = column.joined()
    assert column.lengths().tolist() == [len(text) for text in joined.to_pylist()]
    return [judge.loads(text) for text in joined.to_pylist()]


def keys(form: Format, changes: judge.Changes) -> list[Any]:
    joined = form.key(Images(changes.batch, changes.table, form.style)).joined()
    return [judge.loads(text) for text in joined.to_pylist()]


@settings(max_examples=60, deadline=None)
@given(judge.changes(), st.booleans())
def test_K1_debezium_json_is_what_plain_python_writes(changes: judge.Changes, numbers: bool) -> None:
    form = Debezium(ORIGIN, changes.table, modes=Modes(decimal="number") if numbers else Modes())
    wanted = [judge.debezium(changes.table, row, numbers=numbers, copy=False, now_us=NOW_US, version=__version__)
              for row in changes.rows]
    assert values(form, changes) == wanted


@settings(max_examples=40, deadline=None)
@given(judge.changes())
def test_K1_canal_json_is_what_plain_python_writes(changes: judge.Changes) -> None:
    found = values(Canal(ORIGIN, changes.table), changes)
    for message in found:
        names = [column.name for column in changes.table.columns]
        assert list(message.pop("sqlType")) == names
        assert list(message.pop("mysqlType")) == names
    assert found == [judge.canal(changes.table, row, now_us=NOW_US) for row in changes.rows]


@settings(max_examples=60, deadline=None)
@given(judge.changes(), st.booleans())
def test_K1_json_is_what_plain_python_writes(changes: judge.Changes, numbers: bool) -> None:
    form = Plain(ORIGIN, changes.table, decimal_numbers=numbers)
    wanted = [judge.plain(changes.table, row, numbers=numbers, copy=False) for row in changes.rows]
    assert values(form, changes) == wanted


@settings(max_examples=25, deadline=None)
@given(judge.changes(), st.sampled_from([Debezium, Canal, Plain]))
def test_K1_keys_are_the_key_of_the_row(changes: judge.Changes, kind: Any) -> None:
    if not changes.table.keys:
        return
    form = kind(ORIGIN, changes.table)
    wanted = [judge.key_json(changes.table, row.key_image, form.style.dialect.value, numbers=False)
              for row in changes.rows]
    assert keys(form, changes) == wanted


@settings(max_examples=25, deadline=None)
@given(judge.changes())
def test_S4_rows_of_a_copy_are_reads(changes: judge.Changes) -> None:
    changes.rows = [judge.Row(0, row.after, None) for row in changes.rows if row.op == 0 and row.before is None]
    if not changes.rows:
        return
    changes.batch = judge.batch_of(changes.table, changes.rows)
    assert values(Debezium(ORIGIN, changes.table), changes, copy=True) == [
        judge.debezium(changes.table, row, numbers=False, copy=True, now_us=NOW_US, version=__version__)
        for row in changes.rows]
    assert values(Plain(ORIGIN, changes.table), changes, copy=True) == [
        judge.plain(changes.table, row, numbers=False, copy=True) for row in changes.rows]


@settings(max_examples=40, deadline=None)
@given(judge.changes())
def test_K1_schema_describes_the_payload(changes: judge.Changes) -> None:
    """Each field of the payload has a field in the schema and fits its type."""
    if not all(cell.sent for row in changes.rows for cell in row.after):
        return
    form = Debezium(ORIGIN, changes.table, schema=True)
    bare = values(Debezium(ORIGIN, changes.table), changes)
    for message, payload in zip(values(form, changes), bare, strict=True):
        assert message["payload"] == payload
        _fits(message["schema"], message["payload"])
    if changes.table.keys:
        for message in keys(form, changes):
            _fits(message["schema"], message["payload"])


_PYTHON = {"boolean": bool, "int16": int, "int32": int, "int64": int, "string": str, "bytes": str}


def _fits(schema: dict[str, Any], value: Any) -> None:
    if value is None:
        assert schema["optional"], schema
    elif schema["type"] == "struct":
        assert [inner["field"] for inner in schema["fields"]] == list(value)
        for inner in schema["fields"]:
            _fits(inner, value[inner["field"]])
    elif schema["type"] == "array":
        for item in value:
            if not isinstance(item, list):         # dimensions are no part of PostgreSQL's type
                _fits(schema["items"], item)
    elif schema["type"] in ("float", "double"):
        assert isinstance(value, int | judge.Decimal) or value in ("NaN", "Infinity", "-Infinity")
    else:
        assert isinstance(value, _PYTHON[schema["type"]]), (schema, value)


@pytest.mark.parametrize("left_out", [[0], [1, 8], [7, 8, 9], list(range(1, 10))])
def test_S6_values_that_were_not_sent_are_marked_never_null(left_out: list[int]) -> None:
    """Beside a row that was sent whole; the mask has two bytes."""
    table = judge.TableSchema(1, "public", "t", "d", tuple(judge.Column(f"c{i}", 25) for i in range(10)))
    rows = [judge.Row(1, [judge.Cell(sent=False) if i in which else judge._text("x") for i in range(10)], None)
            for which in (left_out, [])]
    changes = judge.Changes(table, rows, judge.batch_of(table, rows))
    assert [row["after"] for row in values(Debezium(ORIGIN, table), changes)] == [
        {f"c{i}": judge.UNAVAILABLE if i in which else "x" for i in range(10)} for which in (left_out, [])]
    sent = [{f"c{i}": "x" for i in range(10) if i not in which} for which in (left_out, [])]
    names = [f"c{i}" for i in left_out]
    canal = [(row["data"], row["_millrace"].get("unchanged")) for row in values(Canal(ORIGIN, table), changes)]
    assert canal == [([sent[0]], names), ([sent[1]], None)]
    plain = values(Plain(ORIGIN, table), changes)
    assert [(row.get("_unchanged"), {n: v for n, v in row.items() if n[0] == "c"}) for row in plain] == [
        (names, sent[0]), (None, sent[1])]


def test_judge_sees_a_wrong_cell() -> None:
    """The judge is shown to catch: one digit changed in what it wants is a difference."""
    table = judge.TableSchema(1, "public", "t", "d", (judge.Column("id", 20, -1, True),))
    rows = [judge.Row(0, [judge._same(7, 8, "8")], None)]
    found = values(Debezium(ORIGIN, table), judge.Changes(table, rows, judge.batch_of(table, rows)))
    wanted = judge.debezium(table, rows[0], numbers=False, copy=False, now_us=NOW_US, version=__version__)
    assert found != [wanted]
    with pytest.raises(AssertionError, match="twice"):
        judge.loads(b'{"a":1,"a":2}')
