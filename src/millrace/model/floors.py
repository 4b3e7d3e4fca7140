"""Floors: down to where somebody still needs a partition, and what may be asked about them [L23, F10].

A floor protects every record of its partition from its offset on. Its owner is a text such as `changefeed/<id>`,
`source/<name>` or `copy/<source>/<copy>`; the word before the first slash is the owner's kind, which has a budget.
An owner has one epoch. Calls are encoded as msgpack arrays that begin with their tag, behind a version byte, and
travel in the private call Floors; what is told goes back the same way.
"""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

import msgspec

from millrace.errors import Malformed, NewerFormat
from millrace.model.ids import TopicPartition

VERSION = 1
T = TypeVar("T")


class Floor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    owner: str
    epoch: int
    topic_id: UUID
    partition: int
    offset: int


class FloorAt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A place in a partition, the owner being said elsewhere."""

    topic_id: UUID
    partition: int
    offset: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


class Released(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A floor that was taken from its owner: what it stood for is no longer kept. `offset`: where it stood."""

    topic_id: UUID
    partition: int
    offset: int
    why: str
    at_ms: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


class OwnerFloors(msgspec.Struct, frozen=True, array_like=True):
    owner: str
    epoch: int
    floors: tuple[FloorAt, ...] = ()
    released: tuple[Released, ...] = ()


class FloorCall(msgspec.Struct, frozen=True, array_like=True, tag_field="t"):
    pass


class SetFloors(FloorCall, frozen=True, array_like=True, tag="set"):
    owner: str
    epoch: int
    floors: tuple[FloorAt, ...]


class RemoveFloors(FloorCall, frozen=True, array_like=True, tag="remove"):
    """`partitions` None: all of the owner's."""

    owner: str
    epoch: int
    partitions: tuple[tuple[UUID, int], ...] | None = None


class ReadFloors(FloorCall, frozen=True, array_like=True, tag="read"):
    """Of one owner, on one topic, or of one owner on one topic; of all owners where both are left out."""

    owner: str | None = None
    topic_id: UUID | None = None


AnyFloorCall = SetFloors | RemoveFloors | ReadFloors


class FloorsTold(msgspec.Struct, frozen=True, array_like=True):
    """To a set: the owner's floors in the partitions asked for. `gone`: not registered, for the log starts above the
    place asked for, at `offset`. `unknown`: partitions that do not exist. To a read: all that was asked for."""

    owners: tuple[OwnerFloors, ...] = ()
    gone: tuple[FloorAt, ...] = ()
    unknown: tuple[tuple[UUID, int], ...] = ()


_calls: msgspec.msgpack.Decoder[AnyFloorCall] = msgspec.msgpack.Decoder(AnyFloorCall)
_told: msgspec.msgpack.Decoder[FloorsTold] = msgspec.msgpack.Decoder(FloorsTold)


def kind_of(owner: str) -> str:
    return owner.partition("/")[0]


def encode_call(call: AnyFloorCall) -> bytes:
    return bytes([VERSION]) + msgspec.msgpack.encode(call)


def decode_call(data: bytes) -> AnyFloorCall:
    return _decode(_calls, data, "floor call")


def encode_told(told: FloorsTold) -> bytes:
    return bytes([VERSION]) + msgspec.msgpack.encode(told)


def decode_told(data: bytes) -> FloorsTold:
    return _decode(_told, data, "floors")


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes, what: str) -> T:
    if not data:
        raise Malformed(f"{what} without version")
    if data[0] > VERSION:
        raise NewerFormat(f"{what} of version {data[0]}, this is version {VERSION}")
    try:
        return decoder.decode(data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"{what}: {error}") from error
