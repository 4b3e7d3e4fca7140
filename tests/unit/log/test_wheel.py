"""Deadlines behind one timer."""

from __future__ import annotations

import asyncio

from millrace.log.wheel import SLOT_S, DeadlineWheel
from millrace.ops.real import BootClock


class Thing:
    def __init__(self) -> None:
        self.expired_at: list[float] = []

    def expire(self, now: float) -> None:
        self.expired_at.append(now)


def test_nothing_expires_early_or_more_than_two_slots_late() -> None:
    async def main() -> None:
        clock = BootClock()
        wheel = DeadlineWheel(clock, asyncio.get_running_loop())
        start = clock.now()
        delays = [0.31, 0.02, 0.11, 0.02, 0.2]
        things = [(start + d, Thing()) for d in delays]
        for deadline, thing in things:
            wheel.add(deadline, thing)
        async with asyncio.timeout(10):
            while not all(thing.expired_at for _, thing in things):
                await asyncio.sleep(0.005)
        for deadline, thing in things:
            assert len(thing.expired_at) == 1
            assert thing.expired_at[0] >= deadline
        order = [t.expired_at[0] for _, t in sorted(things, key=lambda x: x[0])]
        assert order == sorted(order)
        wheel.close()

    asyncio.run(main())


def test_a_thing_may_register_again_while_it_expires() -> None:
    async def main() -> None:
        clock = BootClock()
        wheel = DeadlineWheel(clock, asyncio.get_running_loop())

        class Again(Thing):
            def expire(self, now: float) -> None:
                super().expire(now)
                if len(self.expired_at) < 3:
                    wheel.add(now + SLOT_S, self)

        again = Again()
        wheel.add(clock.now(), again)
        async with asyncio.timeout(10):
            while len(again.expired_at) < 3:
                await asyncio.sleep(0.005)
        wheel.close()

    asyncio.run(main())


def test_an_empty_or_closed_wheel_has_no_timer() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        wheel = DeadlineWheel(BootClock(), loop)
        assert not loop._scheduled  # type: ignore[attr-defined]
        wheel.add(BootClock().now() + 60, Thing())
        wheel.close()
        assert all(handle.cancelled() for handle in loop._scheduled)  # type: ignore[attr-defined]

    asyncio.run(main())
