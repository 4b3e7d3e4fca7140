"""Errands of the proof: what is asked of the source while writers write and processes are hurt.

    join: a table is made, with rows ──▶ it is taken up, copied, and written to at once
    attach: a table with rows becomes a partition of another ──▶ its rows are owed a copy
    copy: by command, a table is copied again

In: a database, a way to ask for a copy. Out: how many of each. A command that nobody answers is given again.
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
from psycopg import sql

from millrace.cli.exits import CommandFailed
from millrace.cli.prove_shop import STAGING
from millrace.cli.prove_writers import LOST_RACE

EVERY_S = (2.0, 4.0)
TABLES_MAX = 8                         # that join, and that are attached
ROWS = 400                             # of a table that joins: writers change some of them, never all
TRIES = 5                              # of a statement that loses a race
STAGED = 20                            # rows of a partition
COPIED = ("customers", "products", "orders", "order_lines", "carts", "stock", "sessions", "campaigns", "gauges",
          "sales")

Copy = Callable[[str], Any]


class Errands:
    """A thread, until it is left. `joined` gets the names of tables as they come."""

    def __init__(self, url: str, copy: Copy, seed: int, joined: list[str], say: Callable[[str], None]) -> None:
        self._url, self._copy, self._rng, self._joined, self._say = url, copy, random.Random(seed), joined, say
        self.counts: Counter[str] = Counter()
        self.ended_at = 0.0
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="errands", daemon=True)

    def __enter__(self) -> Errands:
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
            with psycopg.connect(self._url, autocommit=True) as db:
                while not self._stop.wait(self._rng.uniform(*EVERY_S)):
                    self._next(db)
        except Exception as error:
            self._error = error

    def _next(self, db: psycopg.Connection[Any]) -> None:
        """In turn."""
        done = self.counts
        if done["join"] < TABLES_MAX and done["join"] <= min(done["attach"], done["copy"]):
            name = self._join(db, done["join"])
        elif done["attach"] < TABLES_MAX and done["attach"] <= done["copy"]:
            name = self._attach(db, done["attach"])
        else:
            name = self._again()
        if name:
            self._say(name)

    def _join(self, db: psycopg.Connection[Any], number: int) -> str:
        name = f"joined_{number}"
        with db.transaction():
            db.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, v text)").format(sql.Identifier(name)))
            db.execute(sql.SQL("INSERT INTO {} SELECT g, 'there' FROM generate_series(1, {}) g").format(
                sql.Identifier(name), ROWS))
        self._joined.append(name)
        self.counts["join"] += 1
        return f"{name} joins"

    def _attach(self, db: psycopg.Connection[Any], number: int) -> str:
        name, region = sql.Identifier(f"{STAGING}{number}"), f"staged {number}"
        for text in ("CREATE TABLE {name} (LIKE sales INCLUDING ALL)",
                     "INSERT INTO {name} SELECT g, {region}, 'staged' FROM generate_series(1, {rows}) g",
                     "ALTER TABLE sales ATTACH PARTITION {name} FOR VALUES IN ({region})"):
            _insist(db, sql.SQL(text).format(name=name, region=region, rows=STAGED))
        self.counts["attach"] += 1
        return f"{STAGING}{number} is attached to sales"

    def _again(self) -> str:
        """Whoever could answer may be dead just now."""
        name = self._rng.choice([*COPIED, *self._joined])
        try:
            self._copy(f"public.{name}")
        except CommandFailed:
            return ""
        self.counts["copy"] += 1
        return f"{name} is copied again"


def _insist(db: psycopg.Connection[Any], statement: sql.Composed) -> None:
    """Writers hold locks on the same tables."""
    for _ in range(TRIES):
        try:
            db.execute(statement)
            return
        except LOST_RACE:
            continue
    db.execute(statement)
