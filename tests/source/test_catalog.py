"""The catalogue is read as of one moment: a DDL between its queries is in all of the picture or in none [S7]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from millrace.source.database import catalog
from millrace.source.database.connect import Database
from support_postgres import run

TABLES = (
    "CREATE SCHEMA s",
    "CREATE TABLE s.t (id int PRIMARY KEY, n int NOT NULL UNIQUE, v text)",
    "CREATE TABLE s.p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE s.p1 PARTITION OF s.p FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE s.lone (id int PRIMARY KEY, v text)",
    "CREATE TABLE s.child () INHERITS (s.t)", "ALTER TABLE s.child ADD PRIMARY KEY (id)",
)
DDL = (
    "ALTER TABLE s.t DROP CONSTRAINT t_pkey", "ALTER TABLE s.t REPLICA IDENTITY USING INDEX t_n_key",
    "ALTER TABLE s.t RENAME v TO w", "ALTER TABLE s.p ATTACH PARTITION s.lone FOR VALUES FROM (100) TO (200)",
    "ALTER TABLE s.p DETACH PARTITION s.p1", "ALTER TABLE s.p1 ADD x int", "DROP TABLE s.child",
    "CREATE TABLE s.p2 PARTITION OF s.p FOR VALUES FROM (200) TO (300)", "CREATE TABLE s.new (id int)",
)
Hook = Callable[[int], None]


class Meddled:
    """A connection, and what happens in the database behind each of its statements."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], hook: Hook) -> None:
        self._connection, self._hook, self.count = connection, hook, 0

    async def execute(self, *arguments: Any) -> Any:
        done = await self._connection.execute(*arguments)
        self._hook(self.count)
        self.count += 1
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def picture(url: str, hook: Hook = lambda _: None) -> tuple[list[catalog.Table], int]:
    """The tables, without what is of no moment, and how many statements it took."""
    async def read() -> tuple[list[catalog.Table], int]:
        async with await Database(url, source="t", epoch=1).connect() as connection:
            meddled: Any = Meddled(connection, hook)
            try:
                found = await catalog.find_tables(meddled, lambda schema, _: schema == "s")
            finally:
                assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        return [replace(table, bytes=0, leaves=tuple(replace(leaf, blocks=0) for leaf in table.leaves))
                for table in found], meddled.count

    return asyncio.run(read())


def test_S7_a_ddl_between_the_queries_gives_no_mixed_picture(swept18_url: str) -> None:
    run(swept18_url, *TABLES)
    before, statements = picture(swept18_url)
    assert {table.name for table in before} == {"t", "p", "lone", "child"}
    for at in range(statements):
        seen, _ = picture(swept18_url, lambda n, at=at: run(swept18_url, *DDL) if n == at else None)  # type: ignore[misc]
        after, _ = picture(swept18_url)
        assert {table.name for table in after} == {"t", "p", "p1", "new"}
        assert seen in (before, after), f"behind statement {at}"
        run(swept18_url, "DROP SCHEMA s CASCADE", *TABLES)
        before, _ = picture(swept18_url)


def test_S7_leaves_are_those_that_hold_rows(swept_url: str) -> None:
    run(swept_url, *TABLES, "CREATE TABLE s.p3 PARTITION OF s.p FOR VALUES FROM (300) TO (400) PARTITION BY LIST (id)",
        "CREATE TABLE s.p31 PARTITION OF s.p3 FOR VALUES IN (301)")
    leaves = {table.name: [leaf.name for leaf in table.leaves] for table in picture(swept_url)[0]}
    assert leaves == {"t": ["t"], "p": ["p1", "p31"], "lone": ["lone"], "child": ["child"]}


def test_S7_inside_a_transaction_it_is_that_of_the_transaction(swept18_url: str) -> None:
    async def read() -> list[str]:
        async with (await Database(swept18_url, source="t", epoch=1).connect() as connection,
                    connection.transaction(force_rollback=True)):
            await connection.execute("CREATE TABLE s.mine (id int)")
            return [table.name for table in await catalog.find_tables(connection, lambda schema, _: schema == "s")]

    run(swept18_url, "CREATE SCHEMA s")
    assert asyncio.run(read()) == ["mine"]


def test_S7_an_error_leaves_no_transaction_behind(swept18_url: str) -> None:
    def harm(number: int) -> None:
        if number == 1:
            raise RuntimeError("of somebody else")

    with pytest.raises(RuntimeError):
        picture(swept18_url, harm)


def test_P7_tables_that_are_what_they_were_are_not_fetched_again(swept18_url: str) -> None:
    run(swept18_url, *TABLES)
    takes: catalog.Matches = lambda schema, _: schema == "s"    # noqa: E731

    async def read() -> None:
        watch = catalog.TablesWatch(takes)
        async with await Database(swept18_url, source="t", epoch=1).connect() as connection:
            async def look() -> tuple[list[catalog.Table], int]:
                counted: Any = Meddled(connection, lambda _: None)
                return await watch.find(counted), counted.count

            await look()
            known, _ = await look()
            assert known == await catalog.find_tables(connection, takes)
            changes = (*DDL, "INSERT INTO s.new SELECT generate_series(1, 1000)", "CREATE TYPE s.kind AS ENUM ()",
                       "ALTER TABLE s.new ADD kind s.kind", "ALTER TYPE s.kind RENAME TO sort")
            for statement in changes:
                again, statements = await look()
                assert (again, statements) == (known, 3), "begin, compare, end"
                await connection.execute(statement.encode())
                known, _ = await look()
                assert known == await catalog.find_tables(connection, takes), statement
                known, _ = await look()                         # of other tables than before: compared from here on
        assert connection.closed

    asyncio.run(read())
