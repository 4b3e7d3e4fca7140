"""Clocks of hosts differ in start and rate; randomness is the seed's."""

from __future__ import annotations

import asyncio

from millrace_sim.clock import SimClock, SimRandom
from millrace_sim.kit import Sim


def test_clocks_differ_between_hosts_and_follow_their_rates() -> None:
    sim = Sim(1)
    a, b = sim.add_host("a"), sim.add_host("b")
    a.clock_rate = 1.01
    clock_a, clock_b = SimClock(sim.loop, a), SimClock(sim.loop, b)
    start_a, start_b = clock_a.now(), clock_b.now()
    assert start_a != start_b

    async def main() -> None:
        await asyncio.sleep(100)

    sim.run(main())
    assert round(clock_a.now() - start_a, 3) == 101
    assert round(clock_b.now() - start_b, 3) == 100


def test_wall_time_jumps_and_the_lease_clock_does_not() -> None:
    sim = Sim(1)
    host = sim.add_host("a")
    clock = SimClock(sim.loop, host)
    before = clock.now(), clock.wall()
    host.wall_jump_s = -3600
    assert clock.now() == before[0]
    assert clock.wall() == before[1] - 3600


def test_random_is_a_function_of_its_seed() -> None:
    assert SimRandom("1/a").uuid() == SimRandom("1/a").uuid()
    assert SimRandom("1/a").uuid() != SimRandom("1/b").uuid()
    assert 2 <= SimRandom("x").uniform(2, 3) <= 3
    assert SimRandom("x").uuid().version == 4
