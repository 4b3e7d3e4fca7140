from __future__ import annotations

from millrace.core.feeds.sight import FeedSight
from millrace.model.feed_messages import DispatcherReport, ManagerAnswer, View
from millrace.model.spans import Place

HERE = Place(4, 2, 10)


def answer(
    *changed: DispatcherReport, sent_at: float, base: int, upto: int, full: bool = False, incarnation: int = 2
) -> ManagerAnswer:
    return ManagerAnswer("orders", 1, 4, incarnation, sent_at, full, base, upto, changed)


def sight() -> FeedSight:
    s = FeedSight(0.0, session_s=6.0)
    s.on_answer(answer(DispatcherReport(7, 10, "working"), sent_at=1.0, base=0, upto=3, full=True))
    return s


def test_C1_unknown_is_not_gone() -> None:
    assert FeedSight(0.0, session_s=6.0).seen(7, HERE) == "unknown"
    assert sight().seen(7, HERE) == "working"
    assert sight().seen(8, HERE) == "gone"
    assert sight().seen(7, HERE._replace(epoch=11)) == "gone"
    assert sight().seen(7, HERE._replace(incarnation=3)) == "unknown"


def test_C1_deltas_join_on() -> None:
    s = sight()
    changed = s.on_answer(answer(DispatcherReport(7, 0, "gone"), sent_at=2.0, base=3, upto=4))
    assert changed == (DispatcherReport(7, 0, "gone"),)
    assert s.seen(7, HERE) == "gone"
    assert s.seen_upto(4) == (2, 4)


def test_C1_a_delta_that_does_not_join_on_counts_for_nothing() -> None:
    s = sight()
    assert s.on_answer(answer(DispatcherReport(7, 0, "gone"), sent_at=2.0, base=4, upto=5)) is None
    assert s.on_answer(answer(sent_at=2.0, base=3, upto=5, incarnation=3)) is None
    assert s.seen(7, HERE) == "working"
    assert s.hearing.heard[4].heard_at == 1.0, "nor as hearing: the next ping asks again"


def test_C9_an_overtaken_answer_changes_nothing() -> None:
    s = sight()
    s.on_answer(answer(DispatcherReport(7, 0, "gone"), sent_at=3.0, base=3, upto=4))
    assert s.on_answer(answer(DispatcherReport(7, 10, "working"), sent_at=2.0, base=0, upto=3, full=True)) is None
    assert s.seen(7, HERE) == "gone"


def test_C1_what_a_full_answer_does_not_name_is_gone() -> None:
    s = sight()
    changed = s.on_answer(answer(DispatcherReport(8, 11, "working"), sent_at=2.0, base=0, upto=9, full=True))
    assert changed == (DispatcherReport(8, 11, "working"), DispatcherReport(7, 0, "gone"))


def test_C5_schedulable_is_who_we_hear_and_the_coordinator_offers_under_one_incarnation() -> None:
    s = sight()
    s.now = 2.0
    assert not s.schedulable(4), "no view yet"
    s.on_view(View(1, 1, ((4, 2), (5, 1)), (4, 5)), {})
    assert s.schedulable_all() == [4], "5 was never heard"
    s.on_view(View(1, 2, ((4, 1),), (4, 5)), {})
    assert s.schedulable_all() == [], "another process"
    s.on_view(View(1, 1, ((4, 2),), (4, 5)), {})
    assert s.schedulable_all() == [], "an older view changes nothing"


def test_D7_the_load_of_other_changefeeds_counts() -> None:
    s = sight()
    s.on_view(View(1, 1, ((4, 2),), (4,), {}, ((4, 9), (5, 1))), {4: 3, 5: 2})
    assert s.others == {4: 6, 5: 0}
