"""Writers of the proof's shop: every kind of change that an application makes, by a seed.

    Writer (a connection and a thread each) ──transactions──▶ the shop's tables

Inserts, updates with and without their large values, changes and exchanges of keys, deletes, several changes of one key
in a transaction, savepoints rolled back, transactions larger than the server's memory for decoding; the first writer
also adds columns with and without a default, drops, renames and retypes them, renames a table and truncates one, amidst
changes of the same transaction. Tables that join later are written to as soon as they are there.
What loses a race is rolled back and counted; any other error ends the writer and is told.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import psycopg
from psycopg import errors, sql

from millrace.cli.prove_changes import Step
from millrace.cli.prove_schema import SchemaChanges
from millrace.cli.prove_shop import HOSTILE, SMALL, small

BULK_ROWS = 3_000
BULK_EVERY = 150                       # steps of a writer
SCHEMA_S = 1.5                         # between schema changes: 400 in ten minutes, each a barrier, each fourth a copy
LOST_RACE = (errors.DeadlockDetected, errors.UniqueViolation, errors.SerializationFailure, errors.LockNotAvailable)

TOUCH = """
INSERT INTO customers VALUES (0, 'first'); INSERT INTO products VALUES (0, 'first'); INSERT INTO orders VALUES (0);
INSERT INTO order_lines VALUES (0, 0); INSERT INTO carts VALUES (0); INSERT INTO stock VALUES (0, 'first');
INSERT INTO visits VALUES (0, 'first'); INSERT INTO imports VALUES (0); INSERT INTO sessions VALUES (0);
INSERT INTO campaigns VALUES (0, 'seen'); INSERT INTO gauges VALUES (0, 'seen'); INSERT INTO season_0 VALUES (0);
INSERT INTO sales VALUES (0, 'north');
"""


class Writer(SchemaChanges):
    """`step` runs one transaction and says what it was."""

    def __init__(self, db: psycopg.Connection[Any], seed: int, *, number: int, joined: Sequence[str] = ()) -> None:
        super().__init__(db, seed, number=number, joined=joined)
        self._altered, self._alter_at = 0, 0.0

    def touch_all(self) -> None:
        """A row in every table, so that whoever watches knows each of them before it changes its form."""
        with self.db.transaction():
            self.db.execute(TOUCH)
            for number in range(SMALL):
                self.put(sql.Identifier(small(number)), "id", "v")
            for schema, table, key, value in HOSTILE:
                self.put(sql.Identifier(schema, table), key, value)

    def step(self) -> str:
        self.steps += 1
        try:
            return self._step()
        except LOST_RACE:
            return "lost a race"

    def _step(self) -> str:
        if self.steps % BULK_EVERY == (self.number + 1) * 40:
            return self.bulk()
        if self.number == 0 and time.monotonic() >= self._alter_at:
            self._alter_at = time.monotonic() + SCHEMA_S
            self._altered += 1
            return self._alter(self.schema_changes[self._altered % len(self.schema_changes)])
        shape = self.rng.choices([self._plain, self._several, self._rolled_back, self._savepoints], [50, 25, 8, 17])[0]
        with self.db.transaction(force_rollback=shape == self._rolled_back):
            shape()
        return shape.__name__.strip("_")

    def _alter(self, change: Step) -> str:
        """What is not committed did not happen to our own memory either."""
        before = self.mine.copy()
        try:
            with self.db.transaction():
                self.change()
                change()
                self.change()
        except LOST_RACE:
            self.mine = before
            raise
        return change.__name__

    # -- transactions ----------------------------------------------------------------------------------------------

    def _plain(self) -> None:
        self.change()

    def _several(self) -> None:
        for _ in range(self.rng.randrange(2, 10)):
            self.change()

    def _rolled_back(self) -> None:
        self._several()

    def _savepoints(self) -> None:
        """Aborted inside kept, kept inside aborted."""
        self.change()
        with self.db.transaction(force_rollback=self.rng.random() < 0.6):
            self.change()
            with self.db.transaction(force_rollback=self.rng.random() < 0.5):
                self.change()
        self.change()

    def bulk(self) -> str:
        """Larger than the server's memory for decoding: it is sent before it is committed."""
        first = (self.number + 1) * 1_000_000_000 + self.steps * BULK_ROWS
        kind = self.rng.choice(["bulk", "bulk_rolled_back", "bulk_savepoint"])
        half = BULK_ROWS // 2
        with self.db.transaction(force_rollback=kind == "bulk_rolled_back"):
            self._bulk(first, half)
            with self.db.transaction(force_rollback=kind == "bulk_savepoint"):
                self._bulk(first + half, half)
            self.db.execute("UPDATE imports SET n = n + 1 WHERE id BETWEEN %s AND %s", (first, first + half // 4))
            self.db.execute("DELETE FROM imports WHERE id BETWEEN %s AND %s", (first, first + half // 8))
        return kind

    def _bulk(self, first: int, rows: int) -> None:
        self.db.execute("INSERT INTO imports SELECT g, g %% 13, 'note ' || g FROM generate_series(%s::bigint, %s) g",
                        (first, first + rows - 1))


# -- threads -----------------------------------------------------------------------------------------------------------


class Writers:
    """Threads that write until they are stopped."""

    def __init__(self, url: str, *, seed: int, count: int, pause_s: float) -> None:
        self._url, self._seed, self._count, self._pause_s = url, seed, count, pause_s
        self.counts: Counter[str] = Counter()
        self.joined: list[str] = []                         # tables that came later
        self._closing = threading.Event()
        self._errors: list[Exception] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Writers:
        with psycopg.connect(self._url) as db:
            Writer(db, self._seed, number=self._count).touch_all()
        for number in range(self._count):
            thread = threading.Thread(target=self._run, args=(number,), name=f"writer-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end()

    def stop(self) -> Counter[str]:
        """After it, all transactions are committed or gone; raises what ended a writer."""
        self._end()
        if self._errors:
            raise self._errors[0]
        return self.counts

    def _end(self) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        counts: Counter[str] = Counter()
        try:
            with psycopg.connect(self._url, autocommit=True, prepare_threshold=None) as db:
                writer = Writer(db, self._seed, number=number, joined=self.joined)
                while not self._closing.wait(self._pause_s):
                    counts[writer.step()] += 1
        except Exception as error:
            self._errors.append(error)
        self.counts.update(counts)
