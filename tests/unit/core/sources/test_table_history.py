"""A table's history from `progress`: where a batch may end, which copies belong to it, which schema holds where."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.sources import table_history
from millrace.core.sources.table_history import Cut, TableHistory, Tables
from millrace.model.progress import (
    Change,
    CopyStarted,
    End,
    HighMark,
    LowMark,
    Manifest,
    Mark,
    ProgressRecord,
    Range,
    SchemaVersion,
    encode_progress,
    is_mark,
)
from millrace.model.tables import Column, Place, TableSchema

TABLE = TableSchema(7, "public", "t", "d", (Column("id", 23, is_key=True),))
WIDER = TableSchema(7, "public", "t", "d", (Column("id", 20, is_key=True),))
OTHER = TableSchema(8, "public", "u", "d", (Column("id", 23, is_key=True),))


def mark(resolved: int, *ends: tuple[int, int], oid: int = 7, generation: int = 1) -> Mark:
    return Mark(generation, resolved, "system", 1, False, tuple(End(oid, n, offset) for n, offset in ends))


def manifest(chunk: int, *, kind: str = "snapshot", attempt: int = 0, copy: int = 1) -> Manifest:
    return Manifest(1, copy, chunk, attempt, 7, kind, TABLE.id, (Range(0, chunk * 10, chunk * 10 + 5),),  # type: ignore[arg-type]
                    5, 100)


def started(chunks: int, *, kind: str = "snapshot", copy: int = 1, oid: int = 7, feeds: tuple[str, ...] = ()
            ) -> CopyStarted:
    return CopyStarted(1, copy, oid, f"copy-{copy}", chunks, 100 if kind == "snapshot" else 0, kind, feeds)  # type: ignore[arg-type]


def history_of(*records: ProgressRecord, with_copies: bool = True) -> TableHistory:
    history = TableHistory(7, 2, with_copies)
    for offset, record in enumerate(records):
        history.replay(offset, record)
    return history


START = Cut(1, 0, (0, 0))


def test_S3_only_marks_are_places_to_stop() -> None:
    history = history_of(mark(10, (0, 2)), mark(20, (1, 5), oid=8), mark(30, (1, 3)), mark(40))
    assert [point.cut for point in history.points] == [Cut(1, 1, (2, 0)), Cut(1, 3, (2, 3))]
    assert history.upto(START) == Cut(1, 3, (2, 3))
    assert history.upto(Cut(1, 3, (2, 3))) is None


def test_P1_a_limit_is_kept_but_one_step_is_always_made() -> None:
    history = history_of(*(mark(n * 10, (0, n * 4)) for n in range(1, 10)))
    assert history.upto(START, 1) == Cut(1, 1, (4, 0))
    assert history.upto(START, 8) == Cut(1, 2, (8, 0))
    assert history.upto(START, 11) == Cut(1, 2, (8, 0))
    assert history.upto(Cut(1, 2, (8, 0)), 1) == Cut(1, 3, (12, 0))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 5)), max_size=40), st.integers(1, 12))
def test_P1_batches_join_to_the_whole_whatever_the_limit(steps: Sequence[tuple[int, int]], limit: int) -> None:
    ends, records = [0, 0], []
    for at, (partition, more) in enumerate(steps):
        ends[partition] += more
        records.append(mark(at, (partition, ends[partition])))
    history, cut = history_of(*records), START
    while (end := history.upto(cut, limit)) is not None:
        assert end in [point.cut for point in history.points]
        assert history.size(cut, end) > 0
        cut = end
    assert list(cut.offsets) == ends


def test_S4_nothing_is_complete_before_the_snapshot_is() -> None:
    history = history_of(SchemaVersion(1, TABLE, 99, -1), started(2), mark(100, (0, 0)), manifest(0), mark(110, (0, 3)))
    assert history.points == []
    assert history.copy_pending
    for offset, record in enumerate((manifest(1), mark(120, (1, 1))), start=5):
        history.replay(offset, record)
    end = history.upto(START)
    assert end == Cut(1, 7, (3, 1))
    assert [(copied.topic, copied.window.attempt.chunk) for copied in history.copied(START, end)] == [
        ("copy-1", 0), ("copy-1", 1)]
    assert history.copied(end, end) == []
    assert history.size(START, end) == 4 + 10


def test_S4_without_copies_nobody_waits_for_them() -> None:
    history = history_of(started(2), mark(100, (0, 3)), with_copies=False)
    assert history.upto(START) == Cut(1, 2, (3, 0))


def test_S4_a_copy_for_named_changefeeds_is_not_for_everyone() -> None:
    history = history_of(started(2, feeds=("orders",)), mark(100, (0, 3)))
    assert history.upto(START) == Cut(1, 2, (3, 0))


def test_S5_a_window_belongs_to_the_first_mark_at_its_high_mark() -> None:
    records = [started(1, kind="watermark"), LowMark(1, 1, 0, 0, 50), mark(60, (0, 1)),
               manifest(0, kind="watermark"), HighMark(1, 1, 0, 0, 80), mark(70, (0, 2)), mark(80, (0, 3)),
               mark(90, (0, 4))]
    history = history_of(*records)
    before, after = Cut(1, 6, (2, 0)), Cut(1, 7, (3, 0))
    assert history.copied(START, before) == []
    assert [copied.window.low for copied in history.copied(before, after)] == [50]
    assert history.copied(after, Cut(1, 8, (4, 0))) == []
    assert history.offsets_at(1, 50) == (0, 0)           # changes behind the low mark begin at or above these
    assert history.offsets_at(1, 65) == (1, 0)


def test_S5_a_window_alone_is_something_new() -> None:
    history = history_of(mark(10, (0, 1)), started(1, kind="watermark"), LowMark(1, 1, 0, 0, 20),
                         manifest(0, kind="watermark"), HighMark(1, 1, 0, 0, 30), mark(40))
    assert history.upto(Cut(1, 1, (1, 0))) == Cut(1, 6, (1, 0))


def test_S9_a_new_generation_begins_where_its_first_mark_says() -> None:
    history = history_of(mark(10, (0, 4)), mark(20, (0, 5)), SchemaVersion(2, TABLE, 200, -1),
                         mark(200, (0, 7), generation=2), mark(210, (0, 9), generation=2))
    assert history.first() == Cut(2, 2, (7, 0))
    assert history.upto(history.first()) == Cut(2, 5, (9, 0))
    assert history_of(mark(10, (0, 4))).first() == Cut(1, 0, (0, 0))


def test_P1_offsets_alone_name_a_position() -> None:
    history = history_of(mark(10, (0, 4)), mark(20, (0, 5), (1, 1)), mark(30, (1, 2)))
    assert history.at_offsets((5, 1)) == Cut(1, 2, (5, 1))
    assert history.at_offsets((4, 9)) == Cut(1, 1, (4, 9))
    assert history.at_offsets((0, 0)) == Cut(1, 0, (0, 0))


def test_S7_versions_are_told_again_and_count_once() -> None:
    first, second = SchemaVersion(1, TABLE, 10, -1), SchemaVersion(1, WIDER, 30, 2)
    ahead = TableSchema(7, "public", "t", "d", (Column("id", 25, is_key=True),))
    history = history_of(first, SchemaVersion(1, OTHER, 11, -1), second, first, second, SchemaVersion(1, ahead, -1, -1))
    assert [(version.place, version.schema) for version in history.versions] == [
        (Place(10, -1), TABLE), (Place(30, 2), WIDER)]
    assert set(history.schemas) == {TABLE.id, WIDER.id, ahead.id}      # a copy may have read the last one


def test_P1_points_stay_few_and_the_newest_stays() -> None:
    most = table_history.HISTORY_POINTS_MAX
    history = history_of(*(mark(n, (0, n)) for n in range(1, most + 10)))
    assert len(history.points) < most
    assert history.points[-1].cut.offsets == (most + 9, 0)
    assert [p.cut.progress for p in history.points] == sorted(p.cut.progress for p in history.points)


def test_P1_a_table_is_found_by_the_name_it_has_now() -> None:
    tables = Tables()
    renamed = TableSchema(7, "public", "now", "d", TABLE.columns)
    again = TableSchema(9, "public", "t", "d", TABLE.columns)
    for record in (SchemaVersion(1, TABLE, 10, -1), SchemaVersion(1, OTHER, 11, -1)):
        tables.replay(record)
    assert tables.find("t") == TABLE
    assert tables.find("public.t") == TABLE
    assert tables.find("other.t") is None
    tables.replay(SchemaVersion(1, renamed, 20, 0))
    tables.replay(SchemaVersion(1, TABLE, 10, -1))                     # said again by the next reader
    assert tables.find("t") is None
    assert tables.find("now") == renamed
    tables.replay(SchemaVersion(1, again, 30, 0))
    assert tables.names() == ["public.now", "public.t", "public.u"]
    tables.replay(Change(1, 9, 40, 0, "drop", UUID(int=1)))
    assert tables.names() == ["public.now", "public.u"]
    assert tables.find("t") == again                                   # what it was can still be read


def test_P1_marks_are_told_from_the_rest_without_decoding() -> None:
    others: list[ProgressRecord] = [
        SchemaVersion(1, TABLE, 10, -1), Change(1, 9, 40, 0, "drop"), started(1), manifest(0), LowMark(1, 1, 0, 0, 50),
        HighMark(1, 1, 0, 0, 80)]
    assert is_mark(encode_progress(mark(10, (0, 4))))
    assert not any(is_mark(encode_progress(record)) for record in others)
