"""Clocks and randomness of one host: the Clock and Random ports.

Each host's clock starts elsewhere and runs at its own rate, so code that compares the clocks of two hosts, or mixes
the port's clock with the loop's, goes wrong here before it does in the field.
"""

from __future__ import annotations

import random
from uuid import UUID

from millrace_sim.loop import VirtualLoop
from millrace_sim.processes import WALL_START_S, Host


class SimClock:
    def __init__(self, loop: VirtualLoop, host: Host) -> None:
        self._loop = loop
        self._host = host

    def now(self) -> float:
        return self._host.clock_offset_s + self._host.loop_time(self._loop.now)

    def wall(self) -> float:
        return WALL_START_S + self._host.loop_time(self._loop.now) + self._host.wall_jump_s


class SimRandom:
    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)

    def uniform(self, a: float, b: float) -> float:
        return self._rng.uniform(a, b)

    def uuid(self) -> UUID:
        return UUID(int=self._rng.getrandbits(128), version=4)
