"""Rules that can be switched off, one at a time, to show that the checkers notice.

Those of the product's machines are declared beside them; the rest are rules of what surrounds the machines (store,
fence, home of positions, rounds), which this world plays itself.
"""

from __future__ import annotations

from millrace.core.feeds import (
    barrier,
    captures,
    coordinator,
    feeds,
    ledger,
    maintainer,
    manager,
    member,
    placing,
    releasing,
    rewinding,
    settling,
)

AROUND = {
    "token": "the store takes records of any token, at any index [L18]",
    "fence": "a take-over does not fence the former writer at the target [C3, L28]",
    "commit_any": "a commit does not compare epoch and position [P3]",
    "barrier_early": "dispatchers go on beyond a marker before the change has passed [C7]",
    "floor_early": "a floor moves to where a round will have come, before that is committed [F10]",
    "floor_dropped": "a floor goes when its span is placed again, split or merged [F10]",
    "scan": "a take-over does not look what the former writer left [V11]",
}

FLAWS = {
    **AROUND, **barrier.FLAWS, **captures.FLAWS, **coordinator.FLAWS, **feeds.FLAWS, **ledger.FLAWS, **maintainer.FLAWS,
    **manager.FLAWS, **member.FLAWS, **placing.FLAWS, **releasing.FLAWS, **rewinding.FLAWS, **settling.FLAWS,
}
