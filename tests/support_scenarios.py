"""What may happen to tables, one scenario each, and a consumer that upserts by key: does it have the source's rows?

Each scenario has a schema of its own, so that all of them run in one database at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import psycopg

from millrace.log.client import PlainClient

Rows = dict[str, dict[str, Any]]                             # by the key as text

T = "CREATE TABLE {s}.t (id int PRIMARY KEY, v text)"
ROWS = "INSERT INTO {s}.t SELECT g, 'v' || g FROM generate_series(1, 20) g"
PARTED = ("CREATE TABLE {s}.t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
          "CREATE TABLE {s}.p1 PARTITION OF {s}.t FOR VALUES FROM (0) TO (11)",
          "CREATE TABLE {s}.p2 PARTITION OF {s}.t FOR VALUES FROM (11) TO (100)", ROWS)
U = ("CREATE TABLE {s}.u (id int PRIMARY KEY, v text)",
     "INSERT INTO {s}.u SELECT g, 'u' || g FROM generate_series(15, 30) g")
SWAP = ("BEGIN", "UPDATE {s}.t SET v = 'before'", "ALTER TABLE {s}.t RENAME TO x", "ALTER TABLE {s}.u RENAME TO t",
        "ALTER TABLE {s}.x RENAME TO u", "UPDATE {s}.t SET v = 'after'", "COMMIT")


class Scenario(NamedTuple):
    """`after`: the first statements are run while the changefeeds work; `rows`: then each of these tables gets some
    more, by the names that they have then. `{s}`: the scenario's schema."""

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    writes: tuple[str, ...] = ("t",)


SCENARIOS = (
    Scenario("truncated", (T, ROWS), ("TRUNCATE {s}.t",)),
    Scenario("truncated_quiet", (T, ROWS), ("TRUNCATE {s}.t",), ()),
    Scenario("part_truncated", PARTED, ("TRUNCATE {s}.p1",)),
    Scenario("part_dropped", PARTED, ("DROP TABLE {s}.p1",), ()),
    Scenario("part_detached", PARTED, ("ALTER TABLE {s}.t DETACH PARTITION {s}.p1",), ()),
    Scenario("part_exchanged", (*PARTED, "CREATE TABLE {s}.p3 (LIKE {s}.t INCLUDING ALL)",
                                "INSERT INTO {s}.p3 SELECT g, 'new' FROM generate_series(3, 6) g"),
             ("BEGIN", "ALTER TABLE {s}.t DETACH PARTITION {s}.p1",
              "ALTER TABLE {s}.t ATTACH PARTITION {s}.p3 FOR VALUES FROM (0) TO (11)", "COMMIT")),
    Scenario("table_renamed", (T, ROWS), ("ALTER TABLE {s}.t RENAME TO t2",), ("t2",)),
    Scenario("table_renamed_quiet", (T, ROWS), ("ALTER TABLE {s}.t RENAME TO t2",), ()),
    Scenario("schema_set", (T, ROWS, "CREATE SCHEMA {s}_other"), ("ALTER TABLE {s}.t SET SCHEMA {s}_other",), ()),
    Scenario("schema_renamed", (T, ROWS), ("ALTER SCHEMA {s} RENAME TO {s}_now",), ()),
    Scenario("swapped", (T, ROWS, *U), SWAP, ("t", "u")),
    Scenario("swapped_quiet", (T, ROWS, *U), SWAP, ()),
    Scenario("key_changed", (T, ROWS), ("ALTER TABLE {s}.t ADD COLUMN k int", "UPDATE {s}.t SET k = id + 100",
                                        "ALTER TABLE {s}.t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (k)"), ()),
    Scenario("key_changed_at_once", (T, ROWS, "UPDATE {s}.t SET v = 'w' || id"),
             ("ALTER TABLE {s}.t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (v)",)),
    Scenario("made_again", (T, ROWS), ("DROP TABLE {s}.t", T, "INSERT INTO {s}.t VALUES (3, 'three'), (40, 'forty')")),
    Scenario("made_again_at_once", (T, ROWS), ("BEGIN", "DROP TABLE {s}.t", T, "COMMIT")),
    Scenario("dropped", (T, ROWS), ("DROP TABLE {s}.t",), ()),
    Scenario("replaced", (T, ROWS, *U), ("BEGIN", "UPDATE {s}.t SET v = 'last'", "DROP TABLE {s}.t",
                                         "ALTER TABLE {s}.u RENAME TO t", "UPDATE {s}.t SET v = 'first'", "COMMIT")),
    Scenario("identity_nothing", (T, ROWS), (
        "ALTER TABLE {s}.t REPLICA IDENTITY NOTHING", "INSERT INTO {s}.t VALUES (50, 'unseen')",
        "ALTER TABLE {s}.t REPLICA IDENTITY DEFAULT")),
    Scenario("column_renamed", (T, ROWS), ("ALTER TABLE {s}.t RENAME v TO w",), ()),
    Scenario("key_column_renamed", (T, ROWS), ("ALTER TABLE {s}.t RENAME id TO no",), ()),
    Scenario("enum_renamed", ("CREATE TYPE {s}.mood AS ENUM ('low', 'high')",
                              "CREATE TABLE {s}.t (id int PRIMARY KEY, m {s}.mood)",
                              "INSERT INTO {s}.t SELECT g, 'low' FROM generate_series(1, 9) g"),
             ("ALTER TYPE {s}.mood RENAME VALUE 'low' TO 'down'",), ()),
    Scenario("column_given", (T, ROWS), (
        "ALTER TABLE {s}.t ADD given int DEFAULT 5", "ALTER TABLE {s}.t ALTER given DROP DEFAULT")),
    Scenario("retyped", (T, ROWS, "ALTER TABLE {s}.t ADD n int", "UPDATE {s}.t SET n = id"),
             ("ALTER TABLE {s}.t ALTER n TYPE text USING 'n' || n",), ()),
    Scenario("key_retyped", (T, ROWS), ("ALTER TABLE {s}.t ALTER id TYPE text USING 'k' || id",), ()),
)


def prepare(db: psycopg.Connection[Any], scenarios: Iterable[Scenario] = SCENARIOS) -> None:
    for one in scenarios:
        db.execute(f"CREATE SCHEMA {one.name}".encode())
        play(db, one, one.before)


def play(db: psycopg.Connection[Any], scenario: Scenario, statements: Iterable[str]) -> None:
    for statement in statements:
        db.execute(statement.replace("{s}", scenario.name).encode())


def write(db: psycopg.Connection[Any], scenario: Scenario) -> None:
    """Rows behind what happened: an insert, an update, a delete, whatever the columns are."""
    for table in scenario.writes:
        name = f"{scenario.name}.{table}"
        key = "k" if scenario.name == "key_changed" else "id"
        db.execute(f"INSERT INTO {name} ({key}) VALUES (77)".encode()
                   if scenario.name != "key_changed_at_once" else f"INSERT INTO {name} VALUES (77, 'x')".encode())
        db.execute(f"DELETE FROM {name} WHERE {key} = (SELECT min({key}) FROM {name})".encode())


# -- what the source has, what a consumer has --------------------------------------------------------------------------
_TABLES = """
SELECT n.nspname, c.relname, array(
    SELECT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey)
    WHERE i.indrelid = c.oid AND i.indisprimary ORDER BY array_position(i.indkey, a.attnum))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname !~ '^(pg_|information_schema|millrace)'
"""


def source_rows(url: str) -> dict[str, Rows]:
    """By table. One that is not there has no rows."""
    found: dict[str, Rows] = {}
    with psycopg.connect(url) as db:
        for schema, table, keys in db.execute(_TABLES).fetchall():
            rows = [row for row, in db.execute(f'SELECT to_jsonb(t) FROM "{schema}"."{table}" t'.encode())]
            found[f"{schema}.{table}"] = {_key({name: row[name] for name in keys}): row for row in rows}
    return found


def consumer_rows(client: PlainClient, prefix: str, *, one_generation: bool = True) -> dict[str, Rows]:
    """By table, as whoever upserts by key has them: each partition by itself, a truncation takes what came by it.
    Order fields of changes never go back there inside of one generation: each of these tables has one partition in the
    log."""
    found: dict[str, Rows] = {}
    for topic in client.topics():
        if not topic.startswith(prefix) or topic.startswith("__"):
            continue
        held: Rows = {}
        for partition in range(len(client.topic(topic).partitions)):
            mine: Rows = {}
            last = (0, 0)
            start, end = client.ends(topic, partition)
            while start < end:
                page = client.fetch({(topic, partition): start}, wait_s=1.0).get((topic, partition))
                if page is None:
                    continue
                for record in page.records:
                    _apply(mine, record.key, record.value)
                    place = _place(record.value) or last
                    assert place >= last or not one_generation, (
                        f"{topic}[{partition}] offset {record.offset}: {place} behind {last}")
                    last = place
                start = page.next_offset
            twice = mine.keys() & held.keys()
            assert not twice, f"{topic}: {sorted(twice)[:3]} in two partitions"
            held |= mine
        found[topic.removeprefix(prefix)] = held
    return found


def _apply(held: Rows, key: bytes | None, value: bytes | None) -> None:
    told = json.loads(value) if value is not None else None
    if told is not None and told.get("op") == "t":
        held.clear()
    elif told is None or "op" in told:
        assert key is not None, f"a row without a key: {told}"
        row = _key(json.loads(key))
        if told is None or told["after"] is None:
            held.pop(row, None)
        else:
            held[row] = told["after"]


def _place(value: bytes | None) -> tuple[int, int] | None:
    """Of a change; rows of copies stand where their table was when they came."""
    told = json.loads(value) if value is not None else {"op": "r"}
    if told.get("op") == "r":
        return None
    lsn, seq = json.loads(told["source"]["sequence"])
    return int(lsn), int(seq)


def _key(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def differences(wanted: Mapping[str, Rows], held: Mapping[str, Rows]) -> list[str]:
    found = []
    for table in sorted(wanted.keys() | held.keys()):
        want, have = wanted.get(table, {}), held.get(table, {})
        lacks, more = want.keys() - have.keys(), have.keys() - want.keys()
        other = [key for key in want.keys() & have.keys() if _plain(want[key]) != _plain(have[key])]
        if lacks or more or other:
            found.append(f"{table}: lacks {sorted(lacks)[:3]}, too many {sorted(more)[:3]}, other "
                         f"{[(want[key], have[key]) for key in other[:2]]}")
    return found


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A column that was never sent is null."""
    return {name: value for name, value in row.items() if value is not None}
