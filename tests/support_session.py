"""One session of a source's reader on one real broker; the database's side of the stream is played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import support_pgoutput as pg
from millrace.core.sources.copies import Attempt
from millrace.core.sources.moves import Move
from millrace.core.sources.reader import P, Resume
from millrace.core.sources.registry import Table, progress_topic, table_topic
from millrace.log.client import LogClient
from millrace.model.progress import ProgressRecord, decode_progress
from millrace.model.tables import Column, Lsn, Oid, Place, TableSchema
from millrace.ops.real import real_ports
from millrace.source.reading.lanes import Lanes
from millrace.source.reading.moves import moves_of
from millrace.source.reading.scan import Standing, header_of
from millrace.source.reading.schemas import ProgressFold
from millrace.source.reading.session import News, Session, Shared
from millrace.source.reading.spool import Spool
from millrace.source.reading.status import ReaderStatus
from millrace.source.reading.stream import Piece
from millrace.wire.changes import BatchHeader, BatchKind
from millrace.wire.pg.chunks import join
from millrace.wire.pg.messages import Rows
from support_kafka import one_broker
from support_secret import LOG_KEY

SOURCE, OID, EPOCH = "shop", 16400, 3
T = TableSchema(OID, "public", "t", "d", (Column("id", 20, -1, True), Column("v", 25)))
TABLE = Table(OID, "public", "t", table_topic(SOURCE, OID), 1, 1)


class Stream:
    """Pieces come from the test; what is acknowledged is noted."""

    def __init__(self) -> None:
        self.acknowledged: Lsn = 0
        self.pieces: asyncio.Queue[Piece] = asyncio.Queue()

    async def read(self) -> Piece:
        return await self.pieces.get()

    def acknowledge(self, lsn: Lsn) -> None:
        self.acknowledged = max(self.acknowledged, lsn)

    async def close(self) -> None:
        pass


def piece(*bodies: bytes, keepalive: Lsn = 0) -> Piece:
    return Piece(join([pg.xlog(body) for body in bodies]), keepalive)


def insert(number: int) -> bytes:
    return pg.insert(OID, [str(number).encode(), b"x"])


def begin(lsn: Lsn) -> bytes:
    return pg.begin(lsn, 5, lsn & 0xFFFF)


def commit(lsn: Lsn) -> bytes:
    return pg.commit(lsn, lsn + 8, 5)


class World:
    def __init__(self, client: LogClient, lanes: Lanes, shared: Shared) -> None:
        self.client, self.lanes, self.shared = client, lanes, shared
        self.stream = Stream()
        self.ddl: list[dict[str, Any]] = []
        self.high_marks: list[Attempt] = []
        self.oversize: list[Place] = []
        self.moved: list[list[Move] | None] = []
        self.session = self.begin()

    def begin(self, resolved: Lsn = 100, tails: dict[P, Place] | None = None) -> Session:
        async def stranger(table: TableSchema, lsn: Lsn) -> bool:
            return False

        async def altered(before: TableSchema, now: TableSchema) -> None:
            pass

        async def ddl(content: dict[str, Any]) -> None:
            self.ddl.append(content)

        async def oversize(table: TableSchema, place: Place, size: int) -> None:
            self.oversize.append(place)

        async def joined(oid: int) -> bool:
            return False

        async def moved(rows: Rows) -> None:
            self.moved.append(moves_of(rows))

        news = News(stranger=stranger, altered=altered, ddl=ddl, high_mark=self.high_marks.append, oversize=oversize,
                    joined=joined, moved=moved)
        resume = Resume(generation=1, resolved=resolved, tails=tails or {}, log_ends=self.shared.standing.log_ends)
        return Session(self.shared, self.stream, resume, news, system_id="s", timeline=1)  # type: ignore[arg-type]

    async def take(self, *bodies: bytes, keepalive: Lsn = 0) -> None:
        await self.session._take(piece(*bodies, keepalive=keepalive))

    async def resolved(self) -> Lsn:
        """What would be marked now that all is acknowledged."""
        await self.lanes.flush()
        mark = self.session.core.mark_due(float("inf"))
        if mark is None:
            return self.session.core.resolved
        self.session.core.mark_acked()
        return mark.resolved

    async def progress(self) -> list[ProgressRecord]:
        return [decode_progress(bytes(value)) for value in await self.values(progress_topic(SOURCE))]

    async def values(self, topic: str) -> list[bytes]:
        start, end = await self.client.ends(topic, 0)
        pages = [page async for page in self.client.read(topic, 0, start, end)]
        return [bytes(record.value or b"") for page in pages for record in page]

    async def headers(self) -> list[BatchHeader]:
        start, end = await self.client.ends(TABLE.topic, 0)
        pages = [page async for page in self.client.read(TABLE.topic, 0, start, end)]
        return [header_of(record) for page in pages for record in page]

    async def rows(self) -> int:
        return sum(header.rows for header in await self.headers() if header.kind is BatchKind.ROWS)


@asynccontextmanager
async def a_session(directory: Path, tables: Sequence[Table] = (TABLE,)) -> AsyncIterator[World]:
    ports = real_ports()
    async with one_broker(directory) as node, LogClient([f"127.0.0.1:{node.port}"], key=LOG_KEY) as client:
        writer = await client.new_writer_id()
        lanes = Lanes(client, clock=ports.clock, progress=progress_topic(SOURCE), fences=[(writer, EPOCH)])
        await lanes.open_progress()
        opened = await lanes.open_tables(tables)
        standing = Standing(mark=None, schemas=ProgressFold(1).schemas(-1), tails={},
                            log_ends={p: one.end for p, one in opened.items()})
        partitions: dict[Oid, int] = {table.oid: table.partitions for table in tables}
        shared = Shared(source=SOURCE, epoch=EPOCH, clock=ports.clock, lanes=lanes, status=ReaderStatus(),
                        spool=Spool(str(directory / "spool")), partitions=partitions, standing=standing)
        try:
            yield World(client, lanes, shared)
        finally:
            lanes.close()
