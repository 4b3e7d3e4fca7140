"""How hard the world is: drawn once per seed, so that rare and frequent troubles both meet."""

from __future__ import annotations

import random


class Faults:
    """Chances, and mean times between faults in seconds (0: never)."""

    def __init__(self, rng: random.Random, people: random.Random, log: random.Random, odd: random.Random) -> None:
        """`people`, `log`, `odd`: what people change, what the log cuts, and what is rare have chances of their own, so
        that the rest of a seed's world stays as it is."""

        def some(chance: float, *values: float, rng: random.Random = rng) -> float:
            return rng.choice(values) if rng.random() < chance else 0.0

        # messages
        self.loss, self.dup = some(0.7, 0.01, 0.1, 0.3), some(0.5, 0.05, 0.3)
        self.delay_s = rng.choice((0.01, 0.1, 0.6))
        # steps
        self.crash_point, self.answer_lost = some(0.4, 0.002, 0.01), some(0.4, 0.01, 0.05)
        self.hang, self.broken = some(0.4, 0.003, 0.02), some(0.4, 0.2, 0.5)
        self.round_fails, self.round_unknown = some(0.5, 0.02, 0.1), some(0.4, 0.01, 0.05)
        self.ddl_unknown = some(0.4, 0.05, 0.2)
        self.zombie = some(0.6, 0.1, 0.4)                   # a round's task that takes long
        # events
        self.every = {
            "crash": some(0.7, 4, 10, 25), "pause": some(0.5, 6, 15), "cut": some(0.6, 6, 12),
            "store_cut": some(0.4, 8, 20), "all": some(0.1, 20), "feed_pause": some(0.3, 10),
            "sick": some(0.5, 8), "split": some(0.6, 4, 10), "move": some(0.4, 4),
            "update": some(0.5, 5, 12, rng=people), "rewind": some(0.4, 8, 15, rng=people),
        }
        self.of_log = {"log_cut": some(0.6, 0.5, 2, rng=log), "log_release": some(0.4, 6, 12, rng=log),
                       "log_copy": some(0.6, 3, 8, rng=log)}
        self.down_s = rng.choice((1, 4, 12))
        self.late = rng.random() < 0.3                      # some captures join later
        self.forever = rng.random() < 0.4                   # one link never heals
        self.silence = not self.forever and odd.random() < 0.2      # nobody hears one capture, which hears everybody
        self.remove = rng.random() < 0.3                    # one changefeed is removed
        self.proofs = rng.random() < 0.5                    # a dead process is known to be dead [L17]
