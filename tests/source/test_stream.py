"""The copy stream of a real server: whole messages, back-pressure, feedback on its own timer [S2, S8]."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psycopg
import pytest

from millrace import limits
from millrace.errors import TimedOut
from millrace.model.tables import parse_lsn
from millrace.source.database.connect import Database
from millrace.source.reading.stream import Piece, Stream
from support_postgres import ask, run

SLOT, PUBLICATION = "s", "p"


def prepare(url: str) -> str:
    """A table and a publication; the name of a slot nobody else has."""
    slot = f"{SLOT}_{url.rpartition('/')[2]}"
    run(url, "CREATE TABLE t (id int PRIMARY KEY, v text)", f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t")
    ask(url, "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    return slot


@asynccontextmanager
async def streaming(url: str, slot: str, *, start: int = 0) -> AsyncIterator[Stream]:
    connection = await Database(url).connect_replication()
    stream = await Stream.open(connection, slot=slot, publication=PUBLICATION, start=start)
    try:
        yield stream
    finally:
        await stream.close()


async def take(stream: Stream, enough: Callable[[list[Piece]], bool]) -> list[Piece]:
    pieces: list[Piece] = []
    async with asyncio.timeout(20):
        while not enough(pieces):
            pieces.append(await stream.read())
    return pieces


def kinds(pieces: list[Piece]) -> bytes:
    return bytes(piece.chunk.message(i)[25] for piece in pieces for i in range(piece.chunk.count))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.02)


def test_S2_messages_come_whole_and_in_order(pg_url: str) -> None:
    slot = prepare(pg_url)
    run(pg_url, "INSERT INTO t SELECT g, repeat('x', 300) FROM generate_series(1, 8000) g",
        "DELETE FROM t WHERE id < 4")

    async def main() -> None:
        async with streaming(pg_url, slot) as stream:
            pieces = await take(stream, lambda found: kinds(found).count(b"C") == 2)
            assert kinds(pieces) == b"BR" + b"I" * 8000 + b"C" + b"B" + b"D" * 3 + b"C"
            sizes = [int(piece.chunk.starts[-1]) for piece in pieces]
            assert max(sizes) <= limits.CHUNK_BYTES + 1000       # a chunk ends with the message that fills it
            assert len(sizes) >= 2

    asyncio.run(main())


def test_S2_a_commit_after_a_pause_waits_for_nobody(pg18_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHUNK_WAIT_S", 1_000.0)
    slot = prepare(pg18_url)

    async def story() -> None:
        async with streaming(pg18_url, slot) as stream:
            run(pg18_url, "INSERT INTO t VALUES (1, 'alone')")
            assert kinds(await take(stream, lambda pieces: b"C" in kinds(pieces))).endswith(b"IC")

    asyncio.run(story())


def test_S8_a_row_of_many_megabytes_is_one_message(pg18_url: str) -> None:
    slot = prepare(pg18_url)
    run(pg18_url, "INSERT INTO t VALUES (1, repeat('0123456789', 2000000))")

    async def main() -> None:
        async with streaming(pg18_url, slot) as stream:
            pieces = await take(stream, lambda found: b"C" in kinds(found))
            assert max(int(piece.chunk.starts[-1]) for piece in pieces) > 20_000_000
            assert kinds(pieces) == b"BRIC"

    asyncio.run(main())


def test_S2_feedback_moves_the_slot_and_keepalives_tell_the_end(pg18_url: str) -> None:
    slot = prepare(pg18_url)

    async def main() -> None:
        async with streaming(pg18_url, slot) as stream:
            pieces = await take(stream, lambda found: any(piece.keepalive for piece in found))
            run(pg18_url, "INSERT INTO t VALUES (1, 'v')")
            pieces = await take(stream, lambda found: b"C" in kinds(found))
            stream.acknowledge(1)                # below what is confirmed: the server does not go back
            (end,) = ask(pg18_url, "SELECT pg_current_wal_lsn()::text")[0]
            stream.acknowledge(parse_lsn(end))

            async def confirmed() -> bool:
                query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
                return parse_lsn(ask(pg18_url, query, slot)[0][0]) == parse_lsn(end)

            await until(confirmed)
        assert pieces

    asyncio.run(main())


def test_S2_feedback_leaves_while_nobody_reads(pg18_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-pressure: more than the socket holds waits at the server, and it still hears of us."""
    monkeypatch.setattr(limits, "FEEDBACK_S", 0.05)
    slot = prepare(pg18_url)
    run(pg18_url, "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 20000) g")

    async def main() -> None:
        async with streaming(pg18_url, slot) as stream:
            await stream.read()
            received = stream.received_bytes
            query = ("SELECT reply_time FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid"
                     " WHERE s.slot_name = %s")
            times = {ask(pg18_url, query, slot)[0][0]}

            async def heard() -> bool:
                times.add(ask(pg18_url, query, slot)[0][0])
                return len(times) >= 3

            await until(heard)
            assert stream.received_bytes == received     # nothing was read
            await take(stream, lambda found: b"C" in kinds(found))

    asyncio.run(main())


def test_S2_a_stream_that_is_cut_raises(pg18_url: str) -> None:
    slot = prepare(pg18_url)

    async def main() -> None:
        async with streaming(pg18_url, slot) as stream:
            ask(pg18_url, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                          " WHERE slot_name = %s", slot)
            with pytest.raises(psycopg.OperationalError, match="terminat"):
                await take(stream, lambda _: False)

    asyncio.run(main())


def test_S2_a_silent_stream_is_given_up(pg18_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAM_ASK_S", 0.05)
    monkeypatch.setattr(limits, "STREAM_SILENCE_S", 0.3)
    slot = prepare(pg18_url)

    async def main() -> None:
        async with streaming(pg18_url, slot) as stream:
            (pid,) = ask(pg18_url, "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", slot)[0]
            os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(TimedOut, match="has sent nothing"):
                    await take(stream, lambda _: False)
            finally:
                os.kill(pid, signal.SIGCONT)

    asyncio.run(main())
