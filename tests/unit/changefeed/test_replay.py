"""What is refused before anything of a replay is done; the rest: tests/unit/cli/test_changefeed.py."""

from __future__ import annotations

import asyncio

import pytest

from millrace.changefeed.quarantine import Standing
from millrace.changefeed.replay import Replay
from millrace.errors import InvalidExpression, InvalidRequest
from millrace.log.client import LogClient
from millrace.model.changefeeds import ChangefeedSpec, TableSettings
from millrace.model.positions import Point
from millrace.model.quarantine import Quarantined
from millrace.sink.kafka.headers import Provenance, Written
from support_mover import TABLE


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
        async with LogClient(["127.0.0.1:1"]) as client:             # nobody is asked
            await Replay(client, spec, standing, {TABLE.id: TABLE}, database="db", epoch=2).run(wall_ms=0)

    with pytest.raises((InvalidRequest, InvalidExpression), match=why):
        asyncio.run(story())
