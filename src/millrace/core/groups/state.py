"""A consumer group as it stands: members, generation, protocol, leader. What it may do next is core.group's.

Promise: at most one member is the leader; a static instance has one member id.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import NamedTuple

from millrace import limits
from millrace.core.groups.calls import Code, Instant, Join, JoinedMember, Token
from millrace.model.groups import GroupValue, MemberValue


class State(Enum):
    """As Kafka's tools print them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Settings(NamedTuple):
    session_min_s: float = limits.GROUP_SESSION_MIN_S
    session_max_s: float = limits.GROUP_SESSION_MAX_S
    initial_delay_s: float = limits.GROUP_INITIAL_DELAY_S
    new_member_s: float = limits.GROUP_NEW_MEMBER_S
    members_max: int = limits.GROUP_MEMBERS_MAX
    offsets_retention_s: float = limits.OFFSETS_RETENTION_S


class Member:
    __slots__ = (
        "assignment", "client_host", "client_id", "deadline_s", "id", "instance_id", "is_new", "join", "protocols",
        "rebalance_s", "session_s", "sync",
    )

    def __init__(self, id_: str, instance_id: str | None, client_id: str, client_host: str) -> None:
        self.id, self.instance_id, self.client_id, self.client_host = id_, instance_id, client_id, client_host
        self.session_s = self.rebalance_s = 0.0
        self.protocols: tuple[tuple[str, bytes], ...] = ()
        self.assignment = b""
        self.is_new = False                     # its first join is parked: it cannot heartbeat yet
        self.join: Token | None = None          # parked requests
        self.sync: Token | None = None
        self.deadline_s: float | None = None    # of its session; None while a parked request vouches for it

    def update(self, join: Join) -> None:
        self.session_s, self.rebalance_s, self.protocols = join.session_s, join.rebalance_s, join.protocols

    def metadata(self, protocol: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")


class GroupState:
    __slots__ = (
        "generation", "leader", "members", "name", "pending", "pending_sync", "protocol", "protocol_type", "state",
        "state_ms", "static",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.EMPTY
        self.state_ms = -1
        self.generation = 0
        self.protocol_type: str | None = None   # None: a group of offsets only
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}        # instance -> member
        self.pending: dict[str, float] = {}     # ids given out, until their join comes; deadline
        self.pending_sync: set[str] = set()

    # -- members -------------------------------------------------------------------------------------------------------
    def add(self, member: Member) -> None:
        self.pending.pop(member.id, None)
        self.members[member.id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.id

    def remove(self, member_id: str) -> Member | None:
        self.pending.pop(member_id, None)
        self.pending_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader == member_id:
            self.leader = None
        return member

    def rename(self, old_id: str, new_id: str) -> Member:
        """A static member came back under another id; whoever has the old one is fenced."""
        member = self.members.pop(old_id)
        member.id = new_id
        self.members[new_id] = member
        assert member.instance_id is not None
        self.static[member.instance_id] = new_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_id)
        if self.leader == old_id:
            self.leader = new_id
        return member

    def check_member(self, member_id: str, instance_id: str | None) -> Code:
        if instance_id is not None:
            if instance_id not in self.static:
                return Code.UNKNOWN_MEMBER_ID
            if self.static[instance_id] != member_id:
                return Code.FENCED_INSTANCE_ID
        return Code.NONE if member_id in self.members else Code.UNKNOWN_MEMBER_ID

    @property
    def rebalance_s(self) -> float:
        return max((member.rebalance_s for member in self.members.values()), default=0.0)

    @property
    def all_joined(self) -> bool:
        return not self.pending and all(member.join is not None for member in self.members.values())

    # -- protocols -----------------------------------------------------------------------------------------------------
    def supports(self, join: Join) -> bool:
        if not join.protocol_type or not join.protocols:
            return False
        if not self.members:
            return True
        shared = self._shared()
        return self.protocol_type == join.protocol_type and any(name in shared for name, _ in join.protocols)

    def _shared(self) -> set[str]:
        """Protocols that every member knows."""
        offers = Counter(name for member in self.members.values() for name, _ in member.protocols)
        return {name for name, times in offers.items() if times == len(self.members)}

    def selected(self) -> str | None:
        """Each member votes for the first of its list that all know."""
        shared = self._shared()
        votes = Counter(
            next(name for name, _ in member.protocols if name in shared) for member in self.members.values() if shared
        )
        return min(votes, key=lambda name: (-votes[name], name)) if votes else None

    # -- records -------------------------------------------------------------------------------------------------------
    def shown_members(self) -> tuple[JoinedMember, ...]:
        members = self.members.values()
        return tuple(JoinedMember(m.id, m.instance_id, m.metadata(self.protocol)) for m in members)

    def value(self, assignments: dict[str, bytes]) -> GroupValue:
        members = tuple(
            MemberValue(
                m.id, m.instance_id, m.client_id, m.client_host, round(m.rebalance_s * 1000), round(m.session_s * 1000),
                m.metadata(self.protocol), assignments.get(m.id, b""),
            )
            for m in self.members.values()
        )
        return GroupValue(
            self.protocol_type or "", self.generation, self.protocol, self.leader, self.state_ms, members
        )

    def load(self, value: GroupValue, at: Instant) -> None:
        """What the last coordinator stored: every member gets a whole session to be heard of."""
        self.protocol_type, self.generation = value.protocol_type or None, value.generation
        self.protocol, self.leader, self.state_ms = value.protocol, value.leader, value.state_ms
        self.members, self.static = {}, {}
        for stored in value.members:
            member = Member(stored.member_id, stored.instance_id, stored.client_id, stored.client_host)
            member.session_s, member.rebalance_s = stored.session_ms / 1000, stored.rebalance_ms / 1000
            member.protocols = ((value.protocol or "", stored.subscription),)
            member.assignment = stored.assignment
            member.deadline_s = at.s + member.session_s
            self.add(member)
        self.state = State.STABLE if self.members else State.EMPTY
