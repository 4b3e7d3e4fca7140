"""Controller records and snapshots as bytes for the store: a version byte, then msgpack.

A version above ours is refused (NewerFormat); bytes that do not decode are Damaged. Nothing else is raised.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millrace.errors import Damaged, NewerFormat
from millrace.model.records import VERSION, ControllerRecord

_HEAD = bytes([VERSION])
_encoder = msgspec.msgpack.Encoder()
_record: msgspec.msgpack.Decoder[ControllerRecord] = msgspec.msgpack.Decoder(ControllerRecord)
_snapshot: msgspec.msgpack.Decoder[list[ControllerRecord]] = msgspec.msgpack.Decoder(list[ControllerRecord])


def encode_record(record: ControllerRecord) -> bytes:
    return _HEAD + _encoder.encode(record)


def decode_record(data: bytes) -> ControllerRecord:
    body = _body(data)
    try:
        return _record.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"a metadata record does not decode: {error}") from error


def encode_snapshot(records: Sequence[ControllerRecord]) -> bytes:
    return _HEAD + _encoder.encode(records)


def decode_snapshot(data: bytes) -> list[ControllerRecord]:
    body = _body(data)
    try:
        return _snapshot.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"the metadata snapshot does not decode: {error}") from error


def _body(data: bytes) -> memoryview:
    if not data:
        raise Damaged("an empty metadata record")
    if data[0] > VERSION:
        raise NewerFormat(f"metadata of format {data[0]}, this millrace reads up to {VERSION}: upgrade it")
    return memoryview(data)[1:]
