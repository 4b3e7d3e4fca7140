"""Which faults a seed turns on, how strong, and the points of the code where it strikes.

Swarm testing: each seed switches each kind of fault on or off, so that rare mixes happen and some seeds are quiet in
all but one respect. Faults tied to events ("crash right after the ack") find what timed ones miss.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Faults:
    """0 or False: off. `_every_s` is the mean time between two of a kind."""

    crash_every_s: float = 0.0
    down_mean_s: float = 1.0
    power_cut_every_s: float = 0.0
    power_cut_all: bool = False
    pause_every_s: float = 0.0
    pause_mean_s: float = 2.0
    cut_every_s: float = 0.0
    cut_mean_s: float = 2.0
    one_way: bool = False
    reset_every_s: float = 0.0
    loss: float = 0.0
    latency_mean_s: float = 0.0005
    slow_link_s: float = 0.0
    disk_mean_s: float = 0.001
    slow_disk_s: float = 0.0
    full_disk_every_s: float = 0.0
    sync_failure_every_s: float = 0.0
    scatter: bool = False
    clock_drift: float = 0.0
    wall_jump_every_s: float = 0.0
    points: bool = False
    office_kill_every_s: float = 0.0
    shared_machine: bool = False
    clean_stops: bool = False
    wipe_every_s: float = 0.0

    @classmethod
    def draw(cls, seed: int | str, *, clock_drift_max: float = 0.01) -> Faults:
        rng = random.Random(f"{seed}/faults")

        def some(chance: float, *choices: float) -> float:
            picked = rng.choice(choices)
            return picked if rng.random() < chance else 0.0

        def maybe(chance: float) -> bool:
            return rng.random() < chance

        return cls(
            crash_every_s=some(0.6, 3.0, 6.0, 15.0),
            down_mean_s=rng.choice((0.1, 1.0, 4.0, 8.0)),
            power_cut_every_s=some(0.4, 5.0, 12.0),
            power_cut_all=maybe(0.5),
            pause_every_s=some(0.4, 4.0, 10.0),
            pause_mean_s=rng.choice((0.5, 3.0, 8.0)),
            cut_every_s=some(0.6, 3.0, 8.0),
            cut_mean_s=rng.choice((0.5, 3.0, 9.0)),
            one_way=maybe(0.4),
            reset_every_s=some(0.3, 1.0, 4.0),
            loss=some(0.4, 0.005, 0.05),
            latency_mean_s=rng.choice((0.0003, 0.001, 0.01)),
            slow_link_s=some(0.2, 0.02, 0.1),
            disk_mean_s=rng.choice((0.0005, 0.003, 0.02)),
            slow_disk_s=some(0.2, 0.1, 0.5),
            full_disk_every_s=some(0.15, 8.0),
            sync_failure_every_s=some(0.15, 10.0),
            scatter=maybe(0.3),
            clock_drift=some(0.5, clock_drift_max),
            wall_jump_every_s=some(0.2, 5.0),
            points=maybe(0.5),
            office_kill_every_s=some(0.3, 6.0, 12.0),
            shared_machine=maybe(0.25),
            clean_stops=maybe(0.25),
            wipe_every_s=some(0.2, 4.0, 10.0),
        )

    def names(self) -> list[str]:
        """What is on, for people."""
        return [name for name in self.__slots__ if getattr(self, name)]


class Points:
    """Decides, at each named point of the code, whether the process that reached it dies, and how soon."""

    def __init__(self, seed: int | str) -> None:
        self._seed = seed
        self._rng = random.Random(f"{seed}/points")
        self._chance: dict[str, float] = {}
        self.active = False
        self.seen: dict[str, int] = {}
        self.struck: dict[str, int] = {}

    def reached(self, point: str) -> float | None:
        """None: go on. 0.0: die here. Else: die after so many seconds."""
        self.seen[point] = self.seen.get(point, 0) + 1
        if not self.active or self._rng.random() >= self._chance_of(point):
            return None
        self.struck[point] = self.struck.get(point, 0) + 1
        return 0.0 if self._rng.random() < 0.5 else self._rng.expovariate(200)

    def _chance_of(self, point: str) -> float:
        if point not in self._chance:
            rng = random.Random(f"{self._seed}/points/{point}")
            self._chance[point] = rng.choice((0.0, 0.0, 0.0005, 0.005, 0.03))
        return self._chance[point]

    def strike(self, point: str, chance: float) -> None:
        """Tests set a point's chance themselves."""
        self._chance[point] = chance
        self.active = True
