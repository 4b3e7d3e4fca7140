"""How a dispatcher stands, from the take-overs of its partitions, and what that means after a round [P5, V11, K3].

    WORKING ──a part was superseded, or must be taken over again──▶ GONE: placed again under another epoch, or nowhere
       ├──position missing, target gone, a scan cannot prove──▶ LASTING: a person decides, told as the error of a round
       └──as asked──▶ STOPPED

In: why its parts have ended, if they have. Out: one word for all of them; the worst speaks.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple

from millrace.core.delivery.takeover_asks import Why


class Standing(Enum):
    WORKING = auto()
    STOPPED = auto()
    LASTING = auto()
    GONE = auto()


# The code under which people read of it (core.feeds.states knows what each does to the changefeed).
CODES = {Why.MISSING: "position_missing", Why.CANNOT_PROVE: "cannot_prove", Why.TARGET_GONE: "target_topic_gone"}
_ORDER = (Why.SUPERSEDED, Why.AGAIN, Why.TARGET_GONE, Why.CANNOT_PROVE, Why.MISSING, Why.STOPPED)
_STANDINGS = {Why.SUPERSEDED: Standing.GONE, Why.AGAIN: Standing.GONE, Why.TARGET_GONE: Standing.LASTING,
              Why.CANNOT_PROVE: Standing.LASTING, Why.MISSING: Standing.LASTING, Why.STOPPED: Standing.STOPPED}


class Stands(NamedTuple):
    """`why` and `detail`: of the part that speaks."""

    standing: Standing
    why: Why | None = None
    detail: str = ""


def stands(parts: Iterable[tuple[Why | None, str]]) -> Stands:
    ended = {why: detail for why, detail in parts if why is not None}
    for why in _ORDER:
        if why in ended:
            return Stands(_STANDINGS[why], why, ended[why])
    return Stands(Standing.WORKING)


class Over(Enum):
    """What whoever placed it is told of its round."""

    COMMITTED = auto()
    FAILED = auto()          # with the error: it waits, then tries again
    UNKNOWN = auto()         # it goes [P5]


def round_over(standing: Standing, *, stopped: bool, failed: bool) -> Over:
    """`stopped`: somebody wants it to end, and it ends with this round whatever that has brought."""
    if stopped:
        return Over.COMMITTED
    if standing is Standing.GONE:
        return Over.UNKNOWN
    return Over.FAILED if failed else Over.COMMITTED
