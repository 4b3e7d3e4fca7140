"""Taking over one source partition of a dispatcher, then its rounds: each row once in its target [V11, K3, P3, P5, P9].

    TAKING ─▶ LISTING ─▶ FENCING ─▶ SCANNING ─▶ HOLDING ─▶ STORING ─▶ READY ──plan──▶ ROUND
      position  targets    the old    what it     targets that   ▲      │ idle: fresh ends  │
      and epoch            writer     left        have no end    └──────┴───────────────────┘ result
    any ─▶ ENDED: superseded · again (under a fresh epoch) · missing · target_gone · cannot_prove · stopped

In: answers to what is `wanted`, results of rounds, high watermarks, time. Out: `wanted` (requests that may be sent any
time, again and again, until they are answered), plans, and at last why it ended.
Promise: nothing is planned before the former writer is fenced in every target and what it left is known; a stored end
never passes an own row at or beyond the stored position; a result that may be wrong leads to a take-over, never to a
guess. A target without a stored end was never written to: its log is held at the fence and its end stored before the
first row goes there.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.core.delivery import taking
from millrace.core.delivery.positions import Commit
from millrace.core.delivery.takeover_asks import Store, Why
from millrace.core.delivery.taking import State, Taking
from millrace.core.delivery.target_ends import lost_targets
from millrace.core.sources.reader import NO_FLAWS
from millrace.limits import ENDS_LOOK_S, ENDS_REFRESH_S
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey, StoredPosition, target_ends
from millrace.model.tables import Lsn
from millrace.model.writes import NextSequence, Targets, WritePlan, WriteResult

# Switches of the simulation, each plants one mistake; production passes none.
FLAWS = {
    **taking.FLAWS,
    "unknown_fences": "after an unknown or lost result the rest is planned again in the same epoch [P5]",
    "epoch_seen": "a dispatcher that was taken over stays until it is refused something [C3]",
    "refresh": "an idle dispatcher leaves its ends where they are [K3]",
    "refresh_found": "ends are refreshed although rows stand ahead [K3]",
}


class Takeover(Taking):
    __slots__ = ("_lost", "_plan", "_refresh_s", "_sequences", "_stopping", "_stored_at", "_targets_grew")

    def __init__(
        self, key: PositionKey, epoch: int, flaws: frozenset[str] = NO_FLAWS, *, accept_gap: bool = False,
        refresh_s: float | None = None,
    ) -> None:
        super().__init__(key, epoch, flaws, accept_gap=accept_gap)
        self._refresh_s = ENDS_REFRESH_S - ENDS_LOOK_S if refresh_s is None else refresh_s
        self._stopping = self._targets_grew = False
        self._lost = ""                                  # why delivered rows are gone; told when no round is under way
        self._sequences: dict[TopicPartition, int] = {}
        self._plan: WritePlan | None = None
        self._stored_at = 0.0

    def _proved(self) -> None:
        self._ready()

    def _save_ends(self) -> None:
        assert self.position is not None
        self._save(self.position.at, self.position.resolved, self._ends.at(self.position.at, self._kept()))

    def stored(self, now: float, ask: Store) -> None:
        if self.state is not State.STORING or ask != self._store:
            return
        assert self.position is not None
        commit = ask.commit
        self.position = _moved(self.position, commit)
        self._ends.stored(self.position)
        self._store, self._stored_at = None, now
        self._ready()

    # -- rounds --------------------------------------------------------------------------------------------------------
    def plan(self, round_: int, to: Point, resolved: Lsn) -> WritePlan:
        """The next round, its number above every one before in this epoch. One at a time [P2]."""
        assert self.state is State.READY, self.state
        assert self.position is not None
        assert self._targets is not None
        assert to > self.position.at
        writer = self.position.writers[-1]
        self._plan = WritePlan(
            key=self.key, epoch=self.epoch, round=round_, writer_id=writer.writer_id,
            writer_epoch=self.epoch - writer.first_epoch, from_=self.position.at, to=to, resolved=resolved,
            partitions=self._targets.partitions, quarantine=self._targets.quarantine, skip=self._ends.skip(to),
            sequences=tuple(NextSequence(*target, n) for target, n in sorted(self._sequences.items())),
        )
        self.state = State.ROUND
        return self._plan

    def result(self, result: WriteResult) -> None:
        plan = self._plan
        if self.state is not State.ROUND or plan is None or result.round != plan.round:
            return
        if result.outcome == "unknown":
            self.lost(result.round, result.error or "the result is unknown")
            return
        assert self.position is not None
        assert plan.from_ <= result.to <= plan.to
        self._sequences = {TopicPartition(s.topic_id, s.partition): s.sequence for s in result.sequences}
        self._ends.delivered(result)
        resolved = plan.resolved if result.to == plan.to else self.position.resolved
        self._save(result.to, resolved, self._ends.at(result.to, self._kept()))

    def lost(self, round_: int, detail: str) -> None:
        """The job was cancelled, or its result is lost: only a take-over can tell what it did [P5]."""
        if self.state is State.ROUND and self._plan is not None and self._plan.round == round_:
            if "unknown_fences" in self._flaws:
                self.state = State.READY
            else:
                self._end(Why.AGAIN, detail)

    def _kept(self) -> tuple[TopicPartition, ...]:
        assert self._targets is not None
        return self._targets.writable

    def _save(self, to: Point, resolved: Lsn, ends: Mapping[TopicPartition, int]) -> None:
        assert self.position is not None
        commit = Commit(self.epoch, self.position.at, to, target_ends(ends), resolved)
        if (to, commit.ends, resolved) == (self.position.at, self.position.ends, self.position.resolved):
            self._ready()
            return
        self._store = Store(commit)
        self.state = State.STORING

    # -- while idle ----------------------------------------------------------------------------------------------------
    def began(self, now: float) -> None:
        """It is at work: its ends are as fresh as its fences. Many begin together, and each fence makes others lag."""
        self._stored_at = max(self._stored_at, now)

    def ends_now(self) -> dict[TopicPartition, int]:
        """Of every target: what would be stored if nothing had come behind it."""
        assert self.position is not None
        return self._ends.at(self.position.at, self._kept())

    def refresh_due(self, now: float) -> bool:
        """Ask for high watermarks now: stored ends are floors, and an idle dispatcher must not pin its targets."""
        return self.state is State.READY and self._may_refresh() and now - self._stored_at >= self._refresh_s

    def refresh(self, now: float, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """No round is under way and nothing stands ahead: every own row is behind the position."""
        if not self.refresh_due(now):
            return
        assert self.position is not None
        self._stored_at = now
        self._save(self.position.at, self.position.resolved, self._ends.raised(high_watermarks, self._kept()))

    def _may_refresh(self) -> bool:
        return "refresh" not in self._flaws and (not self._ends.ahead or "refresh_found" in self._flaws)

    def targets_seen(self, targets: Targets) -> None:
        """Metadata as it comes by: partitions added later are taken up by a take-over [V11]; a topic that is not the
        one that has our rows ends it."""
        self._lost = lost_targets(targets)
        if self._lost and self.state is State.READY:
            self._ready()
            return
        if self._targets is not None and not {*targets.writable} <= {*self._targets.writable}:
            self._targets_grew = True
            if self.state is State.READY:
                self._ready()

    def epoch_seen(self, epoch: int) -> None:
        """The stored position as somebody read it: under a greater epoch this one removes itself, idle or not [C3]."""
        if epoch > self.epoch and self.state is not State.ENDED and "epoch_seen" not in self._flaws:
            self._end(Why.SUPERSEDED, f"epoch {epoch} has taken over")

    def stop(self) -> None:
        """As soon as the present round is stored; at once where nothing was planned yet."""
        self._stopping = True
        if self.state not in (State.ROUND, State.STORING, State.ENDED):
            self._end(Why.STOPPED, "")

    def _ready(self) -> None:
        self.state = State.READY
        if self._stopping:
            self._end(Why.STOPPED, "")
        elif self._lost:
            self._end(Why.TARGET_GONE, self._lost)
        elif self._targets_grew:
            self._end(Why.AGAIN, "the list of targets has changed")



def _moved(position: StoredPosition, commit: Commit) -> StoredPosition:
    return StoredPosition(
        commit.epoch, commit.to.offset, commit.to.row, commit.ends, position.writers, commit.resolved, position.claim
    )
