"""HTTP on a broker: shapes of answers, errors as problem+json, health, metrics, all over real brokers in this loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from millrace.api.app import ROUTES, HttpServer, build
from millrace.api.peers import get_json
from millrace.errors import MillraceError
from millrace.log.kafka.server import KafkaServer
from millrace.model.floors import FloorAt, SetFloors
from millrace.model.ids import TopicPartition
from millrace.model.messages import AskFloors
from millrace.model.records import Endpoint
from millrace.ops.metrics import BROKER_METRICS
from support_brokers import Brokers, batch, until
from support_http import client_of, door, ended
from support_ports import free_ports

Body = Callable[[httpx.AsyncClient, Brokers], Awaitable[None]]


@asynccontextmanager
async def serving(brokers: Brokers) -> AsyncIterator[httpx.AsyncClient]:
    broker = brokers.running[0]
    assert isinstance(broker.listener, KafkaServer)
    async with client_of(build(broker, broker.listener, door())) as client:
        yield client


def run(path: Path, body: Body, count: int = 1) -> None:
    async def main() -> None:
        async with Brokers(path, count, listener=KafkaServer) as brokers, serving(brokers) as client:
            await body(client, brokers)

    asyncio.run(main())


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["status"] == status
    assert found["error_code"] == code
    assert found["error_msg"]
    return found


def test_A1_topics_are_created_listed_described_and_deleted(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, brokers: Brokers) -> None:
        made = await client.post("/api/v2/topics", json={"name": "t", "partitions": 3})
        assert made.status_code == 201
        assert made.headers["location"] == "/api/v2/topics/t"
        listed = (await client.get("/api/v2/topics")).json()
        assert (listed["total"], listed["items"][0]["name"], listed["items"][0]["partition_count"]) == (1, "t", 3)
        topic_id = brokers.running[0].cluster.topics_by_name["t"].topic_id
        await brokers.produce(TopicPartition(topic_id, 1), b"a", b"b")
        found = (await client.get("/api/v2/topics/t")).json()
        assert found["min_insync_replicas"] == 1
        assert [p["partition"] for p in found["partitions"]] == [0, 1, 2]
        replica = found["partitions"][1]["replicas"][0]
        assert (replica["leo"], replica["hw"], replica["role"], replica["broker"]) == ("2", "2", "leader", 0)
        assert (replica["log_start"], int(replica["size_bytes"]) > 60, replica["held"]) == ("0", True, [])
        assert found["retention"] == {"retention_ms": str(7 * 86_400_000), "retention_bytes": "-1",
                                      "segment_ms": str(7 * 86_400_000), "by_floors": False}
        set_floor = SetFloors("changefeed/a", 3, (FloorAt(topic_id, 1, 1),))
        await brokers.running[0].ask_controller(AskFloors(set_floor))
        await until(lambda: brokers.running[0].cluster.floors.count, "the floor is known")
        held = (await client.get("/api/v2/topics/t")).json()["partitions"][1]
        assert held["floors"] == [
            {"owner": "changefeed/a", "epoch": 3, "offset": "1", "held_bytes": "0", "age_s": 0}]
        assert (held["log_start"], held["released"]) == ("0", [])
        assert (await client.delete("/api/v2/topics/t")).status_code == 204
        assert (await client.get("/api/v2/topics")).json() == {"total": 0, "items": []}

    run(tmp_path, body)


def test_A1_errors_are_problems_with_a_code(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, brokers: Brokers) -> None:
        problem(await client.get("/api/v2/topics/none"), 404, "unknown_topic_or_partition")
        problem(await client.delete("/api/v2/topics/none"), 404, "unknown_topic_or_partition")
        problem(await client.delete("/api/v2/topics/"), 404, "not_found")
        problem(await client.get("/nowhere"), 404, "not_found")
        elsewhere = await client.get("/api/v2/changefeeds")
        problem(elsewhere, 404, "not_found")
        assert "this is a broker: ask a capture" in elsewhere.json()["error_msg"]
        problem(await client.put("/api/v2/topics"), 405, "method_not_allowed")
        problem(await client.get("/api/v2/replicas/nonsense"), 400, "invalid_request")
        leader = "/api/v2/topics/none/partitions/0/leader"
        problem(await client.put(leader, json={"unclean": True}), 404, "unknown_topic_or_partition")
        problem(await client.put(leader, json={"unclean": False}), 400, "invalid_request")
        problem(await client.put(leader, json={}), 400, "invalid_request")
        problem(await client.post("/api/v2/topics", content=b"{"), 400, "invalid_request")
        problem(await client.post("/api/v2/topics", json={"name": "t", "x": 1}), 400, "invalid_request")
        problem(await client.post("/api/v2/topics", json={"name": "bad name"}), 400, "invalid_topic_name")
        problem(await client.post("/api/v2/topics", content=b" " * (2 << 20)), 400, "invalid_request")
        problem(await client.post("/api/v2/topics", json={"name": "t", "replication_factor": 5}), 400,
                "invalid_replication_factor")
        await client.post("/api/v2/topics", json={"name": "t"})
        problem(await client.post("/api/v2/topics", json={"name": "t"}), 409, "topic_exists")

    run(tmp_path, body)


def test_A1_brokers_are_listed_with_their_liveness(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, brokers: Brokers) -> None:
        found = (await client.get("/api/v2/brokers")).json()
        assert found["total"] == 2
        assert found["controller"] in (0, 1)
        assert [b["liveness"] for b in found["items"]] == ["alive", "alive"]
        assert all(isinstance(b["incarnation"], str) for b in found["items"])

    run(tmp_path, body, count=2)


def test_A4_health_says_why_a_broker_is_not_ready(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, brokers: Brokers) -> None:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        member = brokers.running[0].membership
        member.stopping = True
        assert problem(await client.get("/readyz"), 503, "not_ready")["detail"] == "stopping"
        member.stopping = False
        member.lease.revoked()
        assert "no lease" in problem(await client.get("/readyz"), 503, "not_ready")["detail"]
        member.fenced = True
        assert "not yet a member" in problem(await client.get("/readyz"), 503, "not_ready")["detail"]
        brokers.running[0].client.trouble = "etcd: refused"
        assert "etcd: refused" in problem(await client.get("/readyz"), 503, "not_ready")["detail"]
        assert (await client.get("/livez")).status_code == 200

    run(tmp_path, body)


def test_L23_a_broker_with_a_full_disk_is_ready_and_says_that_it_refuses_writes(tmp_path: Path) -> None:
    async def main() -> None:
        full = Brokers(tmp_path, 1, listener=KafkaServer, disk_used_max=1e-9)
        async with full, serving(full) as client:
            answer = await client.get("/readyz")
            assert answer.status_code == 200
            assert f"of the disk under {full.running[0].config.data_dir} is used" in answer.json()["refuses_writes"]

    async def roomy(client: httpx.AsyncClient, brokers: Brokers) -> None:
        assert (await client.get("/readyz")).json() == {"status": "ready", "refuses_writes": ""}

    asyncio.run(main())
    run(tmp_path / "roomy", roomy)


def test_A4_a_broker_that_has_not_started_answers(tmp_path: Path) -> None:
    async def main() -> None:
        brokers = Brokers(tmp_path, 1, listener=KafkaServer)
        broker = brokers.running[0] = brokers.build(0)
        try:
            async with serving(brokers) as client:
                assert (await client.get("/livez")).status_code == 200
                problem(await client.get("/readyz"), 503, "not_ready")
                problem(await client.get("/api/v2/topics"), 503, "unreachable")
                assert "millrace_ready 0.0" in (await client.get("/metrics")).text
        finally:
            await broker.close(clean=False)

    asyncio.run(main())


def test_L26_metrics_are_those_of_the_table(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, brokers: Brokers) -> None:
        topic_id = await brokers.create_topic("t", partitions=2)
        await brokers.produce(TopicPartition(topic_id, 0), b"a")
        text = (await client.get("/metrics")).text
        shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE millrace_")}
        assert shown == set(BROKER_METRICS)
        assert "millrace_partitions 2.0" in text
        assert "millrace_offline_partitions 0.0" in text
        assert 'millrace_partition_leader_epoch{partition="0",topic="t"} 0.0' in text
        assert 'millrace_broker_silence_seconds{broker="0"}' in text
        assert "millrace_is_controller 1.0" in text
        assert "millrace_high_watermark_advances_total 0.0" not in text

    run(tmp_path, body)


def test_L26_a_follower_that_is_behind_is_shown_with_its_lag(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, brokers: Brokers) -> None:
        topic_id = await brokers.create_topic("t", partitions=-1, assignment={0: (0, 1)})
        await brokers.kill(1)
        partition = await brokers.leader_of(TopicPartition(topic_id, 0))
        partition.append(memoryview(batch(b"a", b"b", b"c")), acks=1)
        text = (await client.get("/metrics")).text
        assert 'millrace_replication_lag_records{follower="1",partition="0",topic="t"} 3.0' in text
        assert 'millrace_replication_lag_seconds{follower="1",partition="0",topic="t"}' in text

    run(tmp_path, body, count=2)


def test_http_runs_in_the_loop_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, brokers: Brokers) -> None:
        broker = brokers.running[0]
        assert isinstance(broker.listener, KafkaServer)
        port = free_ports(1)[0]
        server = HttpServer(build(broker, broker.listener, door(port)), ended=ended)
        before = asyncio.all_tasks()
        await server.start("127.0.0.1", port)
        endpoint = Endpoint("127.0.0.1", 1, 1, port)
        answer = await get_json(broker, endpoint, "/api/v2/topics")
        assert answer == {"total": 0, "items": []}
        assert await get_json(broker, endpoint, "/nowhere") is None
        with pytest.raises(OSError, match="in use"):
            await HttpServer(build(broker, broker.listener, door(port)), ended=ended).start("127.0.0.1", port)
        await server.close()
        assert await get_json(broker, endpoint, "/api/v2/topics") is None
        assert {t for t in asyncio.all_tasks() - before if t.get_name() == "http"} == set()

    run(tmp_path, body)


def test_a_server_that_ends_by_itself_ends_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[MillraceError] = []

    async def on_tick(self: uvicorn.Server, counter: int) -> bool:
        raise ValueError("a mistake")

    async def body(client: httpx.AsyncClient, brokers: Brokers) -> None:
        broker = brokers.running[0]
        assert isinstance(broker.listener, KafkaServer)
        port = free_ports(1)[0]
        server = HttpServer(build(broker, broker.listener, door(port)), ended=failed.append)
        monkeypatch.setattr(uvicorn.Server, "on_tick", on_tick)
        await server.start("127.0.0.1", port)
        await until(lambda: bool(failed), "the end to be noticed")
        await server.close()

    run(tmp_path, body)
    assert [str(error) for error in failed] == ["http ended: ValueError: a mistake"]


def test_every_route_is_once() -> None:
    named = [(route.path, tuple(sorted(route.methods or ()))) for route in ROUTES]
    assert len(named) == len(set(named))


def test_L29_a_broker_that_is_gone_is_removed_and_nothing_else(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, brokers: Brokers) -> None:
        problem(await client.delete("/api/v2/brokers/9"), 404, "unknown_broker")
        problem(await client.delete("/api/v2/brokers/2"), 409, "broker_in_use")
        topic = await brokers.create_topic("t", assignment={0: (0, 2)})
        await brokers.kill(2)
        await until(lambda: brokers.running[0].cluster.brokers[2].fenced, "the fence")
        refused = problem(await client.delete("/api/v2/brokers/2"), 409, "broker_in_use")
        assert "holds replicas of 1 partitions: t/0" in refused["error_msg"]
        await client.delete("/api/v2/topics/t")
        assert topic not in brokers.running[0].cluster.topics
        assert (await client.delete("/api/v2/brokers/2")).status_code == 204
        listed = (await client.get("/api/v2/brokers")).json()
        assert [broker["id"] for broker in listed["items"]] == [0, 1]
        await brokers.start(2)
        await until(lambda: brokers.running[0].cluster.brokers[2].eligible, "it to be back as a new member")

    run(tmp_path, body, count=3)
