"""Frames of the Kafka port, as its listener takes them, up to what the handlers get."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack
from typing import Any

from fuzz_seeds import drawn, of_union

from millrace.model import floors, position_calls
from millrace.wire import records
from millrace.wire.kafka import apis, hot
from millrace.wire.kafka.apis import Key
from millrace.wire.kafka.codec import APIS, decode, encode
from support_kafka_tables import struct_of


def run(data: bytes) -> None:
    """As the listener takes a frame, up to what the handlers get."""
    frame = memoryview(data)
    header = hot.parse_header(frame)
    api = APIS.get(header.key)
    if api is None or header.version not in api.versions:
        return
    if header.key == Key.PRODUCE:
        for _, entries in hot.parse_produce(frame, header.body, header.version).topics:
            for _, produced in entries:
                if produced is not None:
                    records.parse_produced(produced)
        return
    if header.key == Key.FETCH:
        hot.parse_fetch(frame, header.body, header.version)
        return
    fields = decode(api, header.version, frame[header.body:], exact=False)
    if header.key == Key.MOVE_POSITION:
        position_calls.decode_call(bytes(fields["call"]))
    elif header.key == Key.FLOORS:
        floors.decode_call(bytes(fields["call"]))


def seeds() -> Iterator[bytes]:
    batch = bytes(records.build_batch([records.Record(b"value", b"key", (("h", b"x"),), 5)]))
    for api in APIS.values():
        for version in range(api.versions.first, api.versions.last + 1):
            head = pack(">hhih", api.key, version, 7, 4) + b"fuzz" + (b"\0" if api.is_flexible(version) else b"")
            for fields in drawn(struct_of(api.request, version), 3):
                _fill(fields, batch)
                yield head + encode(api, version, fields)
    for call in _calls():
        name = APIS[Key.MOVE_POSITION if call[0] else Key.FLOORS].name
        fields = drawn(struct_of(apis.BY_NAME[name].request, apis.BY_NAME[name].versions.last), 1)[0]
        version = apis.BY_NAME[name].versions.last
        yield apis.encode_request(name, version, 1, {**fields, "call": call[1]})[4:]


def _fill(fields: Any, batch: bytes) -> None:
    """Records that are a batch, in the place of any bytes."""
    if isinstance(fields, list):
        for one in fields:
            _fill(one, batch)
    elif isinstance(fields, dict):
        for name, value in fields.items():
            if name == "records" and value is not None:
                fields[name] = batch
            else:
                _fill(value, batch)


def _calls() -> Iterator[tuple[bool, bytes]]:
    for body in of_union(position_calls.AnyPositionCall, position_calls.encode_call):
        yield True, body
    for body in of_union(floors.AnyFloorCall, floors.encode_call):
        yield False, body
