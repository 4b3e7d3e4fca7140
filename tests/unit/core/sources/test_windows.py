"""Which rows of a copy count, and what they do to a table [S4, S5, F11]."""

from __future__ import annotations

from uuid import UUID

import pytest

from millrace.core.sources.copies import Attempt, ChunkId
from millrace.core.sources.windows import Changed, Key, Rank, Rebuilt, Sweep, Window, Windows, changed_after
from millrace.errors import OutOfOrder
from millrace.model.progress import ChunksAbandoned, CopyStarted, HighMark, LowMark, Manifest, Mark, Range

ANY = UUID(int=1)
BIG = frozenset({"big"})
K1, K2, K5 = (1,), (2,), (5,)


def started(copy: int = 1, *, kind: str = "watermark", chunks: int = 1, at: int = 0, generation: int = 1,
            feeds: tuple[str, ...] = (), whole: bool = True) -> CopyStarted:
    return CopyStarted(generation, copy, 10, "topic", chunks, at, kind, feeds, whole)  # type: ignore[arg-type]


def manifest(
    chunk: int = 0, attempt: int = 1, *, copy: int = 1, kind: str = "watermark", generation: int = 1
) -> Manifest:
    return Manifest(generation, copy, chunk, attempt, 10, kind, ANY, (Range(0, 0, 9),), 1, 1)  # type: ignore[arg-type]


def low(lsn: int, chunk: int = 0, attempt: int = 1, *, copy: int = 1) -> LowMark:
    return LowMark(1, copy, chunk, attempt, lsn)


def high(lsn: int, chunk: int = 0, attempt: int = 1, *, copy: int = 1) -> HighMark:
    return HighMark(1, copy, chunk, attempt, lsn)


def windows(*records: object, feed: str = "") -> Windows:
    found = Windows(feed)
    for record in records:
        found.replay(record)  # type: ignore[arg-type]
    return found


def window(at: int, upto: int, *, generation: int = 1, copy: int = 1) -> Window:
    return Window(Attempt(copy, 0, 1), 10, at, upto, manifest(copy=copy, generation=generation))


def row(value: int, big: str) -> dict[str, object]:
    return {"value": value, "big": big}


# -- snapshot copies -------------------------------------------------------------------------------------------------
def test_S4_the_first_change_waits_for_the_chunks_of_the_snapshot() -> None:
    found = windows(started(kind="snapshot", chunks=2, at=50), manifest(0, kind="snapshot"))
    assert found.pending(1) == (ChunkId(1, 1),)
    found.replay(manifest(1, 4, kind="snapshot"))
    assert found.pending(1) == ()
    assert [(w.attempt, w.low) for w in found.initial(1)] == [((1, 0, 1), 49), ((1, 1, 4), 49)]


def test_S4_nobody_waits_for_chunks_whose_snapshot_was_lost() -> None:
    found = windows(started(kind="snapshot", chunks=2, at=50), ChunksAbandoned(1, 1, (0, 1)))
    assert found.pending(1) == ()
    found.replay(manifest(0, kind="snapshot"))
    assert found.initial(1) == []


def test_S4_a_manifest_before_the_snapshot_was_lost_counts() -> None:
    found = windows(started(kind="snapshot", at=50), manifest(kind="snapshot"), ChunksAbandoned(1, 1, (0,)))
    assert len(found.initial(1)) == 1


def test_S4_two_attempts_at_one_chunk_count_once() -> None:
    found = windows(started(kind="snapshot", at=50), manifest(0, 1, kind="snapshot"), manifest(0, 2, kind="snapshot"))
    (only,) = found.initial(1)
    assert only.counts(chunk=0, attempt=1)
    assert not only.counts(chunk=0, attempt=2)
    assert found.used(only) == Sweep(10, Rank(1, 49, -1))


def test_S9_nobody_waits_for_copies_of_a_generation_that_is_over() -> None:
    found = windows(started(kind="snapshot", at=50), Mark(2, 90, "s", 1, True, ()))
    assert found.pending(1) == ()
    assert found.initial(1) == []
    found.replay(started(9, generation=1))
    assert found.copies == {}


def test_S4_a_copy_for_another_changefeed_is_none_of_ours() -> None:
    records = (started(feeds=("kafka",)), low(10), manifest(), high(20))
    assert windows(*records, feed="lake").ready(1, 99) == []
    assert len(windows(*records, feed="kafka").ready(1, 99)) == 1
    assert len(windows(*records).ready(1, 99)) == 1


# -- windows ---------------------------------------------------------------------------------------------------------
def test_S5_a_window_is_ready_when_a_mark_has_passed_its_high_mark() -> None:
    found = windows(started(), low(10), manifest(), high(20))
    assert found.ready(1, 19) == []
    (ready,) = found.ready(1, 20)
    assert (ready.low, ready.high, ready.rank.commit_lsn) == (10, 20, 10)
    found.used(ready)
    assert found.ready(1, 99) == []


def test_S4_marks_and_manifests_of_different_attempts_do_not_mix() -> None:
    found = windows(started(), low(10, attempt=1), low(15, attempt=2), manifest(attempt=1), high(20, attempt=2))
    assert found.ready(1, 99) == []
    found.replay(manifest(attempt=2))
    assert [(w.attempt.attempt, w.low) for w in found.ready(1, 99)] == [(2, 15)]


def test_S3_marks_that_were_sent_again_change_nothing() -> None:
    found = windows(started(), low(10), manifest(), high(20), started(), low(10), high(20))
    (ready,) = found.ready(1, 99)
    found.used(ready)
    found.replay(high(20))
    assert found.ready(1, 99) == []


def test_F10_the_log_is_held_from_the_lowest_open_low_mark_on() -> None:
    found = windows(started(chunks=2), low(10), low(14, chunk=1), manifest(), high(20))
    assert found.open_lows() == {10: 10}
    found.used(found.ready(1, 99)[0])
    assert found.open_lows() == {10: 14}


def test_S4_the_last_chunk_of_a_whole_copy_sweeps() -> None:
    found = windows(
        started(chunks=2), low(10), manifest(), high(20), low(12, chunk=1), manifest(1), high(18, chunk=1),
    )
    later, earlier = found.ready(1, 99)
    assert (later.high, earlier.high) == (18, 20)
    assert found.used(later) is None
    assert found.used(earlier) == Sweep(10, Rank(1, 10, -1))


def test_S4_a_snapshot_copy_sweeps_what_was_before_its_consistent_point() -> None:
    """Not what came by the stream since, although no window held it: a partition attached later is in no chunk."""
    found = windows(
        started(kind="snapshot", chunks=2, at=50), manifest(0, kind="snapshot"), ChunksAbandoned(1, 1, (1,)),
        low(70, 1, 2), manifest(1, 2), high(80, 1, 2),
    )
    table = Rebuilt()
    table.insert(Rank(0, 99, 0), K2, row(1, "of the generation before"))
    (first,) = found.initial(1)
    table.chunk(first, {K1: row(2, "of the snapshot")}, Changed(first.low))
    assert found.used(first) is None
    table.insert(Rank(1, 60, 0), K5, row(3, "of the stream"))
    (last,) = found.ready(1, 80)
    sweep = found.used(last)
    assert sweep == Sweep(10, Rank(1, 49, -1))
    assert table.sweep(sweep.below) == (K2,)


def test_S5_rows_read_again_by_key_sweep_nothing() -> None:
    found = windows(started(whole=False), low(10), manifest(), high(20))
    assert found.used(found.ready(1, 99)[0]) is None


def test_a_clone_goes_its_own_way() -> None:
    found = windows(started(), low(10), manifest(), high(20))
    copy = found.clone()
    found.used(found.ready(1, 99)[0])
    assert len(copy.ready(1, 99)) == 1


# -- a chunk over a table --------------------------------------------------------------------------------------------
def test_S5_keys_changed_after_the_low_mark_up_to_where_the_consumer_stands_are_left_alone() -> None:
    table = Rebuilt()
    changes: list[tuple[int, str, Key]] = [(9, "insert", K1), (12, "update", K2), (25, "insert", K5)]
    for lsn, _, key in changes:
        table.insert(Rank(1, lsn, 0), key, row(lsn, "now"))
    seen = window(10, 20)
    emitted = table.chunk(seen, {key: row(0, "old") for key in (K1, K2, K5)}, changed_after(seen, changes))  # type: ignore[arg-type]
    assert emitted.put == (K1,)
    assert table.values() == {K1: row(0, "old"), K2: row(12, "now"), K5: row(25, "now")}


def test_S4_a_copy_replaces_within_its_range() -> None:
    table = Rebuilt()
    for key in (K1, K2, K5):
        table.insert(Rank(1, 3, 0), key, row(3, "x"))
    changed = Changed(10)
    emitted = table.chunk(window(10, 20), {K1: row(4, "y")}, changed, covers=lambda key: key < K5)
    assert emitted.deleted == (K2,)
    assert table.values() == {K1: row(4, "y"), K5: row(3, "x")}


def test_S4_a_whole_copy_sweeps_what_no_chunk_held_and_nothing_touched_since() -> None:
    table = Rebuilt()
    for lsn, key in ((3, K1), (4, K2), (30, K5)):
        table.insert(Rank(1, lsn, 0), key, row(lsn, "x"))
    table.chunk(window(10, 20), {K1: row(9, "y")}, Changed(10))
    assert table.sweep(Rank(1, 10, -1)) == (K2,)
    assert set(table.values()) == {K1, K5}


def test_S4_an_older_window_does_not_expose_a_row_to_the_sweep_of_a_later_copy() -> None:
    """Two copies overlap: the row was put at 33, again at 29 by the other, and the first sweeps below 33."""
    table = Rebuilt()
    table.chunk(window(33, 41, copy=5), {K5: row(1, "x")}, Changed(33))
    table.chunk(window(29, 43, copy=4), {K5: row(1, "x")}, Changed(29))
    assert table.sweep(Rank(1, 33, -1)) == ()
    assert table.values() == {K5: row(1, "x")}


def test_S5_a_truncation_after_the_low_mark_leaves_nothing_of_the_chunk() -> None:
    table = Rebuilt()
    table.insert(Rank(1, 5, 0), K1, row(5, "x"))
    table.truncate(Rank(1, 12, 0))
    changed = Changed(10)
    changed.truncate(12)
    assert table.chunk(window(10, 20), {K1: row(5, "x"), K2: row(6, "y")}, changed).put == ()
    assert table.values() == {}


def test_S7_a_truncation_marker_takes_the_rows_of_its_partition() -> None:
    table = Rebuilt()
    table.insert(Rank(1, 5, 0), K1, row(5, "x"))
    table.insert(Rank(1, 5, 1), K2, row(5, "x"))
    table.truncate(Rank(1, 12, 0), mine=lambda key: key == K1)
    assert set(table.values()) == {K2}


# -- columns that were not sent --------------------------------------------------------------------------------------
def test_S6_an_unchanged_column_keeps_the_value_of_its_row() -> None:
    table = Rebuilt()
    table.insert(Rank(1, 5, 0), K1, row(5, "B"))
    table.update(Rank(1, 6, 0), K1, {"value": 6}, unchanged=BIG)
    assert table.values() == {K1: row(6, "B")}
    assert table.incomplete() == {}


def test_S6_an_unchanged_column_that_is_known_from_nowhere_is_missing_never_null() -> None:
    table = Rebuilt()
    table.update(Rank(1, 6, 0), K1, {"value": 6}, unchanged=BIG)
    assert table.incomplete() == {K1: BIG}
    assert "big" not in table.values()[K1]
    table.update(Rank(1, 7, 0), K1, {"value": 7}, unchanged=BIG)
    assert table.incomplete() == {K1: BIG}
    table.update(Rank(1, 8, 0), K1, row(8, "B"))
    assert table.incomplete() == {}


def test_S5_a_row_of_an_earlier_generation_completes_nothing() -> None:
    table = Rebuilt()
    table.insert(Rank(1, 5, 0), K1, row(5, "B"))
    table.update(Rank(2, 3, 0), K1, {"value": 6}, unchanged=BIG)
    assert table.incomplete() == {K1: BIG}


def test_S5_a_moved_row_of_an_earlier_generation_completes_nothing() -> None:
    table = Rebuilt()
    table.insert(Rank(1, 5, 0), K1, row(5, "B"))
    table.delete(Rank(2, 6, 0), K1)
    table.insert(Rank(2, 6, 1), K2, {"value": 6}, unchanged=BIG, old_key=K1)
    assert table.incomplete() == {K2: BIG}


def test_S5_a_chunk_completes_a_row_that_was_only_updated_since_its_low_mark() -> None:
    table = Rebuilt()
    table.update(Rank(1, 12, 0), K1, {"value": 6}, unchanged=BIG)
    seen = window(10, 20)
    emitted = table.chunk(seen, {K1: row(1, "B")}, changed_after(seen, [(12, "update", K1)]))
    assert emitted.completed == (K1,)
    assert table.values() == {K1: row(6, "B")}


def test_S5_a_chunk_row_of_a_key_that_was_deleted_since_completes_nothing() -> None:
    """Delete 2, then key update 5 -> 2 with the column unchanged: the chunk's row of key 2 is another row."""
    table = Rebuilt()
    table.delete(Rank(1, 11, 0), K2)
    table.delete(Rank(1, 12, 0), K5)
    table.insert(Rank(1, 12, 1), K2, {"value": 6}, unchanged=BIG, old_key=K5)
    seen = window(10, 20)
    changed = changed_after(seen, [(11, "delete", K2), (12, "delete", K5), (12, "insert", K2)])
    assert table.chunk(seen, {K2: row(1, "dead")}, changed).completed == ()
    assert table.incomplete() == {K2: BIG}


def test_S5_a_key_update_takes_unchanged_columns_from_the_old_keys_row() -> None:
    table = Rebuilt()
    table.insert(Rank(1, 5, 0), K1, row(5, "B"))
    table.delete(Rank(1, 6, 0), K1)
    table.insert(Rank(1, 6, 1), K2, {"value": 6}, unchanged=BIG, old_key=K1)
    assert table.values() == {K2: row(6, "B")}


@pytest.mark.parametrize("rank", [Rank(1, 7, 1), Rank(1, 6, 3)])
def test_S5_a_row_deleted_by_another_change_is_not_the_one_that_moved(rank: Rank) -> None:
    table = Rebuilt()
    table.insert(Rank(1, 5, 0), K1, row(5, "B"))
    table.delete(Rank(1, 6, 0), K1)
    table.insert(rank, K2, {"value": 6}, unchanged=BIG, old_key=K1)
    assert table.incomplete() == {K2: BIG}


# -- order -----------------------------------------------------------------------------------------------------------
def test_F11_a_change_behind_a_later_one_of_its_key_is_refused() -> None:
    table = Rebuilt()
    table.insert(Rank(1, 5, 1), K1, row(5, "B"))
    with pytest.raises(OutOfOrder):
        table.update(Rank(1, 5, 1), K1, row(6, "B"))
    table.delete(Rank(1, 6, 0), K1)
    with pytest.raises(OutOfOrder):
        table.insert(Rank(1, 5, 9), K1, row(6, "B"))
    table.insert(Rank(2, 1, 0), K1, row(7, "B"))


def test_F11_a_change_below_the_low_mark_after_its_window_is_refused() -> None:
    table = Rebuilt()
    table.chunk(window(10, 20), {K1: row(1, "B")}, Changed(10))
    with pytest.raises(OutOfOrder):
        table.update(Rank(1, 9, 0), K1, row(2, "B"))


def test_F11_a_chunk_row_over_a_later_change_is_refused() -> None:
    table = Rebuilt()
    table.insert(Rank(1, 15, 0), K1, row(5, "B"))
    with pytest.raises(OutOfOrder):
        table.chunk(window(10, 20), {K1: row(1, "B")}, Changed(10))
