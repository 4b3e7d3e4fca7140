"""Operators: what is being done to a span, or to a maintainer, as values with named states [C4].

    add     starting ──working──▶ done                     │ lost, refused, too late ──▶ absent
    move    preparing ──prepared──▶ stopping ──origin gone──▶ placed at the destination, then as add
            destination lost: origin gone ──▶ absent; never asked to stop ──▶ dropped;
                              else back to the origin with a raised epoch, or another destination, or wait
    stop    stopping ──gone──▶ closing ──closed──▶ ended   (split, merge: stopping ──all gone──▶ replaced)

In: an operator and what is seen of the places it concerns. Out: the operator to go on with, and what to do.
Promises: an operator only ever asks; it goes on when the effect is REPORTED. The same code serves dispatchers (moves
are warm: the destination is prepared first) and maintainers (moves begin at stopping).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, TypeVar

from millrace.model.feed_messages import DispatcherState
from millrace.model.spans import CaptureId, Place, SpanId

Kind = Literal["add", "move", "stop", "split", "merge"]
State = Literal["starting", "preparing", "stopping", "closing"]
Seen = DispatcherState | Literal["unknown"]
Item = TypeVar("Item", contravariant=True)
K = TypeVar("K")


class Operator(NamedTuple):
    """`since`: of the present state; `begun`: of the whole."""

    kind: Kind
    state: State
    since: float
    begun: float
    reason: str
    destination: Place | None = None             # of a move
    members: tuple[SpanId, ...] = ()             # of a split, merge or stop: all spans that it ends
    epoch: int = 0                               # under which a stop closes the positions

    def turned(self, state: State, now: float) -> Operator:
        return self._replace(state=state, since=now)


class Sight(Protocol[Item]):
    """What the holder of the office sees."""

    def seen(self, item: Item, place: Place) -> Seen: ...

    def lost(self, place: Place) -> bool: ...

    def refused(self, item: Item, place: Place) -> bool: ...

    def schedulable(self, capture: CaptureId) -> bool: ...

    def overdue(self, operator: Operator, seen: Seen) -> bool: ...


class Go(NamedTuple):
    """Go on with this operator (None: it is done) and ask for this; `waits_for`: whom, for people."""

    operator: Operator | None
    ask: tuple[Ask, ...] = ()
    waits_for: str = ""
    shun: CaptureId | None = None


class Ask(NamedTuple):
    what: Literal["prepare", "start", "stop"]
    place: Place


class Absent(NamedTuple):
    """It is nowhere now: the basic scheduler places it again."""

    reason: str
    shun: CaptureId | None = None


class PlaceAt(NamedTuple):
    """Record it there, then go on as an add. `raised`: with a new epoch (the destination's own is used otherwise)."""

    place: Place
    raised: bool
    reason: str


class Redirect(NamedTuple):
    """Look for another destination; none: wait and say so."""

    shun: CaptureId | None
    reason: str


Step = Go | Absent | PlaceAt | Redirect


def add(now: float, reason: str) -> Operator:
    return Operator("add", "starting", now, now, reason)


def move(now: float, destination: Place, reason: str, *, warm: bool) -> Operator:
    return Operator("move", "preparing" if warm else "stopping", now, now, reason, destination)


def advance(operator: Operator, item: K, place: Place, sight: Sight[K], now: float) -> Step:
    """Add and move. `place`: where the item is recorded."""
    if operator.state == "starting":
        return _advance_add(operator, item, place, sight)
    return _advance_move(operator, item, place, sight, now)


def is_gone(item: K, place: Place | None, sight: Sight[K]) -> bool:
    """Nothing of it works there any more, as far as anyone will ever hear."""
    return place is None or sight.lost(place) or sight.seen(item, place) == "gone"


def _advance_add(operator: Operator, item: K, place: Place, sight: Sight[K]) -> Step:
    seen = sight.seen(item, place)
    if seen == "working":
        return Go(None)
    if sight.lost(place):
        return Absent(f"capture {place.capture} was lost")
    if sight.refused(item, place):
        return Absent(f"capture {place.capture} refused", place.capture)
    if sight.overdue(operator, seen):
        return Absent(f"capture {place.capture} did not start it in time", place.capture)
    return Go(operator, (Ask("start", place),), f"capture {place.capture} to start it")


def _advance_move(operator: Operator, item: K, origin: Place, sight: Sight[K], now: float) -> Step:
    destination = operator.destination
    assert destination is not None, "a move has a destination"
    trouble = _trouble(operator, item, destination, sight)
    if trouble:
        return _turn_back(operator, item, origin, sight, trouble)
    stopped = is_gone(item, origin, sight)
    if operator.state == "preparing":
        if stopped or sight.seen(item, destination) == "prepared":
            operator = operator.turned("stopping", now)
        else:
            return Go(operator, (Ask("prepare", destination),), f"capture {destination.capture} to be prepared")
    if stopped:
        return PlaceAt(destination, False, operator.reason)
    asked = (Ask("stop", origin), Ask("prepare", destination))
    return Go(operator, asked, f"capture {origin.capture} to stop at a committed position")


def _trouble(operator: Operator, item: K, destination: Place, sight: Sight[K]) -> str:
    """Why the destination does not count any more, or ""."""
    if sight.lost(destination):
        return f"destination {destination.capture} was lost"
    if sight.refused(item, destination):
        return f"destination {destination.capture} refused"
    if operator.state == "preparing" and sight.overdue(operator, sight.seen(item, destination)):
        return f"destination {destination.capture} was not prepared in time"
    return ""


def _turn_back(operator: Operator, item: K, origin: Place, sight: Sight[K], trouble: str) -> Step:
    assert operator.destination is not None
    shun = operator.destination.capture
    if is_gone(item, origin, sight):
        return Absent(trouble, shun)
    if operator.state == "preparing":                          # the origin was never asked to stop
        return Go(None, waits_for=trouble, shun=shun)
    if sight.schedulable(origin.capture):
        return PlaceAt(origin, True, f"back to the origin: {trouble}")
    return Redirect(shun, trouble)
