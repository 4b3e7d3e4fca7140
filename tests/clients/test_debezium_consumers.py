"""Consumers of Debezium's messages, unchanged, on messages that we have written [K6]: they end with the source's rows.

    PostgreSQL ─▶ our decoder and encoder ─▶ brokers ─▶ Debezium's JDBC sink on Kafka Connect ─▶ tables
                                                     ─▶ Spark's Kafka connector, a job        ─▶ rows by key
                                          ─▶ Flink's debezium-json                            ─▶ rows by key

The JDBC sink reads Debezium's own messages of the same changes beside ours: where it fails on both, or writes something
else than the source has from both, that is Debezium's own, and is asserted here.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import sql

from millrace.source.server.embedded import PostgresServer
from support_cluster import Cluster
from support_debezium import SOURCES, compiled, jars
from support_debezium_jdbc import sink_settings, worker
from support_debezium_scenario import TABLES, Message, Scenario, write
from support_postgres import run, server_of

FLINK = (("org.apache.flink", "flink-json", "1.20.1"), ("org.apache.flink", "flink-table-runtime", "1.20.1"),
         ("org.apache.flink", "flink-table-common", "1.20.1"), ("org.apache.flink", "flink-core", "1.20.1"))
FLINK_ROWS = """
SELECT concat_ws('|', id, tenant, name, coalesce(price::text, 'null'), (extract(epoch FROM at) * 1000)::int8,
    (extract(epoch FROM ts) * 1000000)::int8, d - '1970-01-01'::date, CASE WHEN ok THEN 'true' ELSE 'false' END,
    f::text, coalesce(array_to_string(tags, ',', 'NULL'), 'null'), coalesce(mood::text, 'null')) FROM goods
"""
# Spark's own version of them is not on every mirror: the connector is a version older than the Spark it runs in.
SPARK_KAFKA = (("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
               ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
               ("org.apache.kafka", "kafka-clients", "3.9.2"), ("org.apache.commons", "commons-pool2", "2.13.1"))
SPARK_KAFKA_JARS = [f"{name}-{version}" for _, name, version in SPARK_KAFKA]       # Spark has the others itself
STRINGS = {"header.converter": "org.apache.kafka.connect.storage.StringConverter"}
UNAVAILABLE = "__debezium_unavailable_value"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with server_of(15) as running:
        yield running


@pytest.fixture(scope="module")
def scenario(server: PostgresServer) -> Scenario:
    run(server.url(), "CREATE DATABASE origin")
    return Scenario(server.url("origin"), {"defaults": {}})


# -- Debezium's JDBC sink ----------------------------------------------------------------------------------------------
@pytest.mark.long
def test_K6_debeziums_jdbc_sink_ends_with_equal_tables(
    server: PostgresServer, scenario: Scenario, cluster: Cluster, tmp_path: Path
) -> None:
    run(server.url(), "CREATE DATABASE target")
    messages = {"ours": scenario.ours("schema=true"), "debezium": scenario.theirs("defaults")}
    sinks = []
    for side, found in messages.items():
        topics = write(cluster, side, found)
        sinks += [sink_settings(side, topics, server.url("target"), STRINGS),
                  sink_settings(f"{side}-headers", [f"{side}.goods"], server.url("target"),
                                {"collection.name.format": "headers_${topic}"})]
    with worker(tmp_path, cluster.bootstrap, sinks) as running:
        for side in messages:
            assert running.run(side) is None
            # Kafka Connect's own converter of headers makes a map of a composite key that names no type of its values:
            # the sink refuses it, from Debezium's connector as from us.
            failed = running.run(f"{side}-headers") or ""
            assert 'No schema defined for value of map field: "__debezium.newkey"' in failed, failed
    count = {table: _compare_tables(scenario, server.url("target"), table) for table in TABLES}
    print(f"JDBC sink: messages {({side: {t: len(m) for t, m in found.items()} for side, found in messages.items()})}, "
          f"rows equal {count}")


def _compare_tables(scenario: Scenario, target: str, table: str) -> int:
    """The sink's table of ours, of Debezium's, and the source's: columns, types and rows; how many."""
    with psycopg.connect(target, autocommit=True) as connection:
        types = _types(connection, f"ours_{table}")
        assert types == _types(connection, f"debezium_{table}")
        ours, theirs = (connection.execute(sql.SQL("SELECT {} FROM {} ORDER BY id, 2").format(
            sql.SQL(", ").join(map(sql.Identifier, types)), sql.Identifier(f"{side}_{table}"))).fetchall()
            for side in ("ours", "debezium"))
    assert ours == theirs
    wanted = scenario.rows(f"SELECT {', '.join(map(_as_written, types))} FROM {table} ORDER BY id, 2")
    if table == "parts":
        # A large value that an update did not touch is not known to the source; the sink writes what stands for it.
        wanted = [(*row[:2], UNAVAILABLE) if row[2] != "small" and row[0] % 2 == 0 else row for row in wanted]
        assert any(row[2] == UNAVAILABLE for row in wanted)
    assert ours == wanted
    return len(wanted)


def _as_written(column: str) -> str:
    return "n::float8" if column == "n" else column      # what the sink makes of a decimal without a scale


def _types(connection: psycopg.Connection[Any], table: str) -> dict[str, str]:
    return dict(connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) || attnotnull::text FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum", [f"public.{table}"]).fetchall())


# -- Spark -------------------------------------------------------------------------------------------------------------
@pytest.mark.long
def test_K6_a_job_of_sparks_on_its_kafka_connector_ends_with_equal_tables(
    scenario: Scenario, cluster: Cluster, tmp_path: Path
) -> None:
    plan, count = [], 0
    for schema in ("true", "false"):
        messages = scenario.ours(f"schema={schema}&decimal.handling.mode=string")
        count += sum(map(len, messages.values()))
        for table, topic in zip(messages, write(cluster, f"spark-{schema}", messages), strict=True):
            shape = SPARK_TABLES[table]
            plan.append({"topic": topic, "schema": schema == "true", "columns": shape.columns, "key": shape.key,
                         "kept": shape.kept, "select": shape.select, "rows": str(tmp_path / topic)})
    found = jars("spark-kafka-4.2.0", SPARK_KAFKA).removesuffix("*")
    class_path = ":".join(f"{found}{one}.jar" for one in SPARK_KAFKA_JARS)
    (tmp_path / "plan").write_text(json.dumps(
        {"bootstrap": cluster.bootstrap, "class_path": class_path, "directory": str(tmp_path), "tables": plan}))
    done = subprocess.run([sys.executable, f"{SOURCES}/spark_tables.py", str(tmp_path / "plan")],
                          capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    spark, batches, read = done.stdout.split()
    assert int(read) == count
    equal = {}
    for one in plan:
        rows = [json.loads(line) for line in Path(one["rows"]).read_text().splitlines()]
        table = one["topic"].partition(".")[2]
        assert _in_order(rows) == _in_order([row[0] for row in scenario.rows(SPARK_TABLES[table].query(table))])
        equal[one["topic"]] = len(rows)
    print(f"Spark {spark}: {read} messages in {batches} batches, rows equal {equal}, {sum(equal.values())}")


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: json.dumps([row["id"], row]))


class SparkTable(NamedTuple):
    """How the job reads a table, and the same of the source: an expression in each one's SQL by column."""

    columns: str
    key: list[str]
    both: dict[str, tuple[str, str]]
    kept: list[str] = []

    @property
    def select(self) -> list[str]:
        return [f"{spark} AS {name}" for name, (spark, _) in self.both.items()]

    def query(self, table: str) -> str:
        pairs = ", ".join(f"'{name}', {source}" for name, (_, source) in self.both.items())
        return f"SELECT json_build_object({pairs}) FROM {table}"


def _same(*names: str) -> dict[str, tuple[str, str]]:
    return {name: (name, name) for name in names}


_AT = {"at": ("unix_micros(CAST(at AS TIMESTAMP))", "(extract(epoch FROM at) * 1000000)::int8")}
SPARK_TABLES = {
    "goods": SparkTable(
        "id INT, tenant STRING, name STRING, price STRING, at STRING, ts BIGINT, d INT, ok BOOLEAN, f DOUBLE,"
        " tags ARRAY<STRING>, mood STRING, doc STRING, u STRING, big BIGINT, pic STRING, n STRING", ["tenant", "id"],
        {**_same("id", "tenant", "name", "ok", "f", "tags", "mood", "u", "big"), **_AT,
         "price": ("CAST(CAST(price AS DECIMAL(10, 2)) AS STRING)", "price::text"),
         "ts": ("CAST(timestamp_micros(ts) AS STRING)", "ts::text"), "n": ("n", "n::text"),
         "d": ("CAST(date_from_unix_date(d) AS STRING)", "d::text"), "doc": ("doc", "doc::text"),
         "pic": ("hex(unbase64(pic))", "upper(encode(pic, 'hex'))")}),
    "orders": SparkTable("id INT, note STRING, amount STRING, at STRING", ["id"],
                         {**_same("id", "note"), **_AT, "amount": ("amount", "amount::text")}),
    "articles": SparkTable("id INT, title STRING, body STRING", ["id"], _same("id", "title", "body")),
    "parts": SparkTable("id INT, title STRING, body STRING", ["id"], _same("id", "title", "body"), kept=["body"]),
    "visits": SparkTable("id INT, page STRING", ["id"], _same("id", "page")),
}


# -- Flink -------------------------------------------------------------------------------------------------------------
@pytest.mark.long
@pytest.mark.parametrize("schema", ["true", "false"])
def test_K6_flinks_debezium_json_ends_with_equal_tables(scenario: Scenario, tmp_path: Path, schema: str) -> None:
    messages = scenario.ours(f"schema={schema}&decimal.handling.mode=string")["goods"]
    done = _flink(tmp_path, messages, schema)
    assert done.returncode == 0, done.stderr[-3000:]
    wanted = [row[0] for row in scenario.rows(FLINK_ROWS)]
    found = (tmp_path / "rows").read_text().splitlines()
    assert sorted(map(_floats, found)) == sorted(map(_floats, wanted))
    assert len(found) > 100
    print(f"Flink, schema {schema}: {len(messages)} messages, {done.stdout.strip()} changes, {len(found)} rows equal")


@pytest.mark.long
@pytest.mark.parametrize(("table", "left_out", "why"), [
    ("orders", b'"op":"-"', "check the Postgres table has been set REPLICA IDENTITY to FULL"),
    ("visits", b'"op":"u"', 'Unknown "op" value "t"'),
])
def test_K6_flink_stops_where_it_does_with_debeziums_messages(
    scenario: Scenario, tmp_path: Path, table: str, left_out: bytes, why: str
) -> None:
    """At an update without the old row, and at a truncation."""
    for side, messages in (("ours", scenario.ours("schema=true")), ("debezium", scenario.theirs("defaults"))):
        (tmp_path / side).mkdir()
        done = _flink(tmp_path / side, [one for one in messages[table] if left_out not in (one.value or b"")], "true")
        assert done.returncode != 0
        assert why in done.stderr, done.stderr[-3000:]


def _flink(directory: Path, messages: list[Message], schema: str) -> subprocess.CompletedProcess[str]:
    (directory / "values").write_text("".join(
        ("null" if one.value is None else base64.b64encode(one.value).decode()) + "\n" for one in messages))
    class_path = compiled("Flink", jars("flink-json-1.20.1", FLINK), str(directory))
    return subprocess.run(["java", "-Xmx512m", "-cp", class_path, "Flink", str(directory / "values"),
                           str(directory / "rows"), schema], capture_output=True, text=True, timeout=120, check=False)


def _floats(row: str) -> str:
    """A float by its value."""
    parts = row.split("|")
    return "|".join([*parts[:8], repr(float(parts[8])), *parts[9:]])
