"""With which copy a table begins, where the log was cut."""

from __future__ import annotations

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.delivery.copies import SKIPPED, Copies
from millrace.core.delivery.source_marks import At
from millrace.core.feeds.bases import Base, base
from millrace.model.positions import Point
from millrace.model.progress import CopyStarted, End, HighMark, LowMark, Mark, ProgressRecord

OID = 7


def mark(resolved: int, *ends: int, generation: int = 1) -> Mark:
    return Mark(generation, resolved, "s", 1, True, tuple(End(OID, n, end) for n, end in enumerate(ends)))


def copy(number: int, kind: Literal["snapshot", "watermark"] = "watermark", *, whole: bool = True, generation: int = 1,
         feeds: tuple[str, ...] = ()) -> CopyStarted:
    at = 100 if kind == "snapshot" else 0
    return CopyStarted(generation, number, OID, f"copy.{number}", 1, at, kind, feeds, whole)


def told(*records: ProgressRecord) -> Copies:
    copies = Copies()
    for offset, record in enumerate(records):
        copies.replay(offset, record)
    return copies


def found(copies: Copies, starts: dict[int, int], *cut: int, floors: dict[int, int] | None = None,
          since: int = 0, keyless: tuple[int, ...] = (), flaws: frozenset[str] = frozenset()) -> Base | None:
    books = copies.of(OID, "orders")
    whole = {book.number: book.number not in cut for book in books}
    return base(copies, books, starts=starts, whole=whole, floors=floors, since=since, keyless=keyless,
                flaws=flaws)


def test_F10_where_all_of_the_log_is_there_a_table_begins_as_ever() -> None:
    copies = told(copy(1, "snapshot"), mark(99, 1, 1), copy(2))
    assert found(copies, {0: 0, 1: 0}) == Base({0: 0, 1: 0})
    assert found(told(), {0: 0}) == Base({0: 0})


def test_F10_a_table_whose_log_was_cut_begins_with_the_first_copy_behind_which_all_is_there() -> None:
    copies = told(copy(1, "snapshot"), mark(99, 1, 1), mark(200, 50, 60), copy(2), mark(300, 70, 80), copy(3))
    begins = found(copies, {0: 40, 1: 40})
    assert begins is not None
    assert (begins.offsets, begins.number, begins.at) == ({0: 50, 1: 60}, 3, At(1, 200))
    assert [book.number for book in begins.skipped] == [1]
    later = found(copies, {0: 40, 1: 61})
    assert later is not None
    assert (later.offsets, [book.number for book in later.skipped]) == ({0: 70, 1: 80}, [1, 2])
    assert found(copies, {0: 71, 1: 0}) is None, "it must be copied"


def test_F10_a_copy_that_is_cut_partial_for_others_or_void_is_no_base() -> None:
    start = (copy(1, "snapshot"), mark(99, 1))
    assert found(told(*start), {0: 0}, 1) is None, "its rows are gone"
    assert found(told(*start, mark(200, 50), copy(2, whole=False)), {0: 9}) is None
    assert found(told(*start, mark(200, 50), copy(2, feeds=("other",))), {0: 9}) is None
    void = told(*start, mark(200, 50), copy(2), mark(300, 60, generation=2))
    assert found(void, {0: 9}) is None
    fresh = told(*start, mark(200, 50), copy(2), copy(3, "snapshot", generation=2), mark(300, 60, generation=2))
    begins = found(fresh, {0: 55})
    assert begins is not None
    assert begins.offsets == {0: 60}


def test_S10_F10_a_window_of_a_table_without_a_key_is_no_base_and_a_snapshot_is() -> None:
    start = (copy(1, "snapshot"), mark(99, 1), mark(200, 50), copy(2))
    assert found(told(*start), {0: 9}, keyless=(1, 2)) is None, "a stream cannot say that it replaces the table"
    keyed = found(told(*start, mark(250, 55), copy(3)), {0: 9}, keyless=(1, 2))
    assert keyed is not None
    assert (keyed.offsets, [book.number for book in keyed.skipped]) == ({0: 55}, [1, 2])
    fresh = told(*start, copy(3, "snapshot", generation=2), mark(300, 60, generation=2))
    begins = found(fresh, {0: 55}, keyless=(1, 2, 3))
    assert begins is not None
    assert begins.offsets == {0: 60}


def test_F10_a_snapshot_whose_generation_is_not_marked_is_no_base_yet() -> None:
    copies = told(copy(1, "snapshot"), mark(99, 1), mark(200, 50), copy(2, "snapshot", generation=2))
    assert found(copies, {0: 9}) is None


def test_S5_a_window_that_was_told_before_its_copy_begins_nowhere_that_is_known() -> None:
    copies = told(copy(1, "snapshot"), mark(99, 1), LowMark(1, 2, 0, 1, 120), mark(200, 50), copy(2))
    assert found(copies, {0: 9}) is None


def test_F10_a_table_that_was_renamed_into_the_rules_begins_at_its_marker_if_that_is_there() -> None:
    copies = told(copy(1, "snapshot"), mark(99, 1), mark(200, 50), copy(2))
    assert found(copies, {0: 9}, floors={0: 20}) == Base({0: 20})
    begins = found(copies, {0: 30}, floors={0: 20})
    assert begins is not None
    assert begins.offsets == {0: 50}
    assert found(copies, {0: 60}, floors={0: 20}) is None
    assert found(copies, {0: 30}, floors={0: 20}, since=4) is None, "that copy is from before it came"


def test_F10_of_a_copy_that_was_cut_nothing_is_put_where_the_table_needs_it_not() -> None:
    copies = told(copy(1, "snapshot"), mark(99, 1), mark(200, 50), copy(2), mark(300, 70), copy(3))
    for begins, skipped in (
        (found(copies, {0: 0}, 2), [2]), (found(copies, {0: 9}, 1, floors={0: 20}), [1]),
        (found(copies, {0: 9}, 3), [1, 3]),
    ):
        assert begins is not None
        assert [book.number for book in begins.skipped] == skipped


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 60))
def test_F10_no_base_begins_below_the_log_start_or_behind_its_copy(steps: list[int], start: int) -> None:
    """Marks with a copy behind each: whatever is cut, a base begins where the log is whole, and never behind a mark
    that came later than its copy."""
    records: list[ProgressRecord] = [copy(0, "snapshot"), mark(99, 1)]
    end, ends = 1, {0: 1}
    for number, step in enumerate(steps, 1):
        end += step
        records += (mark(100 + number, end), copy(number))
        ends[number] = end
    begins = found(told(*records), {0: start})
    if begins is None:
        assert start > end
        return
    if start == 0:
        assert begins == Base({0: 0})
        return
    assert begins.offsets[0] >= start
    assert begins.offsets[0] == ends[len(begins.skipped)]


def test_F10_the_flaw_begins_where_the_log_starts() -> None:
    copies = told(copy(1, "snapshot"), mark(99, 1))
    assert found(copies, {0: 40}, flaws=frozenset({"base_cut"})) == Base({0: 40})


def test_F10_a_skipped_copy_is_done_whatever_may_still_land() -> None:
    copies = told(copy(1), LowMark(1, 1, 0, 1, 120), HighMark(1, 1, 0, 1, 130))
    (book,) = copies.of(OID, "orders")
    assert not book.is_done(0, Point(0, 0))
    assert book.is_done(0, SKIPPED)
