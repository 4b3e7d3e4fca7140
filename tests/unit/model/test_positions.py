"""Stored positions as bytes [P3, L19]."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import Malformed, NewerFormat
from millrace.model.ids import TopicPartition
from millrace.model.position_calls import CommitPosition, decode_call, encode_call
from millrace.model.positions import (
    NOT_SHOWN,
    VERSION,
    Claim,
    Point,
    StoredPosition,
    WriterId,
    decode_position,
    encode_position,
    target_ends,
)

NUMBER = st.integers(0, 2**62)
POSITIONS = st.builds(
    StoredPosition, epoch=NUMBER, next_offset=NUMBER, row=NUMBER,
    ends=st.dictionaries(st.builds(TopicPartition, st.uuids(), st.integers(0, 9)), NUMBER, max_size=4).map(target_ends),
    writers=st.lists(st.builds(WriterId, NUMBER, NUMBER), min_size=1, max_size=3).map(tuple), resolved=NUMBER,
    claim=st.none() | st.builds(Claim, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER), closed=st.booleans(),
    shown=st.integers(-1, 2**62),
)


@given(POSITIONS)
def test_P3_a_position_is_what_was_stored(position: StoredPosition) -> None:
    assert decode_position(encode_position(position)) == position


def test_P3_ends_are_stored_in_one_order() -> None:
    one, two = TopicPartition(UUID(int=1), 1), TopicPartition(UUID(int=1), 0)
    assert target_ends({one: 5, two: 6}) == target_ends({two: 6, one: 5})


def test_P3_a_position_names_its_row_and_its_ends() -> None:
    target = TopicPartition(UUID(int=1), 1)
    position = StoredPosition(3, 7, 2, target_ends({target: 9}), (WriterId(1, 0),))
    assert (position.at, position.ends_by_target) == (Point(7, 2), {target: 9})


def test_L19_versions_before_and_after_what_tools_are_shown_read_each_other() -> None:
    position = StoredPosition(1, 2, 3, (), (WriterId(1, 0),), 9, shown=44)
    *before, shown = msgspec.msgpack.decode(encode_position(position)[1:])
    assert shown == 44, "it stands last: who knows fewer fields reads those"
    old = decode_position(bytes([VERSION]) + msgspec.msgpack.encode(before))
    assert old == msgspec.structs.replace(position, shown=NOT_SHOWN)
    commit = CommitPosition(1, 2, 0, 3, 0, (), 9, 44)
    *former, _ = msgspec.msgpack.decode(encode_call(commit)[1:])
    assert decode_call(bytes([VERSION]) + msgspec.msgpack.encode(former)) == CommitPosition(1, 2, 0, 3, 0, (), 9)


def test_L19_a_newer_format_is_refused() -> None:
    data = encode_position(StoredPosition(1, 0, 0, (), (WriterId(1, 0),)))
    with pytest.raises(NewerFormat):
        decode_position(bytes([VERSION + 1]) + data[1:])


@pytest.mark.parametrize("data", [b"", bytes([VERSION]), bytes([VERSION]) + b"\x93\x01\x02"])
def test_L19_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_position(data)
