"""Floors of a changefeed on a real broker: held before positions are made, moved behind them, gone with them [F10]."""

from __future__ import annotations

from pathlib import Path

from millrace.changefeed.feeds.ports import Past
from millrace.changefeed.homes.floors import FeedFloors
from millrace.core.feeds.floors import owner
from millrace.core.sources.registry import copy_topic, progress_topic
from millrace.errors import Superseded
from millrace.log.client.floors import FloorClient
from millrace.model.ids import TopicPartition
from millrace.model.progress import CopyStarted
from millrace.model.quarantine import quarantine_topic
from support_homes import FEED, SOURCE, Log, entry, homes, run, table

T = table(16400, "t")


async def shop(log: Log) -> TopicPartition:
    for name in ("shop.public.t", quarantine_topic(FEED)):
        await log.client.create_topic(name, partitions=1)
    await log.add(T)
    await log.mark(5)
    await log.rows(T.oid, 0, 4, lsn=10)
    await log.mark(20)
    return TopicPartition(log.ids[T.oid], 0)


async def held(log: Log) -> dict[TopicPartition, int]:
    return (await FloorClient(log.client).of_owner(owner(FEED))).held


def test_F10_floors_stand_before_positions_move_behind_them_and_go_with_the_changefeed(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        tp = await shop(log)
        home = await homes(log).open(entry(), Past(3, None, frozenset(), 7))
        assert (await held(log))[tp] == 0
        assert (await FloorClient(log.client).of_owner(owner(FEED))).epoch == 7
        await log.move(T.oid, 0, 3, resolved=10)
        await home.leave()

        later = await homes(log).open(entry(), Past(3, None, frozenset(), 9))     # another maintainer, of the same log
        stands = await held(log)
        assert stands[tp] == 3
        assert TopicPartition((await log.client.topic(progress_topic(SOURCE))).id, 0) in stands, "the ddl position"
        assert later.news().lost == {}
        await later.leave()
        await homes(log).remove(entry().spec, 20)
        assert await held(log) == {}
        assert (await FloorClient(log.client).of_owner(owner(FEED))).epoch == 10, "nobody from before comes back"

    run(tmp_path, story)


def test_F10_a_copy_that_is_not_in_holds_its_topic_and_its_table(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        tp = await shop(log)
        home = await homes(log).open(entry(), Past(3, None, frozenset(), 7))
        await log.client.create_topic(copy_topic(SOURCE, 1), partitions=1)
        await log.tell(CopyStarted(1, 1, T.oid, copy_topic(SOURCE, 1), 1, 0, "watermark"))
        await log.rows(T.oid, 0, 2, lsn=30)
        await log.mark(40)
        await log.move(T.oid, 0, 6, resolved=40)
        await home.leave()
        again = await homes(log).open(entry(), Past(3, None, frozenset(), 8))
        stands = await held(log)
        assert stands[tp] == 4, "changes since its copy began are looked at, whatever the position is"
        assert stands[TopicPartition((await log.client.topic(copy_topic(SOURCE, 1))).id, 0)] == 0
        await again.leave()

    run(tmp_path, story)


def test_F10_only_what_moved_is_set_and_a_former_maintainer_sets_nothing(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        tp = await shop(log)
        client = FloorClient(log.client)
        floors = FeedFloors(log.client, FEED, 7)
        assert await floors.register({tp: 3}) == {}
        assert await floors.look(lambda: {tp: 3}, thorough=False) == {}
        assert await floors.look(dict, thorough=False) == {}
        assert (await held(log)) == {tp: 3}, "at the second look"
        assert await floors.look(dict, thorough=False) == {}
        assert (await held(log)) == {}
        assert await floors.hold({tp: 1}), "of another position, later"
        assert await floors.hold({tp: 0}), "also further back, where no position stands any more"
        assert (await held(log)) == {tp: 0}
        for _ in range(2):                                   # of a position that is no more, and that we still know of
            assert await floors.look(lambda: {tp: 3}, thorough=False) == {}
            assert (await held(log)) == {tp: 0}
        assert await floors.look(lambda: {tp: 3}, thorough=False) == {}
        assert (await held(log)) == {tp: 3}
        await client.set(owner(FEED), 8, {})
        for call in (floors.look(lambda: {tp: 4}, thorough=False), floors.hold({tp: 4}), floors.drop([tp])):
            try:
                await call
            except Superseded:
                continue
            raise AssertionError("another maintainer holds them")

    run(tmp_path, story)
