"""`format("millrace")` in Spark itself, over Connect: what reaches a DataFrame is what the log has [P1] [S6]."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import support_values
from millrace.source.server.embedded import PostgresServer
from support_datasource import as_texts, batch, connected, rebuilt, settle
from support_datasource import database as rows_of_database
from support_postgres import database, run, server_of
from support_source_log import SESSION, database_rows
from support_source_world import STEADY, Source, SourceWorld
from support_spark import SparkServer
from support_workload import insert_types

pytestmark = pytest.mark.timeout(1500)        # a JVM starts in it
COPIED = 300
TABLES = f"""
CREATE TABLE items (id int PRIMARY KEY, v text, n numeric(12,2));
INSERT INTO items SELECT i, 'v' || i, i / 8.0 FROM generate_series(1, {COPIED}) i;
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with server_of(15) as made:
        yield made


@pytest.fixture(scope="module")
def source(server: PostgresServer) -> Iterator[Source]:
    with SourceWorld(brokers=1, captures=1, settings=STEADY) as world, database(server) as name:
        url = server.url(name)
        run(url, TABLES, support_values.create_types_table(15))
        with psycopg.connect(url, autocommit=True) as db:
            insert_types(db, 1, support_values.pick(random.Random(1), 15))
        with world.source(server, name, options=["--partitions", "3"]) as made:
            yield made


@pytest.fixture(scope="module")
def spark(spark_server: SparkServer) -> Iterator[SparkSession]:
    with connected(spark_server) as session:
        yield session


def test_P1_a_batch_is_the_history_of_the_table(spark: SparkSession, source: Source) -> None:
    run(source.url, "UPDATE items SET v = v || '!' WHERE id <= 30", "DELETE FROM items WHERE id > 290",
        "INSERT INTO items VALUES (1001, 'new', 1.5)")
    settle(source)
    rows = batch(spark, source, "items", minPartitions="6")
    grouped = rows.selectExpr("_change_type", "_copy is not null copied").groupBy("_change_type", "copied").count()
    counted = {(row["_change_type"], row["copied"]): row["count"] for row in grouped.collect()}
    assert counted == {("insert", True): COPIED, ("update_postimage", False): 30, ("delete", False): 10,
                       ("insert", False): 1}
    assert rebuilt(rows.toArrow().to_pylist(), "id") == rows_of_database(source, "SELECT * FROM items", "id")
    picked = batch(spark, source, "items", schema="_change_type string, id bigint").where("_change_type = 'delete'")
    assert sorted(row.id for row in picked.collect()) == list(range(291, 301))


def test_S6_every_type_arrives_as_its_value_or_its_text(spark: SparkSession, source: Source) -> None:
    with psycopg.connect(source.url, autocommit=True) as db:
        for number, values in enumerate(support_values.every_value(15), start=2):
            insert_types(db, number, values)
    settle(source)
    rows = batch(spark, source, "types")
    names = [name for name in rows.columns if not name.startswith("_")]
    settings = " ".join(f"-c {name}={value}" for name, value in SESSION.items())
    rebuild = source.rebuild()
    table = next(table.schema for table in rebuild.tables.values() if table.schema.name == "types")
    with psycopg.connect(source.url, options=settings) as db:
        expected = database_rows(db, table)
    assert names == [column.name for column in table.columns]
    seen = Counter(as_texts(rows.toArrow(), names))
    by_id = {row[0]: row for row in seen}
    wrong = {(names[i], want, got) for row in expected - seen for i, (want, got) in
             enumerate(zip(row, by_id.get(row[0], ["missing"] * len(row)), strict=True)) if want != got}
    assert not wrong
    assert seen == expected
    kinds = dict(rows.dtypes)
    assert (kinds["c_money12"], kinds["c_numeric"], kinds["c_time"], kinds["c_timestamp"], kinds["c_timestamptz"]) == (
        "decimal(12,2)", "string", "string", "timestamp_ntz", "timestamp")


def test_P1_what_is_wrong_is_said_where_spark_shows_it(spark: SparkSession, source: Source) -> None:
    with pytest.raises(PySparkException, match=r"InvalidOption: option startingOffsets: earliest, latest or a JSON"):
        batch(spark, source, "items", startingOffsets="newest").count()
    with pytest.raises(PySparkException, match=r"UnknownTable: .* has no table 'nothing'; there are public.items"):
        batch(spark, source, "nothing").count()
    with pytest.raises(PySparkException, match=r"option kafka.bootstrap.servers is missing"):
        spark.read.format("millrace").option("source", "s").option("table", "t").load().count()
