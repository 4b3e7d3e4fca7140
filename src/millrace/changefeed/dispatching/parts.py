"""Parts of a dispatcher: one source partition each, of a table's stream or of a copy, with its take-over [V11, S4].

    StreamPart ── meet ──▶ core.delivery.meeting ──▶ CopyPart for every copy that is begun, or whose turn it is
        └─ goal ─▶ core.delivery.merging ─▶ a goal of one of its copies, or of the stream

Promise: nothing of the stream is planned before every copy that is known and begun is taken over or done; a copy's plan
names the position of the stream, which is claimed with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import NamedTuple
from uuid import UUID

from millrace import limits
from millrace.changefeed.dispatching.progress import SourceProgress
from millrace.changefeed.dispatching.targets import LogTargets
from millrace.changefeed.feeds.ports import Work
from millrace.changefeed.shapes import Shapes
from millrace.core.delivery.copies import Book
from millrace.core.delivery.meeting import BEGINNING, Meeting
from millrace.core.delivery.merging import CopyGoal, Stands
from millrace.core.delivery.source_marks import Goal, Look, next_step
from millrace.core.delivery.takeover import Takeover
from millrace.core.delivery.taking import State
from millrace.errors import PositionExists, PositionMissing, TableRefused
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.positions import NOT_SHOWN, Point, PositionKey, StoredPosition
from millrace.model.rounds import CopyPiece, CopyWork
from millrace.model.spans import TablePartition
from millrace.model.tables import TableSchema
from millrace.model.writes import WriteResult
from millrace.pipeline.kafka.holds import Holds
from millrace.pipeline.kafka.home import LogHome
from millrace.pipeline.kafka.takeover import Taker, Turns


class Around(NamedTuple):
    """What all parts of a dispatcher share; `holds`: with those of others, too."""

    client: LogClient
    progress: SourceProgress
    shapes: Shapes
    work: Work
    turns: Turns
    holds: Holds


class Part:
    """One source partition. `source_topic`: its id and name. `shown`: of a position, to tools."""

    def __init__(
        self, around: Around, source_topic: tuple[UUID, str], partition: int,
        shown: Callable[[Point], int] = lambda at: NOT_SHOWN,
    ) -> None:
        work = around.work
        self.around, self.source_topic = around, source_topic
        self.table_partition = TablePartition(work.span.table, partition)
        self.machine = Takeover(PositionKey(work.feed, source_topic[0], partition), work.dispatcher.epoch)
        self.step = limits.ROUND_OFFSETS_FIRST
        self.lister = LogTargets(around.client, feed=work.feed, source=work.span.table.source, shapes=around.shapes,
                                 tables=self.versions)
        home = LogHome(around.client, maintainer=work.maintainer, shown=shown, holds=around.holds)
        self.taker = Taker(self.machine, around.client, home, self.lister, around.turns)

    def versions(self) -> list[TableSchema]:
        """That rows at or beyond its position may have; the newest last."""
        raise NotImplementedError

    @property
    def at(self) -> Point:
        assert self.machine.position is not None
        return self.machine.position.at

    def moved(self, result: WriteResult, from_: Point) -> None:
        if result.outcome != "unknown":
            moved = result.to.offset - from_.offset
            self.step = next_step(self.step, done=result.outcome == "done", moved=moved)

    async def look_around(self, now: float) -> int:
        """Between rounds: greater epochs and other targets are seen, ends move up. The epoch that is stored."""
        machine, client = self.machine, self.around.client
        stored = await PositionClient(client).read(machine.key)
        machine.epoch_seen(stored.epoch)
        if machine.state is State.ENDED:
            return stored.epoch
        targets = await self.lister.targets(frozenset(end.topic_id for end in stored.ends))
        machine.targets_seen(targets)
        if machine.refresh_due(now):
            ends = await asyncio.gather(*(
                client.ends(self.lister.name_of(one.topic_id), one.partition) for one in targets.writable))
            machine.refresh(now, {one: end for one, (_, end) in zip(targets.writable, ends, strict=True)})
            await self.taker.run()
        return stored.epoch


class CopyPart(Part):
    """Of a copy that is not done."""

    def __init__(self, around: Around, source_topic: tuple[UUID, str], partition: int, book: Book) -> None:
        self.book = book
        super().__init__(around, source_topic, partition, partial(book.read_upto, partition))

    def versions(self) -> list[TableSchema]:
        """Those that its own rows have, and every one that a change behind a low mark may have."""
        marks = self.around.progress.marks
        own = [marks.schemas[id_] for id_ in self.book.schemas if id_ in marks.schemas]
        later = marks.versions(self.table_partition.table.oid, self.book.known_before)
        ids = {table.id for table in later}
        return [*(table for table in own if table.id not in ids), *later]

    def work(self, goal: CopyGoal, stream: StreamPart) -> CopyWork:
        pieces = tuple(
            CopyPiece(*portion.attempt, self.book.generation, portion.low, portion.number, portion.ranges, changed)
            for portion, changed in goal.pieces)
        return CopyWork(pieces, stream.source_topic[1], stream.machine.key, stream.at)


class StreamPart(Part):
    def __init__(self, around: Around, source_topic: tuple[UUID, str], partition: int) -> None:
        super().__init__(around, source_topic, partition)
        self.copies: dict[int, CopyPart] = {}
        self._new: set[int] = set()                          # copies without a position, when it was read
        self._meeting = Meeting(partition)

    def versions(self) -> list[TableSchema]:
        resolved = self.machine.position.resolved if self.machine.position is not None else 0
        return self.around.progress.marks.versions(self.table_partition.table.oid, resolved)

    # -- copies --------------------------------------------------------------------------------------------------------
    @property
    def must_meet(self) -> bool:
        return self._meeting.must_take or bool(self._meeting.unread(self._told()))

    def _told(self) -> list[Book]:
        work = self.around.work
        return self.around.progress.copies.of(work.span.table.oid, work.feed)

    async def meet(self) -> None:
        """Reads where every copy that is known stands, then takes over those that core.delivery.meeting names. The
        stream's position is ours already."""
        gate = asyncio.Semaphore(limits.MEET_AT_ONCE_MAX)
        await _all(self._read(book, gate) for book in self._meeting.unread(self._told()))
        try:
            await _all(self._take(book, gate) for book in self._meeting.to_take())
        finally:
            self.copies = dict(sorted(self.copies.items()))

    async def _read(self, book: Book, gate: asyncio.Semaphore) -> None:
        async with gate:
            part = await self._part_of(book)
            try:
                self._meeting.read(book, (await PositionClient(self.around.client).read(part.machine.key)).at)
            except PositionMissing:
                self._new.add(book.number)
                self._meeting.read(book, None)

    async def _take(self, book: Book, gate: asyncio.Semaphore) -> None:
        async with gate:
            part = await self._part_of(book)
            stored = await self._stored(part.machine.key, probably=book.number not in self._new)
            self._new.discard(book.number)
            if self.machine.state is State.ENDED:            # stopped meanwhile
                return
            self._meeting.taken(book, stored.at)
            if not book.is_done(self.table_partition.partition, stored.at):
                self.copies[book.number] = part
                await part.taker.run()

    async def _part_of(self, book: Book) -> CopyPart:
        topic_id = (await self.around.client.topic(book.topic)).id
        return CopyPart(self.around, (topic_id, book.topic), self.table_partition.partition, book)

    async def _stored(self, key: PositionKey, *, probably: bool) -> StoredPosition:
        """Made where there is none: no copy begins anywhere but at 0. `probably`: there is one."""
        positions, client = PositionClient(self.around.client), self.around.client
        while True:
            if probably:
                with contextlib.suppress(PositionMissing):
                    return await positions.read(key)
            probably = True
            with contextlib.suppress(PositionExists):
                return await positions.create(key, epoch=self.machine.epoch, at=BEGINNING, resolved=0,
                                              writer_id=await client.new_writer_id())

    # -- goals ---------------------------------------------------------------------------------------------------------
    def goal(self, passed: int) -> tuple[Part, Goal | CopyGoal] | Look | None:
        """None: nothing to do, or a copy whose turn it is must be met. All parts are ready. TableRefused: rows of a
        copy that cannot be put."""
        progress, part = self.around.progress, self.table_partition
        for number, copy in list(self.copies.items()):
            if copy.book.is_done(part.partition, copy.at):
                self._meeting.put(number)
                del self.copies[number]
        waiting = {book.number: book for book in self._meeting.waiting()}
        books = waiting | {number: copy.book for number, copy in self.copies.items()}
        stands = Stands(self.at, dict.fromkeys(waiting, BEGINNING) | {n: copy.at for n, copy in self.copies.items()})
        steps = dict.fromkeys(waiting, 0) | {number: copy.step for number, copy in self.copies.items()}
        found, limit = progress.merging.merge(part, [book for _, book in sorted(books.items())], stands, steps)
        if found is not None:
            self._check_keys(found)
            if found.copy in waiting:
                self._meeting.is_due(found.copy)
                return None
            return self.copies[found.copy], found
        goal = progress.marks.goal(
            part.table.oid, part.partition, self.at, passed, progress.found(part), self.step, limit)
        if not isinstance(goal, Goal):
            return goal
        assert self.machine.position is not None
        return self, goal._replace(resolved=max(goal.resolved, self.machine.position.resolved))

    def _check_keys(self, goal: CopyGoal) -> None:
        schemas = self.around.progress.marks.schemas
        for portion, _ in goal.pieces:
            table = schemas.get(portion.schema_id)
            if table is not None and not table.keys and portion.high is not None:
                raise TableRefused(
                    f"{table.full_name} has no key and was copied (copy {goal.copy}) while it changed: rows of the copy"
                    f" cannot be told from those before it")


async def _all(ones: Iterable[Coroutine[None, None, None]]) -> None:
    """Each ends, then the first error is told."""
    for error in await asyncio.gather(*ones, return_exceptions=True):
        if error is not None:
            raise error
