"""How a consumer group comes to its next generation: joins are parked until all have come, or time is over [L20, L21].

In: joins with their tokens, time. Out: answers and appends, in `_out`. The picture of the states is in core.group.
Promise: a generation has one leader, chosen among those that joined it; a first rebalance waits a little for more.
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.core.groups.calls import (
    Answer,
    Append,
    Code,
    Effect,
    Instant,
    Join,
    Joined,
    Reply,
    Synced,
    Token,
)
from millrace.core.groups.state import GroupState, Member, Settings, State
from millrace.model.groups import GroupKey, GroupRecord


class Joining(GroupState):
    __slots__ = (
        "_append_ids", "_join_deadline_s", "_joined_more", "_left_s", "_out", "_settings", "_storing",
        "_storing_static", "_sync_deadline_s",
    )

    def __init__(self, name: str, settings: Settings, append_ids: Callable[[], int]) -> None:
        super().__init__(name)
        self._settings, self._append_ids = settings, append_ids
        self._out: list[Effect] = []
        self._join_deadline_s: float | None = None
        self._sync_deadline_s: float | None = None
        self._left_s: float | None = None       # of the first rebalance: how far it may still be put off
        self._joined_more = False
        self._storing: dict[int, tuple[int, dict[str, bytes]]] = {}             # append -> generation, assignments
        self._storing_static: dict[int, tuple[str, Token, Joined]] = {}         # append -> a returning static member

    # -- join ----------------------------------------------------------------------------------------------------------
    def join(self, at: Instant, join: Join, token: Token) -> list[Effect]:
        code = self._refusal(join)
        if code is not Code.NONE:
            self._answer(token, Joined(code, join.member_id))
        elif join.member_id == "":
            self._join_new(at, join, token)
        elif join.member_id in self.pending and join.instance_id is None:
            self._add(at, join, join.member_id, token)
        else:
            self._join_known(at, join, token)
        return self._done()

    def _refusal(self, join: Join) -> Code:
        if not self._settings.session_min_s <= join.session_s <= self._settings.session_max_s:
            return Code.INVALID_SESSION_TIMEOUT
        known = join.member_id in self.members or join.instance_id in self.static
        if not known and len(self.members) >= self._settings.members_max:
            return Code.GROUP_MAX_SIZE_REACHED
        return Code.NONE if self.supports(join) else Code.INCONSISTENT_GROUP_PROTOCOL

    def _join_new(self, at: Instant, join: Join, token: Token) -> None:
        if join.instance_id is not None and join.instance_id in self.static:
            self._join_again(at, join, token)
        elif join.instance_id is None and join.must_know_id:
            self.pending[join.fresh_id] = at.s + join.session_s
            self._answer(token, Joined(Code.MEMBER_ID_REQUIRED, join.fresh_id))
        else:
            self._add(at, join, join.fresh_id, token)

    def _add(self, at: Instant, join: Join, member_id: str, token: Token) -> None:
        member = Member(member_id, join.instance_id, join.client_id, join.client_host)
        if not self.members:
            self.protocol_type = join.protocol_type
        member.update(join)
        member.is_new, member.join = True, token
        member.deadline_s = at.s + self._settings.new_member_s
        self.add(member)
        self._joined_more = True
        self._rebalance(at)

    def _join_known(self, at: Instant, join: Join, token: Token) -> None:
        code = self.check_member(join.member_id, join.instance_id)
        if code is not Code.NONE:
            self._answer(token, Joined(code, join.member_id))
            return
        member = self.members[join.member_id]
        same = member.protocols == join.protocols
        leads_again = self.state is State.STABLE and member.id == self.leader       # it saw that topics have changed
        if self.state is State.PREPARING or leads_again or not same:
            self._park(member, join, token)
            self._rebalance(at)
        else:                                   # its answer was lost: the generation stands
            self._heard(at, member)
            self._answer(token, self._joined(member))

    def _park(self, member: Member, join: Join, token: Token) -> None:
        if member.join is not None:             # asked again on another connection; nobody waits for the first
            self._answer(member.join, Joined(Code.UNKNOWN_MEMBER_ID, member.id))
        member.update(join)
        member.join = token

    def _join_again(self, at: Instant, join: Join, token: Token) -> None:
        """A static member has restarted: it takes its place back, and where nothing changes nobody rebalances."""
        assert join.instance_id is not None
        old_id = self.static[join.instance_id]
        old_leader = self.leader
        self._dismiss(self.members[old_id], Code.FENCED_INSTANCE_ID)
        member = self.rename(old_id, join.fresh_id)
        member.update(join)
        self._heard(at, member)
        if self.state is not State.STABLE or self.selected() != self.protocol:
            member.join = token
            self._rebalance(at)
            return
        leads = self.leader == member.id
        answer = self._joined(member)._replace(skip_assignment=leads and join.may_skip)
        if leads and not join.may_skip:         # an old client would assign anew: it is not told that it leads
            answer = answer._replace(leader=old_leader or "", members=())
        append = self._append({m.id: m.assignment for m in self.members.values()})
        self._storing_static[append] = (member.id, token, answer)

    # -- rebalance -----------------------------------------------------------------------------------------------------
    def _rebalance(self, at: Instant) -> None:
        """Into PREPARING, or on in it."""
        if self.state is State.PREPARING:
            if self._left_s is None and self.all_joined:
                self._complete_join(at)
            return
        if self.state is State.COMPLETING:
            self._end_syncs(at, Code.REBALANCE_IN_PROGRESS)
        self.pending_sync.clear()
        self._sync_deadline_s = None
        first = self.state is State.EMPTY
        self._enter(State.PREPARING, at)
        if first:
            delay = self._settings.initial_delay_s
            self._left_s, self._joined_more = max(self.rebalance_s - delay, 0.0), False
            self._join_deadline_s = at.s + delay
        elif self.all_joined:
            self._complete_join(at)
        else:
            self._join_deadline_s = at.s + self.rebalance_s

    def _join_time_over(self, at: Instant) -> None:
        delay = self._settings.initial_delay_s
        if self._left_s and self._joined_more and delay > 0:    # more came: it waits for others like them
            more = min(delay, self._left_s)
            self._left_s, self._joined_more = self._left_s - more, False
            self._join_deadline_s = at.s + more
        else:
            self._complete_join(at)

    def _complete_join(self, at: Instant) -> None:
        """Dynamic members that did not come are out; static ones stay as long as their session lasts."""
        self._join_deadline_s = self._left_s = None
        for member in [m for m in self.members.values() if m.join is None and m.instance_id is None]:
            self.remove(member.id)
        came = [member for member in self.members.values() if member.join is not None]
        if self.members and not came:
            self._join_deadline_s = at.s + max(self.rebalance_s, self._settings.session_min_s)
            return
        self.generation += 1
        if not came:
            self._become_empty(at)
            return
        self.protocol = self.selected()
        if self.leader not in {member.id for member in came}:
            self.leader = came[0].id
        self._enter(State.COMPLETING, at)
        self.pending_sync = set(self.members)
        self._sync_deadline_s = at.s + self.rebalance_s
        for member in came:
            assert member.join is not None
            self._answer(member.join, self._joined(member))
            member.join, member.is_new = None, False
            self._heard(at, member)

    def _become_empty(self, at: Instant) -> None:
        self.protocol = self.leader = None
        self._enter(State.EMPTY, at)
        self._append({})

    def _joined(self, member: Member) -> Joined:
        shown = self.shown_members() if member.id == self.leader else ()
        return Joined(
            Code.NONE, member.id, self.generation, self.protocol_type, self.protocol, self.leader or "", shown
        )

    # -- what both halves use ------------------------------------------------------------------------------------------
    def _end_syncs(self, at: Instant, code: Code) -> None:
        self._storing.clear()
        for member in self.members.values():
            if member.sync is not None:
                self._answer(member.sync, self._synced(member) if code is Code.NONE else Synced(code))
                member.sync = None
                self._heard(at, member)

    def _synced(self, member: Member) -> Synced:
        return Synced(Code.NONE, member.assignment, self.protocol_type, self.protocol)

    def _append(self, assignments: dict[str, bytes]) -> int:
        append = self._append_ids()
        self._out.append(Append(append, (GroupRecord(GroupKey(self.name), self.value(assignments)),)))
        return append

    def _heard(self, at: Instant, member: Member) -> None:
        if not member.is_new:
            member.deadline_s = at.s + member.session_s

    def _dismiss(self, member: Member, code: Code) -> None:
        """What it has parked is answered."""
        if member.join is not None:
            self._answer(member.join, Joined(code, member.id))
        if member.sync is not None:
            self._answer(member.sync, Synced(code))
        member.join = member.sync = None

    def _enter(self, state: State, at: Instant) -> None:
        self.state, self.state_ms = state, at.wall_ms

    def _answer(self, token: Token, reply: Reply) -> None:
        self._out.append(Answer(token, reply))

    def _done(self) -> list[Effect]:
        out, self._out = self._out, []
        return out
