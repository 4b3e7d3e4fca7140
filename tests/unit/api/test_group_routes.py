"""Groups over HTTP, of a broker in this loop [A1]."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from millrace.api.app import build
from support_kafka import one_broker


def test_A1_groups_are_listed_and_described_with_their_offsets(tmp_path: Path) -> None:
    async def main() -> None:
        async with one_broker(tmp_path) as node:
            transport = httpx.ASGITransport(build(node.broker, node.server), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://broker") as client:
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
                found = (await client.get("/api/v2/groups/a%2Fb")).json()
                assert (found["state"], found["members"]) == ("Empty", [])
                assert found["offsets"] == [{"topic": "t", "partition": 0, "offset": "7", "metadata": "note"}]
                answer = await client.get("/api/v2/groups/none")
                assert (answer.status_code, answer.json()["error_code"]) == (404, "unknown_group")
                text = (await client.get("/metrics")).text
                assert 'millrace_groups{state="Empty"} 1.0' in text

    asyncio.run(main())
