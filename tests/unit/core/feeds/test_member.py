from __future__ import annotations

from millrace.core.feeds.effects import DropMaintainer, FeedEffect, Send, StartMaintainer
from millrace.core.feeds.member import Member
from millrace.model.feed_messages import (
    CaptureAnswer,
    CoordinatorPing,
    EndMaintainer,
    MaintainerRefused,
    MaintainerReport,
    PlaceMaintainer,
    View,
)

REPORT = MaintainerReport("orders", 3, True)


def member() -> Member:
    return Member(4, 2, 0.0, session_s=6.0)


def ping(
    m: Member, now: float, *, token: int = 5, heard_at: float | None = None, view: View | None = None
) -> list[FeedEffect]:
    message = CoordinatorPing(token, now, heard_at, view)
    return m.on_ping(now, 1, message, maintainers=[REPORT], dispatchers=9, feeds=["orders"])


def place(m: Member, epoch: int = 3, *, token: int = 5, inc: int = 2) -> list[FeedEffect]:
    return m.on_place(1, PlaceMaintainer(token, "orders", epoch, inc))


def end(m: Member, epoch: int = 3, *, token: int = 5, inc: int = 2) -> list[FeedEffect]:
    return m.on_end(EndMaintainer(token, "orders", epoch, inc))


def test_C9_an_answer_names_the_pings_send_time_and_what_is_here() -> None:
    m = member()
    (send,) = ping(m, 3.0, view=View(5, 2))
    assert send == Send(1, CaptureAnswer(5, 4, 2, 3.0, (5, 2), "alive", (REPORT,), 9, ("orders",)))


def test_C1_a_former_coordinator_changes_nothing() -> None:
    m = member()
    ping(m, 1.0, token=5)
    assert ping(m, 2.0, token=4) == []
    assert place(m, token=4) == []
    m.took_office(6)
    assert place(m, token=5) == []
    assert place(m, token=6) == [StartMaintainer("orders", 3)]


def test_C1_a_later_view_stays() -> None:
    m = member()
    ping(m, 1.0, view=View(5, 2))
    ping(m, 2.0, view=View(5, 1))
    assert m.view == View(5, 2)


def test_C2_a_maintainer_replaces_a_lower_epoch_only() -> None:
    m = member()
    assert place(m, 3) == [StartMaintainer("orders", 3)]
    assert place(m, 3) == [], "a repeated command changes nothing"
    assert place(m, 2) == []
    assert place(m, 4) == [DropMaintainer("orders"), StartMaintainer("orders", 4)]
    assert end(m, 3) == []
    assert end(m, 4) == [DropMaintainer("orders")]
    assert place(m, 4) == [], "what was ended does not come back under its epoch"


def test_C2_a_command_for_another_incarnation_changes_nothing() -> None:
    m = member()
    assert place(m, inc=1) == []
    place(m)
    assert end(m, inc=1) == []
    assert m.maintainers == {"orders": 3}


def test_C2_a_maintainer_that_ended_by_itself_is_forgotten() -> None:
    m = member()
    place(m)
    m.maintainer_ended("orders", 2)
    assert m.maintainers
    m.maintainer_ended("orders", 3)
    assert not m.maintainers


def test_D6_a_capture_that_is_not_alive_refuses() -> None:
    m = member()
    m.liveness = "stopping"
    (refusal,) = place(m)
    assert refusal == Send(1, MaintainerRefused(5, "orders", 3, "capture 4 is stopping"))


def test_C9_a_capture_that_the_coordinator_does_not_hear_for_three_sessions_is_put_out() -> None:
    m = member()
    for now in (1.0, 8.0, 15.0):
        ping(m, now)                                     # pings arrive, answers do not
    assert not m.is_put_out(18.0, office_held=True)
    assert m.is_put_out(18.1, office_held=True)


def test_C9_being_heard_counts_from_the_answer_that_arrived() -> None:
    m = member()
    ping(m, 1.0)
    ping(m, 8.0)
    ping(m, 15.0, heard_at=8.0)
    assert not m.is_put_out(26.0, office_held=True)
    assert m.is_put_out(26.1, office_held=True)


def test_C9_without_a_coordinator_nobody_is_put_out_and_the_next_one_gets_time() -> None:
    m = member()
    assert not m.is_put_out(60.0, office_held=False)
    assert not m.is_put_out(70.0, office_held=True)
    assert m.is_put_out(73.0, office_held=True)
    m.coordinator_is_us(73.0)
    assert not m.is_put_out(74.0, office_held=True)
