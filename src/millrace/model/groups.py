"""Records of the group topic: keyed as Kafka keys its own, so that compaction keeps the last word of each [L21].

    (group, topic, partition) ─▶ committed offset        (group) ─▶ members of the last generation
    (changefeed, topic id, partition) ─▶ stored position, a kind of our own

Bytes are Kafka's for its two kinds (keys 1 and 2; values 3, offsets of a topic with a known id 4). A value of None is a
tombstone.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from uuid import UUID

from millrace.errors import Malformed, NewerFormat
from millrace.model.positions import PositionKey, StoredPosition, decode_position, encode_position

OFFSET_KEY, GROUP_KEY, POSITION_KEY = 1, 2, 0x4D52
VALUE_VERSION = 3
TOPIC_ID_VERSION = 4        # of an offset: Kafka's flexible form, with the topic's id as tagged field 0
NO_LEADER_EPOCH = -1

_I16, _I32, _I64 = (struct.Struct(">" + code) for code in "hiq")


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group: str


class OffsetValue(NamedTuple):
    """`topic_id`: of the topic the offset was committed for, whatever topic has its name now; None: not recorded."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    topic_id: UUID | None = None


class MemberValue(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_ms: int
    session_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    """`state_ms`: when the group came into this state; what expiry of an empty group counts from."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_ms: int
    members: tuple[MemberValue, ...]


Key = OffsetKey | GroupKey | PositionKey
Value = OffsetValue | GroupValue | StoredPosition


class GroupRecord(NamedTuple):
    key: Key
    value: Value | None


# -- bytes ----------------------------------------------------------------------------------------------------------
def encode_key(key: Key) -> bytes:
    if isinstance(key, OffsetKey):
        return _I16.pack(OFFSET_KEY) + _string(key.group) + _string(key.topic) + _I32.pack(key.partition)
    if isinstance(key, GroupKey):
        return _I16.pack(GROUP_KEY) + _string(key.group)
    return _I16.pack(POSITION_KEY) + _string(key.changefeed) + key.topic_id.bytes + _I32.pack(key.partition)


def encode_value(value: Value) -> bytes:
    if isinstance(value, OffsetValue):
        return _offset(value)
    if isinstance(value, GroupValue):
        head = _I16.pack(VALUE_VERSION) + _string(value.protocol_type) + _I32.pack(value.generation)
        head += _string(value.protocol) + _string(value.leader) + _I64.pack(value.state_ms)
        return head + _I32.pack(len(value.members)) + b"".join(map(_member, value.members))
    return encode_position(value)


def _offset(value: OffsetValue) -> bytes:
    offset, epoch, metadata, commit_ms, topic_id = value
    head = _I64.pack(offset) + _I32.pack(epoch)
    if topic_id is None:
        return _I16.pack(VALUE_VERSION) + head + _string(metadata) + _I64.pack(commit_ms)
    text = metadata.encode()
    tagged = _uvarint(1) + _uvarint(0) + _uvarint(len(topic_id.bytes)) + topic_id.bytes
    return (_I16.pack(TOPIC_ID_VERSION) + head + _uvarint(len(text) + 1) + text + _I64.pack(commit_ms) + tagged)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _member(m: MemberValue) -> bytes:
    names = b"".join(map(_string, (m.member_id, m.instance_id, m.client_id, m.client_host)))
    times = _I32.pack(m.rebalance_ms) + _I32.pack(m.session_ms)
    return names + times + _bytes(m.subscription) + _bytes(m.assignment)


def _string(text: str | None) -> bytes:
    if text is None:
        return _I16.pack(-1)
    data = text.encode()
    return _I16.pack(len(data)) + data


def _bytes(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def decode_record(key: bytes, value: bytes | None) -> GroupRecord:
    """Raises Malformed, or NewerFormat for a kind or version that this millrace does not know."""
    try:
        decoded = _decode_key(_Reader(key))
        return GroupRecord(decoded, None if value is None else _decode_value(decoded, value))
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise Malformed(f"group record: {error}") from error


def _decode_key(r: _Reader) -> Key:
    kind = r.number(_I16)
    if kind == OFFSET_KEY:
        return OffsetKey(r.text(), r.text(), r.number(_I32))
    if kind == GROUP_KEY:
        return GroupKey(r.text())
    if kind == POSITION_KEY:
        return PositionKey(r.text(), UUID(bytes=r.take(16)), r.number(_I32))
    raise NewerFormat(f"group record of kind {kind}")


def _decode_value(key: Key, value: bytes) -> Value:
    if isinstance(key, PositionKey):
        return decode_position(value)
    r = _Reader(value)
    version = r.number(_I16)
    if isinstance(key, OffsetKey) and version == TOPIC_ID_VERSION:
        return _decode_offset(r)
    if version != VALUE_VERSION:
        raise NewerFormat(f"group record of version {version}, this is version {VALUE_VERSION}")
    if isinstance(key, OffsetKey):
        return OffsetValue(r.number(_I64), r.number(_I32), r.text(), r.number(_I64))
    head = (r.text(), r.number(_I32), r.text_or_none(), r.text_or_none(), r.number(_I64))
    return GroupValue(*head, tuple(_decode_member(r) for _ in range(r.number(_I32))))


def _decode_offset(r: _Reader) -> OffsetValue:
    offset, epoch = r.number(_I64), r.number(_I32)
    metadata = r.take(r.uvarint() - 1).decode()
    commit_ms = r.number(_I64)
    tagged = {r.uvarint(): r.take(r.uvarint()) for _ in range(r.uvarint())}
    return OffsetValue(offset, epoch, metadata, commit_ms, UUID(bytes=tagged[0]) if 0 in tagged else None)


def _decode_member(r: _Reader) -> MemberValue:
    return MemberValue(
        r.text(), r.text_or_none(), r.text(), r.text(), r.number(_I32), r.number(_I32), r.data(), r.data()
    )


class _Reader:
    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise ValueError(f"{size} bytes wanted at {self._at} of {len(self._data)}")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, form: struct.Struct) -> int:
        value: int = form.unpack(self.take(form.size))[0]
        return value

    def uvarint(self) -> int:
        value = shift = 0
        while shift < 32:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("a number that does not end")

    def text_or_none(self) -> str | None:
        size = self.number(_I16)
        return None if size == -1 else self.take(size).decode()

    def text(self) -> str:
        text = self.text_or_none()
        if text is None:
            raise ValueError("null where text is needed")
        return text

    def data(self) -> bytes:
        return self.take(self.number(_I32))
