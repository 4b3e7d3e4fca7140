from __future__ import annotations

import pytest

from millrace.core.feeds.effects import FeedEffect, Send, TakeOver
from millrace.core.feeds.manager import Manager
from millrace.core.feeds.states import SEARCHING
from millrace.model.changefeeds import FeedError
from millrace.model.feed_messages import (
    DispatcherRefused,
    DispatcherReport,
    MaintainerPing,
    ManagerAnswer,
    PrepareDispatcher,
    StartDispatcher,
    StopDispatcher,
    View,
)
from millrace.model.spans import Dispatcher, TableId, whole

SPAN = whole(TableId("shop", 1), 2)
ERROR = FeedError(code="sink_transient", kind="retry")


def manager() -> Manager:
    return Manager("orders", 4, 2, session_s=6.0)


def prepare(
    m: Manager, span: int = 7, epoch: int = 10, *, by: int = 1, now: float = 0.0, inc: int = 2
) -> list[FeedEffect]:
    return m.on_prepare(now, 0, PrepareDispatcher("orders", by, inc, span, SPAN, epoch))


def start(
    m: Manager, span: int = 7, epoch: int = 10, *, by: int = 1, now: float = 0.0, inc: int = 2
) -> list[FeedEffect]:
    return m.on_start(now, 0, StartDispatcher("orders", by, inc, span, SPAN, epoch))


def stop(m: Manager, span: int = 7, epoch: int = 10, *, by: int = 1) -> None:
    m.on_stop(0, StopDispatcher("orders", by, 2, span, epoch))


def working(m: Manager, span: int = 7, epoch: int = 10) -> None:
    start(m, span, epoch)
    m.taken(span, epoch, ok=True)


def ask(m: Manager, seen: int = 0, *, epoch: int = 1, incarnation: int = 2) -> ManagerAnswer:
    (send,) = m.on_ping(0, MaintainerPing("orders", epoch, 1.0, incarnation, seen))
    assert isinstance(send, Send)
    assert isinstance(send.message, ManagerAnswer)
    return send.message


def test_V11_a_start_takes_over_before_it_works() -> None:
    m = manager()
    assert start(m) == [TakeOver(7, 10, SPAN, 1)]
    assert m.free(0.0) == []
    m.taken(7, 10, ok=True)
    assert m.free(0.0) == [7]
    assert start(m) == [], "a repeated command changes nothing"


def test_C3_whose_take_over_fails_is_gone() -> None:
    m = manager()
    start(m)
    m.taken(7, 10, ok=False)
    assert not m.held


def test_C3_an_older_dispatcher_never_replaces_a_later_one() -> None:
    m = manager()
    working(m, epoch=10)
    assert start(m, epoch=9) == []
    assert m.held[7].epoch == 10
    assert start(m, epoch=11) == [TakeOver(7, 11, SPAN, 1)]
    m.taken(7, 10, ok=True)
    assert m.held[7].state == "taking_over", "an answer for the former one changes nothing"


def test_C2_an_older_maintainer_is_refused() -> None:
    m = manager()
    working(m)
    ask(m, epoch=5)
    stop(m, by=4)
    assert m.held[7].state == "working"
    assert m.on_ping(0, MaintainerPing("orders", 4, 1.0)) == []
    assert prepare(m, span=8, by=4) == []
    stop(m, by=5)
    assert not m.held


def test_C2_a_command_for_another_incarnation_changes_nothing() -> None:
    m = manager()
    assert prepare(m, inc=1) == []
    assert start(m, inc=3) == []
    assert not m.held


def test_D6_a_capture_that_is_not_alive_refuses_and_goes_on_with_what_it_has() -> None:
    m = manager()
    working(m)
    m.liveness = "draining"
    (refusal,) = start(m, span=8, epoch=11)
    assert isinstance(refusal, Send)
    assert isinstance(refusal.message, DispatcherRefused)
    assert (refusal.message.id, refusal.message.epoch) == (8, 11)
    assert list(m.held) == [7]


def test_C3_a_prepared_dispatcher_goes_after_a_session_in_which_nobody_asked() -> None:
    m = manager()
    prepare(m, now=0.0)
    prepare(m, now=4.0)
    m.tick(9.9, None)
    assert 7 in m.held
    m.tick(10.1, None)
    assert not m.held


def test_C3_a_dispatcher_whose_positions_carry_a_greater_epoch_removes_itself() -> None:
    m = manager()
    working(m)
    m.overtaken(7, 10)
    assert 7 in m.held
    m.overtaken(7, 11)
    assert not m.held


def test_P2_a_dispatcher_is_in_one_round_at_most_and_gone_only_after_it() -> None:
    m = manager()
    working(m)
    (dispatcher,) = m.begin_round([7])
    assert m.free(0.0) == []
    with pytest.raises(AssertionError):
        m.begin_round([7])
    stop(m)
    assert m.held[7].state == "stopping"
    assert m.is_present(dispatcher), "its result is still committed"
    m.round_ended(1.0, dispatcher)
    assert not m.held


def test_C4_a_stop_during_the_take_over_ends_when_that_has_ended() -> None:
    m = manager()
    start(m)
    stop(m)
    assert m.held[7].state == "stopping"
    m.taken(7, 10, ok=True)
    assert not m.held


def test_P5_an_unknown_outcome_needs_another_epoch() -> None:
    m = manager()
    working(m)
    (dispatcher,) = m.begin_round([7])
    m.unknown(dispatcher)
    assert not m.held
    m.round_ended(1.0, dispatcher)
    assert ask(m).changed == ()


def test_C8_an_error_waits_longer_each_time_and_success_begins_anew() -> None:
    m = manager()
    working(m)
    waits = []
    for at in (0.0, 100.0):
        (dispatcher,) = m.begin_round([7])
        m.round_ended(at, dispatcher, error=ERROR, jitter=1.0)
        waits.append(m.held[7].retry_at - at)
    assert waits == [1.0, 2.0]
    assert m.free(101.0) == []
    assert ask(m).changed == (DispatcherReport(7, 10, "working", ERROR),)
    (dispatcher,) = m.begin_round([7])
    m.round_ended(103.0, dispatcher)
    assert m.free(103.0) == [7]
    assert ask(m).changed == (DispatcherReport(7, 10, "working"),)


def test_C8_a_search_for_rows_is_told_and_goes_on_at_once() -> None:
    m = manager()
    working(m)
    for n in range(5):
        (dispatcher,) = m.begin_round([7])
        said = FeedError(code=SEARCHING, kind="retry", message=f"{9 - n} left")
        m.round_ended(1.0 + n, dispatcher, error=said)
        assert m.free(1.0 + n), "it works: there is nothing to wait for"
        assert ask(m).changed[0].error == said


def test_C1_an_answer_holds_what_changed_since_the_maintainer_last_saw() -> None:
    m = manager()
    working(m, 7)
    first = ask(m)
    assert first.full
    assert first.changed == (DispatcherReport(7, 10, "working"),)
    working(m, 8, 11)
    stop(m, 7)
    second = ask(m, first.upto)
    assert not second.full
    assert second.changed == (DispatcherReport(8, 11, "working"), DispatcherReport(7, 0, "gone"))
    assert ask(m, second.upto).changed == ()


def test_C1_who_has_seen_less_than_is_remembered_gets_everything() -> None:
    m = manager()
    working(m, 7)
    working(m, 8, 11)
    first = ask(m)
    stop(m, 7)
    upto = ask(m, first.upto).upto
    ask(m, upto)
    late = ask(m, first.upto)
    assert late.full
    assert late.changed == (DispatcherReport(8, 11, "working"),)


def test_C1_what_was_seen_of_another_incarnation_does_not_count() -> None:
    m = manager()
    working(m)
    assert ask(m, 99, incarnation=1).full


def test_C1_what_the_coordinator_does_not_run_ends() -> None:
    m = manager()
    working(m)
    stopped = View(1, 1, running={"other": 1}, epochs_upto=1)
    m.tick(1.0, View(1, 1, running={"orders": 1}, epochs_upto=1))
    m.tick(1.0, View(1, 1, epochs_upto=0))
    assert m.held, "a view older than the maintainer says nothing about it"
    m.begin_round([7])
    m.tick(1.0, stopped)
    assert m.held[7].state == "stopping"
    m.round_ended(2.0, Dispatcher(7, 10))
    assert not m.held


def test_P7_only_dispatchers_that_came_changed_or_went_are_told_to_whoever_carries_it_out() -> None:
    m = manager()
    for span in range(100):
        working(m, span)
    assert len(m.touched) == 100
    m.touched.clear()
    m.tick(1.0, None)
    m.begin_round([7])
    m.round_ended(2.0, Dispatcher(7, 10))
    m.tick(100.0, None)
    assert not m.touched, "they work as before"
    m.begin_round([7])
    m.round_ended(2.0, Dispatcher(7, 10), error=ERROR)
    m.overtaken(8, 11)
    prepare(m, 9, 11, now=100.0)
    assert list(m.touched) == [7, 8, 9]


def test_C3_of_many_only_those_prepared_are_forgotten() -> None:
    m = manager()
    working(m, 1)
    prepare(m, 2)
    start(m, 3)
    m.tick(7.0, None)
    assert m.held.keys() == {1, 3}
