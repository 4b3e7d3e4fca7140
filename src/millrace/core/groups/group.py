"""One consumer group of the classic protocol: who is in it, and which generation they work in [L20, L21].

    EMPTY ──join──▶ PREPARING ──all joined, or time is over──▶ COMPLETING ──the leader's assignment is stored──▶ STABLE
      ▲                │  ▲──── join, leave, session over, sync missed ────────────┴─────────────────────────────┘
      └── nobody left ─┘

In: requests with their tokens, time, outcomes of appends. Out: answers and appends. Parked joins and syncs are answered
when the phase ends; time always ends it.
Promise: an answer of a generation goes only to its members; an assignment is told only once it is stored.
"""

from __future__ import annotations

from millrace.core.groups.calls import (
    Code,
    Effect,
    Heartbeat,
    Instant,
    Joined,
    Leave,
    Leaving,
    Left,
    Sync,
    Synced,
    Token,
)
from millrace.core.groups.joining import Joining
from millrace.core.groups.state import Member, State


class Group(Joining):
    __slots__ = ()

    # -- sync ----------------------------------------------------------------------------------------------------------
    def sync(self, at: Instant, sync: Sync, token: Token) -> list[Effect]:
        code = self._check_sync(sync)
        if code is not Code.NONE:
            self._answer(token, Synced(code))
            return self._done()
        member = self.members[sync.member_id]
        self.pending_sync.discard(member.id)
        if self.state is State.STABLE:
            self._heard(at, member)
            self._answer(token, self._synced(member))
            return self._done()
        if member.sync is not None:
            self._answer(member.sync, Synced(Code.UNKNOWN_MEMBER_ID))
        member.sync, member.deadline_s = token, None
        if member.id == self.leader and not self._storing:
            given = {id_: sync.assignments.get(id_, b"") for id_ in self.members}
            self._storing[self._append(given)] = (self.generation, given)
        return self._done()

    def _check_sync(self, sync: Sync) -> Code:
        code = self.check_member(sync.member_id, sync.instance_id)
        if code is not Code.NONE:
            return code
        if sync.generation != self.generation:
            return Code.ILLEGAL_GENERATION
        other_type = sync.protocol_type is not None and sync.protocol_type != self.protocol_type
        if other_type or (sync.protocol is not None and sync.protocol != self.protocol):
            return Code.INCONSISTENT_GROUP_PROTOCOL
        return Code.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else Code.NONE

    # -- appends -------------------------------------------------------------------------------------------------------
    def committed(self, at: Instant, append: int) -> list[Effect]:
        """The members of this generation are stored: now their assignments are told."""
        if append in self._storing_static:
            _, token, answer = self._storing_static.pop(append)
            self._answer(token, answer)
        generation, given = self._storing.pop(append, (-1, {}))
        if self.state is State.COMPLETING and generation == self.generation:
            for member in self.members.values():
                member.assignment = given.get(member.id, b"")
            self._enter(State.STABLE, at)
            self._end_syncs(at, Code.NONE)
        return self._done()

    def failed(self, at: Instant, append: int) -> list[Effect]:
        """Not stored, or nobody knows: the members ask again."""
        if append in self._storing_static:
            member_id, token, _ = self._storing_static.pop(append)
            self._answer(token, Joined(Code.COORDINATOR_NOT_AVAILABLE, member_id))
        generation, _ = self._storing.pop(append, (-1, {}))
        if self.state is State.COMPLETING and generation == self.generation:
            self._end_syncs(at, Code.COORDINATOR_NOT_AVAILABLE)
            self._rebalance(at)
        return self._done()

    # -- heartbeat and leave -------------------------------------------------------------------------------------------
    def heartbeat(self, at: Instant, beat: Heartbeat) -> Code:
        code = self.check_member(beat.member_id, beat.instance_id)
        if code is Code.NONE and beat.generation != self.generation:
            code = Code.ILLEGAL_GENERATION
        if code is not Code.NONE:
            return code
        self._heard(at, self.members[beat.member_id])
        return Code.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else Code.NONE

    def vouched(self, at: Instant, member_id: str) -> None:
        """A commit of offsets is a sign of life."""
        if self.state in (State.STABLE, State.PREPARING) and member_id in self.members:
            self._heard(at, self.members[member_id])

    def leave(self, at: Instant, leave: Leave, token: Token) -> list[Effect]:
        codes = tuple((leaving, self._leave_one(leaving)) for leaving in leave.members)
        if any(code is Code.NONE for _, code in codes):
            self._shrunk(at)
        self._answer(token, Left(Code.NONE, codes))
        return self._done()

    def _leave_one(self, leaving: Leaving) -> Code:
        member_id, instance_id = leaving
        if member_id == "" and instance_id is not None:
            member_id = self.static.get(instance_id, "")
        if member_id in self.pending:
            del self.pending[member_id]
            return Code.NONE
        code = self.check_member(member_id, instance_id)
        if code is Code.NONE:
            self._dismiss(self.members[member_id], Code.UNKNOWN_MEMBER_ID)
            self.remove(member_id)
        return code

    def _shrunk(self, at: Instant) -> None:
        if self.state is not State.EMPTY:
            self._rebalance(at)

    @property
    def is_unused(self) -> bool:
        """Never had a generation, and nobody is on the way to one."""
        return self.generation == 0 and not self.members and not self.pending and self.state is State.EMPTY

    # -- time ----------------------------------------------------------------------------------------------------------
    def deadline_s(self) -> float | None:
        """When `tick` has something to do, at the earliest."""
        times = [self._join_deadline_s, self._sync_deadline_s, *self.pending.values()]
        times += [member.deadline_s for member in self.members.values()]
        return min((time for time in times if time is not None), default=None)

    def tick(self, at: Instant) -> list[Effect]:
        gone = [id_ for id_, deadline in self.pending.items() if deadline <= at.s]
        gone += [id_ for id_, member in self.members.items() if self._is_over(at, member)]
        for member_id in gone:
            if member_id in self.members:
                self._dismiss(self.members[member_id], Code.UNKNOWN_MEMBER_ID)
            self.remove(member_id)
        if gone:
            self._shrunk(at)
        if self._join_deadline_s is not None and self._join_deadline_s <= at.s:
            self._join_time_over(at)
        if self._sync_deadline_s is not None and self._sync_deadline_s <= at.s:
            self._sync_time_over(at)
        return self._done()

    @staticmethod
    def _is_over(at: Instant, member: Member) -> bool:
        if member.deadline_s is None or member.deadline_s > at.s:
            return False
        if not member.is_new and (member.join is not None or member.sync is not None):
            member.deadline_s = None            # its request is parked here: it waits for us
            return False
        return True

    def _sync_time_over(self, at: Instant) -> None:
        self._sync_deadline_s = None
        missing = [self.members[id_] for id_ in self.pending_sync if id_ in self.members]
        for member in missing:
            self._dismiss(member, Code.UNKNOWN_MEMBER_ID)
            self.remove(member.id)
        if missing:
            self._shrunk(at)

    def resigned(self) -> list[Effect]:
        """Another broker leads the partition: whoever waits here asks there."""
        for member in self.members.values():
            self._dismiss(member, Code.NOT_COORDINATOR)
        for member_id, token, _ in self._storing_static.values():
            self._answer(token, Joined(Code.NOT_COORDINATOR, member_id))
        return self._done()
