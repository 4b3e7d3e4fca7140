"""Records of the group topic, byte by byte as Kafka writes its own [L21]."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import Malformed, NewerFormat
from millrace.model.groups import (
    GroupKey,
    GroupRecord,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    decode_record,
    encode_key,
    encode_value,
)
from millrace.model.positions import PositionKey, StoredPosition, WriterId

NAME = st.text(max_size=20)
I32, I64 = st.integers(-1, 2**31 - 1), st.integers(-1, 2**63 - 1)
BYTES = st.binary(max_size=9)
MEMBER = st.builds(MemberValue, NAME, st.none() | NAME, NAME, NAME, I32, I32, BYTES, BYTES)
GROUP = st.builds(
    GroupValue, NAME, I32, st.none() | NAME, st.none() | NAME, I64, st.lists(MEMBER, max_size=3).map(tuple)
)
OFFSET = st.builds(OffsetValue, I64, I32, NAME, I64, st.none() | st.uuids())
RECORDS = (
    st.builds(GroupRecord, st.builds(OffsetKey, NAME, NAME, I32), st.none() | OFFSET)
    | st.builds(GroupRecord, st.builds(GroupKey, NAME), st.none() | GROUP)
    | st.builds(
        GroupRecord, st.builds(PositionKey, NAME, st.uuids(), I32),
        st.none() | st.just(StoredPosition(1, 2, 3, (), (WriterId(4, 0),))),
    )
)


@given(RECORDS)
def test_L21_a_record_is_what_was_written(record: GroupRecord) -> None:
    value = None if record.value is None else encode_value(record.value)
    assert decode_record(encode_key(record.key), value) == record


def test_L21_an_offset_is_stored_in_the_bytes_of_kafka() -> None:
    assert encode_key(OffsetKey("g", "t", 3)) == bytes.fromhex("0001 0001 67 0001 74 00000003".replace(" ", ""))
    value = encode_value(OffsetValue(9, -1, "m", 5))
    assert value.hex() == "0003" + "0000000000000009" + "ffffffff" + "0001" + "6d" + "0000000000000005"


def test_L20_an_offset_with_its_topics_id_is_stored_in_the_bytes_of_kafka() -> None:
    value = encode_value(OffsetValue(9, -1, "m", 5, UUID(int=7)))
    tagged = "01" + "00" + "10" + UUID(int=7).hex
    assert value.hex() == "0004" + "0000000000000009" + "ffffffff" + "026d" + "0000000000000005" + tagged


def test_L21_members_are_stored_in_the_bytes_of_kafka() -> None:
    assert encode_key(GroupKey("g")).hex() == "0002000167"
    member = MemberValue("m", None, "c", "/h", 2, 1, b"s", b"a")
    value = encode_value(GroupValue("consumer", 7, "range", "m", 5, (member,)))
    assert value.hex() == (
        "00030008" + b"consumer".hex() + "000000070005" + b"range".hex() + "00016d0000000000000005"
        "0000000100016dffff00016300022f68000000020000000100000001730000000161"
    )


@given(st.binary(max_size=40), st.none() | st.binary(max_size=60))
def test_L19_any_bytes_are_decoded_or_refused(key: bytes, value: bytes | None) -> None:
    with suppress(Malformed, NewerFormat):
        assert isinstance(decode_record(key, value), GroupRecord)


def test_L19_an_unknown_kind_or_version_is_refused() -> None:
    with pytest.raises(NewerFormat):
        decode_record(b"\x00\x07", None)
    with pytest.raises(NewerFormat):
        decode_record(encode_key(GroupKey("g")), b"\x00\x04")
    with pytest.raises(Malformed):
        decode_record(encode_key(PositionKey("c", UUID(int=1), 0))[:-1], None)
