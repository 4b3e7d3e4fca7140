"""Messages of the changefeeds' control plane as bytes, one in each FEEDS frame of a link.

    body = u8 version | msgpack array: tag, fields of one message of model.feed_messages

Decoders are given hostile bytes by the fuzzer; all they raise is Malformed (no such kind, no such version, not of its
form), or NewerFormat for a message of a later version.
"""

from __future__ import annotations

import msgspec

from millrace.errors import Malformed, NewerFormat
from millrace.model.feed_messages import FeedMessages

VERSION = 1

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[FeedMessages] = msgspec.msgpack.Decoder(FeedMessages)


def encode(message: FeedMessages) -> bytes:
    return bytes([VERSION]) + _encoder.encode(message)


def decode(body: bytes | memoryview) -> FeedMessages:
    if not body:
        raise Malformed("changefeed message without version")
    if body[0] > VERSION:
        raise NewerFormat(f"changefeed message of version {body[0]}, this millrace reads up to {VERSION}: upgrade it")
    if body[0] != VERSION:
        raise Malformed(f"changefeed message of version {body[0]}: there is none")
    try:
        return _decoder.decode(body[1:])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"changefeed message: {error}") from error
