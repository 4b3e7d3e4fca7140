"""Which calls are served in which versions, and whole frames around their bodies.

In: dicts (to be sent) or frames (received). Out: frames with their length, or dicts. Promise: what is advertised can
be decoded and answered; Malformed is the only error.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import Any

from millrace.errors import Malformed
from millrace.wire.kafka.codec import APIS, BY_NAME, Api, Fields, Versions, decode, encode
from millrace.wire.primitives import Buffer, read_uvarint


class Key(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    FENCE_WRITER = 32100
    MOVE_POSITION = 32101
    FLOORS = 32102
    PROVE = 32103


PRIVATE = frozenset({Key.FENCE_WRITER, Key.MOVE_POSITION, Key.FLOORS, Key.PROVE})
PROOF_PURPOSE = "kafka port"    # of the proof that Prove carries
OWN_CLIENT_ID = "__millrace/"   # begins the client id of millrace's own client, for people; it opens nothing

# Some releases of librdkafka decide by Produce's lowest version whether a broker knows compression: offered from 3 on
# they silently send gzip, snappy and lz4 uncompressed. 0 to 2 are offered and refused, as Apache Kafka does.
ADVERTISED: dict[int, Versions] = {
    key: Versions(0, api.versions.last) if key == Key.PRODUCE else api.versions
    for key, api in sorted(APIS.items())
    if key not in PRIVATE
}

FLEXIBLE_FROM: dict[int, int] = {key: api.flexible for key, api in APIS.items()}

_LENGTH = Struct(">I")
_REQUEST = Struct(">hhih")     # api key, version, correlation, length of the client id
_CORRELATION = Struct(">i")


def is_served(key: int, version: int) -> bool:
    api = APIS.get(key)
    return api is not None and version in api.versions


def _response_tags(api: Api, version: int) -> bytes:
    """The header of an ApiVersions answer stays in its oldest form: its reader does not know yet what we speak."""
    return b"\0" if api.is_flexible(version) and api.key != Key.API_VERSIONS else b""


def frame(*parts: bytes) -> bytes:
    return _LENGTH.pack(sum(map(len, parts))) + b"".join(parts)


def response_frame(api: Api, version: int, correlation: int, body: bytes) -> bytes:
    return frame(_CORRELATION.pack(correlation), _response_tags(api, version), body)


def encode_response(api: Api, version: int, correlation: int, fields: Mapping[str, Any]) -> bytes:
    return response_frame(api, version, correlation, encode(api, version, fields, response=True))


def encode_request(
    name: str, version: int, correlation: int, fields: Mapping[str, Any], *, client_id: str = "millrace"
) -> bytes:
    """A client's side: the whole frame of one request."""
    api = BY_NAME[name]
    client = client_id.encode()
    head = _REQUEST.pack(api.key, version, correlation, len(client)) + client
    tags = b"\0" if api.is_flexible(version) else b""
    return frame(head, tags, encode(api, version, fields))


def decode_response(name: str, version: int, body: Buffer) -> tuple[int, Fields]:
    """A client's side: correlation and fields of one answer, its length already taken off."""
    api = BY_NAME[name]
    view = memoryview(body)
    if len(view) < _CORRELATION.size:
        raise Malformed("answer without correlation")
    (correlation,) = _CORRELATION.unpack_from(view)
    at = _CORRELATION.size
    if _response_tags(api, version):
        at = skip_tags(view, at, len(view))
    return correlation, decode(api, version, view[at:], response=True)


def skip_tags(data: Buffer, at: int, end: int) -> int:
    """Tags nobody here knows. Bounded: each takes at least two bytes."""
    count, at = read_uvarint(data, at, end)
    if count > end - at:
        raise Malformed("more tags than bytes")
    for _ in range(count):
        _, at = read_uvarint(data, at, end)
        size, at = read_uvarint(data, at, end)
        at += size
        if at > end:
            raise Malformed("tag behind the end")
    return at
