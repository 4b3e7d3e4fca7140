"""Groups over HTTP, of a broker in this loop [A1]."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import msgspec

from millrace.api.app import build
from millrace.model.records import Endpoint
from support_http import client_of, door
from support_kafka import one_broker


def test_A1_groups_are_listed_and_described_with_their_offsets(tmp_path: Path) -> None:
    async def main() -> None:
        async with one_broker(tmp_path) as node, client_of(build(node.broker, node.server, door())) as client:
            assert (await client.get("/api/v2/groups")).json() == {"total": 0, "items": [], "missing": []}
            assert (await client.get("/api/v2/groups/a%2Fb")).json()["error_code"] == "unknown_group"
            wire = await node.connect()
            await wire.create("t")
            await wire.call("FindCoordinator", {"coordinator_keys": ["a/b"]})
            topics = [{"name": "t", "partitions": [{"partition": 0, "offset": 7, "metadata": "note"}]}]
            async with asyncio.timeout(20):
                while True:
                    answer = await wire.call("OffsetCommit", {"group_id": "a/b", "topics": topics})
                    if answer["topics"][0]["partitions"][0]["error_code"] == 0:
                        break
            (listed,) = (await client.get("/api/v2/groups")).json()["items"]
            assert listed == {"group": "a/b", "state": "Empty", "protocol_type": "", "coordinator": 1, "members": 0}
            assert 'millrace_groups{state="Empty"} 1.0' in (await client.get("/metrics")).text
            found = (await client.get("/api/v2/groups/a%2Fb")).json()
            assert (found["state"], found["members"]) == ("Empty", [])
            assert found["offsets"] == [{"topic": "t", "partition": 0, "offset": "7", "metadata": "note"}]
            answer = await client.get("/api/v2/groups/none")
            assert (answer.status_code, answer.json()["error_code"]) == (404, "unknown_group")
            join = {"group_id": "a/b", "session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "member_id": "",
                    "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}
            wire.send("JoinGroup", join, version=3)      # it waits for others: that it asks is seen at once
            await until_members(client, 1)
            state = node.broker.cluster.brokers[1]
            nobody = Endpoint(host="127.0.0.1", kafka_port=1, link_port=1, http_port=1)
            node.broker.cluster.brokers[9] = msgspec.structs.replace(state, broker=9, endpoint=nobody)
            assert (await client.get("/api/v2/groups")).json()["missing"] == [9], "unknown is not nothing"
            del node.broker.cluster.brokers[9]
            text = (await client.get("/metrics")).text
            assert "millrace_groups{" in text

    asyncio.run(main())


async def until_members(client: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(20):
        while (await client.get("/api/v2/groups")).json()["items"][0]["members"] != count:
            await asyncio.sleep(0.01)
