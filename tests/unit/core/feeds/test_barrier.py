from __future__ import annotations

import pytest

from millrace import limits
from millrace.core.feeds.barrier import DdlDispatcher, SchemaChange, passes
from millrace.core.feeds.checkpoint import Committed, Progress
from millrace.core.feeds.effects import CommitDdl, TakeDdl, WriteChange, WriteWatermark
from millrace.core.feeds.office import FeedState
from millrace.model.changefeeds import (
    CheckpointReached,
    DdlPosition,
    SpanEnded,
    SpanRecorded,
    TableEnds,
    TableNeedsCopy,
)
from millrace.model.spans import TableId, TablePartition, whole

T, U, NEW = TableId("shop", 1), TableId("shop", 2), TableId("shop", 3)
ALTER = SchemaChange(10, 100, "alter", (T, U))


class Bench:
    """A ddl dispatcher with table T in two partitions and U in one."""

    def __init__(
        self, *changes: SchemaChange, position: DdlPosition | None = None, watermarks: bool = False
    ) -> None:
        self.state, self.progress = FeedState(), Progress()
        self.state.replay(SpanRecorded(0, whole(T, 2)))
        self.state.replay(SpanRecorded(1, whole(U, 1)))
        self.ddl = DdlDispatcher(self.state, self.progress, watermarks=watermarks)
        for change in changes:
            self.ddl.on_change(change)
        assert self.ddl.begin(5, 1.0) == TakeDdl(5)
        before = position or DdlPosition()
        self.ddl.taken(DdlPosition(5, before.next, before.isolated), (), 1.0)
        self.progress.on_mark(500, {}, full=True)

    def stand(self, table: TableId, *, at: int | None, resolved: int = 99) -> None:
        for partition in range(2 if table == T else 1):
            part = TablePartition(table, partition)
            known = self.progress.committed.get(part, Committed(0, 0))
            self.progress.on_position(part, Committed(known.next + 1, resolved, at))

    def written(self) -> list[TableId]:
        """Lets changes be written until something else is due."""
        out = []
        while isinstance(effect := self.ddl.next_effect(), WriteChange):
            out.append(effect.table)
            self.ddl.change_written(effect, 2.0)
        self.last = effect
        return out

    def commit(self) -> DdlPosition:
        assert isinstance(self.last, CommitDdl)
        self.ddl.committed(self.last, 3.0)
        assert self.ddl.position is not None
        return self.ddl.position


def test_C7_a_change_waits_for_every_partition_of_every_table() -> None:
    bench = Bench(ALTER)
    bench.stand(U, at=10)
    bench.progress.on_position(TablePartition(T, 0), Committed(1, 99, 10))
    assert bench.ddl.next_effect() is None
    assert bench.ddl.missing(ALTER) == [T]
    bench.progress.on_position(TablePartition(T, 1), Committed(1, 99, 10))
    assert bench.written() == [T, U]
    assert bench.commit() == DdlPosition(5, 11)
    assert bench.ddl.waiting() is None


def test_C7_spans_pass_by_the_committed_position_only() -> None:
    assert not passes(DdlPosition(1, 10), T, 10)
    assert passes(DdlPosition(1, 11), T, 10)
    assert not passes(DdlPosition(1, 11, ((T, 10),)), T, 10)


def test_C7_what_the_former_one_has_written_is_not_written_again() -> None:
    bench = Bench(ALTER)
    bench.ddl.unknown()
    assert bench.ddl.next_effect() is None, "nothing before the take-over"
    bench.ddl.begin(6, 2.0)
    bench.ddl.taken(DdlPosition(6), [(T, 10)], 2.0)
    bench.stand(T, at=10)
    bench.stand(U, at=10)
    assert bench.written() == [U]


def test_C7_an_answer_for_a_former_epoch_counts_for_nothing() -> None:
    bench = Bench(ALTER)
    bench.stand(T, at=10)
    bench.stand(U, at=10)
    effect = bench.ddl.next_effect()
    assert isinstance(effect, WriteChange)
    bench.ddl.unknown()
    bench.ddl.change_written(effect, 2.0)
    bench.ddl.begin(6, 3.0)
    bench.ddl.taken(DdlPosition(5), [], 3.0)
    assert bench.ddl.position is None
    assert bench.ddl.busy


def test_C7_a_change_that_adds_a_table_passes_after_its_spans_are_recorded() -> None:
    create = SchemaChange(10, 100, "create", (NEW,), 2)
    bench = Bench(create)
    assert bench.ddl.next_effect() is None
    assert bench.ddl.needs() == [SpanRecorded(2, whole(NEW, 2), 10)]
    bench.state.replay(bench.ddl.needs()[0])
    assert not bench.ddl.exists(NEW, 10), "not yet"
    assert not bench.ddl.ended(NEW), "never dropped before it was there"
    assert bench.written() == [NEW], "no partition of it can stand at its own making"
    bench.commit()
    assert bench.ddl.exists(NEW, 10)


def test_C7_a_change_that_ends_a_table_passes_after_that_is_recorded() -> None:
    bench = Bench(SchemaChange(10, 100, "drop", (U,)))
    bench.stand(U, at=10)
    assert bench.ddl.next_effect() is None
    assert bench.ddl.needs() == [TableEnds(U, 10)]
    bench.state.replay(TableEnds(U, 10))
    assert not bench.ddl.ended(U)
    bench.written()
    bench.commit()
    assert bench.ddl.ended(U)
    assert not bench.ddl.counts(U)


def test_C7_a_table_whose_making_and_drop_were_both_undone_is_recorded_again() -> None:
    """By going back to a position before both: that it was over once says nothing of what is to be delivered again."""
    create, drop = SchemaChange(10, 100, "create", (NEW,), 1), SchemaChange(20, 200, "drop", (NEW,))
    bench = Bench(create, drop)
    for record in (SpanRecorded(2, whole(NEW, 1), 10), TableEnds(NEW, 20), SpanEnded(2)):
        bench.state.replay(record)
    assert bench.ddl.next_effect() is None
    assert bench.ddl.needs() == [SpanRecorded(3, whole(NEW, 1), 10)]
    bench.state.replay(bench.ddl.needs()[0])
    assert bench.written() == [NEW]
    bench.commit()
    assert bench.ddl.exists(NEW, 10)
    assert bench.ddl.next_effect() is None, "its rows come before its drop"
    bench.stand(NEW, at=20)
    assert bench.written() == [NEW]
    bench.commit()
    assert bench.ddl.ended(NEW)


def test_C7_a_table_that_is_renamed_away_and_back_is_recorded_again_when_what_it_was_has_ended() -> None:
    away, back = SchemaChange(10, 100, "drop", (U,)), SchemaChange(20, 200, "create", (U,), 1)
    bench = Bench(away, back)
    bench.state.replay(bench.ddl.needs()[0])
    bench.stand(U, at=10)
    bench.written()
    bench.commit()
    assert bench.ddl.ended(U)
    bench.stand(U, at=20)                                # its dispatcher has not stopped yet, and went on
    assert (bench.ddl.needs(), bench.ddl.next_effect()) == ([], None)
    bench.state.replay(SpanEnded(1))
    bench.progress.forget(TablePartition(U, 0))
    assert bench.ddl.next_effect() is None
    assert bench.ddl.needs() == [SpanRecorded(2, whole(U, 1), 20)]
    bench.state.replay(bench.ddl.needs()[0])
    assert bench.written() == [U]
    bench.commit()
    assert bench.ddl.exists(U, 20)


def test_F10_a_table_that_needs_a_copy_is_made_and_ended_without_being_recorded_waited_for_or_told() -> None:
    create, drop = SchemaChange(10, 100, "create", (NEW,), 1), SchemaChange(20, 200, "drop", (NEW,))
    bench = Bench(create, drop)
    bench.state.replay(TableNeedsCopy(NEW, "cut"))
    assert bench.ddl.needs() == [], "it begins by itself"
    assert bench.written() == []
    assert bench.commit().next == 11
    assert bench.ddl.next_effect() is None
    assert bench.ddl.needs() == [TableEnds(NEW, 20)], "it must not hold the checkpoint when nobody wants it any more"
    bench.state.replay(TableEnds(NEW, 20))
    assert bench.written() == []
    assert bench.commit().next == 21
    bench.state.replay(TableNeedsCopy(NEW, None))
    assert not bench.ddl.counts(NEW)


def test_C8_an_isolated_table_stops_nobody_and_misses_nothing() -> None:
    bench = Bench(ALTER)
    bench.ddl.isolate = {T, NEW}
    assert bench.written() == []
    assert bench.commit() == DdlPosition(5, 0, ((T, 0),)), "a table that is not there is not isolated"
    assert not bench.ddl.counts(T)
    bench.stand(U, at=10)
    assert bench.written() == [U]
    assert bench.commit() == DdlPosition(5, 11, ((T, 10),)), "it owes change 10"
    bench.ddl.rejoin = {T}
    assert bench.ddl.next_effect() is None
    bench.stand(T, at=10)
    assert bench.written() == [T]
    assert bench.commit() == DdlPosition(5, 11, ((T, 11),))


def test_C8_an_isolated_tables_drop_is_written_after_it_is_recorded_as_its_end() -> None:
    """It passed for the others before: whoever recorded it then may have done so for rules that hold no more."""
    bench = Bench(SchemaChange(10, 100, "drop", (U,)), position=DdlPosition(4, 11, ((U, 10),)))
    bench.stand(U, at=10)
    assert bench.ddl.next_effect() is None
    assert bench.ddl.needs() == [TableEnds(U, 10)]
    bench.state.replay(TableEnds(U, 10))
    assert bench.written() == [U]
    assert bench.commit() == DdlPosition(5, 11, ((U, 11),))
    assert bench.ddl.ended(U)


def test_C8_it_rejoins_in_one_commit_when_its_positions_have_reached_the_checkpoint() -> None:
    bench = Bench(position=DdlPosition(4, 11, ((T, 11),)))
    bench.state.replay(CheckpointReached(300))
    bench.progress.on_mark(500, {TablePartition(T, 0): 9, TablePartition(T, 1): 9}, full=True)
    bench.stand(T, at=None, resolved=299)
    bench.ddl.rejoin = {T}
    assert bench.ddl.next_effect() is None
    bench.stand(T, at=None, resolved=300)
    assert not bench.ddl.counts(T)
    assert bench.written() == []
    assert bench.ddl.counts(T), "from now on the checkpoint must not pass it"
    assert bench.commit() == DdlPosition(5, 11)


def test_C8_without_the_wish_it_stays_isolated() -> None:
    bench = Bench(position=DdlPosition(4, 11, ((T, 11),)))
    bench.stand(T, at=None, resolved=500)
    assert bench.ddl.next_effect() is None
    assert bench.ddl.isolated_since == {T: 1.0}


def test_C7_changes_are_taken_once_and_in_order() -> None:
    bench = Bench(ALTER, SchemaChange(12, 120, "alter", (U,)), ALTER)
    bench.stand(T, at=10)
    bench.stand(U, at=10)
    bench.written()
    bench.commit()
    waiting = bench.ddl.waiting()
    assert waiting is not None
    assert waiting.number == 12


def test_C7_changes_of_several_tables_that_can_pass_do_so_by_one_commit() -> None:
    bench = Bench(*(SchemaChange(number, number, "alter", (table,)) for number, table in
                    ((10, T), (11, U), (12, T), (13, U))))
    bench.stand(U, at=11)
    assert bench.ddl.next_effect() is None, "in their order: the first one has not arrived"
    bench.stand(T, at=10)
    assert bench.written() == [T, U]
    assert bench.commit() == DdlPosition(5, 12)
    bench.stand(U, at=13)
    assert bench.ddl.next_effect() is None
    bench.stand(T, at=12)
    assert bench.written() == [T, U]
    assert bench.commit() == DdlPosition(5, 14)


def test_C7_of_changes_that_pass_together_a_later_one_waits_for_its_record() -> None:
    bench = Bench(SchemaChange(10, 100, "alter", (T,)), SchemaChange(11, 110, "drop", (U,)))
    bench.stand(T, at=10)
    bench.stand(U, at=11)
    assert bench.written() == [T]
    assert bench.commit() == DdlPosition(5, 11)
    assert bench.ddl.next_effect() is None
    assert bench.ddl.needs() == [TableEnds(U, 11)]


def test_C7_what_was_written_and_not_committed_is_found_by_the_next_one() -> None:
    bench = Bench(SchemaChange(10, 100, "alter", (T,)), SchemaChange(11, 110, "alter", (U,)))
    bench.stand(T, at=10)
    bench.stand(U, at=11)
    bench.written()
    bench.ddl.unknown()
    bench.ddl.begin(6, 2.0)
    bench.ddl.taken(DdlPosition(6), [(T, 10)], 2.0)
    assert bench.written() == [U]
    assert bench.commit() == DdlPosition(6, 12)


def test_C7_only_so_many_changes_pass_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DDL_COMMIT_MAX", 1)
    bench = Bench(SchemaChange(10, 100, "alter", (T,)), SchemaChange(11, 110, "alter", (U,)))
    bench.stand(T, at=10)
    bench.stand(U, at=11)
    assert bench.written() == [T]
    assert bench.commit() == DdlPosition(5, 11)
    assert bench.written() == [U]


def test_K4_a_watermark_tells_the_persisted_checkpoint_once_and_after_changes() -> None:
    bench = Bench(ALTER, watermarks=True)
    assert bench.ddl.next_effect() is None, "nothing is persisted yet"
    bench.state.replay(CheckpointReached(90))
    effect = bench.ddl.next_effect()
    assert effect == WriteWatermark(5, 90, frozenset({T, U}))
    bench.stand(T, at=10)
    bench.stand(U, at=10)
    assert bench.ddl.next_effect() is None, "one at a time"
    bench.ddl.watermark_written(effect, 2.0)
    bench.state.replay(CheckpointReached(95))
    assert bench.written() == [T, U], "changes first"
    bench.commit()
    assert bench.ddl.next_effect() == WriteWatermark(5, 95, frozenset({T, U}))
    bench.ddl.watermark_written(WriteWatermark(5, 95, frozenset({T, U})), 3.0)
    assert bench.ddl.next_effect() is None


def test_K4_C8_a_watermark_says_nothing_of_a_table_that_left_the_checkpoint() -> None:
    bench = Bench(position=DdlPosition(5, 3, ((U, 3),)), watermarks=True)
    bench.state.replay(CheckpointReached(90))
    assert bench.ddl.next_effect() == WriteWatermark(5, 90, frozenset({T}))
    quiet = Bench()
    quiet.state.replay(CheckpointReached(90))
    assert quiet.ddl.next_effect() is None, "nobody wants them"
