"""A row out of the quarantine: what is refused before anything is done, and each step on a real broker [P9, K3]."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.changefeed.quarantine import Quarantine, Standing
from millrace.changefeed.replay import At, Replay
from millrace.core.sources.registry import table_topic
from millrace.errors import (
    InvalidExpression,
    InvalidProducerEpoch,
    InvalidRequest,
    Refused,
    RowOutdated,
    RowRefused,
    UnknownQuarantinedRow,
    Unreachable,
)
from millrace.log.client import LogClient
from millrace.model.changefeeds import ChangefeedSpec, TableSettings
from millrace.model.positions import Point
from millrace.model.quarantine import Quarantined, Settled, encode_quarantined, quarantine_topic
from millrace.sink.kafka.headers import NAME, Provenance, Written, value_of
from millrace.wire.changes import HEADER_KEY, BatchHeader, BatchKind, encode_header, encode_rows
from millrace.wire.pg.types import AFTER, arrow_schema
from millrace.wire.records import Record
from support_homes import FEED, SOURCE, SPEC, Log, run, table
from support_mover import TABLE
from support_secret import LOG_KEY


@pytest.mark.parametrize(("settings", "why"), [
    ({"filter": "id > 1"}, "has a filter"),
    ({"projection": ("id", "upper(x) AS y")}, "an expression in its projection"),
    ({"projection": ("id", "gone")}, "gone"),
])
def test_P9_P4_a_row_that_only_spark_could_judge_is_not_replayed(settings: dict[str, object], why: str) -> None:
    spec = ChangefeedSpec(id="orders", source="shop", sink="kafka:?format=json",
                          settings=(TableSettings(tables=TABLE.full_name, **settings),))  # type: ignore[arg-type]
    row = Quarantined(table=TABLE.full_name, schema_id=TABLE.id, before=False, commit_lsn=1, seq=0, reason="too_large")
    standing = Standing(0, row, Written(Provenance(bytes(16), 0, 1, 1), Point(4, 0)), None, 0)

    async def story() -> None:
        async with LogClient(["127.0.0.1:1"], key=LOG_KEY) as client:             # nobody is asked
            await Replay(client, spec, standing, {TABLE.id: TABLE}, database="db", epoch=2).run(wall_ms=0)

    with pytest.raises((InvalidRequest, InvalidExpression), match=why):
        asyncio.run(story())


# -- on a real broker --------------------------------------------------------------------------------------------------
T = table(16400, "t", "note")
TARGET, OLD_WRITER_EPOCH, EPOCH = "shop.public.t", 1, 5


def change(n: int, lsn: int, note: str = "x") -> bytes:
    """An insert of row `n`, as the log has it."""
    row = {"op": 0, "lsn": lsn, "commit_lsn": lsn, "commit_ts": 0, "xid": 1, "seq": 0, AFTER + "id": n,
           AFTER + "note": note}
    return encode_rows(pa.RecordBatch.from_pylist([row], schema=arrow_schema(T, before=False)))


class Aside:
    """Rows in the log, of which one stands in the quarantine; the changefeed does not run."""

    def __init__(self, log: Log) -> None:
        self.log, self.quarantine = log, Quarantine(log.client, FEED)

    async def begin(self, *rows: int, aside: int, at: int, note: str = "x") -> Standing:
        """`aside`: which of the rows was put aside; `at`: where the position stands."""
        client = self.log.client
        await self.log.add(T)
        for n in rows:
            header = BatchHeader(kind=BatchKind.ROWS, schema_id=T.id.bytes, generation=1, epoch=1, first_lsn=900 + n,
                                 first_seq=0, last_lsn=900 + n, last_seq=0, rows=1)
            await client.append(table_topic(SOURCE, T.oid), 0,
                                [Record(change(n, 900 + n), None, ((HEADER_KEY, encode_header(header)),))])
        await client.create_topic(TARGET, partitions=1)
        await client.create_topic(quarantine_topic(FEED), partitions=1)
        self.writer_id = await client.new_writer_id()
        await self.log.positions.create(self.log.key(T.oid), epoch=OLD_WRITER_EPOCH, at=Point(at, 0), resolved=0,
                                        writer_id=self.writer_id)
        row = Quarantined(table=T.full_name, schema_id=T.id, before=False, commit_lsn=900 + rows[aside], seq=0,
                          reason="too_large: 9", change=change(rows[aside], 900 + rows[aside], note))
        header_value = value_of(Provenance(self.log.ids[T.oid].bytes, 0, self.writer_id, 1), Point(aside, 0))
        await client.append(quarantine_topic(FEED), 0, [Record(encode_quarantined(row), None, ((NAME, header_value),))])
        return await self.standing()

    async def standing(self) -> Standing:
        return await self.quarantine.row((await self.quarantine.rows())[0].offset)

    async def replay(self, row: Standing, epoch: int = EPOCH) -> At:
        return await Replay(self.log.client, SPEC, row, {T.id: T}, database="db", epoch=epoch).run(wall_ms=7)

    async def told(self) -> list[int]:
        return [json.loads(value)["id"] for _, value in await self.log.messages(TARGET)]


def test_P9_a_row_is_settled_only_once_it_stands_in_its_target(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        aside = Aside(log)
        row = await aside.begin(1, aside=0, at=1, note="x" * 1_200_000)
        with pytest.raises(RowRefused):
            await aside.replay(row)
        (left,) = await aside.quarantine.rows()
        assert [one.how for one in left.tried] == ["replaying"], "it is asked about again, and what was tried is known"
        assert await aside.told() == []

    run(tmp_path, story)


def test_P9_a_try_before_this_one_is_found_and_the_row_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(log: Log) -> None:
        aside = Aside(log)
        row = await aside.begin(1, 2, aside=1, at=2)
        settle = Quarantine.settle

        async def dies(self: Quarantine, settled: Sequence[Settled]) -> None:
            if settled[0].how == "replayed":
                raise Unreachable("it died here")
            await settle(self, settled)

        monkeypatch.setattr(Quarantine, "settle", dies)
        with pytest.raises(Unreachable):
            await aside.replay(row)
        monkeypatch.setattr(Quarantine, "settle", settle)
        assert await aside.told() == [2]
        start = (await aside.quarantine.rows())[0].tried[0].ends
        assert start == (1,), "where the target ended before, behind the fence"
        at = await aside.replay(await aside.standing(), EPOCH + 1)
        assert (at.topic, await aside.told()) == (TARGET, [2])
        assert await aside.quarantine.rows() == []
        with pytest.raises(UnknownQuarantinedRow):
            await aside.quarantine.drop([row.offset], wall_ms=8)

    run(tmp_path, story)


def test_P9_a_row_is_not_replayed_behind_a_later_change_of_its_key_nor_before_its_position(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        aside = Aside(log)
        outdated = await aside.begin(1, 2, 1, aside=0, at=2)
        with pytest.raises(RowOutdated, match="later change of the same key"):
            await aside.replay(outdated)
        ahead = outdated._replace(written=outdated.written._replace(point=Point(2, 0)))
        with pytest.raises(Refused, match="has not passed the row"):
            await aside.replay(ahead, EPOCH + 1)
        assert await aside.told() == []

    run(tmp_path, story)


def test_K3_whoever_wrote_for_its_partition_before_is_fenced_first(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        aside = Aside(log)
        row = await aside.begin(1, aside=0, at=1)
        late = log.client.writer(TARGET, 0, writer_id=aside.writer_id, epoch=OLD_WRITER_EPOCH, sequence=0)
        await aside.replay(row)
        with pytest.raises(InvalidProducerEpoch):
            await late.append([Record(b"of a dispatcher that was taken over")])
        late.close()
        assert await aside.told() == [1]

    run(tmp_path, story)


def test_P9_of_rows_to_drop_all_are_dropped_or_none(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        aside = Aside(log)
        row = await aside.begin(1, aside=0, at=1)
        with pytest.raises(UnknownQuarantinedRow):
            await aside.quarantine.drop([row.offset, 99], wall_ms=8)
        assert len(await aside.quarantine.rows()) == 1
        await aside.quarantine.drop([row.offset], wall_ms=8)
        assert await aside.quarantine.rows() == []

    run(tmp_path, story)
