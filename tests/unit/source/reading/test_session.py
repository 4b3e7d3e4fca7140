"""One session on a real broker: what counts as a cut, what is handed over when, what is taken for ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import support_pgoutput as pg
from millrace import limits
from millrace.core.sources.registry import Table, table_topic
from millrace.model.progress import Change, HighMark, LowMark, Mark, SchemaVersion
from millrace.model.tables import Column, Place, TableSchema
from millrace.source.database.sql import message_prefix
from millrace.source.reading.status import ReaderStatus
from support_brokers import until
from support_session import OID, SOURCE, TABLE, T, World, a_session, begin, commit, insert, piece

WIDER = TableSchema(OID, "public", "t", "d", (*T.columns, Column("w", 23)))


def run(tmp_path: Path, story: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with a_session(tmp_path) as world:
            await story(world)

    asyncio.run(main())


def test_S3_a_keep_alive_inside_an_open_transaction_is_no_cut(tmp_path: Path) -> None:
    """Its WAL end may be above the commit that is to come: what is resolved is never sent again."""
    async def story(world: World) -> None:
        await world.take(begin(300), pg.relation(T), insert(1), keepalive=900)
        assert await world.resolved() == 100
        assert world.shared.status.server_end == 0
        await world.take(insert(2), commit(300))
        assert await world.resolved() == 300
        await world.take(keepalive=900)
        assert await world.resolved() == 899, "a commit may begin at the WAL's end itself"
        assert await world.rows() == 2

    run(tmp_path, story)


def test_S8_a_streamed_transaction_counts_when_it_commits_and_a_keep_alive_before_does_not_resolve_it(
    tmp_path: Path,
) -> None:
    async def story(world: World) -> None:
        block = [pg.stream_start(7), pg.streamed(pg.relation(T), 7), pg.streamed(insert(1), 7),
                 pg.streamed(insert(2), 8), pg.stream_stop()]
        await world.take(*block)
        assert world.shared.status.spooled_bytes > 0
        assert await world.rows() == 0
        await world.take(pg.stream_abort(7, 8))
        await world.take(pg.stream_commit(7, 400, 408, 5))
        assert await world.resolved() == 400
        assert (await world.rows(), world.shared.status.spooled_bytes) == (1, 0), "the subtransaction was aborted"
        assert world.session.decoder.open is None

    run(tmp_path, story)


def test_S3_rows_behind_the_last_commit_of_a_chunk_are_behind_its_cut(tmp_path: Path) -> None:
    """Else the end that a mark names would stand behind rows that are not resolved."""
    async def story(world: World) -> None:
        await world.take(begin(300), pg.relation(T), insert(1), commit(300), begin(500), insert(2))
        await world.lanes.flush()
        mark = world.session.core.mark_due(float("inf"))
        assert mark is not None
        (end,) = mark.ends
        placed = await world.headers()
        assert [header.last for header in placed] == [Place(300, 0), Place(500, 0)]
        _, log_end = await world.client.ends(TABLE.topic, 0)
        assert (mark.resolved, end.offset) == (300, log_end - 1)

    run(tmp_path, story)


def test_S3_what_an_earlier_reader_has_written_is_left_out_to_the_row(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.session = world.begin(tails={(OID, 0): Place(300, 0)})
        await world.take(begin(300), pg.relation(T), insert(1), insert(2), commit(300))
        await world.lanes.flush()
        assert [header.first for header in await world.headers()] == [Place(300, 1)]

    run(tmp_path, story)


def test_S7_a_schema_stands_in_progress_before_its_first_row_and_a_change_before_its_marker(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.take(begin(300), pg.relation(T), insert(1), commit(300))
        assert [one.table.id for one in await world.progress() if isinstance(one, SchemaVersion)] == [T.id]
        await world.take(begin(400), pg.relation(WIDER), pg.insert(OID, [b"2", b"x", b"3"]), commit(400))
        await world.lanes.flush()
        told = [one for one in await world.progress() if isinstance(one, SchemaVersion | Change)]
        assert [type(one) for one in told] == [SchemaVersion, SchemaVersion, Change]
        kinds = [(header.kind.name, header.last) for header in await world.headers()]
        assert kinds == [("ROWS", Place(300, 0)), ("MARKER", Place(400, 0)), ("ROWS", Place(400, 1))]

    run(tmp_path, story)


def test_S12_a_truncation_is_told_once_over_sessions(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        told = [begin(300), pg.relation(T), insert(1), pg.truncate([OID]), commit(300)]
        await world.take(*told)
        await world.lanes.flush()
        world.shared.kept(world.session.batcher)
        world.session = world.begin(tails=world.shared.standing.tails)
        await world.take(*told)                          # the server sends it again: no mark stands yet
        await world.lanes.flush()
        changes = [one.kind for one in await world.progress() if isinstance(one, Change)]
        assert changes == ["truncate"]
        assert [header.kind.name for header in await world.headers()] == ["ROWS", "MARKER"]

    run(tmp_path, story)


def test_S12_a_table_takes_the_name_of_one_dropped_in_its_transaction_and_every_reader_says_it_alike(
    tmp_path: Path,
) -> None:
    """Behind the drop nothing is said of the dropped table, also by a reader that begins later."""
    other = Table(OID + 1, "public", "u", table_topic(SOURCE, OID + 1), 1, 1)
    u, taken = (TableSchema(other.oid, "public", name, "d", T.columns) for name in "ut")

    def said(**content: object) -> bytes:
        return pg.message(message_prefix(SOURCE), msgspec.json.encode(content), 5)

    async def story(world: World) -> None:
        await world.take(begin(300), pg.relation(T), insert(1), pg.relation(u), pg.insert(other.oid, [b"1", b"x"]),
                         commit(300))
        swap = [begin(400), insert(2), said(kind="drop", oid=OID), pg.relation(taken),
                pg.insert(other.oid, [b"2", b"x"]), commit(400)]
        await world.take(*swap)
        await world.lanes.flush()
        told = [(one.oid, one.kind, one.seq) for one in await world.progress() if isinstance(one, Change)]
        assert told == [(OID, "drop", 1), (other.oid, "alter", 2)]
        assert [header.last for header in await world.headers()] == [Place(300, 0), Place(400, 0), Place(400, 1)]
        schemas = world.shared.standing.schemas
        assert (schemas.dropped_at(300), schemas.dropped_at(400)) == (set(), {OID})
        world.shared.kept(world.session.batcher)
        world.session = world.begin(resolved=300, tails=world.shared.standing.tails)
        await world.take(*swap)
        await world.lanes.flush()
        assert len(await world.headers()) == 3, "all of it stands there"
        assert len([one for one in await world.progress() if isinstance(one, Change)]) == 2

    async def main() -> None:
        async with a_session(tmp_path, (TABLE, other)) as world:
            await story(world)

    asyncio.run(main())


def test_S12_a_table_that_is_dropped_while_it_gets_its_topics_is_told_as_dropped(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        del world.shared.partitions[OID]

        async def joined(oid: int) -> bool:
            """The keeper had begun to open it."""
            world.shared.partitions[oid] = 1
            world.shared.standing.schemas.use(T, Place(100, -1))
            return True

        world.session._news = replace(world.session._news, joined=joined)
        content = msgspec.json.encode({"kind": "drop", "oid": OID})
        await world.take(begin(300), pg.message(message_prefix(SOURCE), content, 5), commit(300))
        await world.lanes.flush()
        told = [(one.oid, one.kind, one.commit_lsn) for one in await world.progress() if isinstance(one, Change)]
        assert told == [(OID, "drop", 300)]
        assert [one["kind"] for one in world.ddl] == ["drop"]

    run(tmp_path, story)


def test_S4_marks_of_copies_are_written_for_this_generation_only_and_told_once_they_stand(tmp_path: Path) -> None:
    def mark(kind: str, generation: int) -> bytes:
        content = {"kind": kind, "generation": generation, "copy": 1, "chunk": 2, "attempt": 3}
        return pg.message(message_prefix(SOURCE), msgspec.json.encode(content), 7)

    async def story(world: World) -> None:
        await world.take(begin(300), mark("low", 1), mark("low", 2), mark("high", 1), commit(300))
        await until(lambda: world.high_marks, "the mark to stand")
        told = await world.progress()
        assert told == [LowMark(1, 1, 2, 3, 300), HighMark(1, 1, 2, 3, 300)]
        assert [tuple(one) for one in world.high_marks] == [(1, 2, 3)]

    run(tmp_path, story)


@pytest.mark.parametrize("content", [
    b"\xff\xfe", b"{", b"[1]", b'{"kind": "low"}', b'{"kind": "low", "copy": "x", "chunk": 1, "attempt": 1}',
    b'{"kind": "ddl", "oid": "many"}', b'{"kind": "drop", "oid": null}', b'{"kind": 5}', b'{"a": ' + b"[" * 100_000,
])
def test_S9_a_message_of_somebody_else_under_our_prefix_ends_nothing(tmp_path: Path, content: bytes) -> None:
    """Whoever may write to the database may write one; a reader that ended would meet it again for ever."""
    async def story(world: World) -> None:
        await world.take(begin(300), pg.message(message_prefix(SOURCE), content, 7), pg.relation(T), insert(1),
                         commit(300))
        assert await world.resolved() == 300
        assert (await world.rows(), world.ddl) == (1, [])

    run(tmp_path, story)


def test_S8_a_row_above_the_hard_limit_is_told_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANGE_ROW_BYTES_MAX", 10)

    async def story(world: World) -> None:
        await world.take(begin(300), pg.relation(T), insert(1), commit(300))
        assert await world.resolved() == 300
        assert (world.oversize, await world.rows()) == ([Place(300, 0)], 0)

    run(tmp_path, story)


def test_S8_reading_stops_while_the_log_is_behind_and_goes_on_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_PENDING_BYTES_MAX", 100)

    async def story(world: World) -> None:
        status: ReaderStatus = world.shared.status
        status.state = "streaming"
        answered = asyncio.get_running_loop().create_future()
        world.lanes._watch(answered, 101, None)          # as an append that nobody has answered yet
        pump = asyncio.create_task(world.session._pump())
        await until(lambda: status.state == "waiting", "it to wait")
        assert status.why == "the log has not acknowledged 101 bytes yet"
        world.stream.pieces.put_nowait(piece(begin(300), pg.relation(T), insert(1), commit(300)))
        answered.set_result(0)
        await until(lambda: (status.rows, status.state) == (1, "streaming"), "it to go on")
        assert status.why == ""
        pump.cancel()

    run(tmp_path, story)


def test_S3_feedback_never_passes_what_a_durable_mark_has_resolved(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        running = asyncio.create_task(world.session.run())
        world.stream.pieces.put_nowait(piece(begin(300), pg.relation(T), insert(1), commit(300)))
        await until(lambda: world.stream.acknowledged == 301, "feedback")
        marks = [one for one in await world.progress() if isinstance(one, Mark)]
        assert marks[-1].resolved == 300
        assert world.session.lag_s == 0.0
        assert world.shared.standing.mark is not None
        assert world.shared.standing.mark.resolved == 300
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(tmp_path, story)
