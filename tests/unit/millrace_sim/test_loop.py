"""The virtual loop: time is a value, order is asyncio's, nothing fails unseen."""

from __future__ import annotations

import asyncio

import pytest

from millrace_sim.kit import Sim
from millrace_sim.loop import Deadlock, NotSimulated


def test_time_jumps_to_the_next_timer() -> None:
    sim = Sim(1)

    async def main() -> float:
        await asyncio.sleep(3600)
        return sim.loop.time()

    assert sim.run(main()) == pytest.approx(3600, abs=1e-3)
    assert sim.loop.steps < 10


def test_callbacks_run_in_the_order_they_were_asked_for() -> None:
    sim = Sim(1)
    seen: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in range(5):
            loop.call_soon(seen.append, number)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    sim.run(main())
    assert seen == [0, 1, 2, 3, 4]


def test_waiting_for_ever_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        Sim(1).run(main())


def test_a_failing_callback_stops_the_world() -> None:
    def boom() -> None:
        raise ValueError("planted")

    async def main() -> None:
        asyncio.get_running_loop().call_later(1, boom)
        await asyncio.sleep(100)

    sim = Sim(1)
    with pytest.raises(ValueError, match="planted"):
        sim.run(main())
    assert sim.loop.now == pytest.approx(1, abs=1e-3)


def test_a_failing_task_that_nobody_awaits_stops_the_world() -> None:
    async def boom() -> None:
        await asyncio.sleep(1)
        raise ValueError("planted")

    async def main() -> None:
        asyncio.get_running_loop().create_task(boom())
        await asyncio.sleep(100)

    with pytest.raises(ValueError, match="planted"):
        Sim(1).run(main())


def test_executor_work_runs_inline_after_simulated_time() -> None:
    sim = Sim(1)

    async def main() -> tuple[int, float]:
        return await asyncio.get_running_loop().run_in_executor(None, lambda: 42), sim.loop.now

    value, now = sim.run(main())
    assert value == 42
    assert now > 0


def test_executor_errors_reach_the_caller() -> None:
    def fail() -> None:
        raise OSError(5, "planted")

    async def main() -> None:
        with pytest.raises(OSError, match="planted"):
            await asyncio.to_thread(fail)

    Sim(1).run(main())


@pytest.mark.parametrize("name", ["sock_recv", "add_reader", "subprocess_exec", "create_datagram_endpoint"])
def test_the_real_world_is_refused(name: str) -> None:
    sim = Sim(1)

    async def main() -> None:
        with pytest.raises(NotSimulated, match=name):
            getattr(sim.loop, name)(None)

    sim.run(main())


def test_a_fast_clock_ends_timers_early() -> None:
    sim = Sim(1)
    host = sim.add_host("a")
    host.clock_rate = 1.25
    ended: list[tuple[float, float]] = []

    async def program(ports: object) -> None:
        begun = sim.loop.time()
        await asyncio.sleep(10)
        ended.append((sim.loop.now, sim.loop.time() - begun))

    async def main() -> None:
        sim.start(host, program)
        await asyncio.sleep(20)

    sim.run(main())
    assert ended == [pytest.approx((8.0, 10.0), abs=1e-3)]


def test_a_timer_that_is_always_due_does_not_stop_time() -> None:
    sim = Sim(1)

    def again() -> None:
        sim.loop.call_later(0.0, again)

    async def main() -> None:
        again()
        await asyncio.sleep(0.01)

    sim.run(main())
    assert sim.loop.now < 0.02


def test_equal_times_run_in_the_order_they_were_asked_for() -> None:
    sim = Sim(1)
    seen: list[int] = []

    async def main() -> None:
        for number in range(100):
            sim.loop.call_at(1.0, seen.append, number)
        await asyncio.sleep(2)

    sim.run(main())
    assert seen == list(range(100))


def test_cancelled_timers_are_swept() -> None:
    sim = Sim(1)

    async def main() -> int:
        for _ in range(2000):
            sim.loop.call_later(1000, int).cancel()
            await asyncio.sleep(0.001)
        return len(sim.loop._scheduled)

    assert sim.run(main()) < 500
