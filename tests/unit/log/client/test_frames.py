"""The client's hand-written Produce and Fetch against the broker's own reading and writing of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.log.client import frames
from millrace.wire import records as wire
from millrace.wire.kafka import hot
from millrace.wire.records import Record

NOW_MS = 1_700_000_000_000
blobs = st.none() | st.binary(max_size=20) | st.integers(4000, 9000).map(lambda size: b"v" * size)
some_records = st.lists(
    st.builds(
        Record, value=blobs, key=st.none() | st.binary(max_size=10),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=2).map(tuple),
        timestamp_ms=st.integers(1, 1 << 40), offset=st.just(-1),
    ),
    min_size=1, max_size=5,
)


def joined(chunks: list[frames.Chunk]) -> bytes:
    return b"".join(bytes(chunk) for chunk in chunks)


@given(some_records)
def test_a_batch_is_what_the_plain_builder_makes(records: list[Record]) -> None:
    built = frames.build_batch(records, writer_id=9, epoch=2, sequence=5, timestamp_ms=NOW_MS)
    plain = wire.build_batch(records, producer_id=9, producer_epoch=2, base_sequence=5)
    assert joined(built.chunks) == plain
    assert built.size == len(plain)
    assert frames.size_of(records) + wire.HEADER_BYTES >= built.size
    assert [r._replace(offset=-1) for r in wire.records_of(plain, wire.parse_produced(plain)[0])] == records


def test_large_values_are_not_copied() -> None:
    value = b"x" * 100_000
    built = frames.build_batch([Record(value)], writer_id=1, epoch=0, sequence=0, timestamp_ms=NOW_MS)
    assert any(chunk is value for chunk in built.chunks)


def test_a_record_without_time_gets_one() -> None:
    built = frames.build_batch(
        [Record(b"a"), Record(b"b", timestamp_ms=NOW_MS + 5)], writer_id=1, epoch=0, sequence=0, timestamp_ms=NOW_MS
    )
    data = joined(built.chunks)
    assert [r.timestamp_ms for r in wire.records_of(data, wire.parse_batches(data)[0])] == [NOW_MS, NOW_MS + 5]


def test_a_broker_reads_our_produce_and_we_its_answer() -> None:
    batches = {
        where: frames.build_batch([Record(str(where).encode())], writer_id=1, epoch=0, sequence=0, timestamp_ms=1)
        for where in (("a", 0), ("a", 3), ("b", 1))
    }
    frame = memoryview(joined(frames.produce_request(77, b"me", batches, timeout_ms=1234)))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header = hot.parse_header(frame[4:])
    assert (header.key, header.correlation, header.client_id) == (0, 77, b"me")
    request = hot.parse_produce(frame[4:], header.body, header.version)
    assert (request.acks, request.timeout_ms, request.transactional_id) == (-1, 1234, None)
    found = {(name.decode(), p): bytes(data or b"") for name, entries in request.topics for p, data in entries}
    assert found == {where: joined(batch.chunks) for where, batch in batches.items()}

    leader = hot.Leader(1, 2, "host", 9)
    told = [(b"a", [hot.Produced(0, 0, 15, 2), hot.Produced(3, 6, message="moved", leader=leader)])]
    answer = hot.produce_response(header.version, 77, told)
    assert frames.correlation_of(memoryview(answer)[4:]) == 77
    assert frames.parse_produced(memoryview(answer)[4:]) == {
        ("a", 0): hot.Produced(0, 0, 15, 2), ("a", 3): hot.Produced(3, 6, -1, -1, "moved"),
    }


def test_a_broker_reads_our_fetch_and_we_its_answer() -> None:
    wanted = {("a", 0): 5, ("b", 2): 0, ("a", 1): 1 << 40}
    frame = memoryview(joined(frames.fetch_request(3, b"me", wanted, wait_ms=50, bytes_max=1000)))
    header = hot.parse_header(frame[4:])
    request = hot.parse_fetch(frame[4:], header.body, header.version)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes, request.session_id) == (50, 1, 1000, 0)
    assert {(n.decode(), e.partition): e.offset for n, entries in request.topics for e in entries} == wanted
    assert {e.bytes_max for _, entries in request.topics for e in entries} == {1000}

    frame = memoryview(joined(
        frames.fetch_request(3, b"me", wanted, wait_ms=50, bytes_max=1000, each_bytes_max=300)))
    request = hot.parse_fetch(frame[4:], header.body, header.version)
    assert request.max_bytes == 1000
    assert {e.bytes_max for _, entries in request.topics for e in entries} == {300}

    data = wire.build_batch([Record(b"1", timestamp_ms=1)], base_offset=5)
    leader = hot.Leader(1, 2, "host", 9)
    told = [
        (b"a", [hot.Fetched(0, 0, 6, 1, data), hot.Fetched(1, 6, leader=leader)]), (b"b", [hot.Fetched(2, 0, 0, 0)]),
    ]
    answer = memoryview(b"".join(hot.fetch_response(header.version, 3, told)))[4:]
    failure, found = frames.parse_fetched(answer)
    assert failure == 0
    assert found["a", 0][:3] == (0, 6, 1)
    assert bytes(found["a", 0].records) == data
    assert found["a", 1].error == 6
    assert found["b", 2] == (0, 0, 0, b"")
