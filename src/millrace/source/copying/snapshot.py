"""Holding an exported snapshot open while chunks are read in it [S4].

    slot's connection ──exports──▶ holder ──imports, exports again──▶ workers import, one transaction each

In: the name of a snapshot that is exported at this moment. Out: a name that can be imported as long as the holder
lives, and the news of its end. Promise: once `hold` has returned, the connection that made the slot is free; `lost` is
set soon after the snapshot is gone. A held snapshot holds back VACUUM everywhere in the database: it has a time limit.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
from psycopg import sql

from millrace.limits import SNAPSHOT_CHECK_S, SNAPSHOT_HOLD_MAX_S
from millrace.source.database.connect import Database


class SnapshotHolder:
    def __init__(self, database: Database, *, hold_max_s: float = SNAPSHOT_HOLD_MAX_S) -> None:
        self._database, self._hold_max_s = database, hold_max_s
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._watch: asyncio.Task[None] | None = None
        self.lost = asyncio.Event()
        self.reason = ""
        self.name = ""

    async def hold(self, exported: str) -> str:
        """The name for workers. Raises if the snapshot cannot be imported any more."""
        self._connection = await self._database.connect()
        try:
            with self._database.explained("import the snapshot"):
                self.name = await self._import(self._connection, exported)
        except BaseException:
            await self.release()
            raise
        self._watch = asyncio.create_task(self._watch_over(self._connection))
        return self.name

    async def hold_now(self) -> str:
        """A snapshot of this moment; as pg_current_snapshot() prints it."""
        self._connection = await self._database.connect()
        try:
            with self._database.explained("take a snapshot"):
                self.name, seen = await self._take(self._connection)
        except BaseException:
            await self.release()
            raise
        self._watch = asyncio.create_task(self._watch_over(self._connection))
        return seen

    async def release(self) -> None:
        """No chunk needs it any more."""
        self.name = ""
        try:
            if self._watch is not None:
                self._watch.cancel()
                await asyncio.gather(self._watch, return_exceptions=True)    # our own cancellation still comes through
                self._watch = None
        finally:
            if self._connection is not None:
                await self._connection.close()
                self._connection = None

    @staticmethod
    async def _take(connection: psycopg.AsyncConnection[Any]) -> tuple[str, str]:
        if connection.info.server_version >= 170000:
            await connection.execute("SET transaction_timeout = 0")
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor = await connection.execute(
            "SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::text")
        row = await cursor.fetchone()
        assert row is not None
        return str(row[0]), str(row[1])

    @staticmethod
    async def _import(connection: psycopg.AsyncConnection[Any], exported: str) -> str:
        if connection.info.server_version >= 170000:
            await connection.execute("SET transaction_timeout = 0")
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(exported)))
        cursor = await connection.execute("SELECT pg_catalog.pg_export_snapshot()")
        row = await cursor.fetchone()
        assert row is not None
        return str(row[0])

    async def _watch_over(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Asks now and then: a connection that is gone does not say so by itself."""
        try:
            async with asyncio.timeout(self._hold_max_s):
                while True:
                    await asyncio.sleep(SNAPSHOT_CHECK_S)
                    await connection.execute("SELECT 1")
        except TimeoutError:
            self.reason = f"held for {self._hold_max_s:g} s, which is the limit"
        except (psycopg.Error, OSError) as error:
            self.reason = self._database.masked(" ".join(str(error).split())) or type(error).__name__
        # Closed first: when somebody hears of the loss, no worker can import it any more.
        await connection.close()
        self.lost.set()
