"""The changefeeds' part of one capture: whom it obeys, what it answers, when it ends itself [C1, C2, C9]."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millrace import limits
from millrace.changefeed.feeds.capture import FeedCapture
from millrace.changefeed.feeds.post import Post
from millrace.changefeed.members import CaptureInfo, Membership
from millrace.core.feeds.effects import Send
from millrace.core.feeds.feeds import office
from millrace.errors import MillraceError
from millrace.model.changefeeds import FeedError
from millrace.model.feed_messages import (
    CaptureAnswer,
    CoordinatorPing,
    EndMaintainer,
    FeedFailing,
    FeedMessages,
    MaintainerRefused,
    PlaceMaintainer,
    PrepareDispatcher,
    View,
)
from millrace.model.spans import TableId, whole
from support_feeds import CLUSTER, HEARTBEAT_S, SESSION_S, Alone, play_alone, until
from support_ports import free_port
from support_secret import LINK_KEY

FEED, OTHER = "orders", 9


class Elsewhere:
    """An office that another capture holds, or nobody."""

    def __init__(self, holder: int | None = OTHER) -> None:
        self.holder_id = holder

    def stand_back(self, for_s: float) -> None:
        raise AssertionError("it is not in office")


class Story:
    """Capture 1 under test; capture 9 is the test's own, by a link of its own, and says what a coordinator would."""

    def __init__(self, a: Alone, office: Elsewhere, session_s: float) -> None:
        self.a, self.office = a, office
        self.put_out: list[MillraceError] = []
        self.heard: list[FeedMessages] = []
        self.capture = FeedCapture(
            me=a.me, incarnation=5, cluster_id=CLUSTER, session_s=session_s, ports=a.ports, store=a.store,
            homes=a.homes, dispatching=a.dispatching, put_out=self.put_out.append, heartbeat_s=HEARTBEAT_S,
            link_key=LINK_KEY)
        self.port = free_port()
        self.other = Post(OTHER, 1, CLUSTER, a.ports, lambda _, message: self.heard.append(message), link_key=LINK_KEY)
        self.infos = [CaptureInfo(1, 5, "", 1, f"127.0.0.1:{self.port}"),
                      CaptureInfo(OTHER, 1, "", 1, f"127.0.0.1:{free_port()}", a.ports.processes.me())]
        self.leases = [Membership(a.plain, a.ports, info, session_s=60.0, lost=self.put_out.append)
                       for info in self.infos]

    async def begin(self) -> None:
        for lease in self.leases:
            await lease.start()
        await self.other.listen("127.0.0.1", int(self.infos[1].link.rpartition(":")[2]))
        await self.capture.start(self.office, "127.0.0.1", self.port)
        self.other.reach(self.infos)
        await until(lambda: self.capture.around.living.captures == {1: 5, OTHER: 1})

    async def end(self) -> None:
        await self.capture.stop()
        await self.other.close()
        for lease in self.leases:
            await lease.stop()

    def say(self, message: FeedMessages) -> None:
        self.other.send(Send(1, message))

    def heard_of(self, kind: type) -> list[FeedMessages]:
        return [message for message in self.heard if isinstance(message, kind)]

    async def answered(self, token: int, *, view: View | None = None) -> CaptureAnswer:
        """The answer to a ping of this token that was sent from now on."""
        sent_at = self.a.around.now()

        def found() -> list[CaptureAnswer]:
            return [m for m in self.heard if isinstance(m, CaptureAnswer) and m.ping_sent_at == sent_at]

        def has_come() -> bool:
            self.say(CoordinatorPing(token, sent_at, None, view))
            return bool(found())

        await until(has_come)
        return found()[0]


def play(directory: Path, story: Callable[[Story], Awaitable[None]], *, office: Elsewhere | None = None,
         session_s: float = SESSION_S) -> None:
    async def main(a: Alone) -> None:
        s = Story(a, office or Elsewhere(), session_s)
        await s.begin()
        try:
            await story(s)
        finally:
            await s.end()

    play_alone(directory, main)


def test_C1_a_ping_is_answered_with_what_is_here(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        await s.a.created(FEED)
        view = View(4, 1, schedulable=((1, 5),), living=(1,), running={FEED: 3}, epochs_upto=3)
        answer = await s.answered(4, view=view)
        assert (answer.capture, answer.incarnation, answer.view_seen) == (1, 5, (4, 1))
        assert (answer.maintainers, answer.dispatchers, answer.feeds) == ((), 0, ())
        s.say(PlaceMaintainer(4, FEED, 3, 5))
        await until(lambda: FEED in s.capture.maintainers and s.capture.maintainers[FEED].ready)
        await until(lambda: FEED in s.capture.managers and s.capture.managers[FEED].machine.held)
        answer = await s.answered(4)
        assert answer.maintainers == ((FEED, 3, True),)
        assert answer.dispatchers >= 1
        assert answer.feeds == (FEED,)

    play(tmp_path, story)


def test_C1_a_former_coordinator_and_another_incarnations_commands_change_nothing(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        await s.a.created(FEED)
        await s.answered(4)
        s.say(PlaceMaintainer(3, FEED, 3, 5))
        s.say(PlaceMaintainer(4, FEED, 3, 4))
        await s.answered(4)
        assert not s.capture.maintainers
        s.say(PlaceMaintainer(4, FEED, 3, 5))
        await until(lambda: FEED in s.capture.maintainers and s.capture.maintainers[FEED].machine)
        host = s.capture.maintainers[FEED]
        s.say(EndMaintainer(3, FEED, 3, 5))
        await s.answered(4)
        assert FEED in s.capture.maintainers
        s.say(EndMaintainer(4, FEED, 3, 5))
        await until(lambda: FEED not in s.capture.maintainers and host.machine is None)
        s.say(PlaceMaintainer(4, FEED, 3, 5))
        assert (await s.answered(4)).maintainers == (), "ended is ended"

    play(tmp_path, story)


def test_C2_a_maintainer_that_is_not_granted_its_office_is_reported_gone(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        await s.a.created(FEED)
        await s.a.plain.grant(office(FEED), s.a.me, 8)
        s.say(PlaceMaintainer(4, FEED, 3, 5))
        await until(lambda: s.capture.member.token == 4)
        await until(lambda: FEED not in s.capture.maintainers)
        assert (await s.answered(4)).maintainers == ()

    play(tmp_path, story)


def test_C1_a_maintainer_that_has_not_replayed_its_office_is_reported_as_not_ready(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        await s.a.created(FEED)
        s.a.store.refuse["grant"] = 1_000
        await s.answered(4)
        s.say(PlaceMaintainer(4, FEED, 3, 5))
        await until(lambda: FEED in s.capture.maintainers)
        assert (await s.answered(4)).maintainers == ((FEED, 3, False),)

    play(tmp_path, story)


def test_C2_a_later_maintainer_on_the_same_capture_replaces_the_earlier_one(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        await s.a.created(FEED)
        hosts = []
        for epoch in (3, 4):
            s.say(PlaceMaintainer(4, FEED, epoch, 5))
            await until(lambda epoch=epoch: FEED in s.capture.maintainers  # type: ignore[misc]
                        and s.capture.maintainers[FEED].epoch == epoch and s.capture.maintainers[FEED].machine)
            hosts.append(s.capture.maintainers[FEED])
        await until(lambda: hosts[0].machine is None)
        assert hosts[1].machine is not None
        holder = await s.a.plain.holder(office(FEED))
        assert holder is not None
        assert holder.token == 4

    play(tmp_path, story)


def test_D6_a_capture_that_stops_refuses(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        s.capture.member.liveness = "stopping"
        await s.answered(4)
        s.say(PlaceMaintainer(4, FEED, 3, 5))
        s.say(PrepareDispatcher(FEED, 3, 5, 0, whole(TableId("shop", 1), 1), 2))
        await until(lambda: s.heard_of(MaintainerRefused))
        assert not s.capture.maintainers
        await until(lambda: FEED in s.capture.managers)
        assert not s.capture.managers[FEED].machine.held

    play(tmp_path, story)


def test_C8_a_failing_changefeed_is_told_to_whoever_is_coordinator_now(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        await s.a.created(FEED)
        view = View(4, 1, schedulable=((1, 5),), living=(1,), running={FEED: 3}, epochs_upto=3)
        await s.answered(4, view=view)
        s.say(PlaceMaintainer(4, FEED, 3, 5))

        def at_work() -> bool:
            return FEED in s.capture.managers and bool(s.capture.managers[FEED].free())

        await until(at_work)
        s.a.dispatching.taken.clear()                            # nobody else works with them
        manager = s.capture.managers[FEED]
        await until(at_work)
        work = manager.free()[0]
        error = FeedError(code="sink_denied", kind="fail", table=work.span.table, span=work.dispatcher.span)
        manager.begin([work.dispatcher.span])
        manager.ended(work.dispatcher, error=error)
        await until(lambda: FeedFailing(FEED, 3, error) in s.heard)

    play(tmp_path, story)


def test_C9_a_capture_that_the_coordinator_does_not_hear_is_put_out(tmp_path: Path) -> None:
    session_s = 0.3

    async def story(s: Story) -> None:
        began = s.a.around.now()
        await until(lambda: s.put_out)
        assert s.a.around.now() - began > (limits.PUT_OUT_SESSIONS - 1) * session_s
        assert "has not heard this capture" in str(s.put_out[0])

    play(tmp_path, story, session_s=session_s)


@pytest.mark.parametrize("holder", [OTHER, None])
def test_C9_a_capture_that_is_heard_or_without_coordinator_is_not_put_out(tmp_path: Path, holder: int | None) -> None:
    session_s = 0.3

    async def story(s: Story) -> None:
        sent, began = [s.a.around.now()], s.a.around.now()

        def has_been_long() -> bool:
            if s.office.holder_id is not None:
                now = s.a.around.now()
                s.say(CoordinatorPing(4, now, sent[-1], None))
                sent.append(now)
            return s.a.around.now() - began > 2 * limits.PUT_OUT_SESSIONS * session_s

        await until(has_been_long)
        assert s.put_out == []

    play(tmp_path, story, office=Elsewhere(holder), session_s=session_s)


@pytest.mark.parametrize("link", ["", "127.0.0.1:1"])
def test_C5_captures_without_links_and_gone_ones_are_not_counted(tmp_path: Path, link: str) -> None:
    async def story(a: Alone) -> None:
        living = a.around.living
        dead = a.ports.processes.me()._replace(start_time=1)
        living.read([CaptureInfo(3, 7, "", 1, link, dead), CaptureInfo(4, 7, "", 1, "h:1", a.ports.processes.me())])
        assert living.captures == ({3: 7, 4: 7} if link else {4: 7})
        living.look(a.ports)
        assert living.captures == {4: 7}
        assert living.gone == ({(3, 7)} if link else set())
        living.read([CaptureInfo(3, 7, "", 1, link, dead)])
        assert living.captures == {}, "its lease is only not over yet"

    play_alone(tmp_path, story)
