"""One tenure: placed after it stands, cleaned up to the last, given away when nobody is heard [C1, C9, V9]."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from millrace import limits
from millrace.changefeed.feeds.coordinator_host import CoordinatorHost
from millrace.changefeed.feeds.history import FeedHistory
from millrace.changefeed.members import CaptureInfo
from millrace.changefeed.office import OFFICE, OfficeWriter, read_office
from millrace.core.feeds.effects import Send
from millrace.core.feeds.member import Member
from millrace.core.feeds.office import FeedState
from millrace.errors import NotCoordinator, Unreachable
from millrace.model.changefeeds import (
    ChangefeedSpec,
    CheckpointReached,
    EpochsTaken,
    FeedError,
    SpanRecorded,
)
from millrace.model.feed_messages import (
    CoordinatorPing,
    EndMaintainer,
    FeedFailing,
    MaintainerReport,
    PlaceMaintainer,
)
from millrace.model.spans import TableId, whole
from support_feeds import SESSION_S, Alone, play_alone, spec, until

FEED = "orders"


class Story:
    """A coordinator on capture 1; members that answer it, without links."""

    def __init__(self, a: Alone, writer: OfficeWriter, token: int, members: tuple[int, ...]) -> None:
        self.a, self.writer = a, writer
        self.stood_back: list[float] = []
        self.host = CoordinatorHost(a.around, writer, token, stand_back=self.stood_back.append)
        self.members = {n: Member(n, 1, a.around.now(), session_s=SESSION_S) for n in members}
        self.mute: set[int] = set()
        self.has: dict[int, tuple[str, ...]] = {}            # whose dispatchers a capture has
        self.serving: asyncio.Task[str] | None = None
        a.deliver = self.deliver
        self.live(*members)

    def live(self, *captures: int) -> None:
        self.a.around.living.read([CaptureInfo(n, 1, "", 1, f"127.0.0.1:{n}") for n in captures])

    def deliver(self, send: Send) -> None:
        member, message = self.members.get(send.to), send.message
        if member is None or send.to in self.mute:
            return
        match message:
            case CoordinatorPing():
                reports = [MaintainerReport(feed, epoch, True) for feed, epoch in member.maintainers.items()]
                out = member.on_ping(self.a.around.now(), 1, message, maintainers=reports, dispatchers=0,
                                     feeds=self.has.get(send.to, ()))
            case PlaceMaintainer():
                out = member.on_place(1, message)
            case EndMaintainer():
                out = member.on_end(message)
            case _:
                out = []
        for effect in out:
            if isinstance(effect, Send):
                self.host.receive(effect.message)  # type: ignore[arg-type]

    def has_ended(self) -> bool:
        return self.serving is not None and self.serving.done()

    def place(self) -> tuple[int, int] | None:
        """Where it works as reported: capture, epoch."""
        found = [(n, m.maintainers[FEED]) for n, m in self.members.items() if FEED in m.maintainers]
        return found[0] if len(found) == 1 else None


def play(directory: Path, story: Callable[[Story], Awaitable[None]], *, members: tuple[int, ...] = (1, 2),
         session_s: float = SESSION_S) -> str:
    why: list[str] = []

    async def main(a: Alone) -> None:
        a.around = replace(a.around, session_s=session_s)
        token = await a.plain.acquire(OFFICE, a.me, 60.0)
        s = Story(a, await OfficeWriter.load(a.store, token), token, members)
        s.serving = serving = asyncio.create_task(s.host.serve())
        try:
            await story(s)
        finally:
            if not serving.done():
                serving.cancel()
            why.extend(x for x in await asyncio.gather(serving, return_exceptions=True) if isinstance(x, str))

    play_alone(directory, main)
    return why[0] if why else ""


def test_C2_a_maintainers_epoch_is_durable_before_anybody_is_told(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        told: list[tuple[int, int, int]] = []
        deliver = s.a.deliver

        def watched(send: Send) -> None:
            if isinstance(send.message, PlaceMaintainer):
                told.append((send.to, send.message.epoch, s.writer.index))
            deliver(send)

        s.a.deliver = watched
        await s.host.submit(lambda state: state.create(spec(), wall_ms=1))
        await until(s.place)
        capture, epoch, index = told[0]
        assert (capture, epoch) == s.place()
        place = (await read_office(s.a.plain)).feeds.entry(FEED).place
        assert place is not None
        assert (place.capture, place.incarnation, place.epoch) == (capture, 1, epoch)
        assert index >= 2
        assert FEED in s.host.machine.sight.placed_at, "answers to pings sent before say nothing about it"

    play(tmp_path, story)


def test_C1_a_maintainer_whose_capture_is_gone_is_placed_again_under_a_higher_epoch(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        await s.host.submit(lambda state: state.create(spec(), wall_ms=1))
        await until(s.place)
        first = s.place()
        assert first is not None
        del s.members[first[0]]
        s.a.around.living.gone.add((first[0], 1))
        s.live(*s.members)
        await until(s.place)
        second = s.place()
        assert second is not None
        assert (second[0], second[1]) == (3 - first[0], first[1] + 1)

    play(tmp_path, story, session_s=600.0)                   # the proof of its death is enough


def test_C1_a_new_tenure_goes_on_from_the_records_and_the_answers(tmp_path: Path) -> None:
    async def main(a: Alone) -> None:
        placed: list[tuple[int, int] | None] = []
        members: dict[int, Member] = {}
        for _ in range(2):
            token = await a.plain.acquire(OFFICE, a.me, 60.0)
            s = Story(a, await OfficeWriter.load(a.store, token), token, (1, 2))
            s.members = members = members or s.members
            serving = asyncio.create_task(s.host.serve())
            if not placed:
                await s.host.submit(lambda state: state.create(spec(), wall_ms=1))
            pinged = len(a.said(CoordinatorPing))
            await until(lambda s=s, pinged=pinged: s.place() and len(a.said(CoordinatorPing)) > pinged + 8)  # type: ignore[misc]
            placed.append(s.place())
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        assert placed[0] == placed[1], "it was there, and is left where it is"

    play_alone(tmp_path, main)


def test_C8_a_changefeed_that_fails_is_recorded_so_and_its_maintainer_ended(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        await s.host.submit(lambda state: state.create(spec(), wall_ms=1))
        await until(s.place)
        place = s.place()
        assert place is not None
        error = FeedError(code="sink_denied", kind="fail")
        s.host.receive(FeedFailing(FEED, place[1] - 1, error))        # of a former maintainer: nothing
        s.host.receive(FeedFailing(FEED, place[1], error))
        await until(lambda: s.place() is None)
        assert (await read_office(s.a.plain)).feeds.entry(FEED).error == error

    play(tmp_path, story)


def test_V9_what_is_removed_leaves_an_office_that_is_empty_but_for_its_epochs(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        await s.host.submit(lambda state: state.create(spec(), wall_ms=1))
        await until(s.place)
        place = s.place()
        assert place is not None
        history = await FeedHistory.take(s.a.plain, FEED, s.a.me, place[1])
        await history.append([SpanRecorded(0, whole(TableId("shop", 1), 2)), EpochsTaken(17), CheckpointReached(5)])
        s.has = {2: (FEED,)}
        await s.host.submit(lambda state: state.remove(FEED))
        await until(lambda: s.place() is None)
        pinged = len(s.a.said(CoordinatorPing))
        await until(lambda: len(s.a.said(CoordinatorPing)) > pinged + 8)
        assert s.a.target.removed_at == 0, "something of it is still on capture 2"
        s.has = {}
        await until(lambda: FEED not in s.host.machine.state.feeds)
        assert s.a.target.removed_at == 18
        left = await FeedHistory.take(s.a.plain, FEED, s.a.me, 1_000)
        assert left.state == FeedState(epoch=18)
        await s.host.submit(lambda state: state.create(spec(), wall_ms=2))
        await until(s.place)
        again = s.place()
        assert again is not None
        assert again[1] > place[1]

    play(tmp_path, story)


def test_C8_cleaning_up_is_tried_until_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FEED_RETRY_MIN_S", 0.05)

    async def story(s: Story) -> None:
        tried: list[int] = []
        given: list[int] = []
        remove = s.a.homes.remove

        async def failing(spec: ChangefeedSpec, epoch: int, *, maintainer: int) -> None:
            tried.append(epoch)
            given.append(maintainer)
            if len(tried) < 3:
                raise Unreachable("not now") if len(tried) == 1 else ValueError("a mistake of ours")
            await remove(spec, epoch, maintainer=maintainer)

        s.a.homes.remove = failing  # type: ignore[method-assign]
        await s.host.submit(lambda state: state.create(spec(), wall_ms=1))
        await until(s.place)
        s.a.store.lose["save_snapshot"] = 1
        await s.host.submit(lambda state: state.remove(FEED))
        await until(lambda: FEED not in s.host.machine.state.feeds)
        assert tried == [1, 2, 3, 4], "each attempt under an epoch of its own"
        assert set(given) == {s.host.machine.state.epoch_floor}, "above its maintainers, below whoever comes later"
        left = await FeedHistory.take(s.a.plain, FEED, s.a.me, 1_000)
        assert left.state == FeedState(epoch=4)

    play(tmp_path, story)


def test_C9_a_coordinator_that_hears_too_few_gives_its_office_away(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        s.mute = {2, 3, 4}
        await until(s.has_ended)
        assert s.stood_back == [limits.STAND_BACK_SESSIONS * SESSION_S]

    assert "hears fewer than half" in play(tmp_path, story, members=(1, 2, 3, 4))


def test_C1_a_write_without_answer_ends_the_tenure(tmp_path: Path) -> None:
    async def story(s: Story) -> None:
        s.a.store.lose["append"] = 1
        with pytest.raises(NotCoordinator):
            await s.host.submit(lambda state: state.create(spec(), wall_ms=1))
        assert "a write failed" in await s.writer.failed
        await until(s.has_ended)
        assert s.a.said(PlaceMaintainer) == []

    assert "coordinator" in play(tmp_path, story)
