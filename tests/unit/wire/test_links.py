"""Link frames: round trips, and Malformed for everything else."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import Malformed, NewerFormat
from millrace.model import messages, records
from millrace.model.ids import ProcessIdentity
from millrace.wire import links

U32 = st.integers(0, 2**32 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)

ATTACH = st.builds(links.Attach, U32, st.uuids(), U32, I32, I64, I32)
FETCH = st.builds(links.Fetch, U32, I32, I64, I32)


@given(st.lists(ATTACH, max_size=5), st.lists(FETCH, max_size=5), st.lists(U32, max_size=5))
def test_L4_stream_entries_round_trip(
    attach: list[links.Attach], fetch: list[links.Fetch], streams: list[int]
) -> None:
    assert links.decode_attach(memoryview(links.encode_attach(attach))) == attach
    assert links.decode_fetch(memoryview(links.encode_fetch(fetch))) == fetch
    assert links.decode_detach(memoryview(links.encode_detach(streams))) == streams


@given(st.lists(st.tuples(U32, st.binary(max_size=50)), max_size=5))
def test_data_entries_round_trip(entries: list[tuple[int, bytes]]) -> None:
    body = b"".join(links.encode_data_entry(s, 0, 3, 5, 1, (-1, -1), len(d)) + d for s, d in entries)
    assert [(d.stream, bytes(d.data)) for d in links.decode_data(memoryview(body))] == entries


@given(st.binary(max_size=200))
def test_hostile_bytes_raise_malformed_only(body: bytes) -> None:
    view = memoryview(body)
    for decode in (links.decode_attach, links.decode_fetch, links.decode_data, links.decode_detach,
                   links.decode_message, links.decode_header):
        try:
            decode(view)
        except (Malformed, NewerFormat):
            pass


def test_a_DATA_entry_that_is_longer_than_what_is_left_of_its_frame_is_refused() -> None:
    whole = links.encode_data_entry(1, 0, 3, 5, 1, (-1, -1), 10) + bytes(10)
    with pytest.raises(Malformed, match="longer than its frame"):
        links.decode_data(memoryview(whole + whole[:-1]))


def test_L19_a_newer_frame_format_is_refused_by_name() -> None:
    frame = memoryview(bytearray(links.header(links.PING, 0, 0)))[4:]
    frame[0] = links.FORMAT + 1
    with pytest.raises(NewerFormat, match="upgrade"):
        links.decode_header(frame)


def test_messages_round_trip() -> None:
    endpoint = records.Endpoint(host="h", kafka_port=1, link_port=2, http_port=3)
    register = messages.Register(
        broker=1, start_id=UUID(int=7), endpoint=endpoint, process=ProcessIdentity("b", 2, 3), directory_id=UUID(int=8),
        directory_is_new=False, clean_stop=True, flush="group", rack="", host_id="h",
    )
    change = records.PartitionChanged(
        topic_id=UUID(int=1), partition=0, replicas=(1, 2), isr=(1,), elr=(2,), leader=1,
        leader_epoch=4, partition_epoch=9
    )
    answer = messages.MetadataRecords(token=1, start=0, end=1, snapshot=False, more=False, records=(change,))
    for message in (register, answer):
        head, body = links.encode_message(links.REQUEST, 5, message)
        kind, correlation, rest = links.decode_header(memoryview(bytes(head) + bytes(body))[4:])
        assert (kind, correlation) == (links.REQUEST, 5)
        assert links.decode_message(rest) == message
