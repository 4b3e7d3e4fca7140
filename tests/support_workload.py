"""Writers against a PostgreSQL database: everything an application does to its tables, seeded.

    with Workload(url, seed=7, writers=2) as work:
        …
    counts = work.stop()        # {"insert": 812, "large": 2, "add_column": 3, …}; raises when a statement failed
                                # that must not fail

Each writer is a process of its own (`python support_workload.py`), so that a paused or slow test does not pause it.
Writer 0 does the DDL. Statements that lose a race (deadlock, a column dropped meanwhile) are rolled back and counted
as `lost_race`; any other error ends the writer and the test fails: no statement of the application fails because of us.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

import psycopg
from psycopg import errors

import support_values

KEYS = 300                # few keys: writers meet each other's rows
TOAST_BYTES = 9_000       # stored out of line: an update that leaves it alone does not send it
LOST_RACE = (
    errors.DeadlockDetected, errors.UniqueViolation, errors.UndefinedColumn, errors.UndefinedTable,
    errors.FeatureNotSupported, errors.DuplicateColumn, errors.DuplicateTable, errors.DatatypeMismatch,
    errors.CheckViolation, errors.LockNotAvailable, errors.InvalidTextRepresentation, errors.InternalError_,
    errors.SerializationFailure,      # a row that moved to another partition under our feet
)

TABLES = """
CREATE TABLE items (id bigint PRIMARY KEY, n int, note text, big text);
ALTER TABLE items ALTER big SET STORAGE EXTERNAL;
CREATE TABLE pairs (a int, b text, v text, big text, PRIMARY KEY (a, b));
ALTER TABLE pairs ALTER big SET STORAGE EXTERNAL;
CREATE TABLE fulls (id int PRIMARY KEY, v text, big text);
ALTER TABLE fulls ALTER big SET STORAGE EXTERNAL;
ALTER TABLE fulls REPLICA IDENTITY FULL;
CREATE TABLE indexed (id int NOT NULL, code text NOT NULL, v text);
CREATE UNIQUE INDEX indexed_code ON indexed (code);
ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_code;
CREATE TABLE bulk (id bigint PRIMARY KEY, n int, note text);
CREATE TABLE scratch (id int PRIMARY KEY, v text);
CREATE TABLE evolving (id int PRIMARY KEY, a text, b int, big text);
ALTER TABLE evolving ALTER big SET STORAGE EXTERNAL;
CREATE TABLE parts (id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parts_north PARTITION OF parts FOR VALUES IN ('north');
CREATE TABLE parts_south PARTITION OF parts FOR VALUES IN ('south');
"""
REGIONS = ["north", "south"]
PARTITIONS_MAX = 12
DDL = ("add_column", "create_table", "rename_column", "truncate", "drop_column", "attach_partition", "retype_column",
       "create_table_as", "drop_table")


def connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, prepare_threshold=None)


WHOLE = """
CREATE TABLE whole (v int, t text);
ALTER TABLE whole REPLICA IDENTITY FULL;
INSERT INTO whole SELECT g % 5, 't' || g % 3 FROM generate_series(1, 60) g;
"""


def create_tables(url: str, *, rows: int = KEYS, whole: bool = False) -> None:
    """Tables with something in them, so that there is something to copy. `whole`: one without a key, too."""
    with connect(url) as db:
        db.execute(WHOLE if whole else "")
        version = db.info.server_version // 10_000
        db.execute(TABLES)
        db.execute(support_values.create_types_table(version))
        for number, values in enumerate(support_values.every_value(version)):
            insert_types(db, number, values)
        fill = f"repeat(md5(g::text), {TOAST_BYTES // 32})"
        for table, body in (
            ("items", f"g, g % 7, 'n' || g, {fill}"), ("pairs", f"g % 10, 'b' || g, 'v', {fill}"),
            ("fulls", f"g, 'v' || g, {fill}"), ("indexed", "g, 'code' || g, 'v'"), ("bulk", "-g, 0, 'before'"),
            ("scratch", "g, 'v'"), ("evolving", f"g, 'a' || g, g, {fill}"),
            ("parts", "g, (array['north','south'])[1 + g % 2], 'v'"),
        ):
            db.execute(f"INSERT INTO {table} SELECT {body} FROM generate_series(1, {rows}) g")


def insert_types(db: psycopg.Connection[Any], number: int, values: dict[str, str]) -> None:
    names, literals = ", ".join(values), ", ".join(values.values())
    update = ", ".join(f"{name} = excluded.{name}" for name in values)
    db.execute(f"INSERT INTO types (id, {names}) VALUES ({number}, {literals}) ON CONFLICT (id) DO UPDATE SET {update}")


class Writer:
    """One connection, one seed. `step` runs one transaction and says what it was."""

    def __init__(self, url: str, seed: int, *, number: int, ddl: bool, large_rows: int,
                 large_every: int = 400, ddl_every: int = 15) -> None:
        self.db, self.rng, self.number = connect(url), random.Random(seed), number
        self.large_rows, self.large_every, self.ddl_every = large_rows, large_every, ddl_every
        self.version = self.db.info.server_version // 10_000
        self.steps = 0
        self.regions, self.serial = list(REGIONS), 0
        self.races: list[str] = []
        self.later: list[str] = []       # tables made while running
        self.columns: list[str] = []     # added to `evolving`
        self.bulk_next = (number + 1) * 1_000_000_000
        self.changes: list[tuple[int, Callable[[], None]]] = [
            (20, self.insert), (25, self.update), (8, self.delete), (8, self.move_key), (4, self.swap_keys),
            (4, self.same_key), (6, self.pairs), (5, self.fulls), (4, self.indexed), (10, self.types), (8, self.parts),
            (5, self.evolving), (3, self.scratch),
        ]
        if self.db.execute("SELECT to_regclass('whole') IS NOT NULL").fetchone() == (True,):
            self.changes.append((5, self.whole))
        self.ddl: list[Callable[[], None]] = [getattr(self, name) for name in ("add_column", *DDL)] if ddl else []

    def step(self) -> str:
        self.steps += 1
        try:
            return self._step()
        except LOST_RACE as error:
            self.races.append(f"{type(error).__name__}: {error}")
            return "lost_race"

    def _step(self) -> str:
        if self.large_rows and self.steps % self.large_every == 110 + 50 * self.number:
            return self.large()
        if self.ddl and self.steps % self.ddl_every == self.ddl_every // 2:
            change = self.ddl[(self.steps // self.ddl_every) % len(self.ddl)]
            with self.db.transaction():
                change()
            self.settle(change.__name__)
            return change.__name__
        shape = self.rng.choices(["plain", "several", "rollback", "savepoint", "nested"], [50, 20, 10, 12, 8])[0]
        getattr(self, f"_{shape}")()
        return shape

    # -- shapes of transactions ----------------------------------------------------------------------------------

    def change(self) -> None:
        weights, changes = zip(*self.changes, strict=True)
        self.rng.choices(changes, weights)[0]()

    def _plain(self) -> None:
        with self.db.transaction():
            self.change()

    def _several(self) -> None:
        with self.db.transaction():
            for _ in range(self.rng.randrange(2, 12)):
                self.change()

    def _rollback(self) -> None:
        with self.db.transaction(force_rollback=True):
            self.change()
            self.change()

    def _savepoint(self) -> None:
        with self.db.transaction():
            self.change()
            with self.db.transaction(force_rollback=self.rng.random() < 0.7):
                self.change()
            self.change()

    def _nested(self) -> None:
        """Aborted inside kept, kept inside aborted."""
        with self.db.transaction():
            with self.db.transaction(force_rollback=self.rng.random() < 0.5):
                self.change()
                with self.db.transaction(force_rollback=self.rng.random() < 0.5):
                    self.change()
                self.change()
            with self.db.transaction():
                self.change()

    def large(self) -> str:
        """Above logical_decoding_work_mem: the server streams it before it is committed."""
        rows, first = self.large_rows, self.bulk_next
        kind = self.rng.choice(["large_insert", "large_rollback", "large_savepoint", "large_churn"])
        with self.db.transaction(force_rollback=kind == "large_rollback"):
            self._bulk(first, rows // 2)
            with self.db.transaction(force_rollback=kind == "large_savepoint"):
                self._bulk(first + rows // 2, rows - rows // 2)
            self.change()
            if kind == "large_churn":
                self.db.execute("UPDATE bulk SET n = n + 1, note = 'churned' WHERE id BETWEEN %s AND %s",
                                (first, first + rows // 4))
                self.db.execute("DELETE FROM bulk WHERE id BETWEEN %s AND %s", (first, first + rows // 8))
        self.bulk_next += rows
        return kind

    def _bulk(self, first: int, rows: int) -> None:
        self.db.execute("INSERT INTO bulk SELECT g, g %% 13, 'note ' || g FROM generate_series(%s::bigint, %s) g",
                        (first, first + rows - 1))

    # -- changes -------------------------------------------------------------------------------------------------

    def key(self) -> int:
        return self.rng.randrange(1, KEYS + 50)

    def big(self) -> str:
        return f"{self.rng.randrange(1 << 60):x}." * (self.rng.randrange(TOAST_BYTES // 2, TOAST_BYTES) // 15)

    def insert(self) -> None:
        for _ in range(self.rng.randrange(1, 5)):
            self.db.execute("INSERT INTO items VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET n = excluded.n",
                            (self.key(), self.rng.randrange(100), None if self.rng.random() < 0.2 else "new",
                             self.big() if self.rng.random() < 0.7 else None))

    def update(self) -> None:
        if self.rng.random() < 0.6:      # TOAST unchanged
            self.db.execute("UPDATE items SET n = n + 1 WHERE id BETWEEN %s AND %s", (k := self.key(), k + 3))
        else:
            self.db.execute("UPDATE items SET big = %s, note = 'touched' WHERE id = %s", (self.big(), self.key()))

    def delete(self) -> None:
        self.db.execute("DELETE FROM items WHERE id = %s", (self.key(),))

    def move_key(self) -> None:
        """A key update, TOAST unchanged or not."""
        big = self.big() if self.rng.random() < 0.3 else None
        self.db.execute("UPDATE items SET id = %s, big = coalesce(%s, big) WHERE id = %s AND NOT EXISTS "
                        "(SELECT FROM items WHERE id = %s)", (new := self.key(), big, self.key(), new))

    def swap_keys(self) -> None:
        a, b = sorted((self.key(), self.key()))
        spare = -1 - self.number
        for new, old in ((spare, a), (a, b), (b, spare)):
            self.db.execute("UPDATE items SET id = %s WHERE id = %s", (new, old))

    def same_key(self) -> None:
        """Delete, insert, update, delete, insert of one key in one transaction."""
        k = self.key()
        self.db.execute("DELETE FROM items WHERE id = %s", (k,))
        self.db.execute("INSERT INTO items VALUES (%s, 1, 'again', %s)", (k, self.big()))
        self.db.execute("UPDATE items SET n = 2 WHERE id = %s", (k,))
        if self.rng.random() < 0.5:
            self.db.execute("DELETE FROM items WHERE id = %s", (k,))
            self.db.execute("INSERT INTO items VALUES (%s, 3, NULL, %s)", (k, self.big()))

    def pairs(self) -> None:
        a, b, v = self.rng.randrange(10), f"b{self.key()}", f"v{self.steps}"
        match self.rng.randrange(4):
            case 0:
                self.db.execute("INSERT INTO pairs VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
                                (a, b, v, self.big()))
            case 1:
                self.db.execute("UPDATE pairs SET v = %s WHERE b = %s", (v, b))
            case 2:
                self.db.execute("UPDATE pairs SET b = b || %s, v = %s WHERE b = %s",
                                (self.rng.choice("xyz ,'\""), v, b))
            case _:
                self.db.execute("DELETE FROM pairs WHERE b = %s", (b,))

    def fulls(self) -> None:
        match self.rng.randrange(3):
            case 0:
                self.db.execute("INSERT INTO fulls VALUES (%s, 'f', %s) ON CONFLICT DO NOTHING",
                                (self.key(), self.big()))
            case 1:
                self.db.execute("UPDATE fulls SET v = %s WHERE id = %s", (f"v{self.steps}", self.key()))
            case _:
                self.db.execute("DELETE FROM fulls WHERE id = %s", (self.key(),))

    def indexed(self) -> None:
        match self.rng.randrange(3):
            case 0:
                self.db.execute("INSERT INTO indexed VALUES (%s, %s, 'i') "
                                "ON CONFLICT (code) DO UPDATE SET id = excluded.id",
                                (self.steps, f"code{self.key()}"))
            case 1:
                self.db.execute("UPDATE indexed SET v = %s WHERE code = %s", (f"v{self.steps}", f"code{self.key()}"))
            case _:
                self.db.execute("DELETE FROM indexed WHERE code = %s", (f"code{self.key()}",))

    def types(self) -> None:
        number = self.rng.randrange(60)
        if self.rng.random() < 0.15:
            self.db.execute("DELETE FROM types WHERE id = %s", (number,))
        else:
            insert_types(self.db, number, support_values.pick(self.rng, self.version))

    def parts(self) -> None:
        region = self.rng.choice(self.regions)
        match self.rng.randrange(4):
            case 0:
                self.db.execute("INSERT INTO parts VALUES (%s, %s, 'p') ON CONFLICT DO NOTHING", (self.key(), region))
            case 1:
                self.db.execute("UPDATE parts SET v = %s WHERE id = %s", (f"v{self.steps}", self.key()))
            case 2:      # rows move between partitions
                k = self.key()
                self.db.execute("DELETE FROM parts WHERE id = %s AND region = %s", (k, region))
                self.db.execute("UPDATE parts SET region = %s WHERE id = %s AND "
                                "ctid IN (SELECT ctid FROM parts WHERE id = %s LIMIT 1)", (region, k, k))
            case _:
                self.db.execute("DELETE FROM parts WHERE id = %s", (self.key(),))

    def whole(self) -> None:
        """Rows that are equal to each other; one of them at a time is meant."""
        one = "ctid = (SELECT ctid FROM whole WHERE v = %s LIMIT 1)"
        match self.rng.randrange(3):
            case 0:
                self.db.execute("INSERT INTO whole VALUES (%s, %s), (%s, NULL)", (self.rng.randrange(5), "t1", 1))
            case 1:
                self.db.execute(f"UPDATE whole SET t = %s WHERE {one}", (f"u{self.steps}", self.rng.randrange(5)))
            case _:
                self.db.execute(f"DELETE FROM whole WHERE {one}", (self.rng.randrange(5),))

    def evolving(self) -> None:
        k = self.key()
        if self.rng.random() < 0.5:
            self.db.execute("INSERT INTO evolving (id, a, big) VALUES (%s, 'e', %s) "
                            "ON CONFLICT (id) DO UPDATE SET a = 'again'",
                            (k, self.big()))
        else:
            self.db.execute("DELETE FROM evolving WHERE id = %s", (k,))

    def touch(self) -> None:
        """A row for certain: without event triggers a new schema is known from its first row only."""
        self.db.execute("INSERT INTO evolving (id, a) VALUES (0, 'seen') "
                        "ON CONFLICT (id) DO UPDATE SET a = 'seen again'")

    def scratch(self) -> None:
        self.db.execute("INSERT INTO scratch VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                        (self.key(), f"v{self.steps}"))

    # -- DDL: inside a transaction with changes before and after it ----------------------------------------------

    def add_column(self) -> None:
        self.serial += 1
        name = f"x{self.serial}"
        default = self.rng.choice(["", "", " DEFAULT 5", " DEFAULT 1 + random() * 100"])
        kind = self.rng.choice(["int", "text", "numeric(8,2)"])
        self.db.execute(f"ALTER TABLE evolving ADD COLUMN {name} {kind}{default}")
        self.columns.append(name)
        self.db.execute(f"UPDATE evolving SET {name} = 7 WHERE id % 3 = 0")

    def drop_column(self) -> None:
        if self.columns:
            name = self.columns.pop(self.rng.randrange(len(self.columns)))
            self.evolving()
            self.db.execute(f"ALTER TABLE evolving DROP COLUMN {name}")
            self.touch()

    def rename_column(self) -> None:
        """The rows are not written again: whoever rebuilds them must know the column by its place."""
        if self.columns:
            self.serial += 1
            at = self.rng.randrange(len(self.columns))
            name = f"renamed{self.serial}"
            self.db.execute(f"ALTER TABLE evolving RENAME COLUMN {self.columns[at]} TO {name}")
            self.columns[at] = name
            self.touch()

    def retype_column(self) -> None:
        """The server rewrites the rows and sends none of it; half of the time the application touches them all."""
        kind = self.rng.choice(["bigint", "text", "numeric"])
        self.evolving()
        self.db.execute(f"ALTER TABLE evolving ALTER b TYPE {kind} USING b::text::{kind}")
        if self.rng.random() < 0.5:
            self.db.execute("UPDATE evolving SET b = b")
        self.touch()

    def attach_partition(self) -> None:
        if len(self.regions) > PARTITIONS_MAX:
            return
        self.serial += 1
        region = f"r{self.number}_{self.serial}"
        self.db.execute(f"CREATE TABLE parts_{region} (LIKE parts INCLUDING ALL)")
        if self.rng.random() < 0.5:      # rows that nobody sends
            self.db.execute(f"INSERT INTO parts_{region} SELECT g, '{region}', 'brought' "
                            "FROM generate_series(30, 60) g")
        self.db.execute(f"ALTER TABLE parts ATTACH PARTITION parts_{region} FOR VALUES IN ('{region}')")
        self.regions.append(region)
        self.db.execute("INSERT INTO parts SELECT g, %s, 'attached' FROM generate_series(1, 20) g", (region,))

    def create_table(self) -> None:
        """Rows in the transaction that makes it, and in later ones."""
        self.serial += 1
        name = f"later_{self.number}_{self.serial}"
        self.db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text, big text)")
        self.db.execute(f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL")
        self.db.execute(f"INSERT INTO {name} SELECT g, 'v' || g, repeat(md5(g::text), 300) "
                        "FROM generate_series(1, 200) g")
        self.later.append(name)

    def create_table_as(self) -> None:
        self.serial += 1
        name = f"later_{self.number}_{self.serial}"
        self.db.execute(f"CREATE TABLE {name} AS SELECT g AS id, 'as' || g AS v, ''::text AS big "
                        "FROM generate_series(1, 50) g")
        self.db.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
        self.later.append(name)

    def truncate(self) -> None:
        self.scratch()
        self.db.execute("TRUNCATE scratch")
        self.scratch()

    def drop_table(self) -> None:
        while len(self.later) > 2:
            self.db.execute(f"DROP TABLE {self.later.pop(0)}")

    def settle(self, _: str) -> None:
        """Ordinary changes of the tables that came later."""
        for name in self.later:
            with self.db.transaction():
                self.db.execute(f"UPDATE {name} SET v = v || '+' WHERE id % 5 = {self.rng.randrange(5)}")
                self.db.execute(f"INSERT INTO {name} VALUES (%s, 'x', NULL) ON CONFLICT DO NOTHING", (self.key(),))
                self.db.execute(f"DELETE FROM {name} WHERE id = %s", (self.key(),))


# -- processes ---------------------------------------------------------------------------------------------------


class Workload:
    """Writers as processes; `stop` ends them and says what they did."""

    def __init__(self, url: str, *, seed: int, writers: int = 2, ddl: bool = True, large_rows: int = 50_000,
                 large_every: int = 400, ddl_every: int = 15, pace_s: float = 0.004) -> None:
        self.url, self.seed, self.writers, self.ddl = url, seed, writers, ddl
        self.large_rows, self.large_every, self.ddl_every, self.pace_s = large_rows, large_every, ddl_every, pace_s
        self._processes: list[subprocess.Popen[str]] = []
        self.counts: Counter[str] = Counter()
        self.races: list[str] = []

    def __enter__(self) -> Workload:
        for number in range(self.writers):
            command = [sys.executable, os.path.abspath(__file__), "--number", str(number), "--seed", str(self.seed),
                       "--large-rows", str(self.large_rows), "--large-every", str(self.large_every),
                       "--ddl-every", str(self.ddl_every), "--pace-s", str(self.pace_s)]
            command += ["--ddl"] if self.ddl and number == 0 else []
            self._processes.append(subprocess.Popen(
                command, env={**os.environ, "WORKLOAD_URL": self.url}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.stop()
        for process in self._processes:
            process.kill()
            process.communicate()

    def stop(self) -> Counter[str]:
        """After it, all transactions are committed or gone."""
        for process in self._processes:
            out, err = process.communicate("", timeout=120)
            assert process.returncode == 0, f"a writer failed (seed {self.seed}):\n{err[-4000:]}"
            self.counts.update(json.loads(out))
            self.races += err.split("\n")
        self._processes = []
        return self.counts


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large-rows", type=int, default=50_000)
    parser.add_argument("--large-every", type=int, default=400)
    parser.add_argument("--ddl-every", type=int, default=15)
    parser.add_argument("--pace-s", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--ddl", action="store_true")
    asked = parser.parse_args()
    writer = Writer(os.environ["WORKLOAD_URL"], asked.seed * 1000 + asked.number, number=asked.number, ddl=asked.ddl,
                    large_rows=asked.large_rows, large_every=asked.large_every, ddl_every=asked.ddl_every)
    counts: Counter[str] = Counter()
    os.set_blocking(sys.stdin.fileno(), False)
    while not _ended() and (not asked.steps or writer.steps < asked.steps):
        counts[writer.step()] += 1
        time.sleep(asked.pace_s)
    print(json.dumps(counts))
    print("\n".join(writer.races), file=sys.stderr)


def _ended() -> bool:
    """The parent closed our input, or died."""
    try:
        return os.read(sys.stdin.fileno(), 1) == b""
    except BlockingIOError:
        return False


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _main()
