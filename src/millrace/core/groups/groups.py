"""The groups of one partition of the group topic: its leader is their coordinator [L20, L21].

    requests, time ─▶ Groups ─▶ Append (to the partition), Answer (to a client, now or when the append is committed)
    the partition's records ──replay──▶ Groups ──loaded──▶ coordinator

Promise: what is told was committed before; state is what replaying the records gives, beside members' sessions. Groups
`millrace.*` hold positions of changefeeds: they never expire, ordinary requests do not change them (only `positions`
does, by compare-and-set), everybody may read them.

A shell appends what an Append says before it takes the next request, and calls `committed` in the order of the log. For
positions it asks `positions`, appends the record and replays it there at once, then waits for the high watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from millrace import limits
from millrace.core.delivery.copies import SKIPPED
from millrace.core.delivery.positions import Positions
from millrace.core.groups.calls import (
    Answer,
    Append,
    Code,
    CommitOffsets,
    Described,
    DescribedMember,
    Effect,
    FetchedOffsets,
    Heartbeat,
    Instant,
    Join,
    Joined,
    Leave,
    Left,
    Listed,
    OffsetsDone,
    Said,
    Sync,
    Synced,
    Token,
)
from millrace.core.groups.group import Group
from millrace.core.groups.offsets import Offsets, Partition
from millrace.core.groups.state import Settings, State
from millrace.model.groups import NO_LEADER_EPOCH, GroupKey, GroupRecord, GroupValue, OffsetKey, OffsetValue
from millrace.model.ids import TopicPartition
from millrace.model.positions import NOT_SHOWN, PositionKey, StoredPosition

OURS = "millrace."
NOBODY = -1
DEAD = "Dead"           # what Kafka's tools are told of a group that does not exist


class _Written(NamedTuple):
    """On its way; `token` NOBODY: no answer is owed."""

    token: Token
    records: tuple[GroupRecord, ...]
    reply: OffsetsDone | Said

    def failed(self, code: Code) -> list[Effect]:
        if self.token == NOBODY:
            return []
        if isinstance(self.reply, Said):
            return [Answer(self.token, Said(code))]
        return [Answer(self.token, OffsetsDone(dict.fromkeys(self.reply.codes, code)))]


class Groups:
    __slots__ = ("_append", "_appends", "_settings", "_stored", "by_name", "offsets", "positions")

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self.by_name: dict[str, Group] = {}
        self.offsets = Offsets()
        self.positions = Positions()
        self._append = 0
        self._appends: dict[int, str | _Written] = {}      # of a group's members, or of offsets
        self._stored: dict[str, GroupValue] = {}

    # -- loading -------------------------------------------------------------------------------------------------------
    def replay(self, offset: int, record: GroupRecord) -> None:
        """A record of the partition, below its end; in log order."""
        key, value = record
        if isinstance(key, PositionKey):
            assert value is None or isinstance(value, StoredPosition)
            self.positions.replay(offset, key, value)
        elif isinstance(key, OffsetKey):
            assert value is None or isinstance(value, OffsetValue)
            self.offsets.replay(key, value)
        elif value is None:
            self._stored.pop(key.group, None)
        else:
            assert isinstance(value, GroupValue)
            self._stored[key.group] = value

    def loaded(self, at: Instant) -> None:
        """All records are replayed: from now on this is the coordinator."""
        for name, value in self._stored.items():
            self._new(name).load(value, at)
        self._stored = {}

    def _new(self, name: str) -> Group:
        group = self.by_name[name] = Group(name, self._settings, lambda: self._next_append(name))
        return group

    def _next_append(self, of: str | _Written) -> int:
        self._append += 1
        self._appends[self._append] = of
        return self._append

    # -- membership ----------------------------------------------------------------------------------------------------
    def join(self, at: Instant, join: Join, token: Token) -> list[Effect]:
        group = self.by_name.get(join.group)
        code = _check_name(join.group)
        if code is Code.NONE and group is None and join.member_id:
            code = Code.UNKNOWN_MEMBER_ID
        if code is not Code.NONE:
            return [Answer(token, Joined(code, join.member_id))]
        return (group or self._new(join.group)).join(at, join, token)

    def sync(self, at: Instant, sync: Sync, token: Token) -> list[Effect]:
        group = self.by_name.get(sync.group)
        if group is None:
            return [Answer(token, Synced(Code.UNKNOWN_MEMBER_ID))]
        return group.sync(at, sync, token)

    def heartbeat(self, at: Instant, beat: Heartbeat, token: Token) -> list[Effect]:
        group = self.by_name.get(beat.group)
        return [Answer(token, Said(Code.UNKNOWN_MEMBER_ID if group is None else group.heartbeat(at, beat)))]

    def leave(self, at: Instant, leave: Leave, token: Token) -> list[Effect]:
        group = self.by_name.get(leave.group)
        if group is None:
            return [Answer(token, Left(Code.NONE, tuple((one, Code.UNKNOWN_MEMBER_ID) for one in leave.members)))]
        return group.leave(at, leave, token)

    # -- offsets -------------------------------------------------------------------------------------------------------
    def commit(self, at: Instant, commit: CommitOffsets, token: Token) -> list[Effect]:
        code = self._check_commit(commit)
        if code is not Code.NONE:
            return [Answer(token, OffsetsDone(dict.fromkeys(commit.offsets, code)))]
        if commit.group in self.by_name:
            self.by_name[commit.group].vouched(at, commit.member_id)
        long = {p for p, value in commit.offsets.items() if len(value.metadata) > limits.OFFSET_METADATA_CHARS_MAX}
        codes = {p: Code.OFFSET_METADATA_TOO_LARGE if p in long else Code.NONE for p in commit.offsets}
        records = tuple(
            GroupRecord(OffsetKey(commit.group, *p), value._replace(commit_ms=at.wall_ms))
            for p, value in commit.offsets.items() if p not in long
        )
        return self._write(token, records, OffsetsDone(codes))

    def _check_commit(self, commit: CommitOffsets) -> Code:
        code = _check_name(commit.group)
        group = self.by_name.get(commit.group)
        if code is not Code.NONE:
            return code
        if group is None or (group.state is State.EMPTY and commit.generation < 0):
            return Code.NONE if commit.generation < 0 else Code.ILLEGAL_GENERATION
        if commit.generation < 0 and not commit.member_id and commit.instance_id is None:
            return Code.UNKNOWN_MEMBER_ID       # a stranger may not move what members work on
        code = group.check_member(commit.member_id, commit.instance_id)
        if code is Code.NONE and commit.generation != group.generation:
            code = Code.ILLEGAL_GENERATION
        if code is Code.NONE and group.state is State.COMPLETING:
            code = Code.REBALANCE_IN_PROGRESS
        return code

    def fetch(self, group: str, token: Token, partitions: Iterable[Partition] | None = None) -> Answer:
        """Committed offsets, of all partitions or of these. Of a changefeed: its positions, once they are committed."""
        if not group.startswith(OURS):
            return Answer(token, FetchedOffsets(self.offsets.of(group, partitions), {}))
        found = {k: s for k, s in self.positions.by_key.items() if OURS + k.changefeed == group}
        shown = {TopicPartition(k.topic_id, k.partition): _shown(s.position) for k, s in found.items()
                 if s.position.at < SKIPPED}             # nobody goes there
        return Answer(token, FetchedOffsets({}, shown), max((s.offset for s in found.values()), default=-1))

    def delete_offsets(self, group: str, partitions: Iterable[Partition], token: Token) -> list[Effect]:
        """Only of a group without members: theirs might be read again any moment."""
        wanted = tuple(partitions)
        code = self._check_known(group)
        if code is Code.NONE and self._is_busy(group):
            code = Code.GROUP_SUBSCRIBED_TO_TOPIC
        if code is not Code.NONE:
            return [Answer(token, OffsetsDone(dict.fromkeys(wanted, code)))]
        records = tuple(GroupRecord(OffsetKey(group, *p), None) for p in self.offsets.of(group, wanted))
        return self._write(token, records, OffsetsDone(dict.fromkeys(wanted, Code.NONE)))

    def topics_gone(self, topic_id_of: Callable[[str], UUID | None]) -> list[Effect]:
        """Offsets go with their topic, members or not; `topic_id_of`: the id that a topic's name stands for now."""
        effects: list[Effect] = []
        gone = [GroupRecord(key, None) for key in self.offsets.of_topics_gone(topic_id_of)]
        for at in range(0, len(gone), limits.GROUP_FORGET_RECORDS):
            effects += self._write(NOBODY, tuple(gone[at : at + limits.GROUP_FORGET_RECORDS]), Said(Code.NONE))
        return effects

    def _write(self, token: Token, records: tuple[GroupRecord, ...], reply: OffsetsDone | Said) -> list[Effect]:
        if not records:
            return [Answer(token, reply)]
        self.offsets.pend(records)
        return [Append(self._next_append(_Written(token, records, reply)), records)]

    # -- appends -------------------------------------------------------------------------------------------------------
    def committed(self, at: Instant, append: int) -> list[Effect]:
        """Below the high watermark; in the order of the log."""
        of = self._appends.pop(append)
        if isinstance(of, str):
            return self.by_name[of].committed(at, append) if of in self.by_name else []
        self.offsets.settle(of.records, committed=True)
        self._forget(of.records)
        return [Answer(of.token, of.reply)] if of.token != NOBODY else []

    def failed(self, at: Instant, append: int) -> list[Effect]:
        """Not stored, or nobody knows: the log will tell the next coordinator."""
        of = self._appends.pop(append)
        if isinstance(of, str):
            return self.by_name[of].failed(at, append) if of in self.by_name else []
        self.offsets.settle(of.records, committed=False)
        return of.failed(Code.COORDINATOR_NOT_AVAILABLE)

    def _forget(self, records: tuple[GroupRecord, ...]) -> None:
        for key, value in records:
            if isinstance(key, GroupKey) and value is None:
                group = self.by_name.get(key.group)
                if group is not None and not group.members:
                    del self.by_name[key.group]

    # -- time ----------------------------------------------------------------------------------------------------------
    def deadline_s(self) -> float | None:
        times = [time for group in self.by_name.values() if (time := group.deadline_s()) is not None]
        return min(times, default=None)

    def tick(self, at: Instant) -> list[Effect]:
        """Call at `deadline_s`, or any time."""
        effects: list[Effect] = []
        for group in list(self.by_name.values()):
            due = group.deadline_s()
            if due is not None and due <= at.s:
                effects += group.tick(at)
            if group.is_unused:
                del self.by_name[group.name]
        return effects

    def expire(self, at: Instant) -> list[Effect]:
        """Now and then: offsets that nobody used for the retention time go, and with the last of them their group."""
        effects: list[Effect] = []
        for name in sorted({*self.by_name, *self.offsets.groups()}):
            group = self.by_name.get(name)
            if group is not None and group.state is not State.EMPTY:
                continue
            since_ms = group.state_ms if group is not None and group.protocol_type is not None else -1
            old_ms = at.wall_ms - round(self._settings.offsets_retention_s * 1000)
            gone = self.offsets.unused(name, since_ms=since_ms, old_ms=old_ms)
            records = [GroupRecord(OffsetKey(name, *p), None) for p in gone]
            empty = len(gone) == len(self.offsets.of(name)) and not self.offsets.is_pending(name)
            if group is not None and group.generation > 0 and empty and since_ms <= old_ms:
                records.append(GroupRecord(GroupKey(name), None))
            if records:
                effects += self._write(NOBODY, tuple(records), Said(Code.NONE))
        return effects

    def resigned(self) -> list[Effect]:
        """Another broker leads the partition now. Everybody who waits here is sent there; this object is over."""
        effects = [effect for group in self.by_name.values() for effect in group.resigned()]
        for of in self._appends.values():
            if isinstance(of, _Written):
                effects += of.failed(Code.NOT_COORDINATOR)
        return effects

    # -- for tools -----------------------------------------------------------------------------------------------------
    def describe(self, name: str) -> Described:
        group = self.by_name.get(name)
        if group is None:
            return Described(Code.NONE, name, State.EMPTY.value if self._exists(name) else DEAD)
        members = tuple(
            DescribedMember(m.id, m.instance_id, m.client_id, m.client_host, m.metadata(group.protocol), m.assignment)
            for m in group.members.values()
        )
        type_, protocol = group.protocol_type or "", group.protocol or ""
        return Described(Code.NONE, name, group.state.value, type_, protocol, members)

    def states(self) -> Iterable[State]:
        """Of every group, for counting; those of offsets only are empty."""
        yield from (group.state for group in self.by_name.values())
        yield from (State.EMPTY for name in self.offsets.groups() if name not in self.by_name)

    def listed(self) -> tuple[Listed, ...]:
        names = {*self.by_name, *self.offsets.groups(), *(OURS + key.changefeed for key in self.positions.by_key)}
        shown = (self.describe(name) for name in sorted(names))
        return tuple(Listed(one.group, one.protocol_type, one.state) for one in shown)

    def delete(self, name: str, token: Token) -> list[Effect]:
        code = self._check_known(name)
        if code is Code.NONE and self._is_busy(name):
            code = Code.NON_EMPTY_GROUP
        if code is not Code.NONE:
            return [Answer(token, Said(code))]
        records = [GroupRecord(OffsetKey(name, *p), None) for p in self.offsets.of(name)]
        records.append(GroupRecord(GroupKey(name), None))
        return self._write(token, tuple(records), Said(Code.NONE))

    def _exists(self, name: str) -> bool:
        ours = any(OURS + key.changefeed == name for key in self.positions.by_key)
        return ours or name in self.by_name or bool(self.offsets.of(name))

    def _check_known(self, name: str) -> Code:
        code = _check_name(name)
        return code if code is not Code.NONE or self._exists(name) else Code.GROUP_ID_NOT_FOUND

    def _is_busy(self, name: str) -> bool:
        return name in self.by_name and self.by_name[name].state is not State.EMPTY


def _check_name(name: str) -> Code:
    """Ordinary requests touch no group of ours."""
    if not name:
        return Code.INVALID_GROUP_ID
    return Code.GROUP_AUTHORIZATION_FAILED if name.startswith(OURS) else Code.NONE


def _shown(position: StoredPosition) -> OffsetValue:
    """As a committed offset, for every tool that shows lag."""
    text = f"epoch={position.epoch} row={position.row} resolved={position.resolved}"
    if position.shown == NOT_SHOWN:
        return OffsetValue(position.next_offset, NO_LEADER_EPOCH, text, -1)
    return OffsetValue(position.shown, NO_LEADER_EPOCH, f"{text} next={position.next_offset}", -1)
