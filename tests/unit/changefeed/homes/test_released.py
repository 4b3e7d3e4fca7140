"""A table whose log was cut below its position, on a real broker: told, out, begun anew with its copy [F10]."""

from __future__ import annotations

import json
from pathlib import Path

from millrace.changefeed.feeds.ports import FeedHome, Past
from millrace.core.delivery.copies import SKIPPED
from millrace.core.feeds.effects import BeginTable
from millrace.core.feeds.floors import owner
from millrace.core.sources.registry import copy_topic, table_topic
from millrace.log.client.floors import FloorClient
from millrace.log.client.metadata import LANE
from millrace.model.ids import TopicPartition
from millrace.model.positions import PositionKey
from millrace.model.progress import CopyStarted, Manifest, Range
from millrace.model.quarantine import quarantine_topic
from millrace.model.spans import whole
from millrace.wire.records import Record
from support_feeds import until
from support_homes import FEED, SOURCE, Log, entry, homes, id_of, run, table

T = table(16400, "t")
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


async def cut(log: Log, topic: str, offset: int) -> None:
    """As retention would."""
    client = log.client
    conn = await client._connections.get(await client._metadata.find_leader(topic, 0), LANE)
    answer = await conn.call("DeleteRecords", 2, {"timeout_ms": 5_000, "topics": [
        {"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]})
    assert answer["topics"][0]["partitions"][0]["low_watermark"] == offset, answer


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
        await cut(log, table_topic(SOURCE, T.oid), 3)

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
        await cut(log, table_topic(SOURCE, T.oid), 3)
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
        await cut(log, copy_topic(SOURCE, 1), 1)
        home = await homes(log).open(entry(), Past(0, None, frozenset(), 1))
        assert home.news().lost.keys() == {TABLE}
        assert log.key(T.oid) not in await log.stored()
        await home.leave()

    run(tmp_path, story)
