"""Captures live by leases: of two with one id the later stays, and everybody sees who lives [C1]."""

from __future__ import annotations

import asyncio

from millrace.changefeed.members import CaptureInfo, Membership, living
from millrace.errors import MillraceError, StaleIncarnation
from millrace_sim.store import MemoryStore
from support_coordinator import World, play

SESSION_S = 6.0


class Member:
    def __init__(self, w: World, host: int, *, number: int, incarnation: int) -> None:
        self.lost: list[MillraceError] = []
        process = w.hosts[host].process
        assert process is not None
        ports = w.sim.ports(process)
        self.store = MemoryStore(w.store, ports, host=f"c{host}")
        info = CaptureInfo(number, incarnation, f"h:{number}", 7)
        self.membership = Membership(self.store, ports, info, session_s=SESSION_S, lost=self.lost.append)

    async def ids(self) -> list[tuple[int, int]]:
        return [(info.id, info.incarnation) for info in await living(self.store)]


def test_C1_living_captures_are_seen_and_a_stopped_one_is_gone_at_once() -> None:
    async def story(w: World) -> None:
        w.boot(0, 1)
        a, b = Member(w, 0, number=0, incarnation=5), Member(w, 1, number=1, incarnation=6)
        await a.membership.start()
        await b.membership.start()
        await asyncio.sleep(5 * SESSION_S)
        assert await a.ids() == [(0, 5), (1, 6)]
        assert a.membership.valid
        await b.membership.stop()
        assert await a.ids() == [(0, 5)]
        assert not b.membership.valid
        await a.membership.stop()

    play(story)


def test_C1_a_later_process_of_the_same_capture_ends_the_earlier_one() -> None:
    async def story(w: World) -> None:
        w.boot(0, 1)
        old, new = Member(w, 0, number=0, incarnation=5), Member(w, 1, number=0, incarnation=6)
        await old.membership.start()
        await new.membership.start()
        await w.until(lambda: old.lost)
        assert isinstance(old.lost[0], StaleIncarnation)
        assert not old.membership.valid
        assert not new.lost
        assert await new.ids() == [(0, 6)]
        await old.membership.stop()
        await new.membership.stop()

    play(story)


def test_C1_a_clock_that_was_set_back_keeps_no_capture_from_starting() -> None:
    async def story(w: World) -> None:
        w.boot(0, 1)
        before = Member(w, 0, number=0, incarnation=1_794_800_000_000)
        await before.membership.start()
        await before.membership.stop()
        after = Member(w, 1, number=0, incarnation=1_700_000_000_000)
        await after.membership.start()
        assert after.membership.info.incarnation > 1_794_800_000_000
        await after.membership.stop()

    play(story)
