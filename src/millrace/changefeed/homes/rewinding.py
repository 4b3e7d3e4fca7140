"""Every position of a changefeed made anew, where its commits after an LSN begin [C3, C7, P3, V11].

    checked: all of the log that it takes is there ─▶ closed under the epoch, writers shut out ─▶ forgotten ─▶ made anew

In: a position, an epoch that is given out to nobody else. Out: nothing. Promises: what is refused has touched nothing;
all of it may be repeated under a greater epoch; the new position has a writer of its own, so no scan takes for its own
what was written before. Copies of tables that were made behind the LSN are delivered again, others go on as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple
from uuid import UUID

from millrace import limits
from millrace.changefeed.homes.closing import close_positions
from millrace.changefeed.homes.markers import Where, find_marker
from millrace.changefeed.homes.patience import together
from millrace.changefeed.homes.retold import Retold
from millrace.changefeed.homes.stored import StoredPositions
from millrace.core.delivery.source_marks import At
from millrace.core.feeds.ddl_home import ddl_key
from millrace.core.feeds.rewinding import next_change, refuse_unless_whole
from millrace.core.feeds.source_story import Told
from millrace.core.sources.registry import table_topic
from millrace.errors import PositionExists, PositionMissing, Superseded
from millrace.log.client import LogClient
from millrace.log.client.metadata import TopicInfo
from millrace.log.client.positions import PositionClient
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.positions import Point, PositionKey, StoredPosition
from millrace.model.tables import Lsn
from millrace.wire.changes import header_of

_NOBODYS = UUID(int=0)                  # no topic has this id


class Fresh(NamedTuple):
    """Where a position begins."""

    key: PositionKey
    at: Point
    resolved: Lsn


async def positions_at(retold: Retold, position: Lsn) -> list[Fresh]:
    """None at the beginning: whoever opens the changefeed makes them. PositionRefused."""
    at = retold.reach.at(position)
    if at is None:
        return []
    end, spec = retold.progress.next, retold.spec
    number = next_change(retold.told, at, end)
    fresh = [Fresh(ddl_key(spec.id, retold.progress.id), Point(number, 0), number)]
    tables: dict[str, Told] = {}                         # those that are there, and those that come later
    for told in retold.told:
        name = table_topic(spec.source, told.table.oid)
        if told.kind == "create":
            tables.setdefault(name, told)
        elif told.kind == "drop" and At(told.change.generation, told.change.commit_lsn) <= at:
            tables.pop(name, None)
    slots = asyncio.Semaphore(limits.HOME_CALLS_MAX)

    async def one(info: TopicInfo, partition: int) -> Fresh:
        told = tables[info.name]
        async with slots:
            offset = await _offset(retold, (info.name, partition), told, at)
        return Fresh(PositionKey(spec.id, info.id, partition), Point(offset, 0),
                     max(told.change.commit_lsn - 1, at.lsn))

    found = await retold.targets.found(tables)           # those that are dropped, and nothing of them is left, are not
    return fresh + await together(one(info, part.index) for info in found for part in info.partitions)


async def _offset(retold: Retold, where: Where, told: Told, at: At) -> int:
    client, oid = retold.client, told.table.oid
    start, _ = await client.ends(*where)
    low = retold.marks.start_behind(oid, where[1], at)
    offset = await _first_behind(client, where, max(low, start), retold.marks.end_of(oid, where[1], at) or 0, at)
    refuse_unless_whole(told.table, at, marked=low, start=start, found=offset)
    if not told.has_marker or At(told.change.generation, told.change.commit_lsn) <= at:
        return offset                                    # its marker stands before, or was cut
    return max(offset, await find_marker(client, where, max(start, told.floors.get(where[1], 0)), told.marker))


async def _first_behind(client: LogClient, where: Where, start: int, end: int, at: At) -> int:
    """The first record with a change behind `at`; there is none before `start`, and none up to `at` from `end` on."""
    async for page in client.read(*where, start, end):
        for record in page:
            header = header_of(record)
            if At(header.generation, header.last_lsn) > at:
                return record.offset
    return max(start, end)


async def rewind(client: LogClient, spec: ChangefeedSpec, position: Lsn, epoch: int) -> None:
    """Superseded: somebody works under a greater epoch."""
    retold, stored = Retold(client, spec), StoredPositions(client, spec.id)
    await retold.read()
    fresh = await positions_at(retold, position)
    with contextlib.suppress(PositionMissing):           # creates the group topic where there is none yet
        await PositionClient(client).read(PositionKey(spec.id, _NOBODYS, 0))
    await stored.load()
    kept = await _copies_before(retold, retold.reach.at(position))
    await end_positions(retold, {key: one for key, one in stored.by_key.items() if key.topic_id not in kept}, epoch)
    slots = asyncio.Semaphore(limits.HOME_CALLS_MAX)

    async def make(one: Fresh) -> None:
        async with slots:
            await _make(retold, one, epoch)

    await together(map(make, fresh))


async def end_positions(retold: Retold, stored: dict[PositionKey, StoredPosition], epoch: int) -> None:
    """Closed, their writers shut out of every target, forgotten."""
    positions = PositionClient(retold.client)
    topics = await retold.topics(stored)
    if not await close_positions(positions, retold.targets, stored, epoch, lambda key: topics.get(key, ())):
        raise Superseded(f"changefeed {retold.spec.id}: a position carries an epoch above {epoch}")
    slots = asyncio.Semaphore(limits.HOME_CALLS_MAX)

    async def forget(key: PositionKey) -> None:
        async with slots:
            await positions.forget(key, epoch)

    await together(map(forget, stored))


async def _make(retold: Retold, fresh: Fresh, epoch: int) -> None:
    """A maintainer that was replaced may still be making positions where they begin for a new changefeed."""
    client, positions = retold.client, PositionClient(retold.client)
    while True:
        try:
            await positions.create(fresh.key, epoch=epoch, at=fresh.at, resolved=fresh.resolved,
                                   writer_id=await client.new_writer_id())
            return
        except PositionExists:
            with contextlib.suppress(PositionMissing):
                await end_positions(retold, {fresh.key: await positions.read(fresh.key)}, epoch)


async def _copies_before(retold: Retold, at: At | None) -> set[UUID]:
    """Topics of copies that hold nothing behind `at`."""
    if at is None:
        return set()
    books = [book for oid in retold.targets.oids for book in retold.copies.of(oid, retold.spec.id)]
    names = {book.topic for book in books if At(book.generation, book.known_before) < at}
    return {info.id for info in await retold.targets.found(names)}
