"""Positions on a real broker when a changefeed goes on elsewhere, or its tables leave and come back [C3, C7, V11]."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from millrace.changefeed.feeds.ports import Past
from millrace.core.delivery.positions import Commit
from millrace.core.feeds.ddl_home import ddl_key
from millrace.core.sources.registry import progress_topic
from millrace.errors import InvalidProducerEpoch, PositionMissing, PositionRefused, Superseded
from millrace.log.client.writer import Writer
from millrace.model.changefeeds import BEGINNING, DdlPosition, TableSettings
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey, StoredPosition, target_ends
from millrace.model.progress import Change, CopyStarted, Manifest, Range
from millrace.model.quarantine import quarantine_topic
from millrace.model.spans import whole
from millrace.model.tables import TableSchema
from millrace.wire.records import Record
from support_feeds import until
from support_homes import FEED, SOURCE, SPEC, Log, entry, homes, id_of, run, table

T, WIDER = table(16400, "t"), table(16400, "t", "x")
TABLE = id_of(T.oid)
FORMER = "former.t"                      # where its rows went under settings that are no more


async def shop(log: Log) -> int:
    """Offsets of table t: 0 to 2 at LSN 10, 3 at 25, the marker of a change 4 at 30, 5 at 31; the change's number."""
    for name in ("shop.public.t", quarantine_topic(FEED)):
        await log.client.create_topic(name, partitions=1)
    await log.add(T)
    await log.mark(5)
    await log.rows(T.oid, 0, 3, lsn=10)
    await log.mark(20)
    await log.rows(T.oid, 0, 1, lsn=25)
    number = await log.change(Change(1, T.oid, 30, 0, "alter", WIDER.id, T.id, "ALTER TABLE t"), WIDER)
    await log.rows(T.oid, 0, 1, lsn=31)
    await log.mark(40)
    return number


async def worked(log: Log, key: PositionKey, *, epoch: int, to: int) -> Writer:
    """Whoever writes for this position, far on, and into a topic that nobody names any more."""
    if FORMER not in await log.client.topics():
        await log.client.create_topic(FORMER, partitions=1)
    stored = await log.positions.take(key, epoch)
    target = TopicPartition((await log.client.topic(FORMER)).id, 0)
    await log.positions.commit(key, Commit(epoch, stored.at, Point(to, 0), target_ends({target: 0}), 40))
    writer = stored.writers[-1]
    await log.client.fence(FORMER, 0, writer_id=writer.writer_id, epoch=epoch - writer.first_epoch)
    return log.client.writer(FORMER, 0, writer_id=writer.writer_id, epoch=epoch - writer.first_epoch)


async def is_shut_out(writer: Writer) -> None:
    with pytest.raises(InvalidProducerEpoch):
        await writer.append([Record(b"late")])
    writer.close()


async def ddl(log: Log) -> StoredPosition:
    return await log.positions.read(ddl_key(FEED, (await log.client.topic(progress_topic(SOURCE))).id))


def test_C3_V11_positions_are_made_anew_at_an_lsn_and_nobody_from_before_writes_or_commits(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        number = await shop(log)
        key = log.key(T.oid)
        home = await homes(log).open(entry())
        assert await home.take_ddl(1) is not None
        assert await home.commit_ddl(DdlPosition(1, number), DdlPosition(1, number + 1))
        writer = await worked(log, key, epoch=4, to=6)
        places = ((9, 25, 4, number), (10, 24, 3, number), (11, 30, 5, number + 2), (12, 20, 3, number))
        for epoch, lsn, offset, at in places:
            before = await log.positions.read(key)
            await homes(log).rewind(SPEC, lsn, epoch)
            made, changes = await log.positions.read(key), await ddl(log)
            assert (made.epoch, made.at, made.resolved, made.ends, made.closed) == (epoch, (offset, 0), lsn, (), False)
            assert made.writers != before.writers, "no scan takes what was written before for its own"
            assert (changes.epoch, changes.next_offset) == (epoch, at)
        await is_shut_out(writer)
        with pytest.raises(Superseded):
            await log.positions.commit(key, Commit(4, Point(6, 0), Point(7, 0), (), 40))
        with pytest.raises(Superseded):
            await log.positions.take(key, 12 - 1)
        with pytest.raises(Superseded):                      # whoever was replaced on the way
            await homes(log).rewind(SPEC, 30, 11)
        with pytest.raises(PositionRefused):
            await homes(log).rewind(SPEC, 41, 20)
        assert (await log.positions.read(key)).epoch == 12, "what is refused touches nothing"

        again = await homes(log).open(entry(), Past(12, SPEC))
        taken = await again.take_ddl(13)
        assert taken is not None
        assert (taken.position.next, [c.number for c in again.news().changes]) == (number, [number])
        assert again.tables == {TABLE: 1}
        for one in (home, again):
            await one.leave()

    run(tmp_path, story)


def test_C4_a_position_that_a_replaced_maintainer_makes_meanwhile_does_not_stay(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await shop(log)
        key = log.key(T.oid)
        await log.positions.create(key, epoch=0, at=Point(0, 0), resolved=0, writer_id=await log.client.new_writer_id())
        await log.positions.close(key, 2)
        await log.positions.forget(key, 2)                   # as far as the first one came
        await log.positions.create(key, epoch=1, at=Point(0, 0), resolved=0, writer_id=await log.client.new_writer_id())
        late = await worked(log, key, epoch=2, to=1)
        await homes(log).rewind(SPEC, 25, 3)
        assert (await log.positions.read(key)).at == (4, 0)
        await is_shut_out(late)

    run(tmp_path, story)


def test_S4_the_beginning_has_everything_and_an_lsn_leaves_copies_before_it_alone(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        number = await shop(log)
        name = "__millrace.shop.copy.1"
        await log.client.create_topic(name, partitions=1)
        await log.tell(CopyStarted(1, 1, T.oid, name, 1, 8, "snapshot"),
                       Manifest(1, 1, 0, 1, T.oid, "snapshot", T.id, (Range(0, 0, 2),), 2, 20))
        copy = PositionKey(FEED, (await log.client.topic(name)).id, 0)
        home = await homes(log).open(entry())
        await log.positions.create(
            copy, epoch=1, at=Point(7, 0), resolved=0, writer_id=await log.client.new_writer_id())
        await homes(log).rewind(SPEC, 20, 5)
        assert (await log.positions.read(copy)).at == (7, 0)
        await homes(log).rewind(SPEC, 7, 6)
        with pytest.raises(PositionMissing):
            await log.positions.read(copy)                   # its rows are delivered again
        await homes(log).rewind(SPEC, BEGINNING, 7)
        assert await log.stored() == {}
        again = await homes(log).open(entry(), Past(7, None))
        found = (await log.stored())[log.key(T.oid)]
        assert (found.epoch, found.at, (await ddl(log)).next_offset) == (7, (0, 0), number)
        for one in (home, again):
            await one.leave()

    run(tmp_path, story)


def test_C3_a_table_that_leaves_is_shut_out_and_forgotten_and_begins_anew_when_it_comes_back(tmp_path: Path) -> None:
    without = msgspec.structs.replace(SPEC, tables=("public.*", "!public.t"))

    async def story(log: Log) -> None:
        await shop(log)
        key, span = log.key(T.oid), whole(TABLE, 1)
        first = await homes(log).open(entry())
        writer = await worked(log, key, epoch=4, to=6)
        home = await homes(log).open(entry(without), Past(5, SPEC))
        assert home.tables == {}
        assert await home.close_positions(span, 6, forget=True)
        await is_shut_out(writer)
        with pytest.raises(PositionMissing):
            await log.positions.read(key)
        assert await home.close_positions(span, 6, forget=True), "may be repeated"

        back = await homes(log).open(entry(), Past(6, without))
        assert back.tables == {TABLE: 1}
        made = await log.positions.read(key)
        assert (made.at, made.epoch) == ((0, 0), 6)
        with pytest.raises(Superseded):
            await log.positions.take(key, 5)
        await log.positions.take(key, 7)
        for _ in range(2):                                   # it left and is taken again before it has ended
            assert await back.close_positions(span, 8, forget=True)
            assert (await log.positions.read(key)).writers[0].first_epoch == 8
        for one in (first, home, back):
            await one.leave()

    run(tmp_path, story)


def test_C3_copies_of_a_table_that_leaves_are_closed_and_the_others_notice_nothing(tmp_path: Path) -> None:
    """Their positions are heard of while nobody takes the table any more."""
    other, name = table(16401, "u"), "__millrace.shop.copy.1"
    without = msgspec.structs.replace(SPEC, tables=("public.*", "!public.t"))

    async def story(log: Log) -> None:
        await shop(log)
        await log.add(other)
        await log.client.create_topic(name, partitions=1)
        await log.tell(CopyStarted(1, 1, T.oid, name, 1, 8, "snapshot"),
                       Manifest(1, 1, 0, 1, T.oid, "snapshot", T.id, (Range(0, 0, 2),), 2, 20))
        copy = PositionKey(FEED, (await log.client.topic(name)).id, 0)
        first = await homes(log).open(entry())
        await log.positions.create(
            copy, epoch=1, at=Point(1, 0), resolved=0, writer_id=await log.client.new_writer_id())
        home = await homes(log).open(entry(without), Past(5, SPEC))
        assert await home.close_positions(whole(TABLE, 1), 6, forget=True)
        with pytest.raises(PositionMissing):
            await log.positions.read(copy)
        await log.rows(other.oid, 0, 2, lsn=50)
        await log.move(other.oid, 0, 2, resolved=50)
        at: dict[int, int] = {}

        def moved() -> bool:
            at.update({part.table.oid: one.next for part, one in home.news().positions.items()})
            return at.get(other.oid) == 2

        await until(moved, 10)
        assert T.oid not in at
        for one in (first, home):
            await one.leave()

    run(tmp_path, story)


def test_C7_a_table_that_is_renamed_away_and_back_begins_where_it_comes_back(tmp_path: Path) -> None:
    hidden = msgspec.structs.replace(T, name="secret")

    async def renamed(log: Log, before: TableSchema, after: TableSchema, lsn: int) -> int:
        number = await log.change(Change(1, T.oid, lsn, 0, "alter", after.id, before.id), after)
        await log.mark(lsn)
        return number

    async def story(log: Log) -> None:
        key, span = log.key, whole(TABLE, 1)
        await log.add(T)
        await log.rows(T.oid, 0, 2, lsn=10)
        await log.mark(10)
        away = await renamed(log, T, hidden, 20)             # its marker stands at 2
        first = await homes(log).open(entry())
        assert await first.take_ddl(1) is not None
        assert await first.commit_ddl(DdlPosition(1, away), DdlPosition(1, away + 1))
        await log.positions.take(key(T.oid), 4)
        await log.move(T.oid, 0, 2, resolved=19)
        assert await first.close_positions(span, 5, forget=False)
        assert (await log.positions.read(key(T.oid))).at == (2, 0), "nobody knows that it will come back"

        await log.rows(T.oid, 0, 3, lsn=25)
        back = await renamed(log, hidden, T, 30)             # at 6
        await until(lambda: any(change.number == back for change in first.news().changes), 10)
        made = await log.positions.read(key(T.oid))
        assert (made.at, made.resolved, made.epoch, made.closed) == ((6, 0), 29, 5, False)
        await log.positions.take(key(T.oid), 6)
        await log.move(T.oid, 0, 7, resolved=30)

        again = await renamed(log, T, hidden, 40)            # at 7
        last = await renamed(log, hidden, T, 50)             # at 8
        second = await homes(log).open(entry(), Past(6, SPEC))
        assert [change.number for change in second.news().changes] == [back, again, last]
        assert (await log.positions.read(key(T.oid))).at == (7, 0), "its dispatcher is at work"
        for _ in range(2):
            assert await second.close_positions(span, 7, forget=False), "may be repeated"
            made = await log.positions.read(key(T.oid))
            assert (made.at, made.epoch, made.closed, made.writers[0].first_epoch) == ((8, 0), 7, False, 7)
        for lsn, offset in ((15, 2), (25, 6), (35, 7), (45, 8)):
            await homes(log).rewind(SPEC, lsn, 10 + lsn)
            assert (await log.positions.read(key(T.oid))).at == (offset, 0)
        for one in (first, second):
            await one.leave()

    run(tmp_path, story)


def test_C2_what_a_spec_says_anew_is_told_by_table(tmp_path: Path) -> None:
    said = msgspec.structs.replace(SPEC, settings=(TableSettings(tables="public.t", topic="mine"),))

    async def story(log: Log) -> None:
        await log.add(T)
        await log.add(table(16401, "u"))
        for epoch, past, changed in ((1, SPEC, {TABLE}), (2, said, set()), (3, None, {TABLE, id_of(16401)})):
            home = await homes(log).open(entry(said), Past(0, past))
            assert home.changed == changed
            assert await home.take_ddl(epoch) is not None
            await home.leave()

    run(tmp_path, story)
