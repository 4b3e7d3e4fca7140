"""Compressed bodies of record batches, unpacked a piece at a time.

In: a codec number of Kafka's and the bytes of a body. Out: its plain bytes in pieces.
Promise: memory stays near one piece (snappy: one block) whatever the body claims; CorruptBatch for bytes that are not
of the codec, UnsupportedForMessageFormat for an unknown codec, MessageTooLarge where a body unpacks beyond its limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from millrace.errors import CorruptBatch, Malformed, MessageTooLarge, UnsupportedForMessageFormat
from millrace.limits import MIB
from millrace.wire.primitives import Buffer, read_uvarint

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4

PIECE_BYTES = 1 * MIB
_GZIP_WINDOW = 31                  # zlib's code for: a gzip header, the largest window
_STREAMED = {LZ4: "lz4", ZSTD: "zstd"}
_XERIAL_MAGIC = b"\x82SNAPPY\x00"  # Java's and kafka-python's snappy: blocks, each behind its size
_XERIAL_HEADER_BYTES = 16          # the magic and two versions


def pieces(codec: int, body: Buffer, *, bytes_max: int) -> Iterator[bytes]:
    """The plain bytes of `body`; MessageTooLarge before more than `bytes_max` of them are given out."""
    given = 0
    for piece in _pieces(codec, body, bytes_max):
        given += len(piece)
        if given > bytes_max:
            raise MessageTooLarge(f"a batch unpacks to more than {bytes_max} bytes")
        yield piece


def _pieces(codec: int, body: Buffer, bytes_max: int) -> Iterator[bytes]:
    if codec == GZIP:
        return _gunzip(body)
    if codec == SNAPPY:
        return _unsnap(bytes(body), bytes_max)
    if codec in _STREAMED:
        return _stream(_STREAMED[codec], body)
    raise UnsupportedForMessageFormat(f"batches compressed by codec {codec} are not read here")


def _gunzip(body: Buffer) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    left: Buffer = body
    try:
        while not unpacker.eof:
            piece = unpacker.decompress(left, PIECE_BYTES)
            left = unpacker.unconsumed_tail
            if not piece:
                break
            yield piece
    except zlib.error as error:
        raise CorruptBatch(f"gzip: {error}") from error


def _stream(name: str, body: Buffer) -> Iterator[bytes]:
    import pyarrow as pa  # large, and most brokers never need it

    try:
        with pa.input_stream(pa.BufferReader(pa.py_buffer(body)), compression=name) as stream:
            while piece := stream.read(PIECE_BYTES):
                yield bytes(piece)
    except OSError as error:
        raise CorruptBatch(f"{name}: {error}") from error


def _unsnap(body: bytes, bytes_max: int) -> Iterator[bytes]:
    if not body.startswith(_XERIAL_MAGIC):
        yield _snappy_block(body, bytes_max)
        return
    at = _XERIAL_HEADER_BYTES
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        at += 4
        if not 0 < size <= len(body) - at:
            raise CorruptBatch(f"snappy: a block of {size} bytes where {len(body) - at} are left")
        yield _snappy_block(body[at : at + size], bytes_max)
        at += size


def _snappy_block(block: bytes, bytes_max: int) -> bytes:
    import pyarrow as pa

    try:
        size, _ = read_uvarint(block, 0, len(block))
        if size > bytes_max:
            raise MessageTooLarge(f"a snappy block unpacks to {size} bytes, {bytes_max} are allowed")
        return bytes(pa.decompress(block, decompressed_size=size, codec="snappy", asbytes=True))
    except (OSError, Malformed) as error:
        raise CorruptBatch(f"snappy: {error}") from error
