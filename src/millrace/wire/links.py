"""Frames of our own links: control messages and replication streams on one connection.

    frame   = u32 length | u8 format | u8 kind | u16 zero | u32 correlation | body
    PROOF   = one message of wire.proof: the first three or four frames, before any other is looked at
    control = HELLO, REQUEST, REPLY, ERROR: body is msgpack of one message of model.messages
    streams = ATTACH, FETCH, DATA, DETACH: body is a run of fixed entries (DATA entries are followed by their bytes)
    FEEDS   = one message of model.feed_messages, as wire.feeds encodes it; unanswered, like a stream

A FETCH entry is at once the follower's acknowledgement: `offset` is what it has made durable [L5]. Decoders are given
hostile bytes by the fuzzer; all they raise is Malformed, or NewerFormat for a frame of a later version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from millrace.errors import Malformed, NewerFormat
from millrace.model.messages import AnyMessage, Message

FORMAT = 1

HELLO, REQUEST, REPLY, ERROR = 1, 2, 3, 4
PROOF = 5
ATTACH, FETCH, DATA, DETACH = 10, 11, 12, 13
PING, PONG = 20, 21
FEEDS = 30

_HEADER = Struct(">IBBHI")
_HEADER_IN_FRAME = Struct(">BBHI")
HEADER_BYTES = _HEADER_IN_FRAME.size
_ATTACH = Struct(">I16sIiqi")
_FETCH = Struct(">Iiqi")
_DATA = Struct(">IhiqqiqI")
_STREAM = Struct(">I")

DATA_ENTRY_BYTES = _DATA.size

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(AnyMessage)

Chunk = bytes | bytearray | memoryview


class Attach(NamedTuple):
    """A follower opens a stream for one partition on this connection."""

    stream: int
    topic_id: UUID
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int


class Fetch(NamedTuple):
    """The follower's durable end moved: acknowledgement and request for more."""

    stream: int
    leader_epoch: int
    offset: int
    last_epoch: int


class Data(NamedTuple):
    """The leader's answer for one stream. `diverging_epoch` >= 0: truncate by it, there are no bytes."""

    stream: int
    error: int
    leader_epoch: int
    hw: int
    log_start: int
    diverging_epoch: int
    diverging_end: int
    data: memoryview


def header(kind: int, correlation: int, body_bytes: int) -> bytes:
    return _HEADER.pack(HEADER_BYTES + body_bytes, FORMAT, kind, 0, correlation)


def encode_message(kind: int, correlation: int, message: Message) -> list[Chunk]:
    body = _encoder.encode(message)
    return [header(kind, correlation, len(body)), body]


def decode_header(frame: memoryview) -> tuple[int, int, memoryview]:
    """(kind, correlation, body)."""
    if len(frame) < HEADER_BYTES:
        raise Malformed("link frame shorter than its header")
    version, kind, _, correlation = _HEADER_IN_FRAME.unpack_from(frame)
    if version > FORMAT:
        raise NewerFormat(f"link frame of format {version}; this millrace reads up to {FORMAT}: upgrade it first")
    return kind, correlation, frame[HEADER_BYTES:]


def decode_message(body: memoryview) -> AnyMessage:
    try:
        message: AnyMessage = _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:
        raise Malformed(f"link message: {e}") from e
    return message


# -- replication streams -------------------------------------------------------------------------------------------


def encode_attach(entries: Iterable[Attach]) -> bytes:
    return b"".join(_ATTACH.pack(s, t.bytes, p, e, o, last) for s, t, p, e, o, last in entries)


def decode_attach(body: memoryview) -> list[Attach]:
    return [Attach(s, UUID(bytes=t), p, e, o, last) for s, t, p, e, o, last in _entries(_ATTACH, body)]


def encode_fetch(entries: Iterable[Fetch]) -> bytes:
    return b"".join(_FETCH.pack(*entry) for entry in entries)


def decode_fetch(body: memoryview) -> list[Fetch]:
    return [Fetch(*entry) for entry in _entries(_FETCH, body)]


def encode_detach(streams: Iterable[int]) -> bytes:
    return b"".join(map(_STREAM.pack, streams))


def decode_detach(body: memoryview) -> list[int]:
    return [entry[0] for entry in _entries(_STREAM, body)]


def encode_data_entry(
    stream: int, error: int, leader_epoch: int, hw: int, log_start: int, diverging: tuple[int, int], size: int
) -> bytes:
    """The fixed part of a DATA entry; its `size` bytes follow as they are."""
    return _DATA.pack(stream, error, leader_epoch, hw, log_start, diverging[0], diverging[1], size)


def decode_data(body: memoryview) -> list[Data]:
    found: list[Data] = []
    position, end = 0, len(body)
    while position < end:
        try:
            s, error, epoch, hw, start, d_epoch, d_end, size = _DATA.unpack_from(body, position)
        except StructError as e:
            raise Malformed("DATA entry cut short") from e
        position += DATA_ENTRY_BYTES
        if size > end - position:
            raise Malformed("DATA entry longer than its frame")
        found.append(Data(s, error, epoch, hw, start, d_epoch, d_end, body[position:position + size]))
        position += size
    return found


def frame(kind: int, correlation: int, chunks: Sequence[Chunk]) -> list[Chunk]:
    """A whole frame around ready chunks."""
    return [header(kind, correlation, sum(map(len, chunks))), *chunks]


def _entries(form: Struct, body: memoryview) -> list[tuple[Any, ...]]:
    if len(body) % form.size:
        raise Malformed(f"{len(body)} bytes are no whole number of {form.size}-byte entries")
    return list(form.iter_unpack(body))
