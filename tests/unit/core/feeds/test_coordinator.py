"""One coordinator and the members it hears, messages delivered by hand [C1, C2, C5, C9]."""

from __future__ import annotations

import pytest

from millrace import limits
from millrace.core.feeds.coordinator import Coordinator
from millrace.core.feeds.effects import CleanUp, DropMaintainer, FeedEffect, ReleaseOffice, Send, StartMaintainer
from millrace.core.feeds.feeds import FeedsState
from millrace.core.feeds.member import Member
from millrace.model.changefeeds import (
    ChangefeedChanged,
    ChangefeedCreated,
    ChangefeedResumed,
    ChangefeedSpec,
    CoordinatorRecords,
    FeedError,
)
from millrace.model.feed_messages import (
    CaptureAnswer,
    CoordinatorPing,
    EndMaintainer,
    FeedFailing,
    MaintainerRefused,
    MaintainerReport,
    PlaceMaintainer,
)


class Cluster:
    def __init__(self, *feeds: str) -> None:
        self.now = 0.0
        self.members = {n: Member(n, 1, 0.0, session_s=6.0) for n in range(3)}
        self.ready: set[tuple[int, str]] = set()
        self.slow: set[str] = set()
        self.busy: dict[int, str] = {}
        self.cut: set[int] = set()
        self.records: list[CoordinatorRecords] = [
            ChangefeedCreated(ChangefeedSpec(id=feed, source="shop", sink="kafka:"), 0) for feed in feeds]
        self.effects: list[FeedEffect] = []
        self.elect(1, 0)

    def elect(self, token: int, capture: int) -> None:
        state = FeedsState()
        for record in self.records:
            state.replay(record)
        self.c = Coordinator(state, capture=capture, token=token, now=self.now, session_s=6.0)

    def write(self, records: list[CoordinatorRecords]) -> None:
        self.records += records
        for record in records:
            self.c.replay(record)

    def pass_once(self) -> list[FeedEffect]:
        self.now += 0.5
        self.c.sight.on_leases({n: member.incarnation for n, member in self.members.items()})
        for send in self.c.pings(self.now):
            assert isinstance(send.message, CoordinatorPing)
            if send.to not in self.cut:
                self._ping(send.to, send.message)
        self.write(self.c.decide(self.now))
        self.effects = self.c.effects(self.now)
        for effect in self.effects:
            if isinstance(effect, Send) and effect.to not in self.cut:
                self._command(effect)
        return self.effects

    def _ping(self, to: int, ping: CoordinatorPing) -> None:
        member = self.members[to]
        reports = [MaintainerReport(f, e, (to, f) in self.ready) for f, e in member.maintainers.items()]
        feeds = [self.busy[to]] if to in self.busy else []
        for answer in member.on_ping(self.now, 0, ping, maintainers=reports, dispatchers=0, feeds=feeds):
            assert isinstance(answer, Send)
            assert isinstance(answer.message, CaptureAnswer)
            self.c.sight.on_answer(answer.message)
        self.ready |= {(to, feed) for feed in member.maintainers if feed not in self.slow}

    def _command(self, send: Send) -> None:
        member, message = self.members[send.to], send.message
        if isinstance(message, EndMaintainer):
            for effect in member.on_end(message):
                assert isinstance(effect, DropMaintainer)
                self.ready.discard((send.to, effect.feed))
        elif isinstance(message, PlaceMaintainer):
            for effect in member.on_place(0, message):
                if isinstance(effect, Send):
                    assert isinstance(effect.message, MaintainerRefused)
                    self.c.sight.on_refused(effect.message)
                else:
                    assert isinstance(effect, StartMaintainer | DropMaintainer)
                    self.ready.discard((send.to, effect.feed))

    def settle(self, passes: int = 12) -> None:
        for _ in range(passes):
            self.pass_once()

    def running(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for n, member in self.members.items():
            for feed in member.maintainers:
                found.setdefault(feed, []).append(n)
        return found

    def epoch(self, feed: str) -> int:
        place = self.c.state.entry(feed).place
        assert place is not None
        return place.epoch


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("a", "b", "c")
    cluster.settle(4)
    return cluster


def test_C1_every_changefeed_gets_one_maintainer_and_they_are_spread(cluster: Cluster) -> None:
    assert cluster.running() == {"a": [0], "b": [1], "c": [2]}
    assert not cluster.c.operators
    assert len({cluster.epoch(feed) for feed in "abc"}) == 3


def test_C1_a_new_coordinator_resumes_and_touches_nothing_that_works(cluster: Cluster) -> None:
    epochs = [cluster.epoch(feed) for feed in "abc"]
    cluster.elect(2, 1)
    cluster.settle(20)
    assert [cluster.epoch(feed) for feed in "abc"] == epochs


@pytest.mark.parametrize("said", [
    ChangefeedChanged(ChangefeedSpec(id="b", source="shop", sink="kafka:", tables=("public.a",))),
    ChangefeedResumed("b", 44, 1),
], ids=["changed", "another position"])
def test_C1_who_is_changed_gets_another_maintainer_where_it_is_whoever_is_coordinator(
    cluster: Cluster, said: CoordinatorRecords
) -> None:
    before = cluster.epoch("b")
    cluster.write([said])
    cluster.elect(2, 1)                                      # the record stands, and nobody has acted on it
    cluster.settle(6)
    assert cluster.epoch("b") > before
    assert (cluster.running()["b"], cluster.members[1].maintainers["b"]) == ([1], cluster.epoch("b"))
    assert not cluster.c.state.entry("b").renew
    after = cluster.epoch("b")
    cluster.settle()
    assert cluster.epoch("b") == after, "once"


def test_C5_who_is_changed_goes_elsewhere_if_its_capture_takes_nothing(cluster: Cluster) -> None:
    cluster.members[1].liveness = "draining"
    cluster.settle(2)
    cluster.write([ChangefeedChanged(ChangefeedSpec(id="b", source="shop", sink="kafka:", tables=("public.a",)))])
    cluster.settle(6)
    assert cluster.running()["b"] != [1]
    assert len(cluster.running()["b"]) == 1


def test_C1_recorded_and_not_reported_is_placed_again_under_a_greater_epoch(cluster: Cluster) -> None:
    before = cluster.epoch("b")
    cluster.members[1] = Member(1, 2, cluster.now, session_s=6.0)        # it started again
    cluster.settle(6)
    assert cluster.epoch("b") > before
    assert len(cluster.running()["b"]) == 1


def test_C1_an_answer_to_a_ping_sent_before_the_record_says_nothing_about_it(cluster: Cluster) -> None:
    place = cluster.c.state.entry("a").place
    assert place is not None
    cluster.c.sight.placed_at["a"] = cluster.now
    assert cluster.c.sight.seen("a", place) == "unknown"


def test_C1_reported_and_not_recorded_is_told_to_stop(cluster: Cluster) -> None:
    cluster.members[2].maintainers["a"] = 0
    cluster.settle(3)
    assert cluster.running()["a"] == [0]


def test_C1_a_paused_changefeed_has_no_maintainer_and_a_resumed_one_has(cluster: Cluster) -> None:
    cluster.write(list(cluster.c.state.pause("a").records))
    cluster.settle(4)
    assert "a" not in cluster.running()
    assert "a" not in cluster.c.view.running
    cluster.write(list(cluster.c.state.resume("a").records))
    cluster.settle(4)
    assert len(cluster.running()["a"]) == 1


def test_C1_a_removed_changefeed_is_cleaned_up_when_nothing_of_it_is_left(cluster: Cluster) -> None:
    cluster.busy[2] = "a"
    cluster.write(list(cluster.c.state.remove("a").records))
    cluster.settle(5)
    assert not [e for e in cluster.effects if isinstance(e, CleanUp)], "a round of it is still under way"
    assert any(b.reason == "is being removed" for b in cluster.c.blockers())
    cluster.busy.clear()
    cluster.settle(2)
    (clean,) = [e for e in cluster.effects if isinstance(e, CleanUp)]
    assert clean.epoch > cluster.epoch("c")
    cluster.c.cleaned("a")
    cluster.settle(1)
    assert "a" not in cluster.c.state.feeds


def test_C1_a_capture_that_is_lost_does_not_keep_a_removal_waiting(cluster: Cluster) -> None:
    cluster.cut = {2}
    cluster.write(list(cluster.c.state.remove("a").records))
    cluster.settle(4)
    assert not [e for e in cluster.effects if isinstance(e, CleanUp)]
    cluster.settle(12)
    assert [e.feed for e in cluster.effects if isinstance(e, CleanUp)] == ["a"]


def test_C5_a_lost_captures_maintainer_goes_to_another(cluster: Cluster) -> None:
    cluster.cut = {1}
    cluster.settle(16)
    place = cluster.c.state.entry("b").place
    assert place is not None
    assert place.capture != 1
    cluster.cut = set()
    cluster.settle(4)
    assert len(cluster.running()["b"]) == 1, "what it kept is ended when it is heard again"


def test_D6_a_capture_that_refuses_is_not_asked_again_at_once(cluster: Cluster) -> None:
    cluster.members[1].liveness = "draining"
    cluster.c.sight.hearing.heard[1].liveness = "alive"                        # not known yet
    cluster.c.sight.on_refused(MaintainerRefused(1, "b", cluster.epoch("b"), "draining"))
    cluster.members[1].maintainers.clear()
    cluster.settle(6)
    place = cluster.c.state.entry("b").place
    assert place is not None
    assert place.capture != 1


def test_C9_a_maintainer_that_never_gets_ready_is_placed_elsewhere(cluster: Cluster) -> None:
    first = cluster.running()["a"]
    cluster.slow = {"a"}
    cluster.ready.discard((first[0], "a"))
    cluster.settle(2)
    assert [b.what for b in cluster.c.blockers()] == ["changefeed a"]
    cluster.settle(int(limits.OPERATOR_S + 6.0) * 2 + 2)
    assert cluster.running()["a"] == first, "it says that it is at it"
    cluster.settle(int(limits.TAKE_OVER_S) * 2)
    assert cluster.running()["a"] != first


def test_C9_a_coordinator_that_hears_fewer_than_half_gives_the_office_away(cluster: Cluster) -> None:
    cluster.cut = {1, 2}
    cluster.settle(10)
    assert not [e for e in cluster.effects if isinstance(e, ReleaseOffice)]
    cluster.settle(6)
    assert cluster.effects == [ReleaseOffice("hears fewer than half of the living captures", 12.0)]


def test_C9_a_silent_capture_is_shown(cluster: Cluster) -> None:
    cluster.cut = {2}
    cluster.settle(16)
    shown = [b for b in cluster.c.blockers() if b.what == "capture 2"]
    assert [(b.owner, b.reason) for b in shown] == [("capture 2", "does not answer")]
    assert shown[0].since == 2.0


def test_C8_a_maintainer_that_gives_up_fails_its_changefeed(cluster: Cluster) -> None:
    error = FeedError(code="sink_denied", kind="fail")
    cluster.c.on_failing(FeedFailing("a", cluster.epoch("a") - 1, error))
    cluster.settle(1)
    assert cluster.c.state.entry("a").state == "normal", "an older one says nothing"
    cluster.c.on_failing(FeedFailing("a", cluster.epoch("a"), error))
    cluster.settle(4)
    assert cluster.c.state.entry("a").error == error
    assert "a" not in cluster.running()


def test_C5_maintainers_are_balanced_when_all_is_quiet() -> None:
    cluster = Cluster("a", "b", "c", "d")
    spare = cluster.members.pop(2)
    cluster.settle(14)
    assert {n for places in cluster.running().values() for n in places} == {0, 1}
    cluster.members[2] = spare
    cluster.write([ChangefeedCreated(ChangefeedSpec(id=f, source="shop", sink="kafka:"), 0) for f in ("e", "f")])
    cluster.members[2].liveness = "draining"
    cluster.settle(4)
    cluster.members[2].liveness = "alive"
    cluster.settle(30)
    counts = [sum(n in places for places in cluster.running().values()) for n in range(3)]
    assert counts == [2, 2, 2]


def test_P7_a_view_is_told_once() -> None:
    cluster = Cluster("a")
    cluster.settle(20)
    pings = [send.message for send in cluster.c.pings(cluster.now)]
    assert all(isinstance(ping, CoordinatorPing) and ping.view is None for ping in pings)


def test_P7_an_answer_that_says_what_was_said_before_is_no_news_unless_something_is_under_way() -> None:
    state = FeedsState()
    c = Coordinator(state, capture=1, token=5, now=0.0, session_s=6.0)

    def answer(at: float, *, dispatchers: int = 3) -> CaptureAnswer:
        return CaptureAnswer(5, 2, 1, at, (5, 1), "alive", (), dispatchers, ())

    assert c.has_news(answer(1.0)), "nothing was heard of it before"
    c.sight.on_answer(answer(1.0))
    assert not c.has_news(answer(1.5))
    assert c.has_news(answer(1.5, dispatchers=4))
    c.ends_since["orders"] = 1.0
    assert c.has_news(answer(1.5)), "a changefeed that ends waits for answers, whatever they say"
