"""A changefeed's home on one real broker, asked as a maintainer asks it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from millrace import limits
from millrace.changefeed.feeds.ports import DdlTaken, FeedHome
from millrace.changefeed.homes.markers import first_markers
from millrace.changefeed.homes.stored import StoredPositions
from millrace.core.delivery.positions import Commit
from millrace.core.feeds.barrier import SchemaChange
from millrace.core.feeds.checkpoint import Committed
from millrace.core.feeds.ddl_home import ddl_key
from millrace.core.feeds.topic_claims import Claim
from millrace.core.sources.registry import progress_topic, table_topic
from millrace.errors import InvalidProducerEpoch, Malformed, Superseded, UnknownSource
from millrace.model.changefeeds import ChangefeedSpec, DdlPosition, TableSettings
from millrace.model.positions import Point, PositionKey, StoredPosition
from millrace.model.progress import Change
from millrace.model.quarantine import quarantine_topic
from millrace.model.spans import TablePartition, whole
from millrace.model.tables import TableSchema
from millrace.wire.records import Record
from support_feeds import until
from support_homes import FEED, SOURCE, Log, entry, homes, id_of, run, table

T, WIDER, WIDEST = (table(16400, "t", *more) for more in ((), ("x",), ("x", "y")))
TABLE = id_of(T.oid)
TARGET = "shop.public.t"


class Told:
    """All news of a home, together."""

    def __init__(self, home: FeedHome) -> None:
        self._home = home
        self.changes: list[SchemaChange] = []
        self._positions: dict[TablePartition, Committed] = {}

    def look(self) -> Told:
        news = self._home.news()
        self.changes += news.changes
        self._positions |= news.positions
        return self

    def marker(self, oid: int) -> int | None:
        """At which the position of its first partition stands."""
        found = self.look()._positions.get(TablePartition(id_of(oid), 0))
        return found.marker if found is not None else None

    def offset(self, oid: int) -> int | None:
        found = self.look()._positions.get(TablePartition(id_of(oid), 0))
        return found.next if found is not None else None


async def altered(log: Log, lsn: int, schema: TableSchema = WIDER) -> int:
    return await log.change(Change(1, T.oid, lsn, 0, "alter", schema.id, T.id, "ALTER TABLE t"), schema)


def test_C7_K3_a_change_stands_once_though_its_writer_went_before_it_could_commit(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await log.add(T)
        one, two = await altered(log, 20), await altered(log, 30, WIDEST)
        former = await homes(log).open(entry())
        assert former.tables == {TABLE: 1}
        assert await former.take_ddl(5) == DdlTaken(DdlPosition(5, one), ())
        assert await former.write_change(5, TABLE, one)

        home = await homes(log).open(entry())
        assert await home.take_ddl(6) == DdlTaken(DdlPosition(6, one))
        assert not await former.write_change(5, TABLE, two)
        assert not await former.commit_ddl(DdlPosition(5, one), DdlPosition(5, one + 1))
        assert await former.take_ddl(5) is None
        await _refused(log, epoch=5)

        assert await home.write_change(6, TABLE, one)        # it stands: nothing is written
        assert await home.commit_ddl(DdlPosition(6, one), DdlPosition(6, one + 1))
        assert await home.write_change(6, TABLE, two)
        apart = DdlPosition(6, one + 1, ((TABLE, two),))
        assert await home.commit_ddl(DdlPosition(6, one + 1), apart)
        assert not await home.commit_ddl(DdlPosition(6, one + 1), apart)
        assert await home.take_ddl(7) == DdlTaken(DdlPosition(7, one + 1, ((TABLE, two),)))
        assert [told.point for told, _ in await log.messages(TARGET)] == [(one, 0), (two, 0)]
        await former.leave()
        await home.leave()

    run(tmp_path, story)


async def _refused(log: Log, *, epoch: int) -> None:
    """A message of the former writer that was late."""
    progress_id = (await log.client.topic(progress_topic(SOURCE))).id
    writer_id = (await log.positions.read(ddl_key(FEED, progress_id))).writers[-1].writer_id
    writer = log.client.writer(TARGET, 0, writer_id=writer_id, epoch=epoch, sequence=1)
    with pytest.raises(InvalidProducerEpoch):
        await writer.append([Record(b"late")])
    writer.close()


def test_C7_P3_positions_of_a_table_exist_before_anybody_is_told_of_it(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await log.add(T, lsn=9)
        secret = table(16401, "secret")
        await log.add(secret)
        home = await homes(log).open(entry())
        assert home.tables == {TABLE: 1}
        told = Told(home).look()
        assert told.changes == []

        born = await log.add(table(16402, "u"), partitions=2, lsn=40)
        await until(lambda: told.look().changes, 10)
        assert told.changes == [SchemaChange(born, 40, "create", (id_of(16402),), 2)]
        stored = await log.stored()
        fresh = [stored[log.key(16402, n)] for n in (0, 1)]
        assert [(one.at, one.resolved) for one in fresh] == [((0, 0), 39)] * 2
        assert len({one.writers for one in stored.values()}) == len(stored) == 4     # each has a writer of its own

        await log.rows(16401, 0, 2, lsn=50)                  # rows of a table that is not taken
        shown = table(16401, "shown")
        number = await log.change(Change(1, 16401, 51, 0, "alter", shown.id, secret.id), shown)
        await until(lambda: told.look().changes[1:], 10)
        assert told.changes[1] == SchemaChange(number, 51, "create", (id_of(16401),), 1)
        assert (await log.stored())[log.key(16401)].at == (2, 0)
        await until(lambda: told.marker(16401) == number, 10)

        dropped = await log.change(Change(1, T.oid, 60, 0, "drop", None, T.id))
        await until(lambda: told.look().changes[2:], 10)
        assert told.changes[2] == SchemaChange(dropped, 60, "drop", (TABLE,))
        await log.client.append(progress_topic(SOURCE), 0, [Record(b"\x01nonsense")])
        with pytest.raises(Malformed):
            await until(lambda: told.look() is None, 10)
        await home.leave()

    run(tmp_path, story)


def test_C7_partitions_at_their_markers_are_found_by_one_look_whatever_stands_behind_them(tmp_path: Path) -> None:
    """Else every partition of a table would cost each of its barriers a look more."""
    async def story(log: Log) -> None:
        parts = 2
        await log.add(T, partitions=parts)
        await altered(log, 20)
        for partition in range(parts):
            for lsn in range(30, 30 + parts * limits.HOME_LOOK_BYTES // 64):     # each a batch of its own, of more
                await log.rows(T.oid, partition, 1, lsn=lsn)
        topic = table_topic(SOURCE, T.oid)
        wanted = {(topic, partition): 0 for partition in range(parts)}
        found = await first_markers(log.client, wanted, wait_s=1.0)
        assert found == dict.fromkeys(wanted, (1, T.oid, 20, 0))

    run(tmp_path, story)


def test_C7_whoever_comes_to_a_marker_is_told_and_nobody_else(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await log.add(T)
        await log.rows(T.oid, 0, 4, lsn=10)
        home = await homes(log).open(entry())
        told, arrived = Told(home), asyncio.create_task(home.arrived())
        number = await altered(log, 20)
        await log.rows(T.oid, 0, 4, lsn=30)
        await log.mark(30)
        await log.move(T.oid, 0, 2, resolved=0)
        await until(lambda: told.offset(T.oid) == 2, 10)
        assert not arrived.done()
        await log.move(T.oid, 0, 4, resolved=19)
        await asyncio.wait_for(arrived, 10)
        assert told.marker(T.oid) == number, "when it is told, it is among the news"
        await home.leave()

    run(tmp_path, story)


def test_C3_closed_positions_let_no_former_owner_commit_or_write(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        with pytest.raises(UnknownSource):
            await homes(log).open(entry(ChangefeedSpec(id=FEED, source="other", sink="kafka:")))
        await log.add(T)
        home = await homes(log).open(entry())
        await log.client.create_topic(TARGET, partitions=2)
        await log.client.create_topic(quarantine_topic(FEED), partitions=1)
        key = log.key(T.oid)
        writer_id = (await log.positions.take(key, 4)).writers[-1].writer_id
        await log.client.fence(TARGET, 1, writer_id=writer_id, epoch=4)
        writer = log.client.writer(TARGET, 1, writer_id=writer_id, epoch=4)
        await writer.append([Record(b"row")])

        for _ in range(2):                                   # may be repeated
            assert await home.close_positions(whole(TABLE, 1), 5, forget=False)
        assert not await home.close_positions(whole(TABLE, 1), 4, forget=False)
        with pytest.raises(Superseded):
            await log.positions.commit(key, Commit(4, Point(0, 0), Point(1, 0), (), 0))
        with pytest.raises(InvalidProducerEpoch):
            await writer.append([Record(b"late")])
        writer.close()
        with pytest.raises(Superseded):                      # somebody works under a greater epoch
            await homes(log).remove(entry().spec, 4, maintainer=1)
        await homes(log).remove(entry().spec, 6, maintainer=1)
        assert await log.stored() == {}
        await home.leave()

    run(tmp_path, story)


def test_K4_a_watermark_stands_in_every_partition_and_no_former_epoch_adds_one(tmp_path: Path) -> None:
    spec = ChangefeedSpec(id=FEED, source=SOURCE, sink="kafka:?format=json&watermarks=true&partitions=2",
                          settings=(TableSettings(tables="public.u", topic="other"),))

    async def story(log: Log) -> None:
        await log.add(T)
        await log.add(table(16401, "u"))
        one = await altered(log, 20)
        former = await homes(log).open(entry(spec))
        assert former.watermarks
        await former.take_ddl(5)
        assert await former.write_watermark(5, 15, frozenset({TABLE, id_of(16401)})), "no topic is there yet"
        assert await former.write_change(5, TABLE, one)
        assert await former.write_watermark(5, 18, frozenset({TABLE}))
        assert await former.commit_ddl(DdlPosition(5, one), DdlPosition(5, one + 1))
        two = await altered(log, 30, WIDEST)
        home = await homes(log).open(entry(spec))
        await home.take_ddl(6)
        assert await home.write_watermark(6, 25, frozenset({TABLE}))
        assert not await former.write_watermark(5, 99, frozenset({TABLE})), "fenced"
        assert not await home.write_watermark(5, 99, frozenset({TABLE}))
        assert await home.write_change(6, TABLE, two), "sequences go on behind watermarks"
        taken = await home.take_ddl(7)
        assert taken == DdlTaken(DdlPosition(7, one + 1))
        assert await home.write_change(7, TABLE, two), "a scan finds the change, not watermarks: it stands"

        for partition, changes in ((0, [one, two]), (1, [])):
            found = await log.messages(TARGET, partition)
            marks = [json.loads(value) for told, value in found if told.point.offset == -1]
            assert [mark["_commit_version"] for mark in marks] == [18, 25]
            assert {mark["_change_type"] for mark in marks} == {"watermark"}
            assert [told.point.offset for told, _ in found if told.point.offset >= 0] == changes
        await former.leave()
        await home.leave()

    run(tmp_path, story)


def test_C7_P4_a_change_describes_its_table_as_the_settings_show_it(tmp_path: Path) -> None:
    said = (TableSettings(tables="public.t", topic="mine.{table}", projection=("id", "x AS shown")),)
    spec = ChangefeedSpec(id=FEED, source=SOURCE, sink="kafka:?format=json", settings=said)

    async def story(log: Log) -> None:
        await log.add(T)
        one, two = await altered(log, 20, WIDEST), await altered(log, 30, table(16400, "t", "y"))
        home = await homes(log).open(entry(spec))
        await home.take_ddl(5)
        assert await home.write_change(5, TABLE, one)
        assert await home.commit_ddl(DdlPosition(5, one), DdlPosition(5, one + 1))
        assert await home.write_change(5, TABLE, two), "a table that its settings do not fit holds nobody up"
        shown = [json.loads(value)["columns"] for _, value in await log.messages("mine.t")]
        assert [[column["name"] for column in columns] for columns in shown] == [["id", "shown"], ["id"]]
        await home.leave()

    run(tmp_path, story)


def test_K2_nothing_is_told_in_a_topic_that_is_another_changefeeds(tmp_path: Path) -> None:
    spec = ChangefeedSpec(id=FEED, source=SOURCE, sink="kafka:?format=json&watermarks=true&topic={table}")
    told: list[tuple[str, set[str]]] = []

    async def owners(feed: str, tables: tuple[TableSchema, ...]) -> dict[str, Claim]:
        told.append((feed, {one.name for one in tables}))
        return {"t": Claim("t", "elder", "public.t")}

    async def story(log: Log) -> None:
        await log.add(T)
        await log.add(table(16401, "u"))
        for topic in ("t", "u"):
            await log.client.create_topic(topic, partitions=1)
        one = await altered(log, 20)
        home = await homes(log, owners).open(entry(spec))
        await home.take_ddl(5)
        assert await home.write_change(5, TABLE, one), "it holds nobody up"
        assert await home.write_watermark(5, 18, frozenset({TABLE, id_of(16401)}))
        assert await log.messages("t") == []
        assert len(await log.messages("u")) == 1
        assert told[0] == (FEED, {"t", "u"}), "asked with all tables that the source has"
        await home.leave()

    run(tmp_path, story)


def test_L21_tools_see_that_all_of_progress_is_done_up_to_a_change_that_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HOME_SHOW_S", 0.01)

    async def story(log: Log) -> None:
        await log.add(T)
        await log.mark(10)
        home = await homes(log).open(entry())
        key = ddl_key(FEED, (await log.client.topic(progress_topic(SOURCE))).id)

        async def shown(wanted: int) -> StoredPosition:
            async with asyncio.timeout(10):
                while (found := await log.positions.read(key)).shown != wanted:
                    await asyncio.sleep(0.01)
            return found

        assert await home.take_ddl(5) == DdlTaken(DdlPosition(5, 2))
        before = await log.positions.read(key)
        for resolved in (12, 14, 16):
            await log.mark(resolved)
        assert await shown(5) == msgspec.structs.replace(before, shown=5), "what counts stands still"
        one = await altered(log, 20)
        await log.mark(30)
        await shown(one)
        assert await home.write_change(5, TABLE, one)
        assert await home.commit_ddl(DdlPosition(5, 2), DdlPosition(5, one + 1))
        await shown((await log.client.ends(progress_topic(SOURCE), 0))[1])
        assert (await home.take_ddl(6)) == DdlTaken(DdlPosition(6, one + 1)), "a take-over finds what was committed"
        await home.leave()

    run(tmp_path, story)


def test_L21_a_change_that_passes_moves_the_shown_place_though_its_commit_is_read_back_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an idle source no later mark would make the home look again."""
    monkeypatch.setattr(limits, "HOME_SHOW_S", 0.01)
    readable, read = asyncio.Event(), StoredPositions.page

    async def read_late(positions: StoredPositions, *, wait_s: float) -> set[PositionKey]:
        changed = await read(positions, wait_s=wait_s)
        await readable.wait()
        return changed

    monkeypatch.setattr(StoredPositions, "page", read_late)

    async def story(log: Log) -> None:
        readable.set()
        await log.add(T)
        home = await homes(log).open(entry())
        one = await altered(log, 20)
        key = ddl_key(FEED, (await log.client.topic(progress_topic(SOURCE))).id)
        taken = await home.take_ddl(5)
        assert taken is not None
        async with asyncio.timeout(10):
            while (await log.positions.read(key)).shown != one:
                await asyncio.sleep(0.01)
        readable.clear()
        assert await home.write_change(5, TABLE, one)
        assert await home.commit_ddl(taken.position, DdlPosition(5, one + 1))
        await until(lambda: not home._came.is_set(), 10)     # whoever shows has looked since
        readable.set()
        async with asyncio.timeout(10):
            while (await log.positions.read(key)).shown != one + 1:
                await asyncio.sleep(0.01)
        await home.leave()

    run(tmp_path, story)
