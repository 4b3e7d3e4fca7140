"""The hand-written code says what the tables say, byte for byte, and survives whatever it is fed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import Malformed
from millrace.wire.kafka import apis, hot
from millrace.wire.kafka.codec import BY_NAME
from support_kafka_tables import foreign, struct_of

PRODUCE, FETCH = BY_NAME["Produce"], BY_NAME["Fetch"]
PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 17)


def requests(name: str, versions: range) -> st.SearchStrategy[tuple[int, dict[str, Any]]]:
    return st.sampled_from(versions).flatmap(
        lambda version: st.tuples(st.just(version), struct_of(BY_NAME[name].request, version))
    )


def request_of(name: str, version: int, fields: dict[str, Any], client_id: str = "c") -> memoryview:
    return memoryview(apis.encode_request(name, version, 7, fields, client_id=client_id))[4:]


def named(topic: dict[str, Any], version: int) -> bytes:
    if version >= 13:
        found: UUID = topic["topic_id"]
        return found.bytes
    return str(topic["name"]).encode()


@given(requests("Produce", PRODUCE_VERSIONS), st.text(max_size=5))
def test_L20_produce_is_read_as_the_tables_read_it(case: tuple[int, dict[str, Any]], client: str) -> None:
    version, wanted = case
    frame = request_of("Produce", version, wanted, client)
    header = hot.parse_header(frame)
    assert header[:4] == (0, version, 7, client.encode())
    found = hot.parse_produce(frame, header.body, version)
    assert (found.acks, found.timeout_ms) == (wanted["acks"], wanted["timeout_ms"])
    transactional = wanted["transactional_id"]
    assert found.transactional_id == (None if transactional is None else transactional.encode())
    assert [(name, [(i, None if r is None else bytes(r)) for i, r in entries]) for name, entries in found.topics] == [
        (named(topic, version), [(part["index"], part["records"]) for part in topic["partitions"]])
        for topic in wanted["topics"]
    ]


@given(requests("Fetch", FETCH_VERSIONS))
def test_L20_fetch_is_read_as_the_tables_read_it(case: tuple[int, dict[str, Any]]) -> None:
    version, wanted = case
    frame = request_of("Fetch", version, wanted)
    found = hot.parse_fetch(frame, hot.parse_header(frame).body, version)
    assert found[:3] == (wanted["max_wait_ms"], wanted["min_bytes"], wanted["max_bytes"])
    assert (found.session_id, found.session_epoch) == (wanted.get("session_id", 0), wanted.get("session_epoch", -1))
    assert found.topics == [
        (
            named(topic, version),
            [
                (p["partition"], p.get("current_leader_epoch", -1), p["fetch_offset"], p["partition_max_bytes"])
                for p in topic["partitions"]
            ],
        )
        for topic in wanted["topics"]
    ]


i16, i32, i64 = st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=6).map(str.encode)
leaders = st.none() | st.builds(hot.Leader, st.integers(0, 3), i32, st.text(max_size=5), st.integers(1, 65535))


def topics_of(entry: st.SearchStrategy[Any], version: int) -> st.SearchStrategy[Any]:
    name = st.binary(min_size=16, max_size=16) if version >= 13 else names
    return st.lists(st.tuples(name, st.lists(entry, max_size=3)), max_size=3)


def label(name: bytes, version: int) -> dict[str, Any]:
    return {"topic_id": UUID(bytes=name)} if version >= 13 else {"name": name.decode()}


def endpoints(topics: Any) -> list[dict[str, Any]]:
    known = {entry.leader.node_id: entry.leader for _, entries in topics for entry in entries if entry.leader}
    return [{"node_id": n, "host": leader.host, "port": leader.port} for n, leader in known.items()]


def told(leader: hot.Leader | None) -> dict[str, int] | None:
    return None if leader is None else {"leader_id": leader.node_id, "leader_epoch": leader.epoch}


@given(st.sampled_from(PRODUCE_VERSIONS), st.data())
def test_L20_produce_answers_are_the_tables_bytes(version: int, data: st.DataObject) -> None:
    entry = st.builds(hot.Produced, i32, i16, i64, i64, st.none() | st.text(max_size=9), leaders)
    topics = data.draw(topics_of(entry, version))
    wanted = {
        "topics": [
            {
                **label(name, version),
                "partitions": [
                    {
                        "index": e.partition, "error_code": e.error, "base_offset": e.base_offset,
                        "log_start_offset": e.log_start, "error_message": e.message, "current_leader": told(e.leader),
                    }
                    for e in entries
                ],
            }
            for name, entries in topics
        ],
        "node_endpoints": endpoints(topics),
    }
    answer = hot.produce_response(version, 9, topics)
    assert answer == apis.encode_response(PRODUCE, version, 9, wanted)
    assert foreign(PRODUCE, response=True)[version].decode(answer[4:], header=True) is not None


@given(st.sampled_from(FETCH_VERSIONS), i16, st.data())
def test_L20_fetch_answers_are_the_tables_bytes(version: int, error: int, data: st.DataObject) -> None:
    entry = st.builds(hot.Fetched, i32, i16, i64, i64, st.binary(max_size=300), leaders)
    topics = data.draw(topics_of(entry, version))
    wanted = {
        "error_code": error,
        "topics": [
            {
                **label(name, version),
                "partitions": [
                    {
                        "partition": e.partition, "error_code": e.error, "high_watermark": e.hw,
                        "last_stable_offset": e.hw, "log_start_offset": e.log_start, "current_leader": told(e.leader),
                        "aborted_transactions": [], "records": e.records,
                    }
                    for e in entries
                ],
            }
            for name, entries in topics
        ],
        "node_endpoints": endpoints(topics),
    }
    chunks = hot.fetch_response(version, 9, topics, error=error)
    assert b"".join(chunks) == apis.encode_response(FETCH, version, 9, wanted)
    for _, entries in topics:
        for e in entries:
            assert not e.records or any(chunk is e.records for chunk in chunks)  # never copied


def read(frame: memoryview) -> None:
    header = hot.parse_header(frame)
    if header.key == 0:
        hot.parse_produce(frame, header.body, header.version)
    else:
        hot.parse_fetch(frame, header.body, header.version)


either = requests("Produce", PRODUCE_VERSIONS).map(lambda case: request_of("Produce", *case)) | requests(
    "Fetch", FETCH_VERSIONS
).map(lambda case: request_of("Fetch", *case))


@settings(max_examples=60)
@given(either)
def test_L25_every_prefix_of_a_hot_request_is_malformed(frame: memoryview) -> None:
    for cut in range(len(frame)):
        with pytest.raises(Malformed):
            read(frame[:cut])
    with pytest.raises(Malformed):
        read(memoryview(bytes(frame) + b"\0"))


@settings(max_examples=400)
@given(either, st.data())
def test_L25_a_mutated_hot_request_is_malformed_or_another(frame: memoryview, data: st.DataObject) -> None:
    hostile = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(hostile) - 1))
        hostile[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]))
    try:
        read(memoryview(hostile))
    except Malformed:
        pass


@pytest.mark.parametrize("count", [2**31 - 1, -1, -2])
def test_L25_hostile_counts_allocate_nothing(count: int) -> None:
    body = b"\xff\xff" + b"\0\1" + b"\0\0\0\0" + count.to_bytes(4, "big", signed=True) + bytes(100)
    frame = memoryview(b"\0\0" + b"\0\3" + b"\0\0\0\1" + b"\xff\xff" + body)
    with pytest.raises(Malformed):
        read(frame)


def test_L25_a_request_of_too_many_entries_is_refused() -> None:
    partitions = [{"index": n, "records": None} for n in range(100_001)]
    frame = request_of("Produce", 3, {"topics": [{"name": "t", "partitions": partitions}]})
    with pytest.raises(Malformed, match="entries"):
        read(frame)


@pytest.mark.parametrize("frame", [b"", b"\0" * 9, b"\0\0\0\3\0\0\0\1\x7f\xff", b"\0\0\0\3\0\0\0\1\xff\xfe"])
def test_L25_a_bad_header_is_malformed(frame: bytes) -> None:
    with pytest.raises(Malformed):
        hot.parse_header(memoryview(frame))


def test_L20_records_are_slices_of_the_frame() -> None:
    partitions = [{"index": 0, "records": b"x" * 50}]
    frame = memoryview(bytearray(request_of("Produce", 9, {"topics": [{"name": "t", "partitions": partitions}]})))
    records = hot.parse_produce(frame, hot.parse_header(frame).body, 9).topics[0][1][0][1]
    assert records is not None
    records[0] = 1  # a leader stamps the buffer it received
    assert 1 in frame[-60:]
