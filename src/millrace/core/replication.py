"""One replica of one partition: role, high watermark, in-sync replicas, truncation [L5-L9, L13-L16].

In: assignments from the controller's records, what the log did (appended, durable, truncated), fetches of followers
(leader), answers of the leader (follower), time. Out: effects and answers as values; the shell carries them out.
Promise: what a leader acknowledged at its high watermark is in the log of every replica that can be elected.

    log_start <= hw <= leo <= log_end        hw: committed, readable    leo: durable here    log_end: appended here

        assigned(leader = me) -> LEADER     fetches count, hw = min durable end over the maximal ISR
        assigned(leader = x)  -> FOLLOWER   fetches from x; x says where the logs part; hw = min(hw of x, own leo)
        assigned(leader = -1) -> FOLLOWER   of nobody: the partition is offline

The maximal ISR is the controller's ISR plus every broker proposed since that ISR's partition epoch: a proposal whose
answer is lost may stand. So an addition counts at once, a removal only when the controller's record says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from millrace.core.effects import (
    NOTHING,
    AdvanceLogStart,
    Answer,
    Assignment,
    BecameFollower,
    BecameLeader,
    DiskEpochAhead,
    Diverged,
    Effect,
    Effects,
    Fence,
    HwMoved,
    LostLeadership,
    OutOfRange,
    ProposeIsr,
    Restart,
    Serve,
    Truncate,
)
from millrace.core.epochs import EpochCache
from millrace.core.flaws import NO_FLAWS, Flaws
from millrace.core.isr import UNKNOWN, Follower
from millrace.errors import FencedLeaderEpoch, MillraceError, NotEnoughReplicas, NotLeader, UnknownLeaderEpoch
from millrace.limits import REPLICA_LAG_S
from millrace.model.ids import NO_EPOCH, NO_LEADER, BrokerId

__all__ = [
    "NOTHING", "AdvanceLogStart", "Answer", "Assignment", "BecameFollower", "BecameLeader", "DiskEpochAhead",
    "Diverged", "Effect", "Effects", "Fence", "HwMoved", "LostLeadership", "Member", "OutOfRange", "ProposeIsr",
    "Replica", "Restart", "Serve", "Truncate",
]  # fmt: skip

PROPOSE_AGAIN_S = 1.0  # a proposal without an outcome is made again after this


class Member(Protocol):
    """What the controller's records say of a broker; `ClusterState.brokers` holds them."""

    @property
    def incarnation(self) -> int: ...
    @property
    def fenced(self) -> bool: ...
    @property
    def draining(self) -> bool: ...


class Replica:
    __slots__ = (
        "_followers",
        "_leader_hw",
        "_matched",
        "_members",
        "_proposal_at",
        "_proposed",
        "_withdraw",
        "brokers",
        "elr",
        "epoch_start",
        "epochs",
        "flaws",
        "hw",
        "is_leader",
        "isr",
        "lag_s",
        "leader",
        "leader_epoch",
        "leo",
        "log_end",
        "log_start",
        "me",
        "min_insync",
        "partition_epoch",
        "replicas",
        "retry_s",
    )

    def __init__(
        self,
        me: BrokerId,
        *,
        epochs: EpochCache,
        brokers: Mapping[BrokerId, Member],
        log_start: int = 0,
        log_end: int = 0,
        hw: int = 0,
        lag_s: float = REPLICA_LAG_S,
        retry_s: float = PROPOSE_AGAIN_S,
        flaws: Flaws = NO_FLAWS,
    ) -> None:
        """`epochs` belongs to the log and is only read here; `brokers` is the live metadata, only read.

        What is on disk at the start is durable. `hw` is what was checkpointed; it may be old, never too high.
        """
        self.me = me
        self.epochs = epochs
        self.brokers = brokers
        self.log_start = log_start
        self.log_end = self.leo = log_end
        self.hw = min(max(hw, log_start), log_end)
        self.lag_s = lag_s
        self.retry_s = retry_s
        self.flaws = flaws
        self.is_leader = False
        self.leader = NO_LEADER
        self.leader_epoch = self.partition_epoch = NO_EPOCH
        self.isr: frozenset[BrokerId] = frozenset()
        self.elr: frozenset[BrokerId] = frozenset()
        self.replicas: tuple[BrokerId, ...] = ()
        self.min_insync = 1
        self.epoch_start = 0
        self._leader_hw = 0
        self._matched = False  # the leader of this epoch has served us: our log is a prefix of its own
        self._followers: dict[BrokerId, Follower] = {}
        self._members: tuple[BrokerId, ...] = ()  # the maximal ISR without me
        self._proposed: frozenset[BrokerId] = frozenset()  # all that was proposed in this partition epoch
        self._proposal_at = -math.inf
        self._withdraw = False

    # -- role ---------------------------------------------------------------------------------------------------------

    def assigned(self, now: float, a: Assignment) -> Effects:
        """The controller decided. An older decision than the one we follow changes nothing."""
        if a.partition_epoch <= self.partition_epoch or a.leader_epoch < self.leader_epoch:
            return NOTHING
        new_epoch = a.leader_epoch > self.leader_epoch
        left = self.isr - a.isr
        self.partition_epoch = a.partition_epoch
        self.isr, self.elr, self.replicas, self.min_insync = a.isr, a.elr, a.replicas, a.min_insync
        self._proposed = frozenset()
        self._withdraw = False
        self._proposal_at = -math.inf
        if new_epoch:
            return self._new_epoch(now, a)
        if not self.is_leader:
            return NOTHING
        self._follow_replicas(now, left)
        return self._advance_hw()

    def _new_epoch(self, now: float, a: Assignment) -> Effects:
        was_leader, old_epoch = self.is_leader, self.leader_epoch
        self.leader, self.leader_epoch = a.leader, a.leader_epoch
        disk_ahead = self._disk_ahead(a)
        self.is_leader = a.leader == self.me and not disk_ahead
        self._followers = {}
        self._members = ()
        self._leader_hw = 0
        self._matched = False
        effects: list[Effect] = []
        if disk_ahead:
            effects.append(DiskEpochAhead(self.epochs.latest(), a.leader_epoch))
        if was_leader and not self.is_leader:
            effects.append(LostLeadership(old_epoch))
        if self.is_leader:
            self.epoch_start = self.log_end
            self._follow_replicas(now, frozenset())
            effects.append(BecameLeader(a.leader_epoch, self.epoch_start))
            effects.extend(self._advance_hw())
        else:
            effects.append(BecameFollower(NO_LEADER if a.leader == self.me else a.leader, a.leader_epoch))
        return effects

    def _disk_ahead(self, a: Assignment) -> bool:
        """Only a leader writes batches of its epoch: one that finds them at its start led before, in another life."""
        latest = self.epochs.latest()
        if a.leader == self.me and not self.flaws.same_epoch_after_restart:
            return latest >= a.leader_epoch
        return latest > a.leader_epoch

    def _follow_replicas(self, now: float, left: frozenset[BrokerId]) -> None:
        known = self._followers
        self._followers = {b: known.get(b) or Follower(b, now) for b in self.replicas if b != self.me}
        for broker in left:
            follower = self._followers.get(broker)
            if follower is not None and follower.leo < self.log_end:
                follower.forget()
        self._count_members()

    def _count_members(self) -> None:
        maximal = self.replicas if self.flaws.hw_over_all else sorted(self.isr | self._proposed)
        self._members = tuple(b for b in maximal if b != self.me)

    def min_insync_changed(self, min_insync: int) -> Effects:
        self.min_insync = min_insync
        return self._advance_hw() if self.is_leader else NOTHING

    # -- writes -------------------------------------------------------------------------------------------------------

    def refuse_write(self, *, acks: int, lease_valid: bool) -> MillraceError | None:
        if not self.is_leader:
            return NotLeader(f"the leader is broker {self.leader}, epoch {self.leader_epoch}")
        if not lease_valid:
            return NotLeader("the lease is over")
        if acks == -1 and len(self.isr) < self.min_insync:
            return NotEnoughReplicas(f"{len(self.isr)} in sync, {self.min_insync} needed")
        return None

    def appended(self, now: float, end: int) -> Effects:
        """The leader wrote [log_end, end) to its file; not yet durable."""
        assert self.is_leader, "only a leader appends"
        before, self.log_end = self.log_end, end
        for follower in self._followers.values():
            if follower.leo == before:
                follower.caught_up_at = now  # until now it had everything, however long ago it fetched
        return self.durable(now, end) if self.flaws.leo_before_disk else NOTHING

    def durable(self, now: float, end: int) -> Effects:
        """Everything below `end` survives a crash."""
        assert end <= self.log_end, f"durable to {end}, the log ends at {self.log_end}"
        if end <= self.leo:
            return NOTHING
        self.leo = end
        return self._advance_hw() if self.is_leader else self._follow_hw()

    # -- leader: fetches of followers ---------------------------------------------------------------------------------

    def follower_fetched(
        self, now: float, *, follower: BrokerId, incarnation: int, epoch: int, offset: int, last_epoch: int
    ) -> Answer:
        """It has everything below `offset`, its last batch is of `last_epoch`, and it asks for more.

        Fetches of one follower must come in the order it sent them; the shell drops those of a link it has replaced.
        """
        known = self._followers.get(follower)
        if known is None or not self.is_leader or epoch != self.leader_epoch:
            return self._fence(epoch)
        member = self.brokers.get(follower)
        if member is None or member.incarnation != incarnation:
            return Fence(NotLeader.kafka_code, self.leader_epoch)  # it or we will hear of the newer one
        served = known.incarnation == incarnation  # in this epoch: the logs were compared, ours has only grown since
        if offset < self.log_start or (not served and self._is_beyond_compare(last_epoch)):
            return OutOfRange(self.log_start)
        parted = self._parted(offset, last_epoch)
        if parted is not None:
            return parted
        credit = self.log_end if self.flaws.credit_on_send else offset
        known.fetched(now, incarnation=incarnation, offset=credit, log_end=self.log_end)
        effects: Effects = NOTHING
        if follower in self._members:
            effects = self._advance_hw()
        elif self._may_join(known):
            effects = self._propose(now)
        return Serve(offset, self.hw, effects)

    def _fence(self, epoch: int) -> Fence:
        if not self.is_leader:
            return Fence(NotLeader.kafka_code, self.leader_epoch)
        if epoch < self.leader_epoch:
            return Fence(FencedLeaderEpoch.kafka_code, self.leader_epoch)
        return Fence(UnknownLeaderEpoch.kafka_code, self.leader_epoch)  # ahead of us, or not a replica we know of

    def _is_beyond_compare(self, last_epoch: int) -> bool:
        """Its last batch is of an epoch that ended below our log start: where, nobody here knows any more. What it has
        from there on differs, and what it has below is needed by nobody."""
        if self.log_start == 0 or last_epoch == NO_EPOCH or self.flaws.no_truncation:
            return False
        return last_epoch < self.epochs.first()

    def _parted(self, offset: int, last_epoch: int) -> Diverged | None:
        """Log matching before any credit [L14]. Without a last batch there is nothing that could differ."""
        if self.flaws.no_truncation:
            return None
        if last_epoch == NO_EPOCH:
            return Diverged(NO_EPOCH, self.log_end) if offset > self.log_end else None
        epoch, end = self.epochs.end_of(last_epoch, self.log_end)
        return Diverged(epoch, end) if epoch < last_epoch or end < offset else None

    # -- leader: high watermark and ISR -------------------------------------------------------------------------------

    def _advance_hw(self) -> Effects:
        if len(self.isr) < self.min_insync:
            return NOTHING  # strict: those who left meanwhile still hold everything below the high watermark [L7]
        low = self.leo
        for broker in self._members:
            leo = self._followers[broker].leo
            if leo == UNKNOWN and self.flaws.hw_over_known:
                continue
            low = min(low, leo)
        if low <= self.hw:
            return NOTHING
        self.hw = low
        return (HwMoved(low),)

    def _may_join(self, follower: Follower) -> bool:
        """At the high watermark and at the start of the epoch, and the incarnation it fetched as may be in an ISR."""
        if follower.leo < self.hw or follower.leo < self.epoch_start:
            return False
        member = self.brokers.get(follower.broker)
        return (
            member is not None
            and member.incarnation == follower.incarnation
            and not member.fenced
            and not member.draining
        )

    def tick(self, now: float) -> Effects:
        """Call it now and then while `needs_tick`; again when a broker was unfenced."""
        return self._propose(now) if self.is_leader else NOTHING

    @property
    def needs_tick(self) -> bool:
        """False while nothing can change by time alone: an idle partition in sync costs nothing."""
        if not self.is_leader:
            return False
        if self._proposed:
            return True
        return any(
            follower.leo < self.log_end if broker in self.isr else self._may_join(follower)
            for broker, follower in self._followers.items()
        )

    def _propose(self, now: float) -> Effects:
        if now - self._proposal_at < self.retry_s:
            return NOTHING
        want = frozenset(self._wanted(now))
        if want == self.isr and not self._proposed:
            return NOTHING
        if self._withdraw:
            want &= self.isr
        self._proposal_at = now
        self._withdraw = False
        isr = tuple(sorted(want))
        incarnations = tuple(self._incarnation(b) for b in isr)
        if self.flaws.leader_owned_isr:
            self.isr = want
        else:
            self._proposed |= want
        self._count_members()
        return (ProposeIsr(self.leader_epoch, self.partition_epoch, isr, incarnations), *self._advance_hw())

    def _incarnation(self, broker: BrokerId) -> int:
        """As it fetched; of one that has not fetched in this epoch, and of ourselves, as registered."""
        follower, member = self._followers.get(broker), self.brokers.get(broker)
        if follower is not None and follower.incarnation != UNKNOWN:
            return follower.incarnation
        return member.incarnation if member is not None else UNKNOWN

    def _wanted(self, now: float) -> list[BrokerId]:
        want = [self.me]
        for broker, follower in self._followers.items():
            if broker in self.isr:
                if not follower.lags(now, log_end=self.log_end, lag_s=self.lag_s):
                    want.append(broker)
            elif self._may_join(follower):
                want.append(broker)
        return want

    def isr_answer(self, *, leader_epoch: int, partition_epoch: int, error: str) -> None:
        """The controller answered a proposal; an accepted one takes effect with its record, not with this answer.

        A refused addition stays counted: another copy of the same proposal may still be on its way. It is withdrawn
        by proposing the ISR without it, which moves the partition epoch past every such copy.
        """
        if error != "ineligible" or (leader_epoch, partition_epoch) != (self.leader_epoch, self.partition_epoch):
            return
        self._withdraw = True

    # -- follower -----------------------------------------------------------------------------------------------------

    def fetch_position(self) -> tuple[int, int]:
        """(offset, last epoch) to fetch with: what is durable here."""
        return self.leo, self.epochs.epoch_before(self.leo)

    def data_arrived(self, *, epoch: int, base: int) -> bool:
        """May the shell append data that starts at `base`? Anything stale or out of place is dropped."""
        return not self.is_leader and epoch == self.leader_epoch and base == self.log_end

    def begins_within(self, *, epoch: int, base: int, end: int) -> bool:
        """Is this the batch that holds our first offset, while we have nothing? Logs may start inside a batch."""
        empty = not self.is_leader and epoch == self.leader_epoch and self.log_start == self.log_end
        return empty and base < self.log_end < end

    def replicated(self, end: int) -> None:
        """The follower wrote [log_end, end) to its file; not yet durable."""
        assert not self.is_leader, "a leader does not follow"
        self.log_end = end
        self._matched = True
        if self.flaws.leo_before_disk:
            self.leo = end

    def leader_hw(self, *, epoch: int, hw: int, log_start: int) -> Effects:
        """The leader said where it stands. The high watermark waits for our own durable data [L6]."""
        if self.is_leader or epoch != self.leader_epoch:
            return NOTHING
        self._leader_hw = max(self._leader_hw, hw)
        moved = self._follow_hw()
        start = min(log_start, self.hw)
        return (*moved, AdvanceLogStart(start)) if start > self.log_start else moved

    def _follow_hw(self) -> Effects:
        hw = self._leader_hw if self.flaws.hw_before_data else min(self._leader_hw, self.leo)
        if hw <= self.hw:
            return NOTHING
        self.hw = hw
        return (HwMoved(hw),)

    def diverged(self, *, epoch: int, at_epoch: int, end: int) -> Effects:
        """The leader's log parts from ours. It may need several rounds; each one cuts something.

        Within its epoch a leader's log only grows: once it has served us, such an answer is an old one come late.
        """
        if self.is_leader or epoch != self.leader_epoch or self._matched:
            return NOTHING
        _, own_end = self.epochs.end_of(at_epoch, self.log_end)
        to = min(end, own_end)
        return (Truncate(to, to < self.hw),) if to < self.log_end else NOTHING

    def out_of_range(self, *, epoch: int, log_start: int) -> Effects:
        """The leader's log starts above what we asked for, or above the last batch that both of us may have.

        Once the leader of this epoch has served us, an answer that names what we have by now has come late."""
        if self.is_leader or epoch != self.leader_epoch or (log_start <= self.log_end and self._matched):
            return NOTHING
        if self.log_start == self.log_end == log_start:
            return NOTHING  # it is so already
        return (Restart(log_start),)

    def truncated(self, to: int) -> None:
        self.log_end = min(self.log_end, to)
        self.leo = min(self.leo, to)
        self.hw = min(self.hw, to)
        self.log_start = min(self.log_start, to)
        self._leader_hw = min(self._leader_hw, self.hw)

    def restarted(self, at: int) -> None:
        """The log is empty and starts at `at`, which the leader has committed."""
        self.log_start = self.log_end = self.leo = self.hw = at

    def log_started(self, log_start: int) -> None:
        """The front of the log was removed."""
        assert log_start <= self.hw, f"log start {log_start} above the high watermark {self.hw}"
        self.log_start = max(self.log_start, log_start)

    def start_recorded(self, start: int) -> Effects:
        """The controller recorded that nothing below `start` is needed, on whichever replica [L23]."""
        start = start if self.flaws.cut_above_hw else min(start, self.hw)
        return (AdvanceLogStart(start),) if start > self.log_start else NOTHING

    # -- reads --------------------------------------------------------------------------------------------------------

    def latest_offset(self) -> int | None:
        """What a consumer calls the end. None: a new leader that waits until its HW reaches its epoch's start [L9]."""
        return self.hw if self.is_leader and self.hw >= self.epoch_start else None

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch at or below, where it ends in this leader's log), as OffsetForLeaderEpoch asks.

        The log's end bounds the answer, not the high watermark: after a restart that may still be an old checkpoint,
        and a consumer takes an end below its position for truncation and goes back. In its epoch a leader's log only
        grows, so nothing below its end is taken away again. Where every batch is gone, positions of earlier epochs
        end where this one begins.
        """
        if not self.epochs.entries:
            return epoch, self.log_end if epoch >= self.leader_epoch else self.epoch_start
        return self.epochs.end_of(epoch, self.log_end)

    def follower_leo(self, broker: BrokerId) -> int:
        """For metrics: the durable end of a follower as far as the leader knows, -1 unknown."""
        follower = self._followers.get(broker)
        return follower.leo if follower is not None else UNKNOWN

    def lagging(self, now: float) -> list[tuple[BrokerId, float, int]]:
        """For metrics: (follower, seconds since it was caught up, records it misses) of each that is behind [L26]."""
        if not self.is_leader:
            return []
        return [
            (broker, now - follower.caught_up_at, self.log_end - max(follower.leo, self.log_start))
            for broker, follower in self._followers.items()
            if follower.leo < self.log_end
        ]
