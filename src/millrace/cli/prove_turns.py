"""Tables of the proof's shop that are turned over while everything else goes on [S12].

    truncated; partitions truncated, detached and attached again, exchanged; renamed, swapped, moved to another schema,
    a schema renamed; another primary key; dropped and made again; dropped while another takes its name; identity
    nothing for a moment; columns and values of an enum renamed

In: a database. Out: how many of each. What the stream tells of them is not judged change by change: a consumer that
upserts by key must have their rows at the end.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

import psycopg

from millrace.cli.prove_writers import LOST_RACE

EVERY_S = (0.8, 1.6)
KEYS = 60
LOW = 20                               # keys of the first partition

Turn = Callable[[], tuple[str, ...]]


class Turns:
    """A thread, until it is left."""

    def __init__(self, url: str, seed: int, say: Callable[[str], None]) -> None:
        self._url, self._rng, self._say = url, random.Random(seed), say
        self.counts: Counter[str] = Counter()
        self.ended_at = 0.0
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="turns", daemon=True)
        self._turns: tuple[Turn, ...] = (
            self.truncate, self.truncate_partition, self.rename, self.change_key, self.make_again, self.swap,
            self.detach, self.replace, self.identity_nothing, self.rename_value, self.rename_column, self.exchange,
            self.move, self.rename_schema)

    def __enter__(self) -> Turns:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self.ended_at = time.monotonic()
        if self._error is not None and kind is None:
            raise self._error

    def _run(self) -> None:
        try:
            with psycopg.connect(self._url, autocommit=True, prepare_threshold=None) as db:
                while not self._stop.wait(self._rng.uniform(*EVERY_S)):
                    for turn in self._turns:
                        self._take(db, turn)
                        if self._stop.wait(self._rng.uniform(*EVERY_S)):
                            break
        except Exception as error:
            self._error = error

    def _take(self, db: psycopg.Connection[Any], turn: Turn) -> None:
        """All of it, or nothing: then it is taken again the next time."""
        try:
            with db.transaction():
                for statement in turn():
                    db.execute(statement.encode())
        except LOST_RACE:
            return
        self.counts[turn.__name__] += 1
        self._say(f"turned over: {turn.__name__}")

    # -- turns -----------------------------------------------------------------------------------------------------

    def _n(self, turn: str) -> int:
        return self.counts[turn]

    def _rows(self, table: str, keys: int = KEYS) -> tuple[str, ...]:
        """Some come, some go, some change."""
        key = self._rng.randrange(1, keys)
        return (f"INSERT INTO {table} (id, v) VALUES ({key}, 'row {key}') ON CONFLICT DO NOTHING",   # noqa: S608
                f"DELETE FROM {table} WHERE id = {self._rng.randrange(1, keys)}",                    # noqa: S608
                f"UPDATE {table} SET v = 'now {key} ' || id WHERE id % 7 = {key % 7}")               # noqa: S608

    def truncate(self) -> tuple[str, ...]:
        return (*self._rows("turns.emptied"), "TRUNCATE turns.emptied", *self._rows("turns.emptied"))

    def truncate_partition(self) -> tuple[str, ...]:
        return ("TRUNCATE turns.low", *self._rows("turns.parted", LOW))

    def detach(self) -> tuple[str, ...]:
        if self._n("detach") % 2 == 0:
            return ("ALTER TABLE turns.parted DETACH PARTITION turns.high", *self._rows("turns.high"))
        return ("DELETE FROM turns.high WHERE id < 20",
                "ALTER TABLE turns.parted ATTACH PARTITION turns.high FOR VALUES FROM (20) TO (1000)",
                *self._rows("turns.parted", LOW))

    def exchange(self) -> tuple[str, ...]:
        n = self._n("exchange")
        return (f"CREATE TABLE turns.fresh_{n} (LIKE turns.parted INCLUDING ALL)",
                f"INSERT INTO turns.fresh_{n} SELECT g, 'fresh {n}' FROM generate_series(1, 9) g",  # noqa: S608
                "ALTER TABLE turns.parted DETACH PARTITION turns.low", "DROP TABLE turns.low",
                f"ALTER TABLE turns.fresh_{n} RENAME TO low",
                "ALTER TABLE turns.parted ATTACH PARTITION turns.low FOR VALUES FROM (0) TO (20)")

    def rename(self) -> tuple[str, ...]:
        n = self._n("rename")
        return (*self._rows(f"turns.named_{n}"), f"ALTER TABLE turns.named_{n} RENAME TO named_{n + 1}",
                *(self._rows(f"turns.named_{n + 1}") if n % 2 else ()))

    def swap(self) -> tuple[str, ...]:
        return (*self._rows("turns.blue"), "ALTER TABLE turns.blue RENAME TO passing",
                "ALTER TABLE turns.green RENAME TO blue", "ALTER TABLE turns.passing RENAME TO green")

    def move(self) -> tuple[str, ...]:
        there = ("turns", "turn_other")
        here, to = there if self._n("move") % 2 == 0 else there[::-1]
        return (*self._rows(f"{here}.moving"), f"ALTER TABLE {here}.moving SET SCHEMA {to}")

    def rename_schema(self) -> tuple[str, ...]:
        n = self._n("rename_schema")
        return (*self._rows(f"turned_{n}.inside"), f"ALTER SCHEMA turned_{n} RENAME TO turned_{n + 1}")

    def change_key(self) -> tuple[str, ...]:
        key = "v" if self._n("change_key") % 2 == 0 else "id"
        return (f"ALTER TABLE turns.keyed DROP CONSTRAINT keyed_pkey, ADD CONSTRAINT keyed_pkey PRIMARY KEY ({key})",
                f"DELETE FROM turns.keyed WHERE id = {self._rng.randrange(1, KEYS)}")  # noqa: S608

    def make_again(self) -> tuple[str, ...]:
        return ("DROP TABLE turns.again", "CREATE TABLE turns.again (id int PRIMARY KEY, v text)",
                f"INSERT INTO turns.again SELECT g, 'again' FROM generate_series({self._rng.randrange(30)}, 35) g")  # noqa: S608

    def replace(self) -> tuple[str, ...]:
        """A table is loaded beside the one that is in use, then takes its name."""
        if self._n("replace") % 2 == 0:
            first = self._rng.randrange(30)
            return ("CREATE TABLE turns.loading (id int PRIMARY KEY, v text)",
                    f"INSERT INTO turns.loading SELECT g, 'loaded' FROM generate_series({first}, 35) g")  # noqa: S608
        return (*self._rows("turns.loaded"), *self._rows("turns.loading"), "DROP TABLE turns.loaded",
                "ALTER TABLE turns.loading RENAME TO loaded", *self._rows("turns.loaded"))

    def identity_nothing(self) -> tuple[str, ...]:
        n = self._n("identity_nothing")
        return ("ALTER TABLE turns.bare REPLICA IDENTITY NOTHING",
                f"INSERT INTO turns.bare VALUES ({1000 + n}, 'bare')",  # noqa: S608
                "ALTER TABLE turns.bare REPLICA IDENTITY DEFAULT", *self._rows("turns.bare"))

    def rename_value(self) -> tuple[str, ...]:
        n = self._n("rename_value")
        return (f"ALTER TYPE turns.mood RENAME VALUE 'mood {n}' TO 'mood {n + 1}'",)

    def rename_column(self) -> tuple[str, ...]:
        n = self._n("rename_column")
        return (f"ALTER TABLE turns.columned RENAME c_{n} TO c_{n + 1}",)
