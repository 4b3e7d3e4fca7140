"""Record batches in every codec, as a client reads them out of an answer."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from struct import Struct

import pyarrow as pa
from crc32c import crc32c

from millrace.log.client.reading import read_batches
from millrace.wire import records

CRC, LENGTH = Struct(">I"), Struct(">i")


def run(data: bytes) -> None:
    """As a client reads an answer. The checksum is made right first: else it would end nearly every input."""
    whole = bytearray(data)
    at = 0
    while at + records.HEADER_BYTES <= len(whole):
        size = LENGTH.unpack_from(whole, at + 8)[0] + records.LENGTH_FROM
        if size < records.HEADER_BYTES or at + size > len(whole):
            break
        CRC.pack_into(whole, at + 17, crc32c(memoryview(whole)[at + records.CRC_FROM:at + size]))
        at += size
    records.scan(data)
    for header in records.scan(whole).headers:
        records.is_fence(whole, header)
    read_batches(memoryview(whole), 0)


def seeds() -> Iterator[bytes]:
    several = [records.Record(b"value" * n, b"key" if n % 2 else None, (("h", b"x"), ("null", None)), 1000 + n)
               for n in range(5)]
    yield bytes(records.build_batch(several))
    yield bytes(records.build_batch(several) + records.build_batch(several[:1], base_offset=5))
    yield bytes(records.build_fence(7, 3, timestamp_ms=5))
    for codec, compress in compressors().items():
        yield bytes(records.build_batch(several, attributes=codec, compress=compress))


def compressors() -> dict[int, Callable[[bytes], bytes]]:
    def of(name: str) -> Callable[[bytes], bytes]:
        def compress(body: bytes) -> bytes:
            sink = pa.BufferOutputStream()
            with pa.output_stream(sink, compression=name) as out:
                out.write(body)
            return bytes(sink.getvalue())
        return compress

    return {1: gzip.compress, 2: lambda body: bytes(pa.compress(body, codec="snappy", asbytes=True)),
            3: of("lz4"), 4: of("zstd")}
