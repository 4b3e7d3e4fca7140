"""Chunks: joining, keep-alives, borders of streamed transactions."""

from __future__ import annotations

import numpy as np
import pytest

import support_pgoutput as wire
from millrace.errors import Malformed
from millrace.wire.pg.chunks import (
    Block,
    Plain,
    StreamAbort,
    StreamCommit,
    StreamSplitter,
    join,
)

ROW = wire.insert(7, [b"1"])


def test_S8_blocks_commits_and_aborts_are_told_apart() -> None:
    body = [wire.xlog(wire.streamed(ROW, xid), 1) for xid in (7, 8, 7)]
    messages = [
        wire.xlog(wire.begin(1, 2, 3)), wire.xlog(ROW), wire.xlog(wire.commit(1, 2, 3)),
        wire.xlog(wire.stream_start(7)), *body, wire.xlog(wire.stream_stop()),
        wire.xlog(wire.stream_abort(7, 8)), wire.xlog(wire.stream_commit(7, 900, 950, 5))]
    splitter = StreamSplitter()
    chunk = join(messages)
    assert splitter.split(chunk) == [
        Plain(0, 3), Block(7, 4, 7), StreamAbort(7, 8), StreamCommit(7, 900, 950, 5 + wire.POSTGRES_EPOCH_US)]
    block = chunk.slice(4, 7)
    assert block.subxids().tolist() == [7, 8, 7]
    kept = block.keep(block.subxids() != 8)
    assert [kept.message(i) for i in range(kept.count)] == [body[0], body[2]]


def test_S8_a_block_goes_on_in_the_next_chunk() -> None:
    splitter = StreamSplitter()
    inner = wire.xlog(wire.streamed(ROW, 7))
    assert splitter.split(join([wire.xlog(wire.stream_start(7)), inner])) == [Block(7, 1, 2)]
    assert splitter.split(join([inner, inner])) == [Block(7, 0, 2)]
    assert splitter.split(join([inner, wire.xlog(wire.stream_stop()), wire.xlog(ROW)])) == [Block(7, 0, 1), Plain(2, 3)]


@pytest.mark.parametrize("bodies", [
    [wire.stream_stop()],
    [wire.stream_start(1), wire.stream_start(2)],
    [wire.stream_start(1), wire.stream_commit(1, 2, 3, 4)],
    [wire.stream_commit(1, 2, 3, 4)[:-1]],
    [wire.stream_abort(1, 2)[:-1]],
])
def test_S8_borders_out_of_place_are_malformed(bodies: list[bytes]) -> None:
    with pytest.raises(Malformed):
        StreamSplitter().split(join([wire.xlog(body) for body in bodies]))


def test_S8_an_empty_chunk_is_nothing() -> None:
    assert StreamSplitter().split(join([])) == []
    assert join([]).starts.dtype == np.int64
