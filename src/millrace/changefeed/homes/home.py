"""One changefeed on our own log, for one life of its maintainer: marks, changes, positions, the ddl dispatcher's hand.

    progress ─▶ SourceStory ─▶ tables met, changes, marks ─┬─▶ news, from memory
    group topic, table topics ─▶ FeedStanding: positions ──┘

In: a changefeed's spec. Out: what the port says. Promises: a table's positions exist before anybody is told of it;
marks are told behind all changes that stand before them in `progress`; who cannot read on says so at the next news.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Set
from functools import partial
from typing import Any

from millrace import limits
from millrace.changefeed.feeds.ports import DdlTaken, Mark, News, Past
from millrace.changefeed.feeds.tasks import Tasks
from millrace.changefeed.homes.bases import FeedBases
from millrace.changefeed.homes.closing import close_positions
from millrace.changefeed.homes.copies import FeedCopies
from millrace.changefeed.homes.ddl import DdlHand
from millrace.changefeed.homes.floors import FeedFloors
from millrace.changefeed.homes.keeping import NO_BASE, Keeping
from millrace.changefeed.homes.letters import Letters
from millrace.changefeed.homes.patience import patiently, together
from millrace.changefeed.homes.progress import ProgressReader
from millrace.changefeed.homes.standing import FeedStanding, floor_of
from millrace.changefeed.homes.stored import StoredPositions
from millrace.changefeed.homes.tables import FeedTables
from millrace.changefeed.homes.targets import Targets
from millrace.changefeed.shapes import Shape, Shapes
from millrace.changefeed.topic_owners import Owners, nobody
from millrace.core.delivery.source_marks import At
from millrace.core.feeds.barrier import SchemaChange
from millrace.core.feeds.bases import Base
from millrace.core.feeds.breaks import Breaks
from millrace.core.feeds.ddl_home import ddl_key, ddl_of, named, shown_upto
from millrace.core.feeds.effects import BeginTable
from millrace.core.feeds.settling import changed_tables
from millrace.core.feeds.source_story import SourceStory, Told
from millrace.core.feeds.watermarks import holds_in
from millrace.errors import PositionExists, PositionMissing, Superseded, UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.changefeeds import ChangefeedSpec, DdlPosition
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey, StoredPosition
from millrace.model.progress import Change
from millrace.model.quarantine import quarantine_topic
from millrace.model.spans import Span, TableId, whole
from millrace.model.tables import Lsn, Oid
from millrace.sink.kafka.choice import watermark_message
from millrace.sink.kafka.formats import Origin


class LogFeedHome:
    """Made by `open_home`."""

    def __init__(
        self, client: LogClient, spec: ChangefeedSpec, past: Past, progress: ProgressReader, *, database: str,
        shape: Shape, wall: Callable[[], float], owners: Owners = nobody, floor_move_s: float = limits.FLOOR_MOVE_S,
    ) -> None:
        self._client, self._spec, self._past, self._progress, self._wall = client, spec, past, progress, wall
        self._origin = Origin(spec.source, database)
        self._positions, self._targets = PositionClient(client), Targets(client, spec)
        self._shapes = Shapes(spec, shape, owners, lambda: self._story.present)
        self._key = ddl_key(spec.id, progress.id)
        self._hand = DdlHand(client, self._key, spec.source)
        self._letters = Letters(self._targets, self._shapes, self._origin)
        self._story, self._stored = SourceStory(spec), StoredPositions(client, spec.id)
        self._copies = FeedCopies(client, spec.id, self._stored)
        self._floors = FeedFloors(client, spec.id, past.maintainer)
        self._breaks = Breaks()
        behind = self._breaks.behind if spec.on_schema_break == "stop" else {}
        bases = FeedBases(client, spec.id, self._story, self._copies, self._floors, behind)
        self._known = FeedTables(client, spec.id, self._stored, bases, epoch=past.epoch)
        self._keeping = Keeping(client, self._story, self._stored, self._known, self._copies, self._floors, self._key,
                                out=past.out, move_s=floor_move_s)
        self._came = asyncio.Event()                     # more of `progress` is read, or a change has passed
        self._standing = FeedStanding(client, self._story, self._stored, self._known, self._copies, self._key,
                                      self._came.set)
        self._tables: dict[TableId, int] = {}
        self._changes: list[SchemaChange] = []
        self._read = 0                                   # records of `progress` before it are told
        self._error: Exception | None = None
        self._tasks = Tasks(f"home-{spec.id}")

    # -- opening ---------------------------------------------------------------------------------------------------
    async def begin(self) -> None:
        pages = await self._progress.there()
        for offset, record in (one for page in pages for one in page):
            self._copies.replay(offset, record)
        told = [found for page in pages for offset, record in page
                if (found := self._story.replay(offset, record)) is not None]
        stored = await self._ddl_position()
        ddl = ddl_of(stored, self._spec.source)
        self._breaks.since = stored.resolved
        for page in pages:
            for offset, record in page:
                self._breaks.replay(offset, record)
        await self._stored.load()
        await together(map(self._meet_in_turn, self._coming(told, ddl)))
        for one in told:
            self._tell(one, passed=ddl.of(self._story.table(one.table.oid)), floor=floor_of(ddl))
        for key in self._stored.by_key:
            self._standing.note(key)
        for oid in self._breaks.broken if self._stops else ():
            self._stop_table(oid)
        await self._keeping.begin()
        self._read = self._progress.next
        for work in (self._follow(), self._standing.follow_positions(), self._standing.follow_markers(),
                     self._keeping.follow(), self._show()):
            self._tasks.start(self._watched(work))

    def _coming(self, told: Iterable[Told], ddl: DdlPosition) -> list[list[Told]]:
        """How each table came and will come again: not those whose drop, or renaming away, has passed."""
        coming: dict[Oid, list[Told]] = {}
        for one in told:
            if one.kind == "create":
                coming.setdefault(one.table.oid, []).append(one)
            elif one.kind == "drop" and one.number < ddl.of(self._story.table(one.table.oid)):
                coming.pop(one.table.oid, None)
        return list(coming.values())

    async def _meet_in_turn(self, told: Iterable[Told]) -> None:
        """One table, in its order: it begins where it came first."""
        for one in told:
            table = self._story.table(one.table.oid)
            if not await self._meet(one) and table not in self._keeping.out:
                self._keeping.lose(table, NO_BASE)

    async def _ddl_position(self) -> StoredPosition:
        """The changefeed begins with the first change in `progress`, or where that ends: no marker of an earlier one
        stands in any table's topic. Who is first says so, for good. `resolved`: what was there when it was made."""
        first = self._story.first_change
        at = self._progress.next if first is None else first
        try:
            return await self._positions.read(self._key)
        except PositionMissing:
            pass
        try:
            return await self._positions.create(
                self._key, epoch=self._past.epoch, at=Point(at, 0), resolved=self._progress.next,
                writer_id=await self._client.new_writer_id())
        except PositionExists:
            return await self._positions.read(self._key)

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._error = self._error or error

    # -- what `progress` tells -------------------------------------------------------------------------------------
    async def _follow(self) -> None:
        while True:
            copied: set[TableId] = set()
            for offset, record in await patiently(partial(self._progress.page, wait_s=limits.HOME_WAIT_S)):
                copied.update(map(self._story.table, self._copies.replay(offset, record)))
                broken = self._breaks.replay(offset, record)
                if broken is not None and self._stops:       # before its change is told: nobody writes that
                    self._stop_table(broken)
                told = self._story.replay(offset, record)
                if told is None:
                    continue
                begins = told.kind != "create" or await self._meet(told)
                self._tell(told)
                if not begins:                           # told with its change: before that nobody wants it
                    await self._lose(self._story.table(told.table.oid))
            for table in copied & self._known.topics.keys():
                await patiently(partial(self._copies.meet, table))
                self._standing.note_table(table)
                self._keeping.met(table)
                await patiently(partial(self._keeping.look_for_base, table))
            if self._read != self._progress.next:
                self._read = self._progress.next
                self._came.set()

    @property
    def _stops(self) -> bool:
        return self._spec.on_schema_break == "stop"

    def _stop_table(self, oid: Oid) -> None:
        table = self._story.table(oid)
        if table in self._known.topics:
            self._keeping.lose(table, self._breaks.broken[oid])

    async def _show(self) -> None:
        """To tools: how far `progress` is done. Looks when `_came` is set, and then not for a while. A commit alone is
        no reason to look: its change is among those that wait until the stored position was read back."""
        shown = 0
        while True:
            self._came.clear()
            upto = shown_upto(self._read, self._standing.told)
            if upto <= shown:
                await self._came.wait()
            elif await self._hand.show(upto):
                shown = upto
            await asyncio.sleep(limits.HOME_SHOW_S)

    async def _meet(self, told: Told) -> bool:
        """False: it is out, until it is copied."""
        table, is_there = self._story.table(told.table.oid), True
        try:
            is_out = table in self._keeping.out
            is_there = await self._known.meet(table, told, is_out=is_out) and not is_out
            await self._copies.meet(table)
        except UnknownTopicOrPartition:
            if table.oid not in self._story.dropped:
                raise
        return is_there

    async def _lose(self, table: TableId) -> None:
        self._keeping.lose(table, NO_BASE)
        await patiently(partial(self._keeping.look_for_base, table))

    def _tell(self, told: Told, *, passed: int = 0, floor: int = 0) -> None:
        """`passed`: of this table, changes before it have passed; `floor`: of every table."""
        table = self._story.table(told.table.oid)
        self._targets.note(told.table)
        topic = self._known.topics.get(table)
        if topic is None:
            return                                       # dropped: nothing of it is left, or that has passed
        if told.number < passed and told.kind == "drop":
            self._tables.pop(table, None)
        elif told.number < passed:
            self._tables[table] = topic.partitions
        if told.number >= floor:
            self._standing.add(told)
            partitions = topic.partitions if told.kind == "create" else 0
            self._changes.append(SchemaChange(told.number, told.change.commit_lsn, told.kind, (table,), partitions))

    # -- the port --------------------------------------------------------------------------------------------------
    @property
    def tables(self) -> Mapping[TableId, int]:
        return self._tables

    @property
    def changed(self) -> frozenset[TableId]:
        changed = changed_tables(self._past.spec, self._spec, self._story.versions)
        return frozenset(map(self._story.table, changed))

    def news(self) -> News:
        if self._error is not None:
            raise self._error
        mark = self._story.take_mark()
        changes, self._changes = self._changes, []
        marks = (Mark(*mark),) if mark is not None else ()
        return News(tuple(changes), marks, self._standing.take_news(), *self._keeping.take_news())

    async def arrived(self) -> None:
        await self._standing.arrived()

    async def take_ddl(self, epoch: int) -> DdlTaken | None:
        stored = await self._hand.take(epoch)
        if stored is None:
            return None
        await self._caught_up()
        told = self._standing.told                       # what a named target holds has not passed, so it is of these
        wanted = {self._targets.topic_of(one.table) for one in told.values()} if named(stored) else set()
        found = await self._targets.found(wanted)
        found += await self._targets.also_written(stored, found)
        names = {TopicPartition(info.id, one.index): info.name for info in found for one in info.partitions}
        tables = {number: self._story.table(one.table.oid) for number, one in told.items()}
        return await self._hand.scan(stored, names, tables)

    async def _caught_up(self) -> None:
        """All that a former maintainer can have read is read: what it wrote must be known when it is found."""
        end = await self._progress.end()
        while self._read < end:
            if self._error is not None:
                raise self._error
            await asyncio.sleep(limits.HOME_LOOK_S)

    async def write_change(self, epoch: int, table: TableId, change: int) -> bool:
        told = self._standing.told.get(change)
        if told is None or not self._hand.holds(epoch):
            return False                                 # it has passed, or this epoch is over
        now_us = int(self._wall() * 1_000_000)
        letters = await self._letters.of(told, now_us=now_us)
        return await self._hand.write(epoch, table, change, letters, wall_ms=now_us // 1000)

    async def commit_ddl(self, expected: DdlPosition, wanted: DdlPosition) -> bool:
        ending = [one for one in self._standing.told.values()
                  if one.kind == "drop" and one.number < wanted.of(self._story.table(one.table.oid))]
        if not await self._hand.commit(expected, wanted):
            return False
        for one in ending:
            table = self._story.table(one.table.oid)
            self._known.ended(table, one.number)
            self._tasks.start(self._watched(patiently(partial(self._keeping.look_for_base, table))))
        return True

    @property
    def watermarks(self) -> bool:
        return self._targets.sink.watermarks

    async def write_watermark(self, epoch: int, checkpoint: Lsn, tables: frozenset[TableId]) -> bool:
        now_us = int(self._wall() * 1_000_000)
        message = watermark_message(self._targets.sink, self._origin, checkpoint, wall_ms=now_us // 1000, now_us=now_us)
        topics = {self._story.table(table.oid): self._targets.topic_of(table) for table in self._story.tables}
        found = await self._targets.found(holds_in(topics, tables) - (await self._shapes.taken()).keys())
        return await self._hand.watermark(epoch, found, message, wall_ms=now_us // 1000)

    async def close_positions(self, span: Span, epoch: int, *, forget: bool) -> bool:
        try:
            own = await self._known.keys(span)
        except UnknownTopicOrPartition:
            return True                                  # nobody reads it any more
        await self._copies.meet(span.table)
        keys = [*own, *(key for part in span.parts for key in self._copies.keys(part))]
        keys = [key for key in keys if not await self._is_made_by(key, epoch)]
        topics = await self._targets.found(self._targets.names(span.table.oid) | {quarantine_topic(self._spec.id)})
        if not await close_positions(self._positions, self._targets, keys, epoch, lambda key: topics):
            return False
        if forget:
            for key in keys:
                await self._positions.forget(key, epoch)
            await self._floors.drop(TopicPartition(key.topic_id, key.partition) for key in keys)
        if self._known.comes(span.table) and span.table not in self._keeping.out:
            begins = (await self._known.begin_anew(span, epoch) is not None if forget
                      else await self._known.come_back(span.parts))
            if not begins:
                await self._lose(span.table)
        return True

    # -- a table that needs a copy ---------------------------------------------------------------------------------
    def doubt(self) -> None:
        self._keeping.doubt()

    def unproved(self, tables: Set[TableId]) -> None:
        self._keeping.unproved(tables)

    async def begin_table(self, effect: BeginTable) -> bool | None:
        """Whatever an earlier try has made is ended first."""
        table, span = effect.table, whole(effect.table, self._known.topics[effect.table].partitions)
        if not await self.close_positions(span, effect.made, forget=True):
            return None
        try:
            base = await self._known.begin_anew(
                span, effect.made, partial(self._truncate, effect) if effect.truncates else None, upto=effect.number)
        except Superseded:
            return None
        if base is None:
            await self._keeping.look_for_base(table)
            return False
        self._keeping.out.discard(table)
        self._standing.note_table(table)
        return True

    async def _truncate(self, effect: BeginTable, base: Base) -> None:
        """What was told of it before counts no more: rows that were deleted meanwhile nobody tells [decision 12]."""
        table = next((one for one in self._story.tables if one.oid == effect.table.oid), None)
        if table is None:
            return
        now_us = int(self._wall() * 1_000_000)
        at = base.at or At(0, 0)
        change = Change(at.generation, table.oid, at.lsn, 0, "truncate", table.id, wall_ms=now_us // 1000, begins=True)
        letter = await self._letters.truncation(table, change, now_us=now_us)
        if letter is not None and not await self._hand.announce(
                effect.epoch, letter.topic, letter.message, wall_ms=now_us // 1000):
            raise Superseded(f"changefeed {self._spec.id}: the ddl dispatcher of epoch {effect.epoch} is over")

    async def _is_made_by(self, key: PositionKey, epoch: int) -> bool:
        """An earlier try came so far."""
        try:
            return (await self._positions.read(key)).writers[0].first_epoch == epoch
        except PositionMissing:
            return False

    async def leave(self) -> None:
        await self._tasks.stop()


async def open_home(
    client: LogClient, spec: ChangefeedSpec, past: Past, *, database: str, shape: Shape, wall: Callable[[], float],
    owners: Owners = nobody, floor_move_s: float = limits.FLOOR_MOVE_S,
) -> LogFeedHome:
    """Told all that is there; from now on it follows what comes."""
    progress = ProgressReader(client, spec.source)
    await progress.open()
    home = LogFeedHome(client, spec, past, progress, database=database, shape=shape, wall=wall, owners=owners,
                       floor_move_s=floor_move_s)
    await home.begin()
    return home
