"""Facts about slots and servers as real ones show them [S9]."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from millrace.core.sources.reader import ServerFacts
from millrace.errors import SlotLost, SlotMissing
from millrace.model.sources import SourceSpec
from millrace.source.database.connect import Database
from millrace.source.database.doctor import Finding, diagnose
from millrace.source.database.guard import SlotGuard, SlotState, server_facts, slot_state
from millrace.source.database.setup import Setup
from millrace.source.server.embedded import PostgresServer
from support_postgres import SMALL_WAL, ask, fill_wal, run, server_of


async def begin(url: str) -> int:
    setup = Setup(Database(url, source="shop"), SourceSpec(name="shop", url=url))
    await setup.ensure()
    made = await setup.create_slot()
    await made.connection.close()
    return made.consistent_point


def state_of(url: str, slot: str = "millrace_shop") -> SlotState | None:
    async def look() -> SlotState | None:
        async with await Database(url).connect() as connection:
            return await slot_state(connection, slot)

    return asyncio.run(look())


def facts_of(url: str) -> ServerFacts:
    async def look() -> ServerFacts:
        async with await Database(url).connect_replication() as connection:
            return await server_facts(connection)

    return asyncio.run(look())


def test_a_cancellation_is_not_lost_in_an_error_of_the_statement_that_it_ends(swept_url: str) -> None:
    """Otherwise a reader that was told to stop would take the error for a table's and go on."""
    statement = "DO $$ BEGIN PERFORM pg_sleep(30); EXCEPTION WHEN query_canceled THEN RAISE 'something else'; END $$"

    async def main() -> None:
        async with await Database(swept_url, source="s").connect() as connection:
            task = asyncio.create_task(connection.execute(statement))
            async with await Database(swept_url, source="s").connect() as other:
                while True:
                    cursor = await other.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
                                                 " AND datname = current_database()")
                    row = await cursor.fetchone()
                    if row is not None and row[0]:
                        break
            task.cancel()
            await asyncio.wait([task], timeout=20)
            assert task.cancelled()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await connection.execute(statement)

    asyncio.run(main())


def test_S9_a_slot_is_seen_as_it_is(swept_url: str) -> None:
    assert state_of(swept_url) is None
    consistent_point = asyncio.run(begin(swept_url))
    state = state_of(swept_url)
    assert state is not None
    assert state.confirmed_flush == consistent_point
    assert (state.active_pid, state.is_lost, state.facts.wal_status, state.plugin) == (
        None, False, "reserved", "pgoutput")
    assert state.budget_bytes == 4 << 30
    before = state.retained_bytes
    run(swept_url, "SELECT pg_logical_emit_message(false, 'filler', repeat('x', 3000000))")
    state = state_of(swept_url)
    assert state is not None
    assert state.retained_bytes - before >= 3_000_000
    state.check()


@pytest.mark.parametrize("version", [15, 18])
def test_S9_a_slot_warns_then_is_lost_and_streaming_from_it_is_refused(version: int) -> None:
    levels = []
    with server_of(version, SMALL_WAL) as server:
        url = server.url()
        asyncio.run(begin(url))
        guard = SlotGuard()
        for second in range(30):
            state = state_of(url)
            assert state is not None
            health = guard.look(state, float(second))
            levels.append(health.level)
            if state.is_lost:
                break
            fill_wal(url)
        assert list(dict.fromkeys(levels)) == ["ok", "warn", "urgent", "lost"]
        with pytest.raises(SlotLost, match="copied again"):
            state.check()
        with pytest.raises(SlotLost):
            asyncio.run(start_streaming(url, "millrace_shop"))
        with pytest.raises(SlotMissing):
            asyncio.run(start_streaming(url, "no_such_slot"))
        said = [f for f in examine(url) if f.severity == "error"]
        assert [f.code for f in said] == ["slot_lost"]
        run(url, *said[0].repair)
        assert [f.code for f in examine(url) if f.severity == "error"] == []


def examine(url: str) -> list[Finding]:
    return asyncio.run(diagnose(url, ("*.*",), SourceSpec(name="shop", url=url)))


async def start_streaming(url: str, slot: str) -> Any:
    database = Database(url)
    async with await database.connect_replication() as connection:
        with database.explained("stream"):
            await connection.execute(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1',"
                                     " publication_names 'millrace_shop')".encode())


@pytest.mark.parametrize("version", [15, 18])
def test_S9_a_promoted_server_has_the_same_system_and_a_timeline_with_its_history(
        postgres_18: PostgresServer, version: int) -> None:
    first = facts_of(postgres_18.url())
    assert (first.timeline, first.history) == (1, ())
    with server_of(version) as other:
        assert facts_of(other.url()).system_id != first.system_id
        end = ask(other.url(), "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0]
        before = facts_of(other.url())
        other.stop()
        signal_file = os.path.join(other.data_dir, "standby.signal")
        with open(signal_file, "w", encoding="ascii"):
            pass
        other.start()
        run(other.url(), "SELECT pg_promote()")
        after = facts_of(other.url())
        assert (after.system_id, after.timeline) == (before.system_id, 2)
        assert [timeline for timeline, _ in after.history] == [1]
        assert after.history[0][1] >= end
