"""Where a reader goes on, what it skips, what a mark may say [S2, S3, S9]."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.sources.reader import (
    SEQ_MAX,
    Broken,
    Folded,
    Found,
    Lost,
    P,
    Reader,
    Resume,
    ServerFacts,
    SlotFacts,
    Tails,
    begin,
    fold_marks,
    judge,
)
from millrace.limits import MARK_EVERY_S, MARK_FULL_EVERY_S
from millrace.model.progress import End, Mark
from millrace.model.tables import Place

A, B = (10, 0), (10, 1)
SYSTEM = "7300000000000000000"
MARK = Folded(generation=3, resolved=100, system_id=SYSTEM, timeline=1, ends={A: 5, B: 7})
FOUND = Found(
    generation=3, mark=MARK, tails={A: Place(120, 4)}, log_ends={A: 8, B: 8}, slot=SlotFacts(100),
    server=ServerFacts(SYSTEM, 1),
)


def found(**changed: object) -> Found:
    return replace(FOUND, **changed)  # type: ignore[arg-type]


def broken(found: Found) -> Broken:
    verdict = judge(found)
    assert isinstance(verdict, Broken)
    return verdict


def resumed(found: Found) -> Resume:
    verdict = judge(found)
    assert isinstance(verdict, Resume)
    return verdict


# -- folding what was found ------------------------------------------------------------------------------------------
def mark(resolved: int, ends: dict[P, int], *, full: bool, generation: int = 3) -> Mark:
    return Mark(generation, resolved, SYSTEM, 1, full, tuple(End(*p, end) for p, end in ends.items()))


def test_S3_marks_fold_to_the_ends_of_all_partitions() -> None:
    marks = [mark(90, {A: 1, B: 2}, full=True), mark(95, {A: 5}, full=False), mark(100, {B: 7}, full=False)]
    assert fold_marks(marks) == MARK


def test_S3_a_full_mark_forgets_what_it_does_not_name() -> None:
    folded = fold_marks([mark(90, {A: 1, B: 2}, full=True), mark(100, {A: 5}, full=True)])
    assert folded is not None
    assert folded.ends == {A: 5}


def test_S3_no_marks_fold_to_none() -> None:
    assert fold_marks([]) is None


def test_S3_tails_count_the_present_generation_only() -> None:
    tails = Tails(3)
    tails.record(A, 2, Place(900, 1))
    tails.record(A, 3, Place(110, 2))
    tails.record(A, 3, Place(110, 5))
    tails.record(B, 2, Place(900, 1))
    assert tails.places == {A: Place(110, 5)}


# -- the decision ----------------------------------------------------------------------------------------------------
def test_S3_a_reader_goes_on_from_the_last_mark() -> None:
    resume = resumed(FOUND)
    assert (resume.generation, resume.resolved, resume.tail_lsn, resume.lost) == (3, 100, 120, ())
    assert not resume.fresh


def test_S3_the_first_start_of_a_source_begins_a_generation() -> None:
    assert broken(found(mark=None, generation=0, tails={})) == Broken("begins", "no mark yet: the source begins", 1)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"slot": None}, "slot_missing"),
        ({"slot": SlotFacts(100, wal_status="lost")}, "slot_lost"),
        ({"slot": SlotFacts(100, invalidation="rows_removed")}, "slot_lost"),
        ({"slot": SlotFacts(102)}, "slot_passed"),
        ({"server": ServerFacts("another", 1)}, "other_system"),
        ({"generation": 4}, "raise_unfinished"),
        ({"server": ServerFacts(SYSTEM, 2, ((1, 90),))}, "forked"),
        ({"server": ServerFacts(SYSTEM, 2, ((1, 120),))}, "forked"),
        ({"server": ServerFacts(SYSTEM, 3, ((2, 500),))}, "other_timeline"),
        ({"server": ServerFacts(SYSTEM, 1, wal_end=90)}, "set_back"),
        ({"server": ServerFacts(SYSTEM, 1, wal_end=130), "named_lsn": 130}, "set_back"),
        ({"server": ServerFacts(SYSTEM, 2, ((1, 130),)), "named_lsn": 130}, "forked"),
        ({"server": ServerFacts(SYSTEM, 1, wal_end=120)}, "set_back"),
    ],
)
def test_S9_a_broken_history_raises_the_generation(changed: dict[str, object], code: str) -> None:
    verdict = broken(found(**changed))
    assert verdict.code == code
    assert verdict.generation == max(FOUND.generation, int(str(changed.get("generation", 0)))) + 1
    assert verdict.reason


def test_S9_a_slot_right_behind_the_mark_has_passed_nothing() -> None:
    resumed(found(slot=SlotFacts(101)))
    resumed(found(slot=SlotFacts(40)))


def test_S9_a_timeline_that_forked_above_all_we_have_seen_changes_nothing() -> None:
    resumed(found(server=ServerFacts(SYSTEM, 3, ((1, 121), (2, 400)))))


def test_S9_a_server_whose_wal_goes_on_behind_all_we_have_seen_was_not_set_back() -> None:
    resumed(found(server=ServerFacts(SYSTEM, 1, wal_end=121)))


def test_S9_a_raise_never_reuses_the_generation_of_a_mark() -> None:
    assert broken(found(generation=2)).generation == 4


def test_S3_a_log_that_ends_below_the_mark_has_lost_data_of_that_table_only() -> None:
    resume = resumed(found(log_ends={A: 4, B: 8, (11, 0): 3}, tails={}))
    assert [lost.oid for lost in resume.lost] == [10]
    assert "ends at 4" in resume.lost[0].reason


def test_F10_a_scan_range_that_was_deleted_makes_its_table_need_a_copy() -> None:
    deleted = found(log_starts={A: 6, B: 8}, log_ends={A: 8, B: 9})
    assert resumed(deleted).lost == (Lost(10, "partition 1 was deleted up to 8, behind the last mark's end 7"),)


def test_S3_a_partition_of_a_table_that_no_mark_names_is_scanned_from_its_start() -> None:
    assert resumed(found(log_ends={A: 8, B: 8, (12, 0): 1})).lost == ()


# -- the running reader ----------------------------------------------------------------------------------------------
def reader(resume: Resume | None = None, **changed: object) -> Reader:
    base = resume or Resume(generation=3, resolved=100, tails={}, log_ends={A: 6, B: 8})
    return Reader(replace(base, **changed), system_id=SYSTEM, timeline=1)  # type: ignore[arg-type]


def ends(mark: Mark) -> dict[P, int]:
    return {(end.oid, end.partition): end.offset for end in mark.ends}


def due(machine: Reader, now: float = 1.0) -> Mark:
    mark = machine.mark_due(now)
    assert mark is not None
    return mark


def marked(machine: Reader, now: float) -> Mark:
    mark = due(machine, now)
    machine.mark_acked()
    return mark


def test_S3_a_reader_skips_what_is_resolved_and_what_its_scan_found() -> None:
    machine = reader(tails={A: Place(120, 4)})
    assert machine.after(A) == Place(120, 4)
    assert machine.after(B) == Place(100, SEQ_MAX)


def test_S3_the_first_mark_is_full() -> None:
    machine = reader()
    first = marked(machine, 1.0)
    assert (first.full, first.resolved, ends(first)) == (True, 100, {A: 6, B: 8})
    machine.batch(A, Place(101, 0), Place(101, 3))
    machine.cut(101)
    machine.acked(A, 0, end=7)
    second = marked(machine, 2.0)
    assert (second.full, second.resolved, ends(second)) == (False, 101, {A: 7})


def test_S3_a_full_mark_comes_every_minute() -> None:
    machine = reader()
    marked(machine, 1.0)
    machine.cut(110)
    assert not marked(machine, 2.0).full
    machine.cut(120)
    assert marked(machine, 1.0 + MARK_FULL_EVERY_S).full


def test_S3_no_mark_before_what_it_covers_is_acknowledged() -> None:
    machine = reader()
    marked(machine, 1.0)
    machine.batch(A, Place(101, 0), Place(105, 0))
    machine.batch(B, Place(103, 0), Place(105, 1))
    machine.cut(105)
    machine.acked(A, 0, end=7)
    assert machine.mark_due(2.0) is None
    machine.acked(B, 0, end=9)
    assert due(machine, 2.0).resolved == 105


def test_S3_the_end_named_for_a_mark_is_exact_even_if_more_is_acknowledged() -> None:
    machine = reader()
    marked(machine, 1.0)
    machine.batch(A, Place(101, 0), Place(105, 0))
    machine.cut(105)
    machine.batch(A, Place(106, 0), Place(107, 0))
    machine.batch(B, Place(107, 0), Place(107, 0))
    machine.acked(A, 0, end=7)
    machine.acked(A, 1, end=8)
    machine.cut(107)
    assert ends(due(machine, 2.0)) == {A: 7}
    machine.mark_acked()
    machine.acked(B, 0, end=9)
    assert ends(due(machine, 3.0)) == {A: 8, B: 9}


def test_S3_acknowledgements_may_come_out_of_order_and_twice() -> None:
    machine = reader()
    marked(machine, 1.0)
    for lsn in (101, 102, 103):
        machine.batch(A, Place(lsn, 0), Place(lsn, 0))
    machine.cut(103)
    machine.acked(A, 2, end=9)
    assert machine.unacked == 3
    machine.acked(A, 0, end=7)
    machine.acked(A, 0, end=7)
    assert machine.mark_due(2.0) is None
    machine.acked(A, 1, end=8)
    assert machine.unacked == 0
    assert ends(due(machine, 2.0)) == {A: 9}


def test_S3_no_mark_before_the_tail_that_was_found_is_passed() -> None:
    machine = reader(tails={A: Place(120, 4)})
    machine.cut(119)
    assert machine.mark_due(1.0) is None
    machine.cut(120)
    first = due(machine, 1.0)
    assert (first.resolved, first.full, ends(first)) == (120, True, {A: 6, B: 8})


def test_S3_the_first_mark_of_a_generation_stands_at_its_consistent_point() -> None:
    """Also when it is asked for late: whoever reads it puts the copies there, before the first change."""
    machine = reader(begin(4, at=200, log_ends={A: 6, B: 8}))
    machine.batch(A, Place(200, 0), Place(200, 0))
    machine.cut(200)
    machine.acked(A, 0, end=7)
    first = marked(machine, 1.0)
    assert (first.generation, first.resolved, first.full, ends(first)) == (4, 199, True, {A: 6, B: 8})
    assert (due(machine, 2.0).resolved, machine.after(A)) == (200, Place(199, SEQ_MAX))


def test_S3_one_mark_is_in_flight_at_a_time() -> None:
    machine = reader()
    due(machine, 1.0)
    machine.cut(110)
    assert machine.mark_due(5.0) is None
    machine.mark_acked()
    assert due(machine, 5.0).resolved == 110


def test_S2_only_a_durable_mark_moves_what_the_slot_is_told() -> None:
    machine = reader()
    marked(machine, 1.0)
    machine.cut(110)
    due(machine, 2.0)
    assert machine.resolved == 100
    machine.mark_acked()
    assert machine.resolved == 110


def test_S2_a_keepalive_resolves_below_wal_end() -> None:
    machine = reader()
    marked(machine, 1.0)
    machine.keepalive(150)
    assert due(machine, 2.0).resolved == 149


def test_S2_a_keepalive_does_not_overtake_what_is_not_acknowledged() -> None:
    machine = reader()
    marked(machine, 1.0)
    machine.batch(A, Place(101, 0), Place(101, 0))
    machine.cut(101)
    machine.keepalive(150)
    assert machine.mark_due(2.0) is None
    machine.acked(A, 0, end=7)
    assert due(machine, 2.0).resolved == 149


def test_S3_marks_are_spaced_and_an_idle_source_makes_none() -> None:
    machine = reader()
    marked(machine, 1.0)
    machine.cut(110)
    assert machine.mark_due(1.0 + MARK_EVERY_S / 2) is None
    marked(machine, 1.0 + MARK_EVERY_S)
    assert machine.mark_due(1000.0) is None


def test_S3_a_mark_carries_the_connection_that_delivered() -> None:
    first = due(reader())
    assert (first.system_id, first.timeline) == (SYSTEM, 1)


def test_S5_a_table_that_joins_is_named_by_the_next_mark() -> None:
    machine = reader()
    marked(machine, 1.0)
    machine.added((20, 0), 1)
    machine.batch((20, 0), Place(105, 0), Place(105, 0))
    machine.cut(105)
    machine.acked((20, 0), 0, end=2)
    assert ends(marked(machine, 2.0)) == {(20, 0): 2}
    machine.cut(106)
    assert ends(marked(machine, 2.0 + MARK_FULL_EVERY_S)) == {A: 6, B: 8, (20, 0): 2}


def test_S3_a_batch_that_goes_back_is_a_defect_of_ours() -> None:
    machine = reader(tails={A: Place(120, 4)})
    with pytest.raises(AssertionError):
        machine.batch(A, Place(120, 4), Place(120, 5))
    machine.batch(A, Place(120, 5), Place(121, 0))
    with pytest.raises(AssertionError):
        machine.batch(A, Place(121, 0), Place(122, 0))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_S3_a_mark_never_claims_what_is_not_below_its_ends(data: st.DataObject) -> None:
    """Random batches, cuts and acknowledgements; offsets are given in the order of sending."""
    machine = reader()
    sent: list[tuple[P, int, int, Place]] = []
    log_ends, waiting, lsn = {A: 6, B: 8}, [], 100
    named: dict[P, int] = {}
    for now in range(data.draw(st.integers(5, 40))):
        match data.draw(st.sampled_from(["batch", "cut", "ack", "mark"])):
            case "batch":
                p, lsn = data.draw(st.sampled_from([A, B])), lsn + 1
                number = machine.batch(p, Place(lsn, 0), Place(lsn, 0))
                log_ends[p] += 1
                sent.append((p, number, log_ends[p], Place(lsn, 0)))
                waiting.append(sent[-1])
            case "cut":
                machine.cut(lsn)
            case "ack" if waiting:
                p, number, end, _ = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
                machine.acked(p, number, end=end)
            case "mark" if (mark := machine.mark_due(float(now))) is not None:
                machine.mark_acked()
                named = ends(mark) if mark.full else {**named, **ends(mark)}
                unacked = {entry[:2] for entry in waiting}
                for p, number, end, place in sent:
                    below = place.commit_lsn <= mark.resolved
                    assert below == (end <= named[p]), "exactly the changes up to the mark stand below its end"
                    assert not below or (p, number) not in unacked
