"""The home of positions: the leader of a group's partition answers by compare-and-set alone [L21, P3, P5, C3].

    none ──create──▶ stored ──take(greater epoch)──▶ stored ──claim──▶ claimed ──commit──▶ stored further on
                       │ ▲──────────────── take(greater epoch) ────────────────┘
                       └─┴──close(greater epoch)──▶ closed ──take(greater epoch)──▶ stored
                                                       └──forget──▶ none

In: requests, and every record of the partition in log order (`replay`). Out: a Move {what to append, the reply, the
offset that must be below the high watermark before the reply is given}. Handlers change nothing.
Promise: of two owners only the one with the greater epoch can move a position; an execution's claim is given once; a
request repeated by its sender is answered as the first time, a repeat that comes too late changes nothing.

Decisions read what was appended, also above the high watermark. A reply waits for what it was read from: what a
fail-over takes away was never told to anybody.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import msgspec

from millrace.core.sources.reader import NO_FLAWS
from millrace.errors import (
    ClaimRefused,
    InvalidRequest,
    PositionExists,
    PositionMissing,
    PositionMoved,
    Superseded,
    WriterIdNeeded,
)
from millrace.limits import WRITER_EPOCH_MAX
from millrace.model.positions import NOT_SHOWN, Claim, Point, PositionKey, StoredPosition, TargetEnd, WriterId
from millrace.model.tables import Lsn

# Switches of the simulation, each plants one mistake; production passes none.
FLAWS = {
    "take_epoch": "a take-over with a lower epoch is let in [P3]",
    "commit_epoch": "a commit does not compare the epoch [P3]",
    "commit_from": "a commit does not compare `from` [P3]",
    "claim": "whoever asks gets the claim [P5]",
    "claim_kept": "a commit forgets who claimed the round [P5]",
    "ends_grow": "a commit may set stored ends back [P3]",
}

R = TypeVar("R", covariant=True)


class Stored(NamedTuple):
    """`offset`: of the record that says so."""

    offset: int
    position: StoredPosition


class Move(NamedTuple, Generic[R]):
    """`record`: to append, None: nothing. Without a record the reply waits until `after` is below the high watermark;
    with one it waits for the record."""

    record: StoredPosition | None
    reply: R
    after: int = -1


class Commit(NamedTuple):
    """All rows before `to` are delivered. `to` = `from_`: only the ends move. `shown`: to tools, from now on."""

    epoch: int
    from_: Point
    to: Point
    ends: tuple[TargetEnd, ...]
    resolved: Lsn
    shown: int = NOT_SHOWN


class Positions:
    __slots__ = ("_flaws", "by_key")

    def __init__(self, flaws: frozenset[str] = NO_FLAWS) -> None:
        self._flaws = flaws
        self.by_key: dict[PositionKey, Stored] = {}

    def replay(self, offset: int, key: PositionKey, position: StoredPosition | None) -> None:
        """The only mutation. None: a tombstone."""
        if position is None:
            self.by_key.pop(key, None)
        else:
            self.by_key[key] = Stored(offset, position)

    def create(
        self, key: PositionKey, *, epoch: int, at: Point, resolved: Lsn, writer_id: int
    ) -> Move[StoredPosition]:
        """Where a partition begins; somebody who knows says so once. Repeated alike it changes nothing."""
        known = self.by_key.get(key)
        new = StoredPosition(epoch, at.offset, at.row, (), (WriterId(writer_id, epoch),), resolved)
        if known is None:
            return Move(new, new)
        if known.position != new:
            raise PositionExists(f"{_named(key)} is stored under epoch {known.position.epoch}")
        return Move(None, new, known.offset)

    def take(self, key: PositionKey, epoch: int, *, new_writer_id: int | None = None) -> Move[StoredPosition]:
        """Raises the epoch and returns the position: from now on nobody below `epoch` can claim or commit."""
        known = self._known(key)
        stored = known.position
        if stored.epoch == epoch and not stored.closed:
            return Move(None, stored, known.offset)
        if epoch <= stored.epoch and "take_epoch" not in self._flaws:
            raise Superseded(f"{_named(key)}: epoch {epoch}, stored is {stored.epoch}")
        writers = stored.writers
        if epoch - writers[-1].first_epoch > WRITER_EPOCH_MAX:
            if new_writer_id is None:
                raise WriterIdNeeded(f"{_named(key)}: epoch {epoch} is too far from {writers[-1].first_epoch}")
            if any(new_writer_id == writer.writer_id for writer in writers):
                raise InvalidRequest(f"writer id {new_writer_id} was used before")
            writers = (*writers, WriterId(new_writer_id, epoch))
        taken = msgspec.structs.replace(stored, epoch=epoch, writers=writers, claim=None, closed=False)
        return Move(taken, taken)

    def close(self, key: PositionKey, epoch: int) -> Move[StoredPosition]:
        """The span has ended: under a fresh epoch that nobody works with [C3]."""
        known = self._known(key)
        stored = known.position
        if stored.closed and stored.epoch == epoch:
            return Move(None, stored, known.offset)
        if epoch <= stored.epoch:
            raise Superseded(f"{_named(key)}: epoch {epoch}, stored is {stored.epoch}")
        closed = msgspec.structs.replace(stored, epoch=epoch, claim=None, closed=True)
        return Move(closed, closed)

    def check_forget(self, key: PositionKey, epoch: int) -> bool:
        """Whether to append a tombstone; False: nothing is stored. Only what this epoch has closed goes."""
        known = self.by_key.get(key)
        if known is None:
            return False
        if not known.position.closed or known.position.epoch != epoch:
            raise Superseded(f"{_named(key)}: not closed by epoch {epoch}")
        return True

    def claim(self, key: PositionKey, claim: Claim) -> Move[None]:
        """Once per round: a second execution of the same plan gets it no more, a lower round neither."""
        known = self._known(key)
        stored = known.position
        self._check_owner(key, stored, claim.epoch)
        if stored.at != (claim.offset, claim.row):
            raise PositionMoved(f"{_named(key)} is at {stored.at}, the plan begins at {claim.offset}, {claim.row}")
        if stored.claim == claim:
            return Move(None, None, known.offset)
        if stored.claim is not None and stored.claim.round >= claim.round and "claim" not in self._flaws:
            raise ClaimRefused(f"{_named(key)}: round {stored.claim.round} was claimed, this is {claim.round}")
        return Move(msgspec.structs.replace(stored, claim=claim), None)

    def commit(self, key: PositionKey, commit: Commit) -> Move[None]:
        known = self._known(key)
        stored = known.position
        if "commit_epoch" not in self._flaws:
            self._check_owner(key, stored, commit.epoch)
        moved = msgspec.structs.replace(
            stored, epoch=commit.epoch, next_offset=commit.to.offset, row=commit.to.row, ends=commit.ends,
            resolved=commit.resolved, claim=None if "claim_kept" in self._flaws else stored.claim,
            shown=max(stored.shown, commit.shown),
        )
        if moved == stored:
            return Move(None, None, known.offset)  # asked again, because the first answer was lost
        if stored.at != commit.from_ and "commit_from" not in self._flaws:
            raise PositionMoved(f"{_named(key)} is at {stored.at}, the commit begins at {commit.from_}")
        if commit.to < commit.from_:
            raise InvalidRequest(f"{_named(key)}: from {commit.from_} to {commit.to}")
        if _sets_back(stored, moved) and not self._flaws & {"ends_grow", "commit_from"}:
            raise PositionMoved(f"{_named(key)}: ends or resolved behind those stored")
        return Move(moved, None)

    def show(self, key: PositionKey, epoch: int, shown: int) -> Move[None]:
        """By the owner. A late repeat sets nothing back, and no take-over, claim or commit looks at it."""
        known = self._known(key)
        self._check_owner(key, known.position, epoch)
        if shown <= known.position.shown:
            return Move(None, None, known.offset)
        return Move(msgspec.structs.replace(known.position, shown=shown), None)

    def _known(self, key: PositionKey) -> Stored:
        known = self.by_key.get(key)
        if known is None:
            raise PositionMissing(f"no position of {_named(key)}")
        return known

    @staticmethod
    def _check_owner(key: PositionKey, stored: StoredPosition, epoch: int) -> None:
        if stored.epoch != epoch or stored.closed:
            how = "closed" if stored.closed else "taken"
            raise Superseded(f"{_named(key)}: epoch {epoch}, {how} by {stored.epoch}")


def _sets_back(stored: StoredPosition, moved: StoredPosition) -> bool:
    """A late repeat of a refresh, whose `from` still fits: retention may have passed its ends by now."""
    after = moved.ends_by_target
    ends_back = any(after.get(target, offset) < offset for target, offset in stored.ends_by_target.items())
    return ends_back or moved.resolved < stored.resolved


def _named(key: PositionKey) -> str:
    return f"{key.changefeed}, {key.topic_id}/{key.partition}"
