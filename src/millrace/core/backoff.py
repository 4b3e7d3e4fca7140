"""Back-off: how long to wait before trying again. One rule for children, readers, copies and the client of the log."""

from __future__ import annotations

from typing import NamedTuple

_DOUBLINGS_MAX = 60     # more make a number that no float holds; every longest wait is reached long before


class Wait(NamedTuple):
    """To be drawn between the two, so that those who failed together do not try together."""

    least_s: float
    most_s: float


def wait_after(failures: int, *, first_s: float, most_s: float) -> Wait:
    """Doubles with each failure in a row, from `first_s` after the first one up to `most_s`."""
    whole_s = min(most_s, first_s * 2 ** min(max(failures - 1, 0), _DOUBLINGS_MAX))
    return Wait(whole_s / 2, whole_s)
