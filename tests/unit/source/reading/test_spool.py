"""Streamed transactions aside in files: bounded memory, nothing of what was aborted, nothing left behind [S8]."""

from __future__ import annotations

import os
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SpoolFull
from millrace.source.reading.spool import Spool
from millrace.wire.pg.chunks import HEADER_BYTES, Chunk, join


def frame(sub_xid: int, body: bytes, *, lsn: int = 7) -> bytes:
    return b"w" + pack(">qqq", lsn, lsn, 0) + b"I" + pack(">I", sub_xid) + body


def bodies(chunk: Chunk) -> list[bytes]:
    return [chunk.message(i)[HEADER_BYTES + 5:] for i in range(chunk.count)]


def spool_in(path: Path, **limits: int) -> Spool:
    return Spool(str(path / "spool"), free_bytes_min=limits.get("free_bytes_min", 0),
                 bytes_max=limits.get("bytes_max", 1 << 30))


def test_S8_messages_come_back_in_order_block_by_block(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    chunk = join([frame(5, b"other"), frame(9, b"a"), frame(9, b""), frame(9, b"ccc"), frame(5, b"other")])
    spool.add(9, chunk, 1, 4)
    spool.add(9, chunk, 3, 4)
    assert [bodies(found) for found in spool.commit(9)] == [[b"a", b"", b"ccc"], [b"ccc"]]
    assert spool.transactions == 0
    assert os.listdir(tmp_path / "spool") == []


def test_S8_aborted_subtransactions_leave_nothing(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    chunk = join([frame(9, b"a"), frame(10, b"b"), frame(11, b"c"), frame(9, b"d")])
    spool.add(9, chunk, 0, 4)
    spool.abort(9, 10)
    spool.abort(9, 11)
    spool.add(9, join([frame(12, b"e")]), 0, 1)
    assert [body for found in spool.commit(9) for body in bodies(found)] == [b"a", b"d", b"e"]


def test_S8_an_aborted_transaction_and_a_new_start_remove_files(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    for xid in (1, 2):
        spool.add(xid, join([frame(xid, b"x")]), 0, 1)
    spool.abort(1, 1)
    spool.abort(77, 77)          # never seen: all it did was aborted before it was streamed
    assert spool.transactions == 1
    assert spool_in(tmp_path).bytes == 0
    assert os.listdir(tmp_path / "spool") == []
    assert list(spool_in(tmp_path).commit(1)) == []


def test_S8_a_commit_given_up_half_way_removes_its_file(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    for _ in range(3):
        spool.add(4, join([frame(4, b"x" * 100)]), 0, 1)
    replay = spool.commit(4)
    next(replay)
    replay.close()               # type: ignore[attr-defined]
    assert os.listdir(tmp_path / "spool") == []


def test_S8_a_full_spool_is_an_error_of_its_own(tmp_path: Path) -> None:
    spool = spool_in(tmp_path, bytes_max=300)
    spool.add(4, join([frame(4, b"x" * 100)]), 0, 1)
    with pytest.raises(SpoolFull, match="300 are allowed"):
        spool.add(4, join([frame(4, b"x" * 200)]), 0, 1)
    with pytest.raises(SpoolFull, match="stay free"):
        spool_in(tmp_path, free_bytes_min=1 << 60).add(5, join([frame(5, b"")]), 0, 1)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.binary(max_size=40)), max_size=30),
       st.sets(st.tuples(st.integers(1, 3), st.integers(1, 4))))
def test_S8_what_survives_is_what_was_not_aborted(
    tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[int, int, bytes]], aborts: set[tuple[int, int]]
) -> None:
    spool = spool_in(tmp_path_factory.mktemp("spool"))
    for top, sub, body in messages:
        spool.add(top * 10, join([frame(top * 10 + sub, body)]), 0, 1)
    for top, sub in aborts:
        spool.abort(top * 10, top * 10 + sub)
    for top in (1, 2, 3):
        kept = [body for t, sub, body in messages if t == top and (t, sub) not in aborts]
        assert [body for found in spool.commit(top * 10) for body in bodies(found)] == kept
    assert spool.bytes == 0
