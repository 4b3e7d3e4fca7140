"""How many rows stand in quarantines, on one real broker [P9]."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from millrace.api.changefeed_metrics import quarantine_metrics
from millrace.changefeed.quarantine import Quarantine
from millrace.changefeed.quarantine_counts import QuarantineCounts
from millrace.core.feeds.feeds import FeedEntry
from millrace.errors import Unreachable
from millrace.log.client import LogClient
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.positions import Point
from millrace.model.quarantine import Quarantined, Settled, encode_quarantined, quarantine_topic
from millrace.sink.kafka.headers import NAME, Provenance, value_of
from millrace.wire.records import Record
from support_homes import a_log

ROW = Quarantined(table="public.t", schema_id=UUID(int=3), before=False, commit_lsn=9, seq=0, reason="too_large: 9")
FEEDS = {"orders": 1, "crm": 1}


async def put(client: LogClient, feed: str, count: int) -> None:
    header = value_of(Provenance(UUID(int=1).bytes, 0, 77, 3), Point(0, 0))
    await client.append(quarantine_topic(feed), 0, [Record(encode_quarantined(ROW), None, ((NAME, header),))] * count)


def samples(counts: QuarantineCounts) -> dict[str, float]:
    entries = {feed: FeedEntry(ChangefeedSpec(id=feed, source="s", sink="kafka:"), 1) for feed in FEEDS}
    return {sample.labels["changefeed"]: sample.value for metric in quarantine_metrics(entries, counts)
            for sample in metric.samples if metric.name == "millrace_changefeed_quarantined_rows"}


def test_P9_rows_are_counted_on_from_the_last_look_and_unknown_is_never_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with a_log(tmp_path) as log:
            client, counts = log.client, QuarantineCounts(log.client)
            assert (counts.of("orders"), samples(counts)) == (None, {}), "nobody has looked"
            await counts.look(FEEDS, 10.0)
            assert samples(counts) == {"orders": 0, "crm": 0}, "no row was ever put there"
            for feed in FEEDS:
                await client.create_topic(quarantine_topic(feed), partitions=1)
            await put(client, "orders", 3)
            await put(client, "crm", 1)
            await counts.look(FEEDS, 10.0)
            assert samples(counts) == {"orders": 3, "crm": 1}
            standing = [row.offset for row in await Quarantine(client, "orders").rows()]
            await Quarantine(client, "orders").drop(standing[:1], wall_ms=1)
            await Quarantine(client, "orders").settle(
                [Settled(offset=standing[1], how="replaying", wall_ms=1, topic="t", ends=(0,)),
                 Settled(offset=standing[2], how="replayed", wall_ms=1)])
            await put(client, "orders", 1)
            asked = list[int]()
            fetch = client.fetch

            async def noted(wanted: dict[tuple[str, int], int], **more: float) -> object:
                asked.append(wanted[quarantine_topic("orders"), 0])
                return await fetch(wanted, **more)               # type: ignore[arg-type]

            monkeypatch.setattr(client, "fetch", noted)
            await counts.look(FEEDS, 10.0)
            assert samples(counts) == {"orders": 2, "crm": 1}, "one is being replayed, one came"
            assert min(asked) == 3, "what was read is not read again"
            await client.delete_topic(quarantine_topic("orders"))    # it is removed, and made again under its name
            await client.create_topic(quarantine_topic("orders"), partitions=1)
            await counts.look(FEEDS | {"orders": 2}, 10.0)
            assert samples(counts) == {"orders": 0, "crm": 1}

            async def silent(wanted: object, **more: float) -> object:
                raise Unreachable("no broker")

            monkeypatch.setattr(client, "fetch", silent)
            await counts.look(FEEDS | {"orders": 2}, 10.0)
            assert samples(counts) == {}, "of yesterday's counts nobody says that they still hold"
            counts.only({})
            assert counts.of("orders") is None

    asyncio.run(story())
