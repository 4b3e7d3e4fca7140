"""Every call by which a client can reach what is ours: private ones, and all that name a topic, by name and by id.

The layout of an internal topic by its name and the ends of its partitions stay open: by them every Kafka tool shows the
lag of a changefeed [L21]."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from millrace.model.floors import ReadFloors
from millrace.model.floors import encode_call as encode_floors
from millrace.model.position_calls import ReadPosition, encode_call
from millrace.wire.kafka.codec import Fields
from support_kafka import batch_of

INTERNAL = "__millrace.shop.progress"
GROUP = "millrace.orders"

TOPIC, CLUSTER, GROUP_REFUSED, NAME, UNKNOWN_ID = 29, 31, 30, 17, 100


class Attempt(NamedTuple):
    call: str
    version: int
    fields: Fields
    refusals: frozenset[int] = frozenset({TOPIC, NAME, UNKNOWN_ID})
    harmful: bool = False              # it would change something for those who may

    @property
    def title(self) -> str:
        return f"{self.call} v{self.version}"

    def is_refused(self, answer: Fields) -> bool:
        found = codes(answer)
        return bool(found) and set(found) <= self.refusals


def codes(answer: Any) -> list[int]:
    """The innermost error codes: those of partitions where there are any, else of topics, else of the whole."""
    if isinstance(answer, list):
        return [code for one in answer for code in codes(one)]
    if not isinstance(answer, dict):
        return []
    inner = [code for value in answer.values() for code in codes(value)]
    return inner or ([answer["error_code"]] if "error_code" in answer else [])


def topic_names(metadata: Fields) -> list[str]:
    return [topic["name"] for topic in metadata["topics"] if not topic["error_code"]]


def attempts(topic_id: UUID) -> list[Attempt]:
    return [*_private(topic_id), *_data(topic_id), *_admin(topic_id), *_groups(topic_id)]


def _private(topic_id: UUID) -> list[Attempt]:
    refused = frozenset({CLUSTER})
    fence = {"partition": 0, "writer_id": 1 << 40, "writer_epoch": 9, "timeout_ms": 5_000}
    position = {"group_id": GROUP, "topic_id": topic_id, "partition": 0, "call": encode_call(ReadPosition())}
    return [
        Attempt("FenceWriter", 0, {"topic": INTERNAL, **fence}, refused, harmful=True),
        Attempt("FenceWriter", 0, {"topic": "open", **fence}, refused, harmful=True),
        Attempt("MovePosition", 0, position, refused),
        Attempt("Floors", 0, {"call": encode_floors(ReadFloors())}, refused),
    ]


def _data(topic_id: UUID) -> list[Attempt]:
    by_name, by_id = {"name": INTERNAL}, {"topic_id": topic_id}
    records = [{"index": 0, "records": batch_of(b"x")}]
    fetch = [{"partition": 0, "fetch_offset": 0, "current_leader_epoch": -1, "partition_max_bytes": 1 << 20}]
    reading = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_epoch": -1}
    found = [Attempt("Produce", v, {"acks": acks, "timeout_ms": 5_000, "topics": [{**named, "partitions": records}]},
                     harmful=True)
             for v, named in ((3, by_name), (12, by_name), (13, by_id)) for acks in (1, -1)]
    found += [Attempt("Fetch", v, {**reading, "topics": [{**named, "partitions": fetch}]})
              for v, named in ((4, by_name), (12, by_name), (13, by_id), (16, by_id))]
    found += [Attempt("ListOffsets", v, {"topics": [{**by_name, "partitions": [{"partition": 0, "timestamp": at}]}]})
              for v in (1, 7) for at in (-3, 0)]
    found += [Attempt("OffsetForLeaderEpoch", v, {"topics": [{**by_name, "partitions": [
        {"partition": 0, "leader_epoch": 0}]}]}) for v in (2, 4)]
    found += [Attempt("Metadata", v, {"topics": [{"name": None, **by_id}]}) for v in (12,)]
    return found


def _admin(topic_id: UUID) -> list[Attempt]:
    refused = frozenset({TOPIC, NAME, UNKNOWN_ID})
    config = {"name": "retention.ms", "value": "1"}
    resource = {"resource_type": 2, "resource_name": INTERNAL}
    offsets = [{"partition_index": 0, "offset": -1}]
    return [
        Attempt("CreateTopics", 7, {"topics": [{"name": "__millrace.mine", "num_partitions": 1, "replication_factor": 1,
                                                "assignments": [], "configs": []}]}, refused, harmful=True),
        Attempt("DeleteTopics", 1, {"topic_names": [INTERNAL], "timeout_ms": 5_000}, refused, harmful=True),
        Attempt("DeleteTopics", 6, {"topics": [{"name": INTERNAL}], "timeout_ms": 5_000}, refused, harmful=True),
        Attempt("DeleteTopics", 6, {"topics": [{"name": None, "topic_id": topic_id}], "timeout_ms": 5_000}, refused,
                harmful=True),
        Attempt("CreatePartitions", 3, {"topics": [{"name": INTERNAL, "count": 5, "assignments": None}],
                                        "timeout_ms": 5_000}, refused, harmful=True),
        Attempt("DeleteRecords", 2, {"topics": [{"name": INTERNAL, "partitions": offsets}], "timeout_ms": 5_000},
                harmful=True),
        Attempt("DescribeConfigs", 4, {"resources": [{**resource, "keys": None}]}),
        Attempt("AlterConfigs", 2, {"resources": [{**resource, "configs": [config]}]}, refused, harmful=True),
        Attempt("IncrementalAlterConfigs", 1, {"resources": [{**resource, "configs": [
            {**config, "config_operation": 0}]}]}, refused, harmful=True),
    ]


def _groups(topic_id: UUID) -> list[Attempt]:
    offsets = [{"partition": 0, "offset": 1, "metadata": ""}]
    commit = {"generation_id": -1, "member_id": "", "topics": [{"name": INTERNAL, "partitions": offsets}]}
    ours = {**commit, "group_id": GROUP, "topics": [{"name": "open", "partitions": offsets}]}
    refused = frozenset({GROUP_REFUSED})
    join = {"group_id": GROUP, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "member_id": "",
            "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}
    return [
        Attempt("OffsetCommit", 8, {**commit, "group_id": "any"}, harmful=True),
        Attempt("OffsetCommit", 8, ours, refused, harmful=True),
        Attempt("OffsetDelete", 0, {"group_id": GROUP, "topics": [{"name": "open", "partitions": [{"partition": 0}]}]},
                refused, harmful=True),
        Attempt("DeleteGroups", 2, {"groups_names": [GROUP]}, refused, harmful=True),
        Attempt("JoinGroup", 9, join, refused, harmful=True),
    ]
