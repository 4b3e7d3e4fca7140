"""Consumer groups of the classic protocol: generations, leaders, sessions, static members, offsets [L20, L21]."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

import msgspec
import pytest

from millrace.core.groups.calls import (
    Answer,
    Append,
    Code,
    CommitOffsets,
    Effect,
    FetchedOffsets,
    Heartbeat,
    Instant,
    Join,
    Joined,
    Leave,
    Leaving,
    Left,
    OffsetsDone,
    Said,
    Sync,
    Synced,
)
from millrace.core.groups.groups import Groups
from millrace.core.groups.state import Settings
from millrace.model.groups import GroupKey, GroupRecord, OffsetKey, OffsetValue, decode_record, encode_key, encode_value
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey

R = TypeVar("R")
DAY_S = 86_400.0
SESSION_S, REBALANCE_S = 10.0, 30.0
SETTINGS = Settings(initial_delay_s=3.0)
P = ("t", 0)


class Broker:
    """A coordinator and the log of its partition: appends are committed at once, unless `hold` is set."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.groups = Groups(settings)
        self.settings = settings
        self.now = 1000.0
        self.log: list[GroupRecord] = []
        self.told: dict[int, object] = {}
        self.tokens = 0
        self.hold = False
        self.held: list[Append] = []

    @property
    def at(self) -> Instant:
        return Instant(self.now, round(self.now * 1000))

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert effect.token not in self.told, "answered twice"
                self.told[effect.token] = effect.reply
            else:
                self.log += [_through_bytes(record) for record in effect.records]
                if self.hold:
                    self.held.append(effect)
                else:
                    self.do(self.groups.committed(self.at, effect.id))

    def release(self) -> None:
        held, self.held, self.hold = self.held, [], False
        for append in held:
            self.do(self.groups.committed(self.at, append.id))

    def token(self) -> int:
        self.tokens += 1
        return self.tokens

    def pass_time(self, seconds: float) -> None:
        """Ticks whenever the machine wants one."""
        end = self.now + seconds
        while (due := self.groups.deadline_s()) is not None and due <= end:
            self.now = max(self.now, due)
            self.do(self.groups.tick(self.at))
        self.now = end

    def gather(self, *tokens: int) -> None:
        """Until these are answered."""
        for _ in range(round(REBALANCE_S)):
            if not all(token in self.told for token in tokens):
                self.pass_time(1.0)

    def restart(self) -> Groups:
        """Another broker replays the log."""
        groups = Groups(self.settings)
        for offset, record in enumerate(self.log):
            groups.replay(offset, record)
        groups.loaded(self.at)
        self.groups = groups
        return groups

    # -- requests
    def join(
        self, member: str = "", *, fresh: str = "x", instance: str | None = None, group: str = "g",
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"sub"),), must_know_id: bool = False,
        session_s: float = SESSION_S, kind: str = "consumer", may_skip: bool = True,
    ) -> int:
        token = self.token()
        join = Join(
            group, member, instance, "client", "/host", session_s, REBALANCE_S, kind, protocols, fresh, must_know_id,
            may_skip,
        )
        self.do(self.groups.join(self.at, join, token))
        return token

    def sync(self, member: str, generation: int, given: dict[str, bytes] | None = None, *,
             instance: str | None = None, protocol: str | None = None) -> int:
        token = self.token()
        sync = Sync("g", member, instance, generation, given or {}, protocol=protocol)
        self.do(self.groups.sync(self.at, sync, token))
        return token

    def beat(self, member: str, generation: int, instance: str | None = None) -> Code:
        token = self.token()
        self.do(self.groups.heartbeat(self.at, Heartbeat("g", member, instance, generation), token))
        return self.answer(token, Said).code

    def leave(self, *members: str) -> Left:
        token = self.token()
        self.do(self.groups.leave(self.at, Leave("g", tuple(map(Leaving, members))), token))
        return self.answer(token, Left)

    def commit(
        self, offset: int, member: str = "", generation: int = -1, *, group: str = "g", metadata: str = "",
        topic_id: UUID | None = None,
    ) -> Code:
        token = self.token()
        offsets = {P: OffsetValue(offset, -1, metadata, -1, topic_id)}
        self.do(self.groups.commit(self.at, CommitOffsets(group, member, None, generation, offsets), token))
        return self.answer(token, OffsetsDone).codes[P]

    def offset(self, group: str = "g") -> int | None:
        reply = self.groups.fetch(group, 0).reply
        assert isinstance(reply, FetchedOffsets)
        return reply.offsets[P].offset if P in reply.offsets else None

    def answer(self, token: int, kind: type[R]) -> R:
        reply = self.told[token]
        assert isinstance(reply, kind)
        return reply

    def joined(self, token: int) -> Joined:
        return self.answer(token, Joined)

    def stable(self, *members: str) -> int:
        """A stable group of these; returns its generation."""
        tokens = [self.join(fresh=member) for member in members]
        self.gather(*tokens)
        generation = self.joined(tokens[0]).generation
        syncs = [self.sync(member, generation, {m: m.encode() for m in members}) for member in reversed(members)]
        assert [self.answer(t, Synced).assignment for t in reversed(syncs)] == [m.encode() for m in members]
        return generation


def _through_bytes(record: GroupRecord) -> GroupRecord:
    return decode_record(encode_key(record.key), None if record.value is None else encode_value(record.value))


@pytest.fixture
def b() -> Broker:
    return Broker()


# -- join and sync -----------------------------------------------------------------------------------------------------
def test_L20_the_first_rebalance_waits_for_more_members(b: Broker) -> None:
    one = b.join(fresh="m1")
    b.pass_time(2.9)
    two = b.join(fresh="m2")
    assert one not in b.told
    b.pass_time(3.0)
    assert two not in b.told
    b.gather(one, two)
    first, second = b.joined(one), b.joined(two)
    assert (first.generation, first.leader, second.leader) == (1, "m1", "m1")
    assert [m.member_id for m in first.members] == ["m1", "m2"]
    assert second.members == ()


def test_L20_a_new_member_is_asked_to_come_again_with_its_id(b: Broker) -> None:
    asked = b.joined(b.join(fresh="m1", must_know_id=True))
    assert (asked.code, asked.member_id) == (Code.MEMBER_ID_REQUIRED, "m1")
    token = b.join("m1", must_know_id=True)
    b.pass_time(3.0)
    assert b.joined(token).code is Code.NONE


def test_L20_an_id_that_is_not_used_is_forgotten_after_a_session(b: Broker) -> None:
    b.join(fresh="m1", must_know_id=True)
    b.pass_time(SESSION_S)
    assert b.joined(b.join("m1")).code is Code.UNKNOWN_MEMBER_ID
    assert b.groups.describe("g").state == "Dead"


def test_L20_assignments_are_told_once_they_are_stored(b: Broker) -> None:
    one, two = b.join(fresh="m1"), b.join(fresh="m2")
    b.gather(one, two)
    assert b.joined(one).generation == b.joined(two).generation == 1
    b.hold = True
    follower = b.sync("m2", 1)
    leader = b.sync("m1", 1, {"m1": b"a", "m2": b"b"})
    assert not {follower, leader} & b.told.keys()
    b.release()
    assert b.answer(follower, Synced).assignment == b"b"
    assert b.groups.describe("g").state == "Stable"


def test_L20_an_assignment_that_cannot_be_stored_makes_the_group_rebalance(b: Broker) -> None:
    token = b.join(fresh="m1")
    b.pass_time(3.0)
    b.hold = True
    sync = b.sync("m1", b.joined(token).generation, {"m1": b"a"})
    b.do(b.groups.failed(b.at, b.held[0].id))
    assert b.answer(sync, Synced).code is Code.COORDINATOR_NOT_AVAILABLE
    assert b.beat("m1", 1) is Code.REBALANCE_IN_PROGRESS


def test_L20_a_late_commit_of_a_former_generation_tells_nothing(b: Broker) -> None:
    b.join(fresh="m1")
    b.pass_time(3.0)
    b.hold = True
    old = b.sync("m1", 1, {"m1": b"old"})
    b.join(fresh="m2")
    assert b.answer(old, Synced).code is Code.REBALANCE_IN_PROGRESS
    again = b.join("m1")
    b.release()
    assert b.joined(again).generation == 2
    assert b.groups.describe("g").state == "CompletingRebalance"


def test_L20_a_member_joining_a_stable_group_starts_the_next_generation(b: Broker) -> None:
    generation = b.stable("m1")
    new = b.join(fresh="m2")
    assert new not in b.told
    assert b.beat("m1", generation) is Code.REBALANCE_IN_PROGRESS
    again = b.join("m1")
    assert b.joined(again).generation == b.joined(new).generation == generation + 1
    assert b.joined(again).leader == "m1"


def test_L20_a_lost_answer_is_given_again_in_the_same_generation(b: Broker) -> None:
    generation = b.stable("m1", "m2")
    assert b.joined(b.join("m2")).generation == generation
    assert b.answer(b.sync("m2", generation), Synced).assignment == b"m2"


def test_L20_the_leader_may_ask_for_a_rebalance(b: Broker) -> None:
    generation = b.stable("m1", "m2")
    b.join("m1")
    assert b.beat("m2", generation) is Code.REBALANCE_IN_PROGRESS


def test_L20_changed_subscriptions_start_a_rebalance(b: Broker) -> None:
    generation = b.stable("m1", "m2")
    b.join("m2", protocols=(("range", b"other"),))
    assert b.beat("m1", generation) is Code.REBALANCE_IN_PROGRESS


def test_L20_the_protocol_is_one_that_all_know(b: Broker) -> None:
    tokens = [
        b.join(fresh="m1", protocols=(("range", b"1"), ("sticky", b"1"))),
        b.join(fresh="m2", protocols=(("sticky", b"2"), ("range", b"2"))),
        b.join(fresh="m3", protocols=(("sticky", b"3"),)),
    ]
    b.gather(*tokens)
    assert {b.joined(token).protocol for token in tokens} == {"sticky"}
    refused = b.joined(b.join(fresh="m4", protocols=(("own", b""),)))
    assert refused.code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert b.joined(b.join(fresh="m5", kind="connect")).code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert b.answer(b.sync("m1", 1, protocol="range"), Synced).code is Code.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("group", "session_s", "code"),
    [("", 10.0, Code.INVALID_GROUP_ID), ("g", 0.1, Code.INVALID_SESSION_TIMEOUT),
     ("g", 1e6, Code.INVALID_SESSION_TIMEOUT), ("millrace.orders", 10.0, Code.GROUP_AUTHORIZATION_FAILED)],
)
def test_L20_joins_that_are_refused(b: Broker, group: str, session_s: float, code: Code) -> None:
    assert b.joined(b.join(group=group, session_s=session_s)).code is code


def test_L25_a_group_has_a_largest_size() -> None:
    b = Broker(Settings(initial_delay_s=0.0, members_max=1))
    b.stable("m1")
    assert b.joined(b.join(fresh="m2")).code is Code.GROUP_MAX_SIZE_REACHED


def test_L20_unknown_members_and_old_generations_are_refused(b: Broker) -> None:
    generation = b.stable("m1")
    assert b.beat("m9", generation) is Code.UNKNOWN_MEMBER_ID
    assert b.beat("m1", generation - 1) is Code.ILLEGAL_GENERATION
    assert b.answer(b.sync("m9", generation), Synced).code is Code.UNKNOWN_MEMBER_ID
    assert b.answer(b.sync("m1", generation + 1), Synced).code is Code.ILLEGAL_GENERATION
    assert b.leave("m9").members[0][1] is Code.UNKNOWN_MEMBER_ID


# -- time and leaving --------------------------------------------------------------------------------------------------
def test_L20_a_silent_member_is_out_after_its_session(b: Broker) -> None:
    generation = b.stable("m1", "m2")
    for _ in range(4):
        b.pass_time(SESSION_S / 4)
        code = b.beat("m1", generation)
    assert code is Code.REBALANCE_IN_PROGRESS
    token = b.join("m1")
    assert (b.joined(token).generation, len(b.joined(token).members)) == (generation + 1, 1)


def test_L20_a_member_that_does_not_join_again_is_out_when_time_is_over(b: Broker) -> None:
    generation = b.stable("m1", "m2")
    token = b.join(fresh="m3")
    m1 = b.join("m1")
    for _ in range(30):
        b.pass_time(1.0)
        b.beat("m2", generation)                # alive, and yet it does not come
    assert b.joined(token).generation == b.joined(m1).generation == generation + 1
    assert {m.member_id for m in b.joined(m1).members} == {"m1", "m3"}


def test_L20_a_leader_that_never_syncs_is_out_when_time_is_over(b: Broker) -> None:
    one, two = b.join(fresh="m1"), b.join(fresh="m2")
    b.gather(one, two)
    assert b.joined(one).leader == "m1"
    assert b.joined(two).generation == 1
    sync = b.sync("m2", 1)
    for _ in range(31):
        b.pass_time(1.0)
        b.beat("m1", 1)
    assert b.answer(sync, Synced).code is Code.REBALANCE_IN_PROGRESS
    again = b.join("m2")
    assert b.joined(again).leader == "m2"


def test_L20_a_new_member_that_went_away_while_parked_is_given_up() -> None:
    b = Broker(Settings(initial_delay_s=3.0, new_member_s=5.0))
    b.stable("m1")
    parked = b.join(fresh="m2")
    b.pass_time(5.0)
    assert b.joined(parked).code is Code.UNKNOWN_MEMBER_ID


def test_L20_who_leaves_is_out_at_once(b: Broker) -> None:
    generation = b.stable("m1", "m2")
    assert b.leave("m2").members == ((Leaving("m2"), Code.NONE),)
    assert b.beat("m1", generation) is Code.REBALANCE_IN_PROGRESS
    assert b.beat("m2", generation) is Code.UNKNOWN_MEMBER_ID


def test_L20_the_last_one_leaves_an_empty_group_which_is_stored(b: Broker) -> None:
    b.stable("m1")
    b.leave("m1")
    assert b.groups.describe("g").state == "Empty"
    assert b.log[-1].key == GroupKey("g")
    assert b.restart().describe("g").state == "Empty"


# -- static members ----------------------------------------------------------------------------------------------------
def static(b: Broker) -> int:
    """m1 leads; m2 is the static instance "i2"."""
    one, two = b.join(fresh="m1"), b.join(fresh="m2", instance="i2")
    b.gather(one, two)
    generation = b.joined(one).generation
    assert b.joined(two).generation == generation
    b.sync("m2", generation, instance="i2")
    b.sync("m1", generation, {"m1": b"a", "m2": b"b"})
    return generation


def test_L20_a_static_member_comes_back_without_a_rebalance(b: Broker) -> None:
    generation = static(b)
    back = b.joined(b.join(fresh="m3", instance="i2"))
    assert (back.member_id, back.generation) == ("m3", generation)
    assert b.beat("m1", generation) is Code.NONE
    assert b.answer(b.sync("m3", generation, instance="i2"), Synced).assignment == b"b"


def test_L20_the_former_holder_of_an_instance_is_fenced(b: Broker) -> None:
    generation = static(b)
    b.join(fresh="m3", instance="i2")
    assert b.beat("m2", generation, "i2") is Code.FENCED_INSTANCE_ID
    assert b.answer(b.sync("m2", generation, instance="i2"), Synced).code is Code.FENCED_INSTANCE_ID


def test_L20_what_the_former_holder_of_an_instance_waits_for_is_answered(b: Broker) -> None:
    """Its connection would wait for a rebalance that is not its own any more."""
    static(b)
    b.join(fresh="m4")                                   # a rebalance begins
    waiting = b.join("m2", instance="i2")
    assert waiting not in b.told
    b.join(fresh="m3", instance="i2")
    assert b.joined(waiting).code is Code.FENCED_INSTANCE_ID


def test_L20_a_returning_static_leader_keeps_the_assignment(b: Broker) -> None:
    token = b.join(fresh="m1", instance="i1")
    b.gather(token)
    b.sync("m1", b.joined(token).generation, {"m1": b"a"}, instance="i1")
    back = b.joined(b.join(fresh="m2", instance="i1"))
    assert (back.leader, back.skip_assignment) == ("m2", True)
    old_client = b.joined(b.join(fresh="m3", instance="i1", may_skip=False))
    assert (old_client.leader, old_client.member_id) == ("m2", "m3")


def test_L20_a_static_member_is_not_put_out_by_a_rebalance_but_by_its_session(b: Broker) -> None:
    generation = static(b)
    b.join(fresh="m3")
    m1 = b.join("m1")
    b.pass_time(SESSION_S - 1)
    assert m1 not in b.told
    b.pass_time(1.0)
    assert b.joined(m1).generation == generation + 1
    assert {m.member_id for m in b.joined(m1).members} == {"m1", "m3"}


def test_L20_an_operator_removes_a_static_member_by_its_instance(b: Broker) -> None:
    generation = static(b)
    token = b.token()
    leaving = (Leaving("", "i2"), Leaving("", "i9"))
    b.do(b.groups.leave(b.at, Leave("g", leaving), token))
    assert [code for _, code in b.answer(token, Left).members] == [Code.NONE, Code.UNKNOWN_MEMBER_ID]
    assert b.beat("m1", generation) is Code.REBALANCE_IN_PROGRESS


# -- offsets -----------------------------------------------------------------------------------------------------------
def test_L21_a_commit_counts_only_in_the_present_generation(b: Broker) -> None:
    generation = b.stable("m1")
    assert b.commit(5, "m1", generation) is Code.NONE
    assert b.commit(9, "m1", generation - 1) is Code.ILLEGAL_GENERATION
    assert b.commit(9, "m9", generation) is Code.UNKNOWN_MEMBER_ID
    assert b.commit(9) is Code.UNKNOWN_MEMBER_ID
    assert b.offset() == 5


def test_L21_a_commit_while_members_gather_is_taken_and_refused_while_they_wait_for_the_leader(b: Broker) -> None:
    generation = b.stable("m1")
    b.join(fresh="m2")
    assert b.commit(5, "m1", generation) is Code.NONE
    b.join("m1")
    assert b.commit(6, "m1", generation + 1) is Code.REBALANCE_IN_PROGRESS


def test_L21_a_commit_is_a_sign_of_life(b: Broker) -> None:
    generation = b.stable("m1")
    for _ in range(3):
        b.pass_time(SESSION_S - 1)
        assert b.commit(5, "m1", generation) is Code.NONE


def test_L21_an_offset_is_visible_once_it_is_committed(b: Broker) -> None:
    b.hold = True
    token = b.token()
    commit = CommitOffsets("g", "", None, -1, {P: OffsetValue(5, -1, "", -1)})
    b.do(b.groups.commit(b.at, commit, token))
    assert (b.offset(), token in b.told) == (None, False)
    b.release()
    assert b.offset() == 5


def test_L21_an_offset_that_could_not_be_stored_is_not_there(b: Broker) -> None:
    b.hold = True
    token = b.token()
    b.do(b.groups.commit(b.at, CommitOffsets("g", "", None, -1, {P: OffsetValue(5, -1, "", -1)}), token))
    b.do(b.groups.failed(b.at, b.held[0].id))
    assert b.answer(token, OffsetsDone).codes == {P: Code.COORDINATOR_NOT_AVAILABLE}
    assert b.offset() is None


def test_L20_offsets_go_with_their_topic_also_of_a_group_with_members(b: Broker) -> None:
    first, second = UUID(int=1), UUID(int=2)
    generation = b.stable("m1")
    b.commit(5, "m1", generation, topic_id=first)
    b.do(b.groups.topics_gone({"t": first}.get))
    assert b.offset() == 5
    b.do(b.groups.topics_gone({"t": second}.get))
    assert b.offset() is None
    assert b.log[-1] == GroupRecord(OffsetKey("g", *P), None)
    assert b.restart().offsets.of("g") == {}
    b.commit(6, topic_id=second, group="later")
    b.do(b.groups.topics_gone({"t": second}.get))
    assert b.offset("later") == 6
    b.do(b.groups.topics_gone({}.get))
    assert b.offset("later") is None


def test_L20_an_offset_of_before_ids_were_recorded_goes_when_its_topics_name_does(b: Broker) -> None:
    b.commit(5)
    b.do(b.groups.topics_gone({"t": UUID(int=1)}.get))
    assert b.offset() == 5
    b.do(b.groups.topics_gone({}.get))
    assert b.offset() is None


def test_L20_what_is_on_its_way_when_its_topic_goes_is_removed_by_the_next_look(b: Broker) -> None:
    b.hold = True
    commit = CommitOffsets("g", "", None, -1, {P: OffsetValue(5, -1, "", -1, UUID(int=1))})
    b.do(b.groups.commit(b.at, commit, b.token()))
    b.do(b.groups.topics_gone({}.get))
    b.release()
    assert b.offset() == 5
    b.hold = False
    b.do(b.groups.topics_gone({}.get))
    assert b.offset() is None


def test_L21_a_commit_of_a_generation_without_a_group_is_refused(b: Broker) -> None:
    assert b.commit(5, "m1", 3) is Code.ILLEGAL_GENERATION


def test_L25_text_beside_an_offset_is_bounded(b: Broker) -> None:
    assert b.commit(5, metadata="x" * 5000) is Code.OFFSET_METADATA_TOO_LARGE
    assert b.offset() is None


def test_L21_offsets_of_an_unused_group_expire(b: Broker) -> None:
    generation = b.stable("m1")
    b.commit(5, "m1", generation)
    b.now += 8 * DAY_S
    b.do(b.groups.expire(b.at))
    assert b.offset() == 5                      # members exist
    b.leave("m1")
    b.now += 6 * DAY_S
    b.do(b.groups.expire(b.at))
    assert b.offset() == 5
    b.now += 2 * DAY_S
    b.do(b.groups.expire(b.at))
    assert (b.offset(), b.groups.describe("g").state) == (None, "Dead")
    assert b.restart().listed() == ()


def test_L21_offsets_without_a_group_expire_by_their_own_age(b: Broker) -> None:
    b.commit(5, group="tool")
    b.now += 8 * DAY_S
    b.do(b.groups.expire(b.at))
    assert b.offset("tool") is None


def test_L21_an_offset_with_a_commit_on_its_way_does_not_expire(b: Broker) -> None:
    b.commit(5, group="tool")
    b.now += 8 * DAY_S
    b.hold = True
    commit = CommitOffsets("tool", "", None, -1, {P: OffsetValue(6, -1, "", -1)})
    b.do(b.groups.commit(b.at, commit, b.token()))
    b.do(b.groups.expire(b.at))
    b.release()
    assert b.offset("tool") == 6


def test_L20_offsets_are_deleted_only_of_a_group_without_members(b: Broker) -> None:
    generation = b.stable("m1")
    b.commit(5, "m1", generation)
    busy, idle = b.token(), b.token()
    b.do(b.groups.delete_offsets("g", [P], busy))
    assert b.answer(busy, OffsetsDone).codes == {P: Code.GROUP_SUBSCRIBED_TO_TOPIC}
    b.leave("m1")
    b.do(b.groups.delete_offsets("g", [P], idle))
    assert (b.answer(idle, OffsetsDone).codes, b.offset()) == ({P: Code.NONE}, None)


# -- tools, restart ----------------------------------------------------------------------------------------------------
def test_L20_a_group_is_deleted_when_nobody_is_in_it(b: Broker) -> None:
    generation = b.stable("m1")
    b.commit(5, "m1", generation)
    codes = []
    for leave in (False, True, True):
        if leave:
            b.leave("m1")
        token = b.token()
        b.do(b.groups.delete("g", token))
        codes.append(b.answer(token, Said).code)
    assert codes == [Code.NON_EMPTY_GROUP, Code.NONE, Code.GROUP_ID_NOT_FOUND]
    assert b.restart().listed() == ()


def test_L20_groups_are_listed_and_described(b: Broker) -> None:
    b.stable("m1")
    b.commit(5, group="tool")
    assert [(one.group, one.protocol_type, one.state) for one in b.groups.listed()] == [
        ("g", "consumer", "Stable"), ("tool", "", "Empty"),
    ]
    shown = b.groups.describe("g")
    assert (shown.protocol, [(m.member_id, m.client_host, m.assignment) for m in shown.members]) == (
        "range", [("m1", "/host", b"m1")],
    )


def test_L21_another_broker_goes_on_from_the_records(b: Broker) -> None:
    generation = b.stable("m1", "m2")
    b.commit(5, "m1", generation)
    b.restart()
    assert b.offset() == 5
    assert b.beat("m1", generation) is Code.NONE
    assert b.answer(b.sync("m2", generation), Synced).assignment == b"m2"
    b.pass_time(SESSION_S)
    assert b.groups.describe("g").state in ("Empty", "PreparingRebalance")


def test_L21_the_log_can_be_compacted(b: Broker) -> None:
    generation = b.stable("m1")
    for offset in range(5):
        b.commit(offset, "m1", generation)
    last = {record.key: record for record in b.log}
    b.log = list(last.values())
    b.restart()
    assert (b.offset(), b.beat("m1", generation)) == (4, Code.NONE)


def test_L21_a_broker_that_leads_no_more_sends_everybody_away(b: Broker) -> None:
    join = b.join(fresh="m1")
    b.hold = True
    commit = b.token()
    b.do(b.groups.commit(b.at, CommitOffsets("o", "", None, -1, {P: OffsetValue(5, -1, "", -1)}), commit))
    b.do(b.groups.resigned())
    assert b.joined(join).code is Code.NOT_COORDINATOR
    assert b.answer(commit, OffsetsDone).codes == {P: Code.NOT_COORDINATOR}


# -- positions of changefeeds ------------------------------------------------------------------------------------------
KEY = PositionKey("orders", UUID(int=1), 3)


def with_position(b: Broker) -> None:
    move = b.groups.positions.create(KEY, epoch=1, at=Point(7, 2), resolved=99, writer_id=70)
    assert move.record is not None
    b.groups.replay(len(b.log), _through_bytes(GroupRecord(KEY, move.record)))
    b.log.append(GroupRecord(KEY, move.record))


def test_L21_a_position_is_readable_by_every_tool_once_it_is_committed(b: Broker) -> None:
    b.commit(1, group="other")
    with_position(b)
    answer = b.groups.fetch("millrace.orders", 5)
    assert isinstance(answer.reply, FetchedOffsets)
    shown = answer.reply.positions[TopicPartition(UUID(int=1), 3)]
    assert (shown.offset, shown.metadata, answer.after) == (7, "epoch=1 row=2 resolved=99", 1)
    assert b.groups.listed()[0].group == "millrace.orders"
    assert b.groups.describe("millrace.orders").state == "Empty"


@pytest.mark.parametrize(("next_offset", "shown", "offset"), [
    (5 << 24, 12, 12),                       # of a copy: a number, and the place in its topic
    (81, 106, 106),                          # of `progress`: nothing is left to do
    (81, -1, 81), (1 << 62, -1, None),       # a copy of which nothing is put
])
def test_L21_lag_is_the_end_minus_what_is_shown(b: Broker, next_offset: int, shown: int, offset: int | None) -> None:
    with_position(b)
    stored = msgspec.structs.replace(
        b.groups.positions.by_key[KEY].position, next_offset=next_offset, row=0, shown=shown)
    b.groups.replay(1, _through_bytes(GroupRecord(KEY, stored)))
    reply = b.groups.fetch("millrace.orders", 5).reply
    assert isinstance(reply, FetchedOffsets)
    found = {key: value.offset for key, value in reply.positions.items()}
    assert found == ({} if offset is None else {TopicPartition(UUID(int=1), 3): offset})
    assert all((f"next={next_offset}" in value.metadata) is (shown >= 0) for value in reply.positions.values())


def test_L21_positions_never_expire_and_ordinary_requests_do_not_change_them(b: Broker) -> None:
    with_position(b)
    b.now += 1000 * DAY_S
    b.do(b.groups.expire(b.at))
    assert b.commit(9, group="millrace.orders") is Code.GROUP_AUTHORIZATION_FAILED
    deleted, offsets = b.token(), b.token()
    b.do(b.groups.delete("millrace.orders", deleted))
    b.do(b.groups.delete_offsets("millrace.orders", [P], offsets))
    assert b.answer(deleted, Said).code is Code.GROUP_AUTHORIZATION_FAILED
    assert b.answer(offsets, OffsetsDone).codes == {P: Code.GROUP_AUTHORIZATION_FAILED}
    assert b.restart().positions.by_key[KEY].position.at == Point(7, 2)


def test_L21_tombstones_free_what_they_name(b: Broker) -> None:
    b.groups.replay(0, GroupRecord(OffsetKey("g", *P), OffsetValue(1, -1, "", 0)))
    b.groups.replay(1, GroupRecord(OffsetKey("g", *P), None))
    b.groups.replay(2, GroupRecord(GroupKey("g"), None))
    b.groups.loaded(b.at)
    assert b.groups.listed() == ()
