"""Schema changes of the proof's shop, each with rows of its own transaction around it.

In: a connection inside a transaction. Out: columns added with and without a default, dropped, renamed, retyped; a table
renamed, one truncated. A row stands behind each, since the stream tells the new form of a table with its first row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import sql

from millrace.cli.prove_changes import Changes, Step
from millrace.cli.prove_shop import GIVEN

KINDS = ("int", "bigint", "text")      # of a column that gets another type again and again


@dataclass
class Mine:
    """What the writer of schema changes has made of its tables."""

    serial: int = 0
    season: int = 0
    kind: int = 0                                           # of `gauges.amount`
    columns: list[str] = field(default_factory=list)        # added to `campaigns`
    given: list[str] = field(default_factory=list)          # added to `gauges`

    def next(self) -> int:
        self.serial += 1
        return self.serial

    def copy(self) -> Mine:
        return replace(self, columns=list(self.columns), given=list(self.given))


class SchemaChanges(Changes):
    """What is not committed did not happen: whoever rolls back puts `mine` back, too."""

    def __init__(self, db: psycopg.Connection[Any], seed: int, *, number: int, joined: Sequence[str] = ()) -> None:
        super().__init__(db, seed, number=number, joined=joined)
        self.mine = Mine()
        self.schema_changes: list[Step] = [
            self.add_column, self.give_column, self.rename_column, self.truncate, self.retype_column, self.rename_table,
            self.add_column, self.take_column, self.drop_column]

    def add_column(self) -> None:
        mine = self.mine
        mine.columns.append(f"x{mine.next()}")
        self.db.execute(_altered("campaigns", "ADD COLUMN {} text", mine.columns[-1]))
        self._touch()
        self.db.execute(sql.SQL("UPDATE campaigns SET {} = 'set' WHERE id % 3 = 0").format(
            sql.Identifier(mine.columns[-1])))

    def drop_column(self) -> None:
        if columns := self.mine.columns:
            self.db.execute(_altered("campaigns", "DROP COLUMN {}", columns.pop(self.rng.randrange(len(columns)))))
            self._touch()

    def rename_column(self) -> None:
        if columns := self.mine.columns:
            at = self.rng.randrange(len(columns))
            old, columns[at] = columns[at], f"renamed {self.mine.next()}"
            self.db.execute(_altered("campaigns", "RENAME COLUMN {} TO {}", old, columns[at]))
            self._touch()

    def _touch(self) -> None:
        self.db.execute("INSERT INTO campaigns (id, a) VALUES (0, 'seen') ON CONFLICT (id) DO UPDATE SET a = 'seen'")

    def give_column(self) -> None:
        """Rows that are there have its default, and no row of the stream says so. Half of them have another name by the
        time that anybody can look at the catalogue."""
        given = f"{GIVEN} {self.mine.next()}"
        self.mine.given.append(given)
        self.db.execute(_altered("gauges", f"ADD COLUMN {{}} text DEFAULT '{given}'", given))
        self._gauge()
        if self.mine.serial % 2:
            self.mine.given[-1] = f"kept {self.mine.serial}"
            self.db.execute(_altered("gauges", "RENAME COLUMN {} TO {}", given, self.mine.given[-1]))
            self._gauge()

    def take_column(self) -> None:
        """One of those given; the newest stays, so that rows at the end show it."""
        if len(self.mine.given) > 1:
            self.db.execute(_altered("gauges", "DROP COLUMN {}", self.mine.given.pop(0)))
            self._gauge()

    def retype_column(self) -> None:
        """Rows that are there are written anew, and no row of the stream says so."""
        self.mine.kind = (self.mine.kind + 1) % len(KINDS)
        self.db.execute(_altered("gauges", f"ALTER amount TYPE {(kind := KINDS[self.mine.kind])} USING amount::{kind}"))
        self._gauge()

    def _gauge(self) -> None:
        self.db.execute("INSERT INTO gauges (id, v) VALUES (0, 'seen') ON CONFLICT (id) DO UPDATE SET v = 'seen'")

    def seasons(self) -> None:
        self.put(sql.Identifier(f"season_{self.mine.season}"), "id", "v")

    def rename_table(self) -> None:
        self.seasons()
        old = f"season_{self.mine.season}"
        self.mine.season += 1
        self.db.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(
            sql.Identifier(old), sql.Identifier(f"season_{self.mine.season}")))
        self.seasons()

    def truncate(self) -> None:
        self.sessions()
        self.db.execute("TRUNCATE sessions")
        self.sessions()


def _altered(table: str, text: str, *names: str) -> sql.Composed:
    body = sql.SQL(text).format(*map(sql.Identifier, names))
    return sql.SQL("ALTER TABLE {} {}").format(sql.Identifier(table), body)
