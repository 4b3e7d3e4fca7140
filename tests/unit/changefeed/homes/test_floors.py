"""Floors of a changefeed on a real broker: held before positions are made, moved behind them, gone with them [F10]."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.changefeed.feeds.ports import Past
from millrace.changefeed.homes.floors import FeedFloors
from millrace.core.feeds.floors import owner
from millrace.core.sources.registry import copy_topic, progress_topic, table_topic
from millrace.errors import PositionMissing, Superseded, Unreachable
from millrace.log.client.floors import FloorClient
from millrace.model.ids import TopicPartition
from millrace.model.positions import TargetEnd
from millrace.model.progress import CopyStarted
from millrace.model.quarantine import quarantine_topic
from millrace.pipeline.kafka.home import LogHome
from millrace.wire.records import Record
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
        for _ in range(3):                                   # may be repeated
            await homes(log).remove(entry().spec, 20, maintainer=10)
            assert await held(log) == {}
            assert (await FloorClient(log.client).of_owner(owner(FEED))).epoch == 10, "nobody from before comes back"
        another = await homes(log).open(entry(), Past(0, None, frozenset(), 11))
        assert (await held(log))[tp] == 0, "one of the same name begins anew"
        await another.leave()

    run(tmp_path, story)


def test_F10_what_is_gone_is_not_said_to_be_held(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        tp = await shop(log)
        await log.cut(table_topic(SOURCE, T.oid), 2)
        floors = FeedFloors(log.client, FEED, 7)
        assert await floors.hold({tp: 1}) is False
        assert await floors.hold({tp: 2}) is True

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
        assert await floors.look(lambda: {tp: 3}) == {}
        assert await floors.look(dict) == {}
        assert (await held(log)) == {tp: 3}, "at the second look"
        assert await floors.look(dict) == {}
        assert (await held(log)) == {}
        assert await floors.hold({tp: 1}), "of another position, later"
        assert await floors.hold({tp: 0}), "also further back, where no position stands any more"
        assert (await held(log)) == {tp: 0}
        for _ in range(2):                                   # of a position that is no more, and that we still know of
            assert await floors.look(lambda: {tp: 3}) == {}
            assert (await held(log)) == {tp: 0}
        assert await floors.look(lambda: {tp: 3}) == {}
        assert (await held(log)) == {tp: 0}, "an end that is stored a moment ago may stand before those that are read"
        assert await floors.look(lambda: {tp: 3}) == {}
        assert (await held(log)) == {tp: 3}
        await client.set(owner(FEED), 8, {})
        for call in (floors.look(lambda: {tp: 4}), floors.hold({tp: 4}), floors.drop([tp])):
            try:
                await call
            except Superseded:
                continue
            raise AssertionError("another maintainer holds them")

    run(tmp_path, story)


def test_F10_who_comes_too_late_holds_nothing_for_a_changefeed_that_is_removed(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        tp = await shop(log)
        target = TopicPartition((await log.client.topic("shop.public.t")).id, 0)
        home = await homes(log).open(entry(), Past(3, None, frozenset(), 7))
        key, ends = log.key(T.oid), (TargetEnd(*target, 0),)
        await log.positions.take(key, 4)
        await LogHome(log.client, maintainer=5).hold(key, 4, ends)
        assert target in await held(log), "a dispatcher of an earlier maintainer that still works"
        await home.leave()
        late = FeedFloors(log.client, FEED, 7)
        await homes(log).remove(entry().spec, 20, maintainer=10)
        with pytest.raises(PositionMissing):
            await LogHome(log.client, maintainer=7).hold(key, 4, ends)
        with pytest.raises(Superseded):
            await late.register({tp: 0})
        assert await held(log) == {}

        again = await homes(log).open(entry(), Past(20, None, frozenset(), 12))
        await log.positions.take(key, 21)
        stands = await held(log)
        with pytest.raises(Superseded):
            await LogHome(log.client, maintainer=7).hold(key, 4, ends)
        assert await held(log) == stands, "of the one that has its name now"
        await again.leave()

    run(tmp_path, story)


def test_K3_F10_whoever_takes_over_a_target_does_not_move_what_others_hold_there(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await shop(log)
        target, fresh = [TopicPartition((await log.client.topic(name)).id, 0)
                         for name in ("shop.public.t", quarantine_topic(FEED))]
        await FloorClient(log.client).set(owner(FEED), 7, {target: 2})       # an end of another dispatcher
        await log.client.append(quarantine_topic(FEED), 0, [Record(b"x")] * 9)
        await log.cut(quarantine_topic(FEED), 4)
        await LogHome(log.client, maintainer=7).hold(log.key(T.oid), 4, (TargetEnd(*target, 6), TargetEnd(*fresh, 9)))
        assert await held(log) == {target: 2, fresh: 4}, "it is held, from where its log begins"

    run(tmp_path, story)


def test_F10_a_changefeed_that_is_removed_before_it_held_anything_is_not_held_later(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        tp = await shop(log)
        await homes(log).remove(entry().spec, 1, maintainer=2)
        with pytest.raises(Superseded):
            await FeedFloors(log.client, FEED, 1).register({tp: 0})
        assert await held(log) == {}

    run(tmp_path, story)


def test_F10_what_a_new_epoch_needs_further_back_is_held_there_whoever_was_held_first(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        tp = await shop(log)
        other = TopicPartition((await log.client.topic("shop.public.t")).id, 0)
        await FloorClient(log.client).set(owner(FEED), 7, {tp: 4})
        floors = FeedFloors(log.client, FEED, 8)             # it was set back meanwhile
        assert await floors.hold({other: 0}), "a table that joins, while it is opened"
        assert await floors.register({tp: 1}) == {}
        assert await held(log) == {tp: 1, other: 0}
        await log.cut(table_topic(SOURCE, T.oid), 1)
        later = FeedFloors(log.client, FEED, 9)
        assert await later.hold({other: 0})
        assert (await later.register({tp: 0})).keys() == {tp}, "gone, and told"
        with pytest.raises(Superseded):
            await floors.hold({other: 0})

    run(tmp_path, story)


def test_F10_a_look_that_failed_forgets_nothing_and_one_a_moment_later_removes_nothing(tmp_path: Path) -> None:
    def nobody_knows() -> dict[TopicPartition, int]:
        raise Unreachable("not now")

    async def story(log: Log) -> None:
        tp, floors = await shop(log), FeedFloors(log.client, FEED, 7)
        await floors.register({})
        assert await floors.hold({tp: 2}), "its position is made a moment later, and read later still"
        for _ in range(3):
            with pytest.raises(Unreachable):
                await floors.look(nobody_knows)
        for _ in range(5):
            await floors.look(dict, early=True)
        for _ in range(2):
            await floors.look(dict)
            assert await held(log) == {tp: 2}
        await floors.look(dict)
        for _ in range(3):
            await floors.look(dict, early=True)
            assert await held(log) == {tp: 2}, "nothing stands for it: it goes at the second look of the regular ones"
        await floors.look(dict)
        assert await held(log) == {}

    run(tmp_path, story)


def test_F10_a_doubt_finds_a_floor_that_a_late_call_has_moved(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        tp, floors = await shop(log), FeedFloors(log.client, FEED, 7)
        await floors.register({tp: 1})
        await FloorClient(log.client).set(owner(FEED), 7, {tp: 3})
        assert await floors.look(lambda: {tp: 1}, thorough=True) == {}
        assert await held(log) == {tp: 1}, "it is there, and held again"
        await FloorClient(log.client).set(owner(FEED), 7, {tp: 3})
        await log.cut(table_topic(SOURCE, T.oid), 2)
        assert (await floors.look(lambda: {tp: 1}, thorough=True)).keys() == {tp}
        assert await held(log) == {tp: 3}, "what nobody has said to be lost stays"
        assert await floors.look(lambda: {tp: 3}, thorough=True) == {}, "begun anew there, behind what it wanted before"
        assert await held(log) == {tp: 3}

    run(tmp_path, story)


def test_F10_who_has_moved_on_since_it_was_released_is_held_again_if_all_is_there(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        tp, floors = await shop(log), FeedFloors(log.client, FEED, 7)
        await floors.register({tp: 1})
        await log.release(owner(FEED), tp)
        assert (await floors.look(lambda: {tp: 1})).keys() == {tp}, "it stands where it stood: what is behind may go"
        assert await held(log) == {}
        await log.cut(table_topic(SOURCE, T.oid), 2)
        assert await floors.look(lambda: {tp: 3}) == {}
        assert await held(log) == {tp: 3}
        await log.release(owner(FEED), tp)
        await log.rows(T.oid, 0, 3, lsn=30)
        await log.cut(table_topic(SOURCE, T.oid), 5)
        for _ in range(2):
            assert "begins at 5" in (await floors.look(lambda: {tp: 4}))[tp]

    run(tmp_path, story)
