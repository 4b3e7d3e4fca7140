"""Messages of a replication stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct

from fuzz_seeds import drawn

import support_pgoutput as pg
from millrace.wire.pg.chunks import Block, Plain, StreamCommit, StreamSplitter, join
from millrace.wire.pg.messages import Begin
from millrace.wire.pg.pgoutput import Decoder
from support_changes import histories

SIZE = Struct(">H")


def run(data: bytes) -> None:
    """Messages, each behind its size; a size of 0 begins the next chunk of the same stream."""
    decoder, splitter = Decoder(prefix="millrace.shop"), StreamSplitter()
    for chunk in map(join, _chunks(data)):
        for segment in splitter.split(chunk):
            match segment:
                case Plain(first, last):
                    decoder.decode(chunk.slice(first, last))
                case Block(xid, first, last):
                    block = chunk.slice(first, last)
                    block.keep(block.subxids() == xid)
                    decoder.begin(Begin(1, 1, xid))
                    decoder.decode(block, streamed=True)
                    decoder.end()
                case StreamCommit():
                    pass


def _chunks(data: bytes) -> Iterator[list[bytes]]:
    found: list[bytes] = []
    at = 0
    while at + SIZE.size <= len(data):
        size = SIZE.unpack_from(data, at)[0]
        at += SIZE.size
        if size:
            found.append(data[at:at + size])
            at += size
        else:
            yield found
            found = []
    yield found


def _sized(told: Iterable[bytes]) -> bytes:
    return b"".join(SIZE.pack(len(one)) + one for one in told)


def seeds() -> Iterator[bytes]:
    for told, _ in drawn(histories(), 100):
        yield _sized(told)
        inner = [pg.xlog(pg.streamed(one[25:], 9)) for one in told if one[25:26] not in (b"B", b"C", b"O")]
        yield _sized([pg.xlog(pg.stream_start(9)), *inner, pg.xlog(pg.stream_stop()),
                      pg.xlog(pg.stream_commit(9, 100, 101, 5))])
    yield _sized([pg.xlog(pg.stream_start(9)), pg.xlog(pg.stream_stop()), pg.xlog(pg.stream_abort(9, 10))])
