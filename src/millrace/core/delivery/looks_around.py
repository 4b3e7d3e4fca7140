"""Looks of dispatchers between rounds: who may look now, and which look that has ended is a reason for a pass [P7, C9].

    a pass over all ──begin──▶ a look under way ──ended──▶ a reason? ──yes──▶ a pass over all
         │ no room ──▶ WAITING (its work waits for it): any end is a reason
         └─────────▶ PUT OFF (it only looks around): the end of all looks is one

In: passes, who looks, who waits, ends of looks and how their dispatchers stand then. Out: whether one may look, whether
there is to be a pass. Promises: whoever could do something behind the end of a look is passed over then: nobody else
may come for a minute. Hundreds that look around and find what they knew are no reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millrace import limits
from millrace.core.sources.reader import NO_FLAWS
from millrace.model.spans import Dispatcher

# Switches of the tests, each plants one mistake; production passes none.
FLAWS = {
    "own_look": "who had to look before it could plan is not woken by the end of its look",
    "well_again": "who told of an error and is well says so at the next pass, whenever that comes",
    "no_room": "who found no room for a look that it has to take is forgotten",
    "put_off": "who found no room to look around is forgotten",
}


class Behind(NamedTuple):
    """How a dispatcher stands behind a look. `erring`: whoever placed it was told of an error last. `untold`: it met
    with something that is to be told. `may_plan`: all its parts are ready. `must_look`: before anything is planned."""

    erring: bool
    untold: bool
    may_plan: bool
    must_look: bool


class LooksAround:
    __slots__ = ("_flaws", "_put_off", "_under_way", "_waiting")

    def __init__(self, flaws: frozenset[str] = NO_FLAWS) -> None:
        self._flaws = flaws
        self._under_way: dict[Dispatcher, bool] = {}     # whether it has to: what it is to do waits for its look
        self._waiting = self._put_off = False

    def pass_begins(self) -> None:
        self._waiting = self._put_off = False

    def waits(self) -> None:
        """Somebody cannot be planned: maybe it looks."""
        self._waiting = True

    def begin(self, dispatcher: Dispatcher, *, has_to: bool) -> bool:
        """Whether there is room. It looks from here on until `ended`."""
        if len(self._under_way) < limits.IDLE_LOOKS_MAX:
            self._under_way[dispatcher] = has_to
            return True
        if has_to:
            self._waiting = self._waiting or "no_room" not in self._flaws
        else:
            self._put_off = "put_off" not in self._flaws
        return False

    def ended(self, dispatcher: Dispatcher, behind: Behind, *, failed: bool) -> bool:
        """Whether there is to be a pass."""
        had_to = self._under_way.pop(dispatcher, False) and "own_look" not in self._flaws
        return self.all_ended((behind,), failed=failed) or had_to

    def all_ended(self, looked: Iterable[Behind], *, failed: bool) -> bool:
        """The same for a look of many together."""
        more = self._put_off and not self._under_way
        return failed or more or self._waiting or any(map(self._is_news, looked))

    def _is_news(self, one: Behind) -> bool:
        well_again = one.erring and "well_again" not in self._flaws
        return well_again or one.untold or not one.may_plan or one.must_look
