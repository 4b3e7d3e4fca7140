"""The checkers see every broken promise they are for, and accept every honest history."""

from __future__ import annotations

import pytest

from millrace_sim.checkers import Entry, History, Replicas, Violation, check_order

T = ("t", 0)


def written(history: History, *values: bytes, once: bool = True) -> None:
    for value in values:
        history.sent(T, value, once=once)


def test_an_honest_history_is_accepted() -> None:
    history = History()
    written(history, b"a", b"b", b"unknown")
    history.acked(T, b"a", 0)
    history.read(T, 0, Entry(b"a", 1, 0, 0), "c")
    history.read(T, 0, Entry(b"a", 1, 0, 0), "d")
    history.read(T, 1, Entry(b"unknown", 2, 0, 0), "c")
    history.acked(T, b"b", 2)
    history.read(T, 2, Entry(b"b", 1, 0, 1), "c")
    history.finish({T: 3})
    assert (history.acked_count, history.reads) == (2, 4)


def test_an_acknowledged_value_that_is_not_there_is_lost() -> None:
    history = History()
    written(history, b"a")
    history.acked(T, b"a", 0)
    with pytest.raises(Violation, match="LOST"):
        history.finish({T: 0})


def test_an_offset_has_one_value_for_ever() -> None:
    history = History()
    written(history, b"a", b"b")
    history.read(T, 0, Entry(b"a"), "c")
    with pytest.raises(Violation, match="offset 0 was"):
        history.read(T, 0, Entry(b"b"), "d")
    with pytest.raises(Violation, match="acknowledged at 0, where"):
        history.acked(T, b"b", 0)


def test_what_was_read_stays_below_the_end() -> None:
    history = History()
    written(history, b"a")
    history.read(T, 0, Entry(b"a"), "c")
    with pytest.raises(Violation, match="now ends at 0"):
        history.finish({T: 0})


def test_a_value_of_an_idempotent_producer_is_there_once() -> None:
    history = History()
    written(history, b"a")
    history.read(T, 0, Entry(b"a"), "c")
    with pytest.raises(Violation, match="is at 0 and at 1"):
        history.read(T, 1, Entry(b"a"), "c")
    history.acked(T, b"a", 0)
    with pytest.raises(Violation, match="at 0 and at 1"):
        history.acked(T, b"a", 1)


def test_a_value_of_a_plain_producer_may_repeat() -> None:
    history = History()
    written(history, b"a", once=False)
    history.read(T, 0, Entry(b"a"), "c")
    history.read(T, 1, Entry(b"a"), "c")
    history.acked(T, b"a", 1)
    history.finish({T: 2})


def test_nothing_is_read_that_nobody_sent_there() -> None:
    history = History()
    history.sent(("other", 1), b"a", once=False)
    with pytest.raises(Violation, match="nobody sent"):
        history.read(T, 0, Entry(b"a"), "c")


def test_a_hole_below_the_end_is_seen() -> None:
    history = History()
    written(history, b"a")
    history.read(T, 1, Entry(b"a"), "c")
    with pytest.raises(Violation, match=r"offsets \[0\]"):
        history.finish({T: 2})


def test_sequences_follow_each_other() -> None:
    check_order(T, [Entry(b"a", 1, 0, 5), Entry(b"b", 2, 0, 0), Entry(b"c", 1, 0, 6)])
    with pytest.raises(Violation, match="sequence 7"):
        check_order(T, [Entry(b"a", 1, 0, 5), Entry(b"b", 1, 0, 7)])
    with pytest.raises(Violation, match="sequence 5"):
        check_order(T, [Entry(b"a", 1, 0, 5), Entry(b"b", 1, 0, 5)])


def test_L28_no_lower_epoch_behind_a_fence_and_sequences_from_zero() -> None:
    fence = Entry(None, 9, 2, fence=True)
    check_order(T, [Entry(b"old", 9, 1, 0), fence, Entry(b"new", 9, 2, 0)])
    with pytest.raises(Violation, match="passed fence 2"):
        check_order(T, [fence, Entry(b"old", 9, 1, 0)])
    with pytest.raises(Violation, match="sequence 1"):
        check_order(T, [fence, Entry(b"new", 9, 2, 1)])


def test_L28_an_acknowledged_fence_is_where_it_was_said_to_be() -> None:
    history = History()
    history.fenced(T, 9, 1, 0)
    history.fenced(T, 9, 1, 0)
    with pytest.raises(Violation, match="at 0 and at 1"):
        history.fenced(T, 9, 1, 1)
    with pytest.raises(Violation, match="LOST fence"):
        history.finish({T: 0})
    history.read(T, 0, Entry(None, 9, 1, fence=True), "c")
    history.finish({T: 1})


def test_L12_one_leader_per_epoch_also_over_a_restart() -> None:
    replicas = Replicas()
    replicas.saw_leader(T, 1, "b1#1")
    replicas.saw_leader(T, 1, "b1#1")
    replicas.saw_leader(T, 2, "b2#1")
    with pytest.raises(Violation, match="epoch 1 was led by"):
        replicas.saw_leader(T, 1, "b1#2")


def test_L6_hw_neither_above_leo_nor_back_in_an_epoch() -> None:
    replicas = Replicas()
    replicas.saw_replica(T, "b1#1", epoch=1, hw=5, leo=6)
    replicas.saw_replica(T, "b1#1", epoch=2, hw=4, leo=6)
    with pytest.raises(Violation, match="went back"):
        replicas.saw_replica(T, "b1#1", epoch=1, hw=4, leo=6, start=3)
    replicas.saw_replica(T, "b1#1", epoch=1, hw=4, leo=4, start=4)     # it starts over, inside a batch
    with pytest.raises(Violation, match="above its durable end"):
        replicas.saw_replica(T, "b1#1", epoch=3, hw=7, leo=6)
