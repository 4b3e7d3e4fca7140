"""Consumer groups as requests on one broker: every version, parked joins, offsets, tools [L20, L21]."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millrace.core.groups.calls import Code
from millrace.core.groups.placing import GROUP_TOPIC
from millrace.limits import GROUP_PARTITIONS
from support_kafka import Node, Wire, one_broker

PROTOCOLS = [{"name": "range", "metadata": b"wants t"}]


def run(directory: Path, test: object) -> None:
    async def main() -> None:
        async with one_broker(directory) as node:
            wire = await node.connect()
            await wire.create("t", partitions=2)
            await found(wire, "g")
            await test(node, wire)  # type: ignore[operator]

    asyncio.run(main())


async def found(wire: Wire, group: str) -> None:
    """Its coordinator is here and has loaded."""
    await wire.call("FindCoordinator", {"coordinator_keys": [group]})
    async with asyncio.timeout(20):
        while (await fetched(wire, group))["error_code"] != 0:
            await asyncio.sleep(0.01)


async def fetched(wire: Wire, group: str) -> dict[str, Any]:
    answer = await wire.call("OffsetFetch", {"groups": [{"group_id": group, "topics": None}]})
    one: dict[str, Any] = answer["groups"][0]
    return one


def join_fields(member_id: str = "", **more: Any) -> dict[str, Any]:
    return {"group_id": "g", "session_timeout_ms": 6000, "rebalance_timeout_ms": 6000, "member_id": member_id,
            "protocol_type": "consumer", "protocols": PROTOCOLS, **more}


async def joined(wire: Wire, *, version: int = 9, **more: Any) -> dict[str, Any]:
    """As a client does it: from version 4 on it asks again with the id it was given."""
    answer = await wire.call("JoinGroup", join_fields(**more), version=version)
    if answer["error_code"] == Code.MEMBER_ID_REQUIRED:
        assert version >= 4
        answer = await wire.call("JoinGroup", join_fields(answer["member_id"], **more), version=version)
    return answer


def sync_fields(member: dict[str, Any], *assigned: tuple[str, bytes]) -> dict[str, Any]:
    return {"group_id": "g", "generation_id": member["generation_id"], "member_id": member["member_id"],
            "protocol_type": "consumer", "protocol_name": "range",
            "assignments": [{"member_id": id_, "assignment": data} for id_, data in assigned]}


def beat_fields(member: dict[str, Any]) -> dict[str, Any]:
    return {"group_id": "g", "generation_id": member["generation_id"], "member_id": member["member_id"]}


def commit_fields(offsets: dict[tuple[str, int], int], **more: Any) -> dict[str, Any]:
    topics = [{"name": name, "partitions": [{"partition": index, "offset": offset, "metadata": "note"}]}
              for (name, index), offset in offsets.items()]
    return {"group_id": "g", "topics": topics, **more}


def codes(answer: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(t["name"], p["partition"], p["error_code"]) for t in answer["topics"] for p in t["partitions"]]


def test_L21_the_group_topic_comes_with_the_first_need(tmp_path: Path) -> None:
    async def main() -> None:
        async with one_broker(tmp_path) as node:
            wire = await node.connect()
            assert GROUP_TOPIC not in node.broker.cluster.topics_by_name
            assert (await wire.call("ListGroups"))["groups"] == []
            assert (await wire.call("Heartbeat", {"group_id": "g"}))["error_code"] == Code.NOT_COORDINATOR
            for version in range(4):
                answer = await wire.call("FindCoordinator", {"key": "g"}, version=version)
                assert (answer["error_code"], answer["node_id"], answer["port"]) == (0, 1, node.port)
            answer = await wire.call("FindCoordinator", {"coordinator_keys": ["g", "h"]})
            assert [(c["key"], c["node_id"]) for c in answer["coordinators"]] == [("g", 1), ("h", 1)]
            topic = node.broker.cluster.topics_by_name[GROUP_TOPIC]
            assert len(topic.partitions) == GROUP_PARTITIONS
            shown = (await wire.call("Metadata", {"topics": None}))["topics"]
            assert shown == []
            for version in (1, 2, 3):
                answer = await wire.call("FindCoordinator", {"key": "tx", "key_type": 1}, version=version)
                assert (answer["error_code"], "not supported" in answer["error_message"]) == (35, True)

    asyncio.run(main())


@pytest.mark.parametrize("version", range(10))
def test_L20_a_member_joins_syncs_beats_and_leaves_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(node: Node, wire: Wire) -> None:
        member = await joined(wire, version=version)
        assert (member["error_code"], member["leader"]) == (0, member["member_id"])
        assert [m["metadata"] for m in member["members"]] == [b"wants t"]
        sync = await wire.call("SyncGroup", sync_fields(member, (member["member_id"], b"all")),
                               version=min(version, 5))
        assert (sync["error_code"], sync["assignment"]) == (0, b"all")
        assert (await wire.call("Heartbeat", beat_fields(member), version=min(version, 4)))["error_code"] == 0
        leave = {"group_id": "g", "member_id": member["member_id"], "members": [{"member_id": member["member_id"]}]}
        left = await wire.call("LeaveGroup", leave, version=min(version, 5))
        assert (left["error_code"], [m["error_code"] for m in left.get("members", [])]) == (0, [0] * (version >= 3))
        assert (await wire.call("Heartbeat", beat_fields(member)))["error_code"] == Code.UNKNOWN_MEMBER_ID

    run(tmp_path, test)


def test_L20_a_parked_join_keeps_no_other_connection_waiting_and_its_own_in_order(tmp_path: Path) -> None:
    async def test(node: Node, wire: Wire) -> None:
        other = await node.connect()
        first = wire.send("JoinGroup", join_fields(), version=3)        # parked: a first rebalance waits for more
        behind = wire.send("Metadata", {"topics": []})
        assert (await other.call("ListGroups"))["groups"][0]["group_state"] == "PreparingRebalance"
        second = other.send("JoinGroup", join_fields(), version=3)
        assert (await wire.receive("JoinGroup", version=3))[0] == first
        assert (await wire.receive("Metadata"))[0] == behind
        correlation, member = await other.receive("JoinGroup", version=3)
        assert (correlation, member["generation_id"]) == (second, 1)

    run(tmp_path, test)


def test_L20_a_member_that_falls_silent_is_out_and_the_others_are_told(tmp_path: Path) -> None:
    async def test(node: Node, wire: Wire) -> None:
        other = await node.connect()
        wire.send("JoinGroup", join_fields(), version=3)
        other.send("JoinGroup", join_fields(), version=3)
        (_, silent), (_, alive) = [await w.receive("JoinGroup", version=3) for w in (wire, other)]
        leader = silent if silent["leader"] == silent["member_id"] else alive
        wire.send("SyncGroup", sync_fields(silent, *([("", b"")] if leader is silent else [])))
        other.send("SyncGroup", sync_fields(alive))
        assert [(await w.receive("SyncGroup"))[1]["error_code"] for w in (wire, other)] == [0, 0]
        async with asyncio.timeout(20):
            while (await other.call("Heartbeat", beat_fields(alive)))["error_code"] == 0:
                await asyncio.sleep(0.05)
        again = await joined(other, version=3, member_id=alive["member_id"])
        assert (again["error_code"], again["generation_id"], len(again["members"])) == (0, 2, 1)
        assert node.broker.stats.group_rebalances == 2

    run(tmp_path, test)


@pytest.mark.parametrize("version", range(2, 9))
def test_L21_offsets_are_committed_and_fetched_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(node: Node, wire: Wire) -> None:
        answer = await wire.call("OffsetCommit", commit_fields({("t", 0): 5, ("t", 7): 1, ("u", 0): 1}),
                                 version=version)
        assert codes(answer) == [("t", 0, 0), ("t", 7, 3), ("u", 0, 3)]
        topics = [{"name": "t", "partitions": [0, 1]}]
        asked = {"group_id": "g", "topics": topics, "groups": [{"group_id": "g", "topics": topics}]}
        answer = await wire.call("OffsetFetch", asked, version=version)
        (topic,) = (answer if version < 8 else answer["groups"][0])["topics"]
        assert [(p["partition"], p["offset"], p["metadata"]) for p in topic["partitions"]] == [
            (0, 5, "note"), (1, -1, "")]

    run(tmp_path, test)


def test_L21_a_stranger_commits_nothing_for_a_group_with_members(tmp_path: Path) -> None:
    async def test(node: Node, wire: Wire) -> None:
        member = await joined(wire)
        await wire.call("SyncGroup", sync_fields(member, (member["member_id"], b"all")))
        assert codes(await wire.call("OffsetCommit", commit_fields({("t", 0): 5}))) == [
            ("t", 0, Code.UNKNOWN_MEMBER_ID)]
        mine = {"member_id": member["member_id"], "generation_id": member["generation_id"]}
        assert codes(await wire.call("OffsetCommit", commit_fields({("t", 0): 5}, **mine))) == [("t", 0, 0)]

    run(tmp_path, test)


def test_L20_tools_list_describe_and_delete(tmp_path: Path) -> None:
    async def test(node: Node, wire: Wire) -> None:
        await wire.call("OffsetCommit", commit_fields({("t", 0): 5, ("t", 1): 6}))
        (listed,) = (await wire.call("ListGroups"))["groups"]
        assert (listed["group_id"], listed["group_state"], listed["group_type"]) == ("g", "Empty", "classic")
        for wrong in ({"states_filter": ["Stable"]}, {"types_filter": ["consumer"]}):
            assert (await wire.call("ListGroups", wrong))["groups"] == []
        described = (await wire.call("DescribeGroups", {"groups": ["g", "none"]}))["groups"]
        assert [d["group_state"] for d in described] == ["Empty", "Dead"]
        deleted = await wire.call("OffsetDelete", {"group_id": "g", "topics": [
            {"name": "t", "partitions": [{"partition": 0}]}]})
        assert (deleted["error_code"], codes(deleted)) == (0, [("t", 0, 0)])
        assert len((await fetched(wire, "g"))["topics"][0]["partitions"]) == 1
        answer = await wire.call("DeleteGroups", {"groups_names": ["g", "none"]})
        assert [(r["group_id"], r["error_code"]) for r in answer["results"]] == [
            ("g", 0), ("none", Code.GROUP_ID_NOT_FOUND)]
        assert (await fetched(wire, "g"))["topics"] == []
        gone = await wire.call("OffsetDelete", {"group_id": "g", "topics": []})
        assert gone["error_code"] == 0

    run(tmp_path, test)


def test_L21_ordinary_requests_do_not_touch_groups_of_millrace(tmp_path: Path) -> None:
    async def test(node: Node, wire: Wire) -> None:
        await found(wire, "millrace.feed")
        refused = Code.GROUP_AUTHORIZATION_FAILED
        ours = {"group_id": "millrace.feed"}
        assert (await wire.call("JoinGroup", join_fields(**ours)))["error_code"] == refused
        commit = {**commit_fields({("t", 0): 5}), **ours}
        assert codes(await wire.call("OffsetCommit", commit)) == [("t", 0, refused)]
        deleted = await wire.call("DeleteGroups", {"groups_names": ["millrace.feed"]})
        assert deleted["results"][0]["error_code"] == refused
        assert (await fetched(wire, "millrace.feed"))["error_code"] == 0

    run(tmp_path, test)
