"""Captures live by leases: of two with one id the one that lives stays, and everybody sees who lives [C1]."""

from __future__ import annotations

import asyncio

import pytest

from millrace.changefeed.members import CaptureInfo, Membership, living
from millrace.errors import MemberHeld, MillraceError, StaleIncarnation
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
        info = CaptureInfo(number, incarnation, f"h:{number}", 7, host=f"machine-{host}")
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


@pytest.mark.parametrize("one_machine", [True, False])
@pytest.mark.parametrize("incarnation", [4, 5, 6])
def test_C1_a_second_process_of_a_living_capture_is_refused(one_machine: bool, incarnation: int) -> None:
    """Whichever of their clocks is ahead."""

    async def story(w: World) -> None:
        w.boot(0, 1)
        first, second = Member(w, 0, number=0, incarnation=5), Member(w, 1, number=0, incarnation=incarnation)
        await first.membership.start()
        began = w.sim.loop.time()
        with pytest.raises(MemberHeld) as refused:
            await second.membership.start()
        assert w.sim.loop.time() - began < SESSION_S / 2
        for said in ("capture 0", "process 7 on machine-0", "HTTP h:0", "0.", "s ago", "another --id"):
            assert said in str(refused.value)
        await second.membership.stop()
        await asyncio.sleep(3 * SESSION_S)
        assert not first.lost
        assert first.membership.valid
        assert await second.ids() == [(0, 5)]
        await first.membership.stop()

    play(story, one_machine=one_machine)


def test_C1_a_capture_that_is_provably_gone_is_replaced_at_once() -> None:
    async def story(w: World) -> None:
        w.boot(0, 1)
        old, new = Member(w, 0, number=0, incarnation=5), Member(w, 1, number=0, incarnation=6)
        await old.membership.start()
        w.crash(0)
        began = w.sim.loop.time()
        await new.membership.start()
        assert w.sim.loop.time() - began < 0.1
        assert await new.ids() == [(0, 6)]
        await new.membership.stop()
        await old.membership.stop()

    play(story)


def test_C1_a_capture_of_a_lost_machine_is_replaced_when_its_lease_ends() -> None:
    async def story(w: World) -> None:
        w.boot(0, 1)
        old, new = Member(w, 0, number=0, incarnation=5), Member(w, 1, number=0, incarnation=6)
        await old.membership.start()
        w.store.cut("c0")
        starting = asyncio.create_task(new.membership.start())
        await asyncio.sleep(SESSION_S / 2)
        assert "process 7 on machine-0" in new.membership.waits
        assert not new.membership.valid
        await asyncio.sleep(SESSION_S / 2 + 0.5)
        assert starting.done()
        assert (new.membership.waits, new.membership.valid) == ("", True)
        w.store.heal("c0")
        await w.until(lambda: old.lost)
        assert isinstance(old.lost[0], StaleIncarnation)
        assert not old.membership.valid
        assert not new.lost
        assert await new.ids() == [(0, 6)]
        await old.membership.stop()
        assert await new.ids() == [(0, 6)]
        await new.membership.stop()

    play(story, one_machine=False)


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
