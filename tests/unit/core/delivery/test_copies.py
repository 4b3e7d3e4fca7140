"""Which chunks of copies count, under which numbers: by the order of `progress` alone."""

from __future__ import annotations

from uuid import UUID

from millrace.core.delivery.copies import Book, Copies, Portion
from millrace.core.sources.windows import Windows
from millrace.limits import COPY_NUMBER_BITS
from millrace.model.positions import Point
from millrace.model.progress import (
    Change,
    ChunksAbandoned,
    CopyStarted,
    HighMark,
    LowMark,
    Manifest,
    Mark,
    ProgressRecord,
    Range,
)

OID, START, ID = 7, Point(0, 0), UUID(int=1)


class Log:
    def __init__(self) -> None:
        self.copies, self.next = Copies(), 0

    def tell(self, *records: ProgressRecord) -> frozenset[int]:
        news: frozenset[int] = frozenset()
        for record in records:
            news = self.copies.replay(self.next, record)
            self.next += 1
        return news

    def book(self) -> Book:
        (book,) = self.copies.of(OID, "f")
        return book


def started(*, kind: str = "snapshot", chunks: int = 2, feeds: tuple[str, ...] = ()) -> CopyStarted:
    return CopyStarted(1, 3, OID, "copy", chunks, 100 if kind == "snapshot" else 0, kind, feeds)  # type: ignore[arg-type]


def manifest(chunk: int, attempt: int, *ranges: Range, kind: str = "snapshot") -> Manifest:
    return Manifest(1, 3, chunk, attempt, OID, kind, ID, ranges, 5, 1)  # type: ignore[arg-type]


def mark(resolved: int, generation: int = 1) -> Mark:
    return Mark(generation, resolved, "s", 1, True, ())


def at(offset: int, place: int = 0) -> int:
    return (offset << COPY_NUMBER_BITS) + place


def test_S4_the_first_manifest_of_a_chunk_counts_and_its_numbers_stay() -> None:
    log = Log()
    log.tell(started(), manifest(0, 2, Range(0, 4, 6), Range(0, 9, 10), Range(1, 0, 1)))
    assert log.book().is_pending
    (first,) = log.book().portions(0, START)
    assert (first.number, first.end, first.ranges) == (at(1), at(1, 3), ((4, 6), (9, 10)))
    assert first.low == 99, "right before the consistent point"
    log.tell(manifest(0, 1, Range(0, 0, 4)), manifest(1, 1, Range(0, 6, 9)))
    assert not log.book().is_pending
    assert [one.number for one in log.book().portions(0, START)] == [at(1), at(3)]
    assert [one.number for one in log.book().portions(0, Point(at(1, 3), 0))] == [at(3)]
    assert log.book().is_done(1, Point(at(1, 1), 0))
    assert not log.book().is_done(0, Point(at(1, 3), 0))


def test_S4_after_its_snapshot_was_lost_a_chunk_lands_by_a_window_only() -> None:
    log = Log()
    log.tell(started(), manifest(0, 1, Range(0, 0, 1)), ChunksAbandoned(1, 3, (1,)))
    assert not log.book().is_pending
    log.tell(manifest(1, 1, Range(0, 1, 2)))
    assert len(log.book().portions(0, START)) == 1
    assert log.book().may_grow
    window = manifest(1, 2, Range(0, 2, 3), kind="watermark")
    log.tell(LowMark(1, 3, 1, 2, 200), window, LowMark(1, 3, 1, 3, 205), HighMark(1, 3, 1, 2, 210))
    assert log.book().portions(0, START)[-1] == Portion((3, 1, 2), ID, at(7), ((2, 3),), 200, 210)  # type: ignore[arg-type]
    log.tell(manifest(1, 3, Range(0, 3, 4), kind="watermark"), HighMark(1, 3, 1, 3, 220))
    assert len(log.book().portions(0, START)) == 2, "the first attempt counts"
    assert not log.book().may_grow


def test_S5_marks_of_other_attempts_complete_no_window() -> None:
    log = Log()
    log.tell(started(kind="watermark", chunks=1), LowMark(1, 3, 0, 1, 50), HighMark(1, 3, 0, 2, 60),
             manifest(0, 1, Range(0, 0, 1), kind="watermark"))
    assert log.book().portions(0, START) == []
    assert not log.book().is_done(0, START)


def test_P7_dispatchers_hear_of_a_window_when_its_high_mark_is_resolved() -> None:
    log = Log()
    log.tell(mark(10), started(kind="watermark", chunks=1), LowMark(1, 3, 0, 1, 50))
    log.tell(manifest(0, 1, kind="watermark"), mark(55))
    assert log.tell(HighMark(1, 3, 0, 1, 60)) == {OID}
    assert log.tell(mark(59)) == frozenset()
    assert log.tell(mark(60)) == {OID}
    assert log.tell(mark(61)) == frozenset()
    assert log.book().known_before == 10


def test_S4_copies_are_for_the_changefeeds_they_name_and_told_twice_they_are_one() -> None:
    log = Log()
    log.tell(started(feeds=("f",)), started(feeds=("f",)))
    assert len(log.copies.of(OID, "f")) == 1
    assert log.copies.of(OID, "g") == []
    assert log.copies.of(8, "f") == []


def test_S9_a_later_generation_voids_what_is_left_of_the_earlier_one() -> None:
    log = Log()
    log.tell(started(), manifest(0, 1, Range(0, 0, 1)))
    assert not log.copies.is_void(log.book())
    log.tell(mark(5, generation=2), manifest(1, 1, Range(0, 1, 2)))
    assert log.copies.is_void(log.book())
    assert len(log.book().portions(0, START)) == 1


def test_C7_nobody_waits_for_chunks_of_a_table_that_was_dropped() -> None:
    log = Log()
    log.tell(started(), manifest(0, 1, Range(0, 0, 1)))
    assert log.tell(Change(1, OID, 300, 0, "drop")) == {OID}
    log.tell(manifest(1, 1, Range(0, 1, 2)))
    assert not log.book().is_pending
    assert log.book().is_done(0, Point(at(1, 1), 0))


def test_L21_how_far_a_copy_is_put_is_an_offset_of_its_topic_for_tools() -> None:
    log = Log()
    log.tell(started(), manifest(1, 1, Range(0, 4, 6), Range(0, 9, 10)), manifest(0, 1, Range(0, 0, 3)))
    book = log.book()
    put = {point: book.read_upto(0, point) for point in (
        START, Point(at(1), 0), Point(at(1, 1), 0), Point(at(1, 1), 7), Point(at(1, 2), 0), Point(at(1, 3), 0),
        Point(at(2, 3), 0))}
    assert list(put.values()) == [0, 0, 5, 5, 6, 10, 10], "behind the last record; chunks land in another order"
    assert book.read_upto(1, Point(at(2, 3), 0)) == 0


# -- one attempt, run twice ------------------------------------------------------------------------------------------
# Spark may run a task again, and a client may send a plan twice: two runs of one attempt write marks and manifests that
# nobody can tell apart. Marks come into `progress` in the order of the WAL, some time after they were made; a manifest
# is put there by the run itself.
STEPS = ("low", "snapshot", "manifest", "high")
RUN_RANGES = (Range(0, 0, 3), Range(0, 3, 6))


def interleavings(first: int, second: int) -> list[tuple[int, ...]]:
    """Every order of the steps of two runs, either of which may die anywhere."""
    if not first and not second:
        return [()]
    found = [(0, *rest) for rest in (interleavings(first - 1, second) if first else [])]
    return found + [(1, *rest) for rest in (interleavings(first, second - 1) if second else [])]


def story_of(order: tuple[int, ...]) -> tuple[list[tuple[str, int, int]], dict[int, int]]:
    """(what became of each step: its name, run and LSN; when each run took its snapshot)"""
    done, steps, snapshots = [0, 0], [], {}
    for lsn, one in enumerate(order, 1):
        name = STEPS[done[one]]
        done[one] += 1
        if name == "snapshot":
            snapshots[one] = lsn
        else:
            steps.append((name, one, lsn))
    return steps, snapshots


def orders_in_progress(steps: list[tuple[str, int, int]]) -> list[list[tuple[str, int, int]]]:
    """Marks at once, and marks as late as they may come: behind everything else."""
    marks, manifests = ([s for s in steps if s[0] != "manifest"], [s for s in steps if s[0] == "manifest"])
    return [steps, [*manifests, *marks]]


def test_S4_P5_an_attempt_that_runs_twice_lands_once_and_its_marks_embrace_the_snapshot_that_counts() -> None:
    landed = 0
    for ends in [(a, b) for a in range(len(STEPS) + 1) for b in range(len(STEPS) + 1)]:
        for order in interleavings(*ends):
            steps, snapshots = story_of(order)
            for told in orders_in_progress(steps):
                log, windows = Log(), Windows()
                records: list[ProgressRecord] = [started(kind="watermark", chunks=1), *(
                    manifest(0, 1, RUN_RANGES[one], kind="watermark") if name == "manifest" else
                    (LowMark if name == "low" else HighMark)(1, 3, 0, 1, lsn) for name, one, lsn in told)]
                for record in records:
                    log.tell(record)
                    windows.replay(record)
                portions = log.book().portions(0, START)
                assert [(one.low, one.high, one.manifest.ranges[0].start) for one in windows.ready(1, 99)] == [
                    (one.low, one.high, one.ranges[0][0]) for one in portions], "all readers of the log see the same"
                assert len(portions) == (1 if any(name == "high" for name, _, _ in steps) else 0)
                for portion in portions:
                    one = [((0, 3),), ((3, 6),)].index(portion.ranges)
                    assert portion.high is not None
                    assert portion.low < snapshots[one] < portion.high, (order, told)
                    landed += 1
    assert landed > 200


def test_S4_P5_of_a_snapshot_chunk_run_twice_under_one_number_the_first_manifest_counts() -> None:
    log = Log()
    log.tell(started(chunks=1), manifest(0, 1, Range(0, 4, 6)), manifest(0, 1, Range(0, 0, 4)))
    (portion,) = log.book().portions(0, START)
    assert portion.ranges == ((4, 6),)
    assert log.book().rows == 5
