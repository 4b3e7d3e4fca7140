"""Messages of Debezium's documentation (PostgreSQL connector, data change events), made from the same rows.

The values are those of the documentation's examples for the `customers` table. What we say in another way stands in
DIFFERENT: the version, our order of changes as `sequence`, `snapshot` as the text its schema asks for, and times
of day the examples made up.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import support_json as judge
from millrace.model.progress import Change
from millrace.model.tables import Column, TableSchema
from millrace.sink.kafka.ddl import canal_change, debezium_change, plain_change
from millrace.sink.kafka.debezium import Debezium
from millrace.sink.kafka.formats import Origin
from millrace.sink.kafka.images import Images
from millrace.sink.kafka.watermark import canal_watermark, debezium_watermark, plain_watermark

ORIGIN = Origin("PostgreSQL_server", "postgres")
CUSTOMERS = TableSchema(16385, "public", "customers", "d", (
    Column("id", 23, -1, True), Column("first_name", 1043), Column("last_name", 1043), Column("email", 1043)))
DIFFERENT = {"version", "sequence", "snapshot", "ts_us", "ts_ns", "origin", "origin_lsn"}
COMMIT_US = 1559033904863123


def _cells(*values: Any) -> list[judge.Cell]:
    return [judge.Cell(value) for value in values]


CREATE = judge.Row(0, _cells(1, "Anne", "Kretchmar", "annek@noanswer.org"), None, lsn=24023128, commit_lsn=24023200,
                   commit_us=COMMIT_US, xid=555)
UPDATE = judge.Row(1, _cells(1, "Anne Marie", "Kretchmar", "annek@noanswer.org"), _cells(1, None, None, None),
                   lsn=24023128, commit_lsn=24023200, commit_us=COMMIT_US, xid=556)
DELETE = judge.Row(2, [], _cells(1, None, None, None), lsn=46523128, commit_lsn=46523200, commit_us=COMMIT_US, xid=556)


def _source(**more: Any) -> dict[str, Any]:
    return {"connector": "postgresql", "name": "PostgreSQL_server", "ts_ms": 1559033904863, "db": "postgres",
            "schema": "public", "table": "customers", "xmin": None, **more}


GOLDEN = [
    ("c", CREATE, {
        "before": None,
        "after": {"id": 1, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"},
        "source": _source(txId=555, lsn=24023128), "op": "c", "ts_ms": 1559033904863}),
    ("u", UPDATE, {
        "before": {"id": 1},
        "after": {"id": 1, "first_name": "Anne Marie", "last_name": "Kretchmar", "email": "annek@noanswer.org"},
        "source": _source(txId=556, lsn=24023128), "op": "u", "ts_ms": 1559033904863}),
    ("d", DELETE, {
        "before": {"id": 1}, "after": None, "source": _source(txId=556, lsn=46523128), "op": "d",
        "ts_ms": 1559033904863}),
]


def _compared(message: dict[str, Any]) -> dict[str, Any]:
    """Without what differs; the documentation shows of a before image only what is known."""
    found = {name: value for name, value in message.items() if name not in DIFFERENT and name != "transaction"}
    found["source"] = {name: value for name, value in found["source"].items() if name not in DIFFERENT}
    if found.get("before"):
        found["before"] = {name: value for name, value in found["before"].items() if value is not None}
    return found


@pytest.mark.parametrize(("op", "row", "wanted"), GOLDEN, ids=[op for op, _, _ in GOLDEN])
def test_K1_events_are_those_of_the_documentation(op: str, row: judge.Row, wanted: dict[str, Any]) -> None:
    images = Images(judge.batch_of(CUSTOMERS, [row]), CUSTOMERS, Debezium(ORIGIN, CUSTOMERS).style)
    [text] = Debezium(ORIGIN, CUSTOMERS).value(images, copy=False, now_us=1559033904863841).joined().to_pylist()
    assert _compared(json.loads(text)) == wanted


def test_K1_the_key_is_that_of_the_documentation() -> None:
    """Its example: schema name <server>.<schema>.<table>.Key, fields by name, payload by name."""
    form = Debezium(ORIGIN, CUSTOMERS, schema=True)
    images = Images(judge.batch_of(CUSTOMERS, [CREATE]), CUSTOMERS, form.style)
    assert json.loads(form.key(images).joined()[0].as_py()) == {
        "schema": {"type": "struct", "name": "PostgreSQL_server.public.customers.Key", "optional": False,
                   "fields": [{"field": "id", "type": "int32", "optional": False}]},
        "payload": {"id": 1}}


def test_K1_the_schema_names_what_the_documentation_names() -> None:
    form = Debezium(ORIGIN, CUSTOMERS, schema=True)
    images = Images(judge.batch_of(CUSTOMERS, [CREATE]), CUSTOMERS, form.style)
    schema = json.loads(form.value(images, copy=False, now_us=0).joined()[0].as_py())["schema"]
    assert schema["name"] == "PostgreSQL_server.public.customers.Envelope"
    before, after, source = schema["fields"][:3]
    assert (before["name"], after["field"], source["name"]) == (
        "PostgreSQL_server.public.customers.Value", "after", "io.debezium.connector.postgresql.Source")
    assert [field["field"] for field in schema["fields"]] == [
        "before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]


TRUNCATED = Change(1, 16385, 46523128, 3, "truncate", wall_ms=1559033904863)
ALTERED = Change(1, 16385, 46523128, 3, "alter", text="ALTER TABLE customers ADD x int", wall_ms=1559033904863)


def test_K1_a_truncation_is_an_event_without_rows() -> None:
    message = debezium_change(ORIGIN, CUSTOMERS, TRUNCATED, schema=False, now_us=1559033904961654)
    found = _compared(json.loads(message.value))
    assert message.key is None
    assert (found["op"], found["before"], found["after"], found["ts_ms"]) == ("t", None, None, 1559033904961)
    assert found["source"] == _source(txId=None, lsn=46523128)


@pytest.mark.parametrize("schema", [False, True])
def test_C7_a_schema_change_tells_the_statement_and_the_columns(schema: bool) -> None:
    told = json.loads(debezium_change(ORIGIN, CUSTOMERS, ALTERED, schema=schema, now_us=1).value)
    payload = told["payload"] if schema else told
    assert payload["ddl"] == "ALTER TABLE customers ADD x int"
    [change] = payload["tableChanges"]
    assert (change["type"], change["id"]) == ("ALTER", '"public"."customers"')
    assert change["table"]["primaryKeyColumnNames"] == ["id"]
    assert [column["name"] for column in change["table"]["columns"]] == ["id", "first_name", "last_name", "email"]
    if schema:
        assert [field["field"] for field in told["schema"]["fields"]] == list(payload)


def test_C7_schema_changes_of_the_other_formats() -> None:
    canal = json.loads(canal_change(CUSTOMERS, ALTERED, now_us=1_000_000).value)
    assert (canal["isDdl"], canal["type"], canal["sql"], canal["ts"]) == (True, "ALTER", ALTERED.text, 1000)
    assert json.loads(canal_change(CUSTOMERS, TRUNCATED, now_us=0).value)["type"] == "TRUNCATE"
    plain = json.loads(plain_change(CUSTOMERS, ALTERED).value)
    assert (plain["_change_type"], plain["_commit_version"], plain["table"]) == ("alter", 46523128, "customers")
    assert (plain["_schema"], plain["_table"]) == ("public", "customers"), "as its rows have them"
    assert plain["columns"][0] == {"name": "id", "type": "integer", "key": True}


def test_K4_watermarks_tell_the_checkpoint() -> None:
    told = debezium_watermark(ORIGIN, 777, wall_ms=5, now_us=9_000)
    value = json.loads(told.value)
    assert (value["op"], value["source"]["lsn"], value["message"]["prefix"]) == ("m", 777, "millrace.watermark")
    assert json.loads(told.key or b"") == {"prefix": "millrace.watermark"}
    canal = json.loads(canal_watermark(777, wall_ms=5, now_us=9_000).value)
    assert (canal["type"], canal["_tidb"], canal["data"]) == ("TIDB_WATERMARK", {"watermarkTs": 777}, None)
    assert json.loads(plain_watermark(777, wall_ms=5).value) == {
        "_change_type": "watermark", "_commit_version": 777, "_commit_timestamp_ms": 5}
