"""Writing one source partition's rows to its targets, inside a task: always a prefix per target [K5, P2, P5, P9].

    claiming ──granted──▶ writing ──all delivered──▶ done
        │                  │  └──sending time over, all settled──▶ partial: stored as far as it goes
        └──refused──▶ unknown ◀── deadline with something unsettled · fenced · whatever cannot be proved

In: the plan, pieces in the order of the source, answers, time. Out: what to send now, at last the result.
Promise: after a refusal nothing is sent until everything under way is settled, then the rest in order; a row that
cannot be written is in the quarantine before anything later is sent; the result claims only what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millrace.core.delivery.pieces import Item, Pieces, Send, State
from millrace.core.sources.reader import NO_FLAWS
from millrace.errors import (
    DiskFull,
    InvalidRecord,
    LeaderNotAvailable,
    MessageTooLarge,
    MillraceError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OutOfOrderSequence,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
    Unreachable,
)
from millrace.limits import PRODUCER_BATCHES_KEPT, WRITE_WINDOW
from millrace.model.ids import TopicPartition
from millrace.model.positions import Claim, Point, TargetEnd
from millrace.model.writes import Delivered, NextSequence, Outcome, WritePlan, WriteResult

# Switches of the simulation, each plants one mistake; production passes none.
FLAWS = {
    "prefix": "later rows go on after a refusal [K5]",
    "quarantine_first": "the flow goes on before the quarantine has answered [P9]",
    "doubt": "a sequence without an answer is given to other rows [K5]",
}

POISON = (MessageTooLarge, InvalidRecord)
# Said before anything is appended. NotLeader is not among them: a leader says it also of batches it had appended.
REFUSED = (NotEnoughReplicas, LeaderNotAvailable, DiskFull, UnknownTopicOrPartition, UnknownTopicId)
IN_DOUBT = (NotLeader, NotEnoughReplicasAfterAppend, RequestTimedOut, Unreachable)


class Piece(NamedTuple):
    """Rows that share one batch, message by message: a row with two messages stands there twice. `poison`: why its one
    row cannot be written, known before it is sent."""

    target: TopicPartition
    points: Sequence[Point]
    poison: str = ""


class Writing:
    __slots__ = (
        "_claimed", "_deadline", "_flaws", "_handed", "_pieces", "_said", "_sending_until", "_settling", "_window",
        "claim", "plan", "result",
    )

    def __init__(
        self, plan: WritePlan, *, execution: int, sending_until: float, deadline: float, window: int = WRITE_WINDOW,
        flaws: frozenset[str] = NO_FLAWS,
    ) -> None:
        """`sending_until`: well before `deadline`; the rest is for answers, else every full round would end unknown."""
        self.plan, self._flaws, self._window = plan, flaws, window
        self.claim = Claim(plan.epoch, *plan.from_, plan.round, execution)
        self.result: WriteResult | None = None
        self._sending_until, self._deadline = sending_until, deadline
        self._claimed = self._settling = False
        self._said = ""                     # the last refusal, for people
        self._handed = plan.from_
        self._pieces = Pieces({TopicPartition(s.topic_id, s.partition): s.sequence for s in plan.sequences})

    # -- in ------------------------------------------------------------------------------------------------------------
    def claimed(self) -> None:
        self._claimed = True

    def claim_refused(self, why: str) -> None:
        """Also when no answer came: who is not sure to have the claim writes nothing [P5]."""
        if not self._claimed and self.result is None:
            self._finish("unknown", why)

    def offer(self, piece: Piece) -> None:
        """In the order of the source, per target. Only to what this epoch has fenced [V11]."""
        assert piece.target in self.plan.partitions, f"{piece.target} is not in the plan"
        assert not piece.poison or len(piece.points) == 1
        self._pieces.add(self.plan.quarantine if piece.poison else piece.target, piece.points, piece.poison)

    def handed(self, upto: Point) -> None:
        """Every row before `upto` has been offered, or is skipped."""
        self._handed = upto

    # -- out -----------------------------------------------------------------------------------------------------------
    def sends(self, now: float) -> list[Send]:
        """What to send now; or it ends the writing. Ask again after every answer, and when time has passed."""
        if self.result is not None:
            return []
        if now >= self._deadline:
            self._give_up("the deadline has passed")
            return []
        if not self._claimed or (self._settling and not self._settle()):
            return []
        found = self._pick(may_begin=now < self._sending_until)
        if not self._pieces.out and self.result is None:
            self._end_if_over(now)
        return found

    def _pick(self, *, may_begin: bool) -> list[Send]:
        found: list[Send] = []
        pieces = self._pieces
        for item in list(self._in_turn()):
            if item.poison and (pieces.out or item.state is State.SENT):
                break               # alone: all before it is settled, nothing goes on before it is
            if item.state is not State.WAITING:
                continue
            if pieces.out >= self._window or pieces.out_of[item.target] >= PRODUCER_BATCHES_KEPT:
                break               # the log recognises so many repeats
            if not may_begin and not item.doubts:
                continue            # only what must be settled
            found.append(pieces.send(item))
            if item.poison and "quarantine_first" not in self._flaws:
                break
            if item.poison:
                pieces.settled(item, State.DELIVERED)
        return found

    def _in_turn(self) -> list[Item]:
        items = list(self._pieces.undelivered())
        return sorted(items, key=lambda item: item.attempt > 0) if "prefix" in self._flaws else items

    # -- answers -------------------------------------------------------------------------------------------------------
    def answered(self, send: Send, answer: int | MillraceError) -> None:
        """The offset of its first row, once it is below the high watermark; or why not."""
        item = self._pieces.get(send.number)
        if self.result is not None or item is None or item.is_delivered:
            return
        if not isinstance(answer, IN_DOUBT):
            item.doubts -= 1
        if isinstance(answer, int):
            item.offset, item.doubts = answer, 0
            self._pieces.settled(item, State.DELIVERED)
        elif item.state is State.SENT and send.attempt == item.attempt:
            self._refused(item, answer)

    def _refused(self, item: Item, error: MillraceError) -> None:
        self._settling = True
        self._said = f": {error.code}: {error}"
        if isinstance(error, (*IN_DOUBT, *REFUSED)) or self._is_gap(item, error):
            self._pieces.settled(item, State.WAITING)
            if "prefix" in self._flaws and not isinstance(error, IN_DOUBT):
                self._pieces.hand_back((item,))
        elif isinstance(error, POISON) and not item.poison and (not item.doubts or "doubt" in self._flaws):
            self._pieces.settled(item, State.TOO_LARGE)
            item.why = f"{error.code}: {error}"
        else:                       # fenced; or too large now, while an earlier copy may have been taken
            self._finish("unknown", f"{error.code}: {error}")

    def _is_gap(self, item: Item, error: MillraceError) -> bool:
        """A piece before it has failed. At the head of its target a gap contradicts what we know."""
        return isinstance(error, OutOfOrderSequence) and not self._pieces.is_first_of_target(item)

    def _settle(self) -> bool:
        """Whether everything under way has been answered; then what was too large makes room for the rest."""
        pieces = self._pieces
        if pieces.out and "prefix" not in self._flaws:
            return False
        self._settling = False
        for item in [item for item in pieces.undelivered() if item.state is State.TOO_LARGE]:
            if not pieces.close_up(item):
                if "doubt" not in self._flaws:
                    self._finish("unknown", "behind a refused piece stands one in doubt")
                    return False
                pieces.hand_back(i for i in pieces.undelivered() if i.target == item.target)
            middle = _middle(item.points)
            if middle:
                halves = (item.points[:middle], item.points[middle:])
                pieces.replace(item, [(item.target, points, "") for points in halves])
            else:
                pieces.replace(item, [(self.plan.quarantine, item.points[:1], item.why)])
        return True

    # -- the end -------------------------------------------------------------------------------------------------------
    def _end_if_over(self, now: float) -> None:
        if self._handed == self.plan.to and next(self._pieces.undelivered(), None) is None:
            self._finish("done")
        elif now >= self._sending_until:
            self._give_up("the time for sending is over")

    def _give_up(self, why: str) -> None:
        """A prefix, if every answer is in; a claim without an answer is nothing to wait for."""
        pieces = self._pieces
        in_doubt = not self._claimed or pieces.out or any(item.doubts for item in pieces.undelivered())
        self._finish("unknown" if in_doubt and "doubt" not in self._flaws else "partial", why + self._said)

    def _finish(self, outcome: Outcome, error: str = "") -> None:
        if outcome == "unknown":
            self.result = WriteResult(self.plan.round, outcome, self.plan.from_, error=error)
            return
        pieces = self._pieces
        undone, done = list(pieces.undelivered()), [item for item in pieces.items if item.is_delivered]
        to = min([self._handed, *(item.points[0] for item in undone)])
        pieces.hand_back(undone)
        written, ahead = _places(done, to)
        self.result = WriteResult(
            self.plan.round, outcome, to, written, ahead,
            sequences=tuple(NextSequence(*target, n) for target, n in sorted(pieces.next.items())),
            rows=sum(len(item.points) for item in done), quarantined=sum(bool(item.poison) for item in done),
            error=error,
        )


def _middle(points: Sequence[Point]) -> int:
    """Where to cut, messages of one row together; 0: it is one row."""
    middle = len(points) // 2
    while 0 < middle < len(points) and points[middle] == points[middle - 1]:
        middle += 1
    if middle == len(points):
        middle = len(points) // 2
        while middle and points[middle] == points[middle - 1]:
            middle -= 1
    return middle


def _places(done: list[Item], to: Point) -> tuple[tuple[TargetEnd, ...], tuple[Delivered, ...]]:
    """Behind the last delivered row before `to`, per target; and the delivered rows from `to` on."""
    written: dict[TopicPartition, int] = {}
    ahead: list[Delivered] = []
    for item in done:
        before = len(item.points)
        if item.points[-1] >= to:
            rows = [Delivered(point, item.target, item.offset + i) for i, point in enumerate(item.points)]
            beyond = [row for row in rows if row.point >= to]
            before -= len(beyond)
            ahead += beyond
        if before:
            written[item.target] = max(written.get(item.target, 0), item.offset + before)
    return tuple(TargetEnd(*target, end) for target, end in sorted(written.items())), tuple(ahead)
