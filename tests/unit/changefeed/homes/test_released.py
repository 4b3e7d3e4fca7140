"""A table whose log was cut below its position, on a real broker: told, out, begun anew with its copy [F10]."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from millrace import limits
from millrace.changefeed.feeds.ports import FeedHome, News, Past
from millrace.core.delivery.copies import SKIPPED
from millrace.core.delivery.positions import Commit
from millrace.core.feeds.effects import BeginTable
from millrace.core.feeds.floors import owner
from millrace.core.sources.registry import copy_topic, table_topic
from millrace.log.client.floors import FloorClient
from millrace.model.changefeeds import DdlPosition
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey, TargetEnd
from millrace.model.progress import Change, CopyStarted, Manifest, Range
from millrace.model.quarantine import quarantine_topic
from millrace.model.spans import TableId, whole
from millrace.model.tables import Column, TableSchema
from millrace.wire.records import Record
from support_feeds import until
from support_homes import FEED, SOURCE, SPEC, Log, entry, homes, id_of, run, table

T = table(16400, "t")
HIDDEN = msgspec.structs.replace(T, name="secret")
TABLE, TARGET = id_of(T.oid), "shop.public.t"


async def shop(log: Log) -> TopicPartition:
    """Offsets 0 to 3 at LSN 10, with a first copy of one record that is landed."""
    for name in (TARGET, quarantine_topic(FEED)):
        await log.client.create_topic(name, partitions=1)
    await log.add(T)
    await copy(log, 1)
    await log.tell(Manifest(1, 1, 0, 1, T.oid, "snapshot", T.id, (Range(0, 0, 1),), 1, 1))
    await log.mark(5)
    await log.rows(T.oid, 0, 4, lsn=10)
    await log.mark(20)
    return TopicPartition(log.ids[T.oid], 0)


async def copy(log: Log, number: int) -> int:
    name = copy_topic(SOURCE, number)
    await log.client.create_topic(name, partitions=1)
    kind = "snapshot" if number == 1 else "watermark"
    return await log.tell(CopyStarted(1, number, T.oid, name, 1, 6 if number == 1 else 0, kind))  # type: ignore[arg-type]


async def renamed(log: Log, before: TableSchema, after: TableSchema, lsn: int) -> int:
    number = await log.change(Change(1, T.oid, lsn, 0, "alter", after.id, before.id), after)
    await log.mark(lsn)
    return number


async def away(log: Log) -> FeedHome:
    """Renamed out of the rules at offset 4, which has passed; its position is closed there, and the log goes on."""
    number = await renamed(log, T, HIDDEN, 30)
    home = await homes(log).open(entry(), Past(3, None, frozenset(), 7))
    assert await home.take_ddl(8) is not None
    assert await home.commit_ddl(DdlPosition(8, number), DdlPosition(8, number + 1))
    await log.positions.take(log.key(T.oid), 9)
    await log.move(T.oid, 0, 4, resolved=29)
    assert await home.close_positions(whole(TABLE, 1), 10, forget=False)
    await log.rows(T.oid, 0, 3, lsn=35)
    await log.mark(36)
    await FloorClient(log.client).remove(owner(FEED), 7)                 # as two looks later
    return home


async def based(home: FeedHome) -> int:
    found: list[int] = []

    def look() -> bool:
        found.extend(number for number in home.news().bases.values() if number is not None)
        return bool(found)

    await until(look)
    return found[-1]


def test_F10_a_released_table_leaves_and_begins_anew_behind_its_copy_and_a_truncation(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        tp, key, span = await shop(log), log.key(T.oid), whole(TABLE, 1)
        first = await homes(log).open(entry(), Past(3, None, frozenset(), 7))
        await log.move(T.oid, 0, 1, resolved=8)
        await first.leave()
        await FloorClient(log.client).remove(owner(FEED), 7)             # as if its budget were spent
        await log.cut(table_topic(SOURCE, T.oid), 3)

        home = await homes(log).open(entry(), Past(3, None, frozenset(), 9))
        news = home.news()
        assert news.lost.keys() == {TABLE}
        assert "begins at 3" in news.lost[TABLE]
        assert home.news().lost == {}, "told once"
        assert await home.close_positions(span, 10, forget=True)
        assert key not in await log.stored(), "it is out: nothing is made anew"
        assert tp not in (await FloorClient(log.client).of_owner(owner(FEED))).held
        await home.leave()

        home = await homes(log).open(entry(), Past(10, None, frozenset({TABLE}), 11))
        told = home.news()
        assert (told.lost, told.bases) == ({}, {TABLE: None}), "its first copy is not enough"
        assert home.tables == {TABLE: 1}
        await log.rows(T.oid, 0, 2, lsn=30)
        await log.mark(40)
        started = await copy(log, 2)
        number = await based(home)
        assert number == started

        assert await home.take_ddl(12) is not None
        assert await home.begin_table(BeginTable(12, TABLE, 13, number - 1, truncates=True)) is False, "a later base"
        assert await home.begin_table(BeginTable(12, TABLE, 14, number, truncates=True))
        stored = await log.stored()
        assert (stored[key].at, stored[key].resolved, stored[key].epoch) == ((6, 0), 40, 14)
        skipped = PositionKey(FEED, (await log.client.topic(copy_topic(SOURCE, 1))).id, 0)
        assert stored[skipped].at == SKIPPED
        held = (await FloorClient(log.client).of_owner(owner(FEED))).held
        assert held[tp] == 6
        assert held[TopicPartition((await log.client.topic(copy_topic(SOURCE, 2))).id, 0)] == 0
        ((_, message),) = await log.messages(TARGET)
        assert json.loads(message)["_change_type"] == "truncate"

        assert await home.begin_table(BeginTable(12, TABLE, 15, number, truncates=True)), "whoever died does it again"
        assert (await log.positions.read(key)).epoch == 15
        late = BeginTable(12, TABLE, 14, number, truncates=False)
        assert await home.begin_table(late) is None, "a greater one stands"
        await home.leave()

    run(tmp_path, story)


def test_F10_a_new_changefeed_on_a_log_that_was_cut_begins_with_nothing_until_there_is_a_copy(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await shop(log)
        await log.cut(table_topic(SOURCE, T.oid), 3)
        home = await homes(log).open(entry(), Past(0, None, frozenset(), 1))
        assert home.news().lost.keys() == {TABLE}
        assert log.key(T.oid) not in await log.stored()
        started = await copy(log, 2)
        assert await based(home) == started
        assert await home.take_ddl(2) is not None
        assert await home.begin_table(BeginTable(2, TABLE, 3, started, truncates=False))
        assert (await log.positions.read(log.key(T.oid))).at == (4, 0)
        assert await log.messages(TARGET) == [], "nothing was told of it before"
        await home.leave()

    run(tmp_path, story)


def test_F10_a_first_copy_that_was_cut_is_no_beginning(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await shop(log)
        await log.client.append(copy_topic(SOURCE, 1), 0, [Record(b"x"), Record(b"y")])
        await log.cut(copy_topic(SOURCE, 1), 1)
        home = await homes(log).open(entry(), Past(0, None, frozenset(), 1))
        assert home.news().lost.keys() == {TABLE}
        assert log.key(T.oid) not in await log.stored()
        await home.leave()

    run(tmp_path, story)


def test_F10_a_table_that_is_renamed_back_is_held_from_the_marker_on_that_brings_it(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        tp, home = await shop(log), await away(log)
        await log.cut(table_topic(SOURCE, T.oid), 7)
        back = await renamed(log, HIDDEN, T, 40)             # at 8
        await until(lambda: any(change.number == back for change in home.news().changes), 10)
        made = await log.positions.read(log.key(T.oid))
        assert (made.at, made.closed) == ((8, 0), False)
        assert (await FloorClient(log.client).of_owner(owner(FEED))).held[tp] == 8
        await home.leave()

    run(tmp_path, story)


def test_F10_a_table_whose_way_back_was_cut_needs_a_copy(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await shop(log)
        await (await away(log)).leave()
        await renamed(log, HIDDEN, T, 40)                    # at 8
        await log.rows(T.oid, 0, 2, lsn=45)
        await log.mark(50)
        await log.cut(table_topic(SOURCE, T.oid), 10)
        home = await homes(log).open(entry(), Past(10, None, frozenset(), 11))
        assert home.news().lost.keys() == {TABLE}
        assert (await log.positions.read(log.key(T.oid))).closed, "nobody goes on where the log happens to start"
        number = await copy(log, 2)
        assert await based(home) == number
        assert await home.take_ddl(12) is not None
        assert await home.begin_table(BeginTable(12, TABLE, 13, number, truncates=True))
        assert (await log.positions.read(log.key(T.oid))).at == (11, 0)
        await home.leave()

    run(tmp_path, story)


def test_F10_a_table_that_is_out_when_it_is_renamed_away_and_back_begins_where_it_comes_back(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        tp = await shop(log)
        await log.cut(table_topic(SOURCE, T.oid), 3)
        home = await homes(log).open(entry(), Past(0, None, frozenset(), 1))
        assert home.news().lost.keys() == {TABLE}
        number = await renamed(log, T, HIDDEN, 30)           # at 4
        await until(lambda: bool(home.news().changes), 10)
        taken = await home.take_ddl(2)
        assert taken is not None
        assert await home.commit_ddl(taken.position, DdlPosition(2, number + 1))
        await copy(log, 2)                                   # under the name that the rules do not take
        await log.rows(T.oid, 0, 3, lsn=35)
        back, told = await renamed(log, HIDDEN, T, 40), list[News]()         # at 8

        def heard() -> bool:
            told.append(home.news())
            return TABLE in told[-1].lost

        await until(heard, 10)
        assert [change.number for change in told[-1].changes] == [back], "with its change"
        assert log.key(T.oid) not in await log.stored()
        assert await home.begin_table(BeginTable(2, TABLE, 3, 0, truncates=False))
        made = await log.positions.read(log.key(T.oid))
        assert (made.at, made.resolved) == ((8, 0), 39)
        assert (await FloorClient(log.client).of_owner(owner(FEED))).held[tp] == 5, "where it was marked before"
        await home.leave()

    run(tmp_path, story)


def test_F10_going_back_nobody_looks_for_the_marker_of_a_table_that_came_before(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await shop(log)
        for before, after, lsn in ((T, HIDDEN, 30), (HIDDEN, T, 40)):    # at 4, at 5
            await renamed(log, before, after, lsn)
        await log.rows(T.oid, 0, 2, lsn=45)
        await log.mark(50)
        await log.rows(T.oid, 0, 1, lsn=55)
        await log.mark(60)
        await log.cut(table_topic(SOURCE, T.oid), 7)
        async with asyncio.timeout(20):
            await homes(log).rewind(SPEC, 50, 20)
        assert (await log.positions.read(log.key(T.oid))).at == (8, 0)

    run(tmp_path, story)


def test_S10_F10_a_copy_of_a_table_without_a_key_does_not_bring_it_back_and_that_is_told(tmp_path: Path) -> None:
    keyless = TableSchema(T.oid, "public", "t", "f", (Column("x", 25),))

    async def story(log: Log) -> None:
        await log.add(keyless)
        await log.mark(5)
        await log.rows(T.oid, 0, 4, lsn=10)
        await log.mark(20)
        await log.cut(table_topic(SOURCE, T.oid), 3)
        home = await homes(log).open(entry(), Past(0, None, frozenset(), 1))
        news = home.news()
        assert (news.lost.keys(), news.keyless) == ({TABLE}, {TABLE})
        await copy(log, 2)
        told: list[News] = []

        def heard() -> bool:
            told.append(home.news())
            return TABLE in told[-1].bases

        await until(heard, 10)
        assert told[-1].bases == {TABLE: None}, "nothing is truncated that nobody could fill again"
        await log.change(Change(1, T.oid, 30, 0, "alter", T.id, keyless.id), T)
        await log.mark(40)
        number = await copy(log, 3)
        assert await based(home) == number, "it has a key now"
        assert home.news().keyless == set()
        await home.leave()

    run(tmp_path, story)


def test_K3_F10_a_target_that_was_cut_above_a_stored_end_takes_out_whoever_fails_there_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "FEED_RETRY_MIN_S", 0.05)

    async def story(log: Log) -> None:
        await shop(log)
        target = TopicPartition((await log.client.topic(TARGET)).id, 0)
        await log.client.append(TARGET, 0, [Record(b"x")] * 6)
        home = await homes(log).open(entry(), Past(3, None, frozenset(), 7))
        stored = await log.positions.read(log.key(T.oid))
        await home.leave()
        await log.positions.commit(log.key(T.oid), Commit(
            stored.epoch, stored.at, Point(2, 0), (TargetEnd(*target, 2),), 8))
        home = await homes(log).open(entry(), Past(3, None, frozenset(), 8))
        assert (await FloorClient(log.client).of_owner(owner(FEED))).held[target] == 2
        await home.leave()
        await log.release(owner(FEED), target)               # as a changefeed that stands still
        await log.cut(TARGET, 5)

        home = await homes(log).open(entry(), Past(3, None, frozenset(), 9))
        home.unproved(frozenset())
        assert home.news().lost == {}, "its rows are all there: who goes on without a take-over needs nothing"
        home.unproved(frozenset({id_of(99)}))
        home.unproved(frozenset({TABLE}))
        lost: dict[TableId, str] = {}

        def heard() -> bool:
            lost.update(home.news().lost)
            return bool(lost)

        await until(heard, 10)
        assert lost.keys() == {TABLE}
        assert "in its target is gone" in lost[TABLE]
        await home.leave()

    run(tmp_path, story)
