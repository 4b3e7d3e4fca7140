"""Which chunks run together [S4]."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.sources.copies import ChunkId, Kind, Task
from millrace.core.sources.packing import packs
from millrace.limits import COPY_PACK_BYTES, COPY_PACK_CHUNKS, MIB
from millrace.model.sources import ChunkSpan


def task(copy: int, bytes_: int = 8192, *, kind: Kind = "snapshot", chunk: int = 0) -> Task:
    return Task(copy, chunk, kind, copy, f"c{copy}", 1, ChunkSpan(copy, bytes=bytes_))


def named(found: list[list[Task]]) -> list[list[int]]:
    return [[one.copy for one in pack] for pack in found]


def test_S4_small_tables_share_a_pack_up_to_its_count() -> None:
    tables = [task(n) for n in range(200)]
    [pack] = packs(tables, places=1)
    assert pack == tables[:COPY_PACK_CHUNKS]
    assert COPY_PACK_CHUNKS >= 10, "a job on Spark for every ten small tables at least"


def test_S4_a_pack_holds_so_many_bytes() -> None:
    third = COPY_PACK_BYTES // 3
    assert named(packs([task(n, third) for n in range(7)], places=3)) == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("bytes_", [COPY_PACK_BYTES + 1, 64 * MIB, -1])
def test_S4_a_large_chunk_and_one_of_unknown_size_are_alone(bytes_: int) -> None:
    tables = [task(0), task(1), task(2, bytes_), task(3), task(4)]
    assert named(packs(tables, places=9, suspects=())) == [[0], [1], [2], [3], [4]]
    assert named(packs(tables, places=3)) == [[0, 1], [2], [3, 4]]


def test_S4_a_chunk_that_failed_is_alone() -> None:
    tables = [task(n) for n in range(5)]
    assert named(packs(tables, places=2, suspects={ChunkId(0, 0)})) == [[0], [1, 2]]
    assert named(packs(tables, places=3, suspects={ChunkId(2, 0)})) == [[0, 1], [2], [3, 4]]


def test_S5_windows_are_not_in_a_pack_of_snapshot_chunks() -> None:
    """One that waits for writers holds up no snapshot."""
    tables = [task(0), task(1), task(2, kind="watermark"), task(3, kind="watermark")]
    assert named(packs(tables, places=2)) == [[0, 1], [2, 3]]


def test_S4_few_chunks_are_spread_over_the_places() -> None:
    assert named(packs([task(n) for n in range(4)], places=2)) == [[0, 1], [2, 3]]
    assert named(packs([task(n) for n in range(3)], places=2)) == [[0, 1], [2]]


@given(st.lists(st.tuples(st.integers(-1, 2 * COPY_PACK_BYTES), st.booleans(), st.booleans()), max_size=80),
       st.integers(0, 5))
def test_S4_packs_keep_the_order_leave_nothing_between_and_stay_within_bounds(
    wanted: list[tuple[int, bool, bool]], places: int,
) -> None:
    tables = [task(n, size, kind="snapshot" if early else "watermark") for n, (size, early, _) in enumerate(wanted)]
    suspects = {ChunkId(n, 0) for n, (_, _, suspect) in enumerate(wanted) if suspect}
    found = packs(tables, places=places, suspects=suspects)
    flat = [one for pack in found for one in pack]
    assert flat == tables[:len(flat)]
    assert len(found) <= places
    assert len(flat) > 0 or not tables or not places
    for pack in found:
        assert len({one.kind for one in pack}) == 1
        assert len(pack) == 1 or (
            len(pack) <= COPY_PACK_CHUNKS and sum(one.span.bytes for one in pack) <= COPY_PACK_BYTES
            and min(one.span.bytes for one in pack) >= 0
            and not {ChunkId(one.copy, one.chunk) for one in pack} & suspects)
