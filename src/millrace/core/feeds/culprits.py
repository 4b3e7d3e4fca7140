"""Which rows break an expression: Spark fails a job as a whole, and says why, but not where [P4].

    rows ─ tried ─▶ all well: none of them
             └───▶ broke: halved, each half tried, until single rows break ─▶ for the quarantine

A generator, so that whoever runs the trials may do it as he likes: it yields ranges to try and is sent why they broke,
or None. Every range is tried before it is blamed: a worker that died once blames nobody.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple


class Culprit(NamedTuple):
    row: int
    why: str


class Culprits(NamedTuple):
    """`more`: there are others. An expression that breaks with so many rows is wrong, not the rows."""

    found: tuple[Culprit, ...]
    more: bool = False


def culprits(count: int, most: int) -> Generator[range, str | None, Culprits]:
    """Among rows 0 to `count`, in order; at most about 2 log2(count) trials for each."""
    found: list[Culprit] = []
    left = [range(count)] if count else []
    while left:
        trial = left.pop()
        why = yield trial
        if why is None:
            continue
        if len(trial) == 1:
            if len(found) == most:
                return Culprits(tuple(found), more=True)
            found.append(Culprit(trial[0], why))
            continue
        middle = len(trial) // 2
        left += [trial[middle:], trial[:middle]]
    return Culprits(tuple(found))
