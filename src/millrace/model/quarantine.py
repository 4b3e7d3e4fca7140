"""Rows that could not be written: what the quarantine keeps of each [P9].

A record of a quarantine topic: key: the row's own, if it has one that can be written; value: this, msgpack behind one
byte of version; header `millrace`: where the row stands in its source topic, as every message of the changefeed has it.
A record without that header says what became of one: `Settled`, msgpack behind one byte of version.
"""

from __future__ import annotations

from typing import Literal, TypeVar
from uuid import UUID

import msgspec

from millrace.errors import Malformed, NewerFormat
from millrace.model.tables import Lsn

VERSION = 1

T = TypeVar("T")


def quarantine_topic(changefeed: str) -> str:
    return f"__millrace.quarantine.{changefeed}"


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """`change`: the row as the log has it (an Arrow IPC message of one row), None if it is too large to be kept twice:
    then the source topic is its only home."""

    table: str
    schema_id: UUID
    before: bool                   # whether `change` has before images
    commit_lsn: Lsn
    seq: int
    reason: str
    change: bytes | None = None


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the row at `offset` of the quarantine topic. `replaying`: it is about to be written to `topic`,
    whose partitions ended at `ends` before; whether it was is to be looked for there. The others: nobody is asked about
    it any more."""

    offset: int
    how: Literal["dropped", "replaying", "replayed"]
    wall_ms: int
    topic: str = ""
    ends: tuple[int, ...] = ()


_settled: msgspec.msgpack.Decoder[Settled] = msgspec.msgpack.Decoder(Settled)
_decoder: msgspec.msgpack.Decoder[Quarantined] = msgspec.msgpack.Decoder(Quarantined)


def encode_quarantined(row: Quarantined | Settled) -> bytes:
    return bytes([VERSION]) + msgspec.msgpack.encode(row)


def decode_quarantined(data: bytes) -> Quarantined:
    return _decode(data, _decoder)


def decode_settled(data: bytes) -> Settled:
    return _decode(data, _settled)


def _decode(data: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    if not data:
        raise Malformed("quarantined row without version")
    if data[0] > VERSION:
        raise NewerFormat(f"quarantined row of version {data[0]}, this is version {VERSION}")
    try:
        return decoder.decode(data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"quarantined row: {error}") from error
