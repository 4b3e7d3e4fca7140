"""What a mover is made with, as bytes in every plan: the same for all works of a changefeed."""

from __future__ import annotations

import msgspec

from millrace.errors import Malformed, NewerFormat
from millrace.model.changefeeds import TableSettings
from millrace.ops.cluster_secret import Key

VERSION = 1
MOVER = "millrace.pipeline.kafka.mover:make"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """`sink`: the URI, read anew by whoever uses it. `database`: as messages name it. `settings`: of single tables; of
    topics and partitions, that is: what is said of rows and columns has become plans (TaskPlan.tables)."""

    bootstrap: tuple[str, ...]
    sink: str
    source: str
    database: str
    settings: tuple[TableSettings, ...] = ()
    log_key: Key | None = None         # what the mover proves to brokers


_decoder: msgspec.msgpack.Decoder[Setup] = msgspec.msgpack.Decoder(Setup)


def encode_setup(setup: Setup) -> bytes:
    return bytes([VERSION]) + msgspec.msgpack.encode(setup)


def decode_setup(data: bytes) -> Setup:
    if data[:1] and data[0] > VERSION:
        raise NewerFormat(f"setup of version {data[0]}, this is version {VERSION}")
    try:
        return _decoder.decode(data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"setup: {error}") from error
