"""Swarm: each seed switches each kind of fault on or off and draws its strength, so that rare mixtures happen."""

from __future__ import annotations

from random import Random

NEVER = 1e9

# Points of the machines right after which a fault may strike: rare flaws are found there, hardly ever by the clock.
TIED = ("acked", "led", "followed", "appended", "synced", "fetched", "proposed", "decided", "registered")
CUT = "cut"                # only in worlds with retention: the others stay what they were


class Faults:
    def __init__(self, rng: Random) -> None:
        def some(share: float, low: float, high: float) -> float:
            on, value = rng.random() < share, rng.uniform(low, high)
            return value if on else 0.0

        def every(share: float, low: float, high: float) -> float:
            return some(share, low, high) or NEVER

        self.latency_s = rng.choice((0.001, 0.003, 0.01))
        self.loss = some(0.4, 0.005, 0.08)
        self.dup = some(0.4, 0.005, 0.08)
        self.slow = some(0.5, 0.01, 0.15)
        self.slow_s = rng.uniform(0.02, 0.6)
        self.disk_s = rng.choice((0.001, 0.004, 0.02))
        self.drift = rng.choice((0.0, 0.01, 0.01))
        self.crash_every_s = every(0.6, 0.5, 4)
        self.down_s = rng.uniform(0.05, 1.5)
        self.power_share = rng.choice((0.0, 0.5, 1.0))
        self.power_cut_every_s = every(0.35, 1, 5)
        self.pause_every_s = every(0.4, 0.7, 4)
        self.pause_s = rng.uniform(0.2, 1.5)
        self.cut_every_s = every(0.6, 0.5, 3)
        self.cut_s = rng.uniform(0.1, 1.5)
        self.one_way = rng.random() < 0.5
        self.stop_every_s = every(0.25, 1, 5)
        self.suspect_every_s = every(0.3, 0.5, 3)
        self.proof = rng.random() < 0.4
        self.wipe_at_s = rng.uniform(1, 5) if rng.random() < 0.25 else NEVER
        tied = some(0.7, 0.002, 0.03)
        chosen = [name for name in TIED if rng.random() < 0.4]
        self._tied = {name: tied for name in (*chosen, CUT) if tied}
        self.tied: dict[str, float] = {}
        self.tied_kinds = rng.choice((("crash",), ("crash", "pause"), ("crash", "pause", "power_cut"), ("power_cut",)))

    def begin(self) -> None:
        """The cluster is set up: from now on faults may strike."""
        self.tied = self._tied

    def clear(self) -> None:
        """Heal: from now on the world is kind."""
        self.loss = self.dup = self.slow = 0.0
        self.tied = {}
