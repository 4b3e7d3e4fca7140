"""`GET /api/v2/health` and what `changefeed get` says: one judgement, whoever is asked [A9]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millrace.model.rounds import TaskPlan
from support_faces import Faces, run

PATH = "/api/v2/changefeeds"
BODY = {"id": "orders", "source": "shop", "sink": "kafka:?format=debezium-json", "tables": ["public.*"]}


def codes(body: dict[str, Any]) -> list[str]:
    return [one["code"] for one in body["items"]]


async def made(w: Faces) -> None:
    assert (await w.http[0].post(PATH, json=BODY)).status_code == 201
    await w.eventually(f"{PATH}/orders", lambda body: body["state"] == "normal" and body["lag_s"] is not None)


def test_A9_B2_a_source_that_fails_makes_its_changefeed_warn_and_its_lag_unknown(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        await made(w)
        assert await w.eventually("/api/v2/health", lambda body: body["items"] == [], 1)
        reign = w.captures[w.coordinator].reign
        assert reign is not None
        reader = reign.hosts["shop"].reader
        assert reader is not None
        reader.status.say("failed", "password authentication failed", now=reign.now(), code="source_auth_failed")
        for capture in (0, 1):
            found = await w.eventually(f"{PATH}/orders", lambda body: body["state"] == "warning", capture)
            assert found["why"] == "source shop is failed: password authentication failed"
            assert found["lag_s"] is found["lag_bytes"] is None
            told = await w.eventually("/api/v2/health", lambda body: body["items"], capture)
            assert codes(told) == ["source_auth_failed", "changefeed_without_source"]
            assert {"kind": "source", "name": "shop", "severity": "critical"}.items() <= told["items"][0].items()
        source = (await w.http[0].get("/api/v2/sources/shop")).json()
        assert codes({"items": source["health"]}) == ["source_auth_failed"]
        reader.status.say("streaming", now=reign.now())
        await w.eventually(f"{PATH}/orders", lambda body: body["state"] == "normal" and body["lag_s"] is not None)
        await w.eventually("/api/v2/health", lambda body: body["items"] == [])

    run(tmp_path, story)


def test_A9_B2_without_spark_a_changefeed_warns_and_spark_is_named(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        await made(w)
        await w.captures[1].spark.run([TaskPlan("orders", 1, "mover", b"", (), ())])
        (listed,) = (await w.http[0].get(PATH)).json()["items"]
        assert (listed["state"], listed["why"]) == ("warning", "no Spark: spark.remote: missing")
        told = await w.eventually("/api/v2/health", lambda body: body["items"])
        assert codes(told) == ["spark_absent", "changefeed_without_spark"]

    run(tmp_path, story)


def test_A9_B2_metrics_count_the_state_that_is_shown_and_only_the_coordinator_tells(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        await made(w)
        reign = w.captures[w.coordinator].reign
        assert reign is not None
        reader = reign.hosts["shop"].reader
        assert reader is not None

        async def shown(capture: int) -> list[str]:
            await w.http[capture].get("/api/v2/health")              # nobody else has it look here
            text = (await w.http[capture].get("/metrics")).text
            return [line for line in text.splitlines() if line.startswith((
                "millrace_changefeeds{", "millrace_health", "millrace_changefeed_lag"))]

        well = await shown(w.coordinator)
        assert well[0] == 'millrace_changefeeds{state="normal"} 1.0'
        assert well[-1] == 'millrace_changefeed_lag_known{changefeed="orders"} 1.0'
        assert len(well) == 4
        reader.status.say("retrying", "connection refused", now=reign.now(), code="source_unreachable")
        await w.eventually("/api/v2/health", lambda body: body["items"])
        assert await shown(w.coordinator) == [
            'millrace_health_finding{code="source_unreachable",kind="source",name="shop",severity="critical"} 1.0',
            ('millrace_health_finding{code="changefeed_without_source",kind="changefeed",name="orders",'
             'severity="warning"} 1.0'),
            'millrace_changefeeds{state="warning"} 1.0',
            'millrace_changefeed_lag_known{changefeed="orders"} 0.0',
        ]
        assert await shown(1 - w.coordinator) == []

    run(tmp_path, story)


def test_A9_P8_an_idle_capture_notices_that_spark_is_gone(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        await made(w)
        for capture in w.captures:
            assert capture.spark.absence is None
            await capture.spark.look()
            assert capture.spark.absence is not None
            assert capture.spark.absence.why == "spark.remote: missing"

    run(tmp_path, story)
