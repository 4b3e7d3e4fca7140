"""Writing inside a task: a prefix per target, settled windows, quarantine, doubt, deadlines [K5, P2, P5, P9]."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.delivery.pieces import Send
from millrace.core.delivery.writing import Piece, Writing
from millrace.errors import (
    InvalidProducerEpoch,
    MessageTooLarge,
    MillraceError,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    TimedOut,
)
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey, TargetEnd
from millrace.model.writes import Delivered, NextSequence, WritePlan

TOPIC, QUARANTINE = UUID(int=2), UUID(int=3)
T0, T1, Q = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1), TopicPartition(QUARANTINE, 0)
SENDING_UNTIL, DEADLINE = 10.0, 15.0


def rows(*numbers: int) -> tuple[Point, ...]:
    return tuple(Point(0, number) for number in numbers)


def plan(rows_: int, sequences: tuple[NextSequence, ...] = ()) -> WritePlan:
    return WritePlan(
        key=PositionKey("orders", UUID(int=1), 0), epoch=4, round=7, writer_id=70, writer_epoch=3, from_=Point(0, 0),
        to=Point(0, rows_), resolved=9, partitions=(T0, T1), quarantine=Q, sequences=sequences,
    )


def writing(
    *pieces: Piece, window: int = 4, sequences: tuple[NextSequence, ...] = (), claimed: bool = True
) -> Writing:
    to = max((piece.points[-1].row for piece in pieces), default=0) + 1
    made = Writing(plan(to, sequences), execution=1, sending_until=SENDING_UNTIL, deadline=DEADLINE, window=window)
    for piece in pieces:
        made.offer(piece)
    made.handed(made.plan.to)
    if claimed:
        made.claimed()
    return made


def one_by_one(*targets: TopicPartition) -> list[Piece]:
    return [Piece(target, rows(n)) for n, target in enumerate(targets)]


def shown(sends: list[Send]) -> list[tuple[TopicPartition, int, tuple[int, ...]]]:
    return [(send.target, send.sequence, tuple(point.row for point in send.points)) for send in sends]


def test_P5_nothing_is_sent_before_the_claim_is_given() -> None:
    w = writing(*one_by_one(T0), claimed=False)
    assert w.sends(0.0) == []
    w.claimed()
    assert shown(w.sends(0.0)) == [(T0, 0, (0,))]


def test_P5_who_does_not_get_the_claim_writes_nothing_and_returns_unknown() -> None:
    w = writing(*one_by_one(T0), claimed=False)
    w.claim_refused("claim_refused")
    assert w.sends(0.0) == []
    assert w.result is not None
    assert (w.result.outcome, w.result.to, w.result.rows) == ("unknown", Point(0, 0), 0)


def test_P5_a_claim_without_an_answer_ends_unknown() -> None:
    w = writing(*one_by_one(T0), claimed=False)
    assert w.sends(DEADLINE) == []
    assert w.result is not None
    assert w.result.outcome == "unknown"


def test_K5_all_delivered_is_done_with_ends_and_sequences() -> None:
    w = writing(Piece(T0, rows(0, 1)), Piece(T1, rows(2)), Piece(T0, rows(3)), sequences=(NextSequence(*T0, 5),))
    sends = w.sends(0.0)
    assert shown(sends) == [(T0, 5, (0, 1)), (T1, 0, (2,)), (T0, 7, (3,))]
    for send, offset in zip(sends, (10, 4, 15), strict=True):
        w.answered(send, offset)
    assert w.sends(0.0) == []
    result = w.result
    assert result is not None
    assert (result.outcome, result.to, result.rows, result.ahead) == ("done", Point(0, 4), 4, ())
    assert result.written == (TargetEnd(*T0, 16), TargetEnd(*T1, 5))
    assert result.sequences == (NextSequence(*T0, 8), NextSequence(*T1, 1))


def test_K5_the_window_is_kept() -> None:
    w = writing(*one_by_one(*[T0, T1] * 3), window=4)
    sends = w.sends(0.0)
    assert len(sends) == 4
    w.answered(sends[1], 0)
    assert len(w.sends(0.0)) == 1


def test_K5_no_more_batches_of_one_target_than_the_log_recognises_as_repeats() -> None:
    assert len(writing(*one_by_one(*[T0] * 9), window=16).sends(0.0)) == 5


def test_K5_after_a_refusal_the_window_is_settled_then_the_rest_goes_in_order() -> None:
    w = writing(*one_by_one(T0, T0, T1, T0, T0, T0))
    first = w.sends(0.0)
    w.answered(first[0], NotEnoughReplicas("x"))
    assert w.sends(0.0) == []
    w.answered(first[1], OutOfOrderSequence("gap"))
    w.answered(first[2], 3)
    assert w.sends(0.0) == []
    w.answered(first[3], OutOfOrderSequence("gap"))
    assert shown(w.sends(0.0)) == [(T0, 0, (0,)), (T0, 1, (1,)), (T0, 2, (3,)), (T0, 3, (4,))]


def test_K5_a_gap_at_the_head_of_a_target_proves_nothing() -> None:
    w = writing(*one_by_one(T0))
    w.answered(w.sends(0.0)[0], OutOfOrderSequence("gap"))
    assert w.result is not None
    assert w.result.outcome == "unknown"


@pytest.mark.parametrize("error", [NotLeader("x"), TimedOut("x")])
def test_K5_what_is_in_doubt_is_sent_again_with_its_own_sequence(error: MillraceError) -> None:
    w = writing(*one_by_one(T0, T0))
    one, two = w.sends(0.0)
    w.answered(one, error)
    w.answered(two, 8)
    again = w.sends(0.0)
    assert shown(again) == [(T0, 0, (0,))]
    w.answered(again[0], 7)
    w.sends(0.0)
    assert w.result is not None
    assert w.result.outcome == "done"


def test_K5_the_late_answer_of_a_former_attempt_counts_when_it_is_an_offset() -> None:
    w = writing(*one_by_one(T0))
    first = w.sends(0.0)[0]
    w.answered(first, TimedOut("x"))
    w.sends(0.0)
    w.answered(first, 7)
    w.sends(0.0)
    assert w.result is not None
    assert (w.result.outcome, w.result.written) == ("done", (TargetEnd(*T0, 8),))


def test_C3_a_fenced_writer_returns_unknown_at_once() -> None:
    w = writing(*one_by_one(T0, T0))
    w.answered(w.sends(0.0)[0], InvalidProducerEpoch("x"))
    assert w.result is not None
    assert (w.result.outcome, w.sends(0.0)) == ("unknown", [])


# -- quarantine --------------------------------------------------------------------------------------------------------
def test_P9_a_row_that_is_too_large_is_quarantined_before_anything_later_is_sent() -> None:
    w = writing(*one_by_one(T0, T0, T1, T0), window=2)
    one, two = w.sends(0.0)
    w.answered(one, MessageTooLarge("x"))
    assert w.sends(0.0) == []
    w.answered(two, OutOfOrderSequence("gap"))
    aside = w.sends(0.0)
    assert shown(aside) == [(Q, 0, (0,))]
    assert aside[0].poison.startswith("message_too_large")
    assert w.sends(0.0) == []
    w.answered(aside[0], 40)
    assert shown(w.sends(0.0)) == [(T0, 0, (1,)), (T1, 0, (2,))]


def test_P9_a_row_that_cannot_be_encoded_waits_for_what_is_before_it() -> None:
    w = writing(Piece(T0, rows(0)), Piece(T0, rows(1), "no such character"), Piece(T0, rows(2)))
    first = w.sends(0.0)
    assert shown(first) == [(T0, 0, (0,))]
    w.answered(first[0], 0)
    aside = w.sends(0.0)
    assert (shown(aside), aside[0].poison) == ([(Q, 0, (1,))], "no such character")
    w.answered(aside[0], 9)
    last = w.sends(0.0)
    assert shown(last) == [(T0, 1, (2,))]
    w.answered(last[0], 1)
    w.sends(0.0)
    assert w.result is not None
    assert (w.result.outcome, w.result.quarantined, w.result.rows) == ("done", 1, 3)
    assert TargetEnd(*Q, 10) in w.result.written


def test_P9_a_batch_that_is_too_large_is_halved_until_the_row_is_found() -> None:
    w = writing(Piece(T0, rows(0, 1, 2)))
    w.answered(w.sends(0.0)[0], MessageTooLarge("x"))
    halves = w.sends(0.0)
    assert shown(halves) == [(T0, 0, (0,)), (T0, 1, (1, 2))]
    w.answered(halves[0], 0)
    w.answered(halves[1], MessageTooLarge("x"))
    assert shown(w.sends(0.0)) == [(T0, 1, (1,)), (T0, 2, (2,))]


def test_P9_messages_of_one_row_are_not_separated() -> None:
    w = writing(Piece(T0, rows(0, 1, 1, 2)))
    w.answered(w.sends(0.0)[0], MessageTooLarge("x"))
    halves = w.sends(0.0)
    assert shown(halves) == [(T0, 0, (0, 1, 1)), (T0, 3, (2,))]
    w.answered(halves[1], 3)
    w.answered(halves[0], MessageTooLarge("x"))
    assert w.sends(0.0) == []
    assert w.result is not None
    assert w.result.outcome == "unknown", "what stands behind the gap cannot be moved up"
    w = writing(Piece(T0, rows(1, 1)))
    w.answered(w.sends(0.0)[0], MessageTooLarge("x"))
    (alone,) = w.sends(0.0)
    assert (alone.target, alone.points) == (Q, rows(1)), "a row and its tombstone are one row in the quarantine"


def test_P9_a_quarantine_in_doubt_is_asked_again_with_its_sequence() -> None:
    w = writing(Piece(T0, rows(0), "poison"), Piece(T0, rows(1)))
    w.answered(w.sends(0.0)[0], TimedOut("x"))
    assert shown(w.sends(0.0)) == [(Q, 0, (0,))]


def test_K5_too_large_after_a_copy_without_an_answer_proves_nothing() -> None:
    w = writing(*one_by_one(T0))
    w.answered(w.sends(0.0)[0], TimedOut("x"))
    w.answered(w.sends(0.0)[0], MessageTooLarge("the limit was lowered meanwhile"))
    assert w.result is not None
    assert w.result.outcome == "unknown"


def test_K5_nobody_closes_up_behind_a_refused_row_while_a_copy_may_be_on_its_way() -> None:
    w = writing(*one_by_one(T0, T0))
    one, two = w.sends(0.0)
    w.answered(one, MessageTooLarge("x"))
    w.answered(two, TimedOut("x"))
    assert w.sends(0.0) == []
    assert w.result is not None
    assert w.result.outcome == "unknown"


# -- time --------------------------------------------------------------------------------------------------------------
def test_P2_when_sending_time_is_over_a_settled_prefix_is_returned() -> None:
    w = writing(*one_by_one(T0, T1, T0, T0), window=3)
    one, two, three = w.sends(0.0)
    w.answered(one, 0)
    w.answered(two, NotEnoughReplicas("x"))
    w.answered(three, 1)
    assert w.sends(SENDING_UNTIL) == []
    result = w.result
    assert result is not None
    assert (result.outcome, result.to, result.rows) == ("partial", Point(0, 1), 2)
    assert result.written == (TargetEnd(*T0, 1),)
    assert result.ahead == (Delivered(Point(0, 2), T0, 1),)
    assert result.sequences == (NextSequence(*T0, 2), NextSequence(*T1, 0))


def test_P2_after_sending_time_only_what_is_in_doubt_is_sent() -> None:
    w = writing(*one_by_one(T0, T1, T0), window=2)
    one, two = w.sends(0.0)
    w.answered(one, TimedOut("x"))
    w.answered(two, 0)
    again = w.sends(SENDING_UNTIL)
    assert shown(again) == [(T0, 0, (0,))]
    w.answered(again[0], 5)
    w.sends(SENDING_UNTIL)
    assert w.result is not None
    assert (w.result.outcome, w.result.to) == ("partial", Point(0, 2))


def test_P2_the_deadline_with_something_under_way_is_unknown() -> None:
    w = writing(*one_by_one(T0))
    w.sends(0.0)
    w.sends(DEADLINE)
    assert w.result is not None
    assert w.result.outcome == "unknown"


def test_P2_rows_that_were_not_handed_over_are_not_claimed_as_done() -> None:
    w = Writing(plan(5), execution=1, sending_until=SENDING_UNTIL, deadline=DEADLINE)
    w.claimed()
    w.offer(Piece(T0, rows(0, 1)))
    w.handed(Point(0, 2))
    w.answered(w.sends(0.0)[0], 0)
    assert (w.sends(0.0), w.result) == ([], None)
    w.sends(SENDING_UNTIL)
    assert w.result is not None
    assert (w.result.outcome, w.result.to) == ("partial", Point(0, 2))


def test_V11_only_targets_of_the_plan_are_written_to() -> None:
    w = Writing(plan(1), execution=1, sending_until=SENDING_UNTIL, deadline=DEADLINE)
    with pytest.raises(AssertionError):
        w.offer(Piece(TopicPartition(TOPIC, 2), rows(0)))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_K5_whatever_is_answered_each_target_holds_a_prefix_in_order(data: st.DataObject) -> None:
    """A log that checks sequences, with answers that are lost: no row twice, order kept, the result true."""
    targets = data.draw(st.lists(st.sampled_from([T0, T1]), min_size=1, max_size=8))
    big = data.draw(st.sets(st.integers(0, len(targets) - 1), max_size=2))
    w = writing(*one_by_one(*targets))
    logs: dict[TopicPartition, list[int]] = {T0: [], T1: [], Q: []}
    for step in range(60):
        if w.result is not None:
            break
        for send in w.sends(min(step / 4, SENDING_UNTIL + 1)):
            log, row = logs[send.target], send.points[0].row
            lost = data.draw(st.sampled_from(["", "", "", "request", "answer", "refused"]))
            if lost == "request":
                w.answered(send, TimedOut("x"))
            elif lost == "refused":
                w.answered(send, NotEnoughReplicas("x"))
            elif send.target != Q and row in big:
                w.answered(send, MessageTooLarge("x"))
            elif send.sequence > len(log):
                w.answered(send, OutOfOrderSequence("x"))
            else:
                if send.sequence == len(log):
                    log.append(row)
                assert log[send.sequence] == row
                w.answered(send, TimedOut("x") if lost == "answer" else send.sequence)
    everywhere = [row for log in logs.values() for row in log]
    assert len(everywhere) == len(set(everywhere))
    assert logs[T0] == sorted(logs[T0])
    assert logs[T1] == sorted(logs[T1])
    if w.result is not None and w.result.outcome != "unknown":
        ahead = {row.point.row for row in w.result.ahead}
        assert set(everywhere) == set(range(w.result.to.row)) | ahead
