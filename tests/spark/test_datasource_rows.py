"""The classes of `format("millrace")` against a real source, called as Spark calls them: no JVM [P1] [S5] [S7]."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from pyspark.sql import types as st

from millrace.errors import CopyNotReadable, MillraceError, SchemaChanged, TableTruncated
from millrace.source.server.embedded import PostgresServer
from support_datasource import (
    ORDERS,
    OrdersWriter,
    Query,
    assert_exact,
    changes_of,
    own_clients,
    read,
    rebuilt,
    settle,
    tasks,
)
from support_datasource import database as rows_of_database
from support_postgres import database, run, server_of
from support_source_world import STEADY, Source, SourceWorld

COPIED = 300
TABLES = f"""
CREATE TABLE items (id int PRIMARY KEY, v text, n numeric(12,2), big text);
ALTER TABLE items ALTER big SET STORAGE EXTERNAL;
INSERT INTO items SELECT i, 'v' || i, i / 8.0, repeat('b', 5000) FROM generate_series(1, {COPIED}) i;
CREATE TABLE fulls (id int PRIMARY KEY, v text, big text);
ALTER TABLE fulls ALTER big SET STORAGE EXTERNAL;
ALTER TABLE fulls REPLICA IDENTITY FULL;
CREATE TABLE emptied (id int PRIMARY KEY);
CREATE TABLE evolving (id int PRIMARY KEY, n int, gone text);
CREATE TABLE retyped (id int PRIMARY KEY, n text);
CREATE TABLE recopied (id int PRIMARY KEY, v int);
INSERT INTO recopied SELECT i, i FROM generate_series(1, {COPIED}) i;
CREATE TABLE plain (id int PRIMARY KEY, v text);
CREATE TABLE large (id int PRIMARY KEY, v text);
CREATE TABLE late (id int PRIMARY KEY);
CREATE TABLE whole (v int);
ALTER TABLE whole REPLICA IDENTITY FULL;
INSERT INTO whole VALUES (1), (1), (2);
"""
OPTIONS = ["--partitions", "3", "--carry-whole", "public.whole"]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with server_of(15) as made:
        yield made


@pytest.fixture(scope="module")
def source(server: PostgresServer) -> Iterator[Source]:
    with SourceWorld(brokers=1, captures=1, settings=STEADY) as world, database(server) as name, own_clients():
        run(server.url(name), TABLES, ORDERS)
        with world.source(server, name, options=OPTIONS) as made:
            yield made


def test_P1_a_batch_is_the_history_of_the_table(source: Source) -> None:
    run(source.url, "INSERT INTO items VALUES (1001, 'new', 1.5, 'x')",
        "UPDATE items SET v = 'changed' WHERE id = 1001",
        "UPDATE items SET id = 1002 WHERE id = 1001",          # another key: two changes
        "DELETE FROM items WHERE id = 1002",
        "UPDATE items SET v = v || '!' WHERE id <= 3")
    settle(source)
    rows = read(source, "items")
    copied = [row for row in rows.to_pylist() if row["_copy"] is not None]
    assert {row["id"]: row["v"] for row in copied} == {i: f"v{i}" for i in range(1, COPIED + 1)}
    assert {row["_change_type"] for row in copied} == {"insert"}
    assert len(copied) == COPIED
    first_change = min(row["_commit_timestamp"] for row in rows.to_pylist() if row["_copy"] is None)
    read_at = {row["_commit_timestamp"] for row in copied}
    assert all(abs(at - first_change) < timedelta(minutes=10) for at in read_at), "when they were read"
    changes = changes_of(rows, "id", "v", "_unchanged")
    assert changes[:5] == [
        ("insert", (1001, "new", None)), ("update_postimage", (1001, "changed", None)), ("delete", (1001, None, None)),
        ("insert", (1002, "changed", None)), ("delete", (1002, None, None))]
    assert sorted(changes[5:]) == [("update_postimage", (i, f"v{i}!", ["big"])) for i in (1, 2, 3)]
    assert rebuilt(rows.to_pylist(), "id") == rows_of_database(source, "SELECT * FROM items", "id")


def test_P1_full_identity_gives_before_images(source: Source) -> None:
    big = "b" * 5000
    run(source.url, f"INSERT INTO fulls VALUES (1, 'a', '{big}')", "UPDATE fulls SET v = 'b'", "DELETE FROM fulls")
    settle(source)
    rows = read(source, "public.fulls")
    assert changes_of(rows, "v", "big") == [
        ("insert", ("a", big)), ("update_preimage", ("a", big)), ("update_postimage", ("b", big)),
        ("delete", ("b", big))]
    assert rows.column("_unchanged").null_count == len(rows)


def test_P1_ranges_of_offsets_join_to_the_whole(source: Source) -> None:
    for n in range(5):
        run(source.url, *(f"INSERT INTO plain VALUES ({n * 10 + i}, 'v')" for i in range(5)))
        settle(source)
    whole = read(source, "plain").to_pylist()
    ids = sorted(row["id"] for row in whole)
    assert len(ids) == 25
    ends = Counter({row["_log_partition"]: row["_log_offset"] + 1 for row in
                    sorted(whole, key=lambda row: int(row["_log_offset"]))})
    middle = json.dumps({str(n): ends[n] // 2 for n in range(3)})
    first = read(source, "plain", endingOffsets=middle).column("id").to_pylist()
    second = read(source, "plain", startingOffsets=middle).column("id").to_pylist()
    assert sorted(first + second) == ids
    assert first
    assert second
    assert tasks(source, "plain", minPartitions="6") > tasks(source, "plain")
    assert sorted(read(source, "plain", minPartitions="6").column("id").to_pylist()) == ids
    assert len(read(source, "plain", startingOffsets="latest")) == 0


def test_S8_a_row_in_parts_is_one_row_wherever_tasks_are_cut(source: Source) -> None:
    rng = random.Random(8)
    texts = [rng.randbytes(3_000_000).hex() for _ in range(2)]             # does not compress below the size of a part
    with psycopg.connect(source.url, autocommit=True) as db:
        for number, text in enumerate(texts):
            db.execute("INSERT INTO large VALUES (%s, %s)", [number, text])
    settle(source)
    for cut in ("1", "2", "100"):
        rows = read(source, "large", maxRecordsPerPartition=cut).to_pylist()
        assert {row["id"]: row["v"] for row in rows} == dict(enumerate(texts))
        assert len(rows) == 2


def test_P1_a_schema_of_the_user_is_a_projection(source: Source) -> None:
    settle(source)
    wanted = st.StructType([st.StructField("_change_type", st.StringType()), st.StructField("id", st.LongType())])
    rows = read(source, "items", schema=wanted)
    assert rows.schema.names == ["_change_type", "id"]
    assert len(rows) >= COPIED
    with pytest.raises(MillraceError, match="never had a column missing"):
        read(source, "items", schema=wanted.add("missing", st.StringType()))


def test_P1_a_truncation_is_what_the_reader_says(source: Source) -> None:
    run(source.url, "INSERT INTO emptied VALUES (1)", "TRUNCATE emptied", "INSERT INTO emptied VALUES (2)")
    settle(source)
    with pytest.raises(TableTruncated, match="onTruncate=row"):
        read(source, "emptied")
    given = changes_of(read(source, "emptied", onTruncate="row"), "id")
    assert given == [("insert", (1,)), ("truncate", (None,)), ("insert", (2,))]
    left_out = changes_of(read(source, "emptied", onTruncate="ignore"), "id")
    assert left_out == [("insert", (1,)), ("insert", (2,))]


def test_S7_columns_that_came_or_went_and_types_that_grew(source: Source) -> None:
    run(source.url, "INSERT INTO evolving VALUES (1, 1, 'g')", "ALTER TABLE evolving DROP gone, ADD later text",
        "INSERT INTO evolving VALUES (2, 2, 'l')", "ALTER TABLE evolving ALTER n TYPE bigint",
        "INSERT INTO evolving VALUES (3, 3000000000, 'l')")
    settle(source)
    rows = read(source, "evolving", includeCopy="false")
    assert [values for kind, values in changes_of(rows, "id", "n", "later") if kind == "insert"] == [
        (1, 1, None), (2, 2, "l"), (3, 3_000_000_000, "l")]
    run(source.url, "ALTER TABLE evolving ALTER n TYPE text", "INSERT INTO evolving VALUES (4, 'four', 'l')")
    settle(source)
    with pytest.raises(SchemaChanged, match=r"column n is int(32|64) there and string in this query"):
        read(source, "evolving", includeCopy="false")


def test_S7_a_query_ends_in_front_of_a_type_it_cannot_follow(source: Source) -> None:
    run(source.url, "INSERT INTO retyped VALUES (1, '1')")
    settle(source)
    query = Query(source, "retyped", {"includeCopy": "false"}).start()
    assert [row["n"] for row in query.drain()] == ["1"]
    run(source.url, "INSERT INTO retyped VALUES (2, '2'), (3, '3')",
        "ALTER TABLE retyped ALTER n TYPE int USING n::int", "INSERT INTO retyped VALUES (4, 4)")
    settle(source)
    with pytest.raises(SchemaChanged, match=r"public.retyped changed at commit .* Start the query again"):
        query.drain()
    assert sorted(n for rows in query.rows for n in rows.column("n").to_pylist()) == ["1", "2", "3"]
    assert sorted((row["n"] for row in query.start().drain()), key=str) == ["1", "2", "3", 4]


def test_S5_a_copy_under_writers_leaves_changed_keys_alone(source: Source) -> None:
    with psycopg.connect(source.url, autocommit=True) as db:
        source.copy("public.recopied")
        for n in range(60):
            db.execute("UPDATE recopied SET v = v + 1000 WHERE id %% 60 = %s", [n])
    source.wait_settled()
    settle(source)
    rows = read(source, "recopied").to_pylist()
    assert len({row["_copy"] for row in rows}) == 3             # the first copy, the second, changes
    assert rebuilt(rows, "id") == rows_of_database(source, "SELECT * FROM recopied", "id")
    assert len(read(source, "recopied", includeCopy="false")) == COPIED


def test_S5_a_table_without_a_key_gives_its_first_copy_and_refuses_later_ones(source: Source) -> None:
    assert sorted(read(source, "whole").column("v").to_pylist()) == [1, 1, 2]
    source.copy("public.whole")
    source.wait_settled()
    settle(source)
    with pytest.raises(CopyNotReadable, match=r"public\.whole has no key"):
        read(source, "whole")
    assert len(read(source, "whole", includeCopy="false")) == 0


# -- positions -----------------------------------------------------------------------------------------------------


def test_P1_latest_is_where_the_query_began_whatever_happens_to_its_first_batch(source: Source) -> None:
    """Spark does not write down where a first batch begins: its end says so itself."""
    run(source.url, "INSERT INTO late VALUES (1)")
    settle(source)
    query = Query(source, "late", {"startingOffsets": "latest"}).start()
    assert not query.plan()
    run(source.url, "INSERT INTO late VALUES (2), (3)")
    settle(source)
    query.start().stream.initialOffset()                     # killed before anything was written down: begins anew
    query = Query(source, "late", {"startingOffsets": json.dumps({str(n): -2 for n in range(3)})}).start()
    assert query.plan()
    first = query.offsets[0]
    assert "began" in json.loads(first)
    run(source.url, "INSERT INTO late VALUES (4)")
    settle(source)
    again = Query(source, "late", {"startingOffsets": "latest"}, offsets=[first]).start()   # killed inside its batch
    assert sorted(row["id"] for row in again.drain()) == [1, 2, 3, 4]
    assert again.commits == 2


def test_P1_P5_a_query_killed_anywhere_gives_each_change_once(source: Source) -> None:
    """At every step of a batch, by a seed: planned, run, committed or not. A copy is made meanwhile."""
    rng, query = random.Random(5), Query(source, "orders", {"maxOffsetsPerTrigger": "7"}).start()
    kills, copied, deadline = Counter({"planned": 0, "run": 0, "committed": 0}), False, time.monotonic() + 60
    with OrdersWriter(source.url, pause_s=0.005):
        while min(kills.values()) < 3 or not copied:
            assert time.monotonic() < deadline, kills
            if not copied and kills.total() > 3:
                source.copy("public.orders")
                copied = True
            if not query.plan():
                continue
            died = rng.choice(["planned", "run", "committed", "", ""])
            if died != "planned":
                query.run()
            if died not in ("planned", "run"):
                query.commit()
            if died:
                kills[died] += 1
                query.start()
    source.wait_settled()
    settle(source)
    rows = query.drain()
    assert_exact(rows, source)


BAD = [
    ({"startingOffset": "earliest"}, "unknown option startingoffset; known are"),
    ({"startingOffsets": "newest"}, "option startingOffsets: earliest, latest or a JSON object"),
    ({"startingOffsets": '{"0": 1}'}, "has partitions 0 to 2"),
    ({"startingOffsets": '{"0": 1, "1": 1, "2": 999999}'}, "partition 2 has offsets up to"),
    ({"endingOffsets": "earliest"}, "cannot be earliest"),
    ({"failOnDataLoss": "maybe"}, "true or false"),
    ({"maxOffsetsPerTrigger": "10"}, "has no meaning for a batch"),
    ({"minPartitions": "0"}, "a number of 1 or more"),
    ({"onTruncate": "panic"}, "one of fail, row, ignore"),
    ({"schemaVersion": "7"}, "has no version '7'"),
    ({"table": "nothing"}, "has no table 'nothing'; there are public.emptied"),
    ({"source": "nowhere"}, "there is no source 'nowhere'"),
]


@pytest.mark.parametrize(("given", "said"), BAD, ids=[said for _, said in BAD])
def test_P1_bad_options_are_refused_by_name(source: Source, given: dict[str, str], said: str) -> None:
    with pytest.raises(MillraceError, match=said):
        read(source, **{"table": "items", **given})
