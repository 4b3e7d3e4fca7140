"""Consumer groups under any order of requests, appends, time and fail-over [L20, L21]."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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
    OffsetsDone,
    Sync,
    Synced,
)
from millrace.core.groups.groups import Groups
from millrace.core.groups.state import Settings, State
from millrace.model.groups import GroupRecord, OffsetValue

SETTINGS = Settings(session_min_s=1.0, initial_delay_s=2.0, new_member_s=1000.0)
SESSION_S, REBALANCE_S = 10.0, 20.0
P = ("t", 0)
WHO = st.integers(0, 5)


class Coordinator(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now, self.tokens, self.offset = 0.0, 0, 0
        self.log: list[GroupRecord] = []
        self.waiting: list[Append] = []                 # appended, not yet below the high watermark
        self.owed: set[int] = set()
        self.answers: list[tuple[int, object]] = []
        self.ids: list[str] = [""]                      # member ids ever given out
        self.life = 0
        self.leaders: dict[tuple[int, int], str] = {}
        self.lead: Groups = Groups(SETTINGS)
        self.accepted: int | None = None                # the last offset whose commit was acknowledged
        self.commits: dict[int, int] = {}

    @property
    def at(self) -> Instant:
        return Instant(self.now, round(self.now * 1000))

    def ask(self) -> int:
        self.tokens += 1
        self.owed.add(self.tokens)
        return self.tokens

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self.log += effect.records
                self.waiting.append(effect)
                continue
            assert effect.token in self.owed, "answered twice, or not asked"
            self.owed.remove(effect.token)
            self.answered(effect)

    def answered(self, answer: Answer) -> None:
        reply = answer.reply
        if isinstance(reply, Joined) and reply.code is Code.NONE:
            first = self.leaders.setdefault((self.life, reply.generation), reply.leader)
            assert first == reply.leader, "two leaders of one generation"
            assert bool(reply.members) <= (reply.leader == reply.member_id)
        if isinstance(reply, Synced) and reply.code is Code.NONE:
            assert self.group.state is State.STABLE
        if isinstance(reply, OffsetsDone) and reply.codes[P] is Code.NONE:
            self.accepted = self.commits[answer.token]

    @property
    def group(self):  # type: ignore[no-untyped-def]
        return self.lead.by_name["g"]

    # -- requests ------------------------------------------------------------------------------------------------------
    @rule(who=WHO, instance=st.sampled_from([None, None, "i1"]), other=st.booleans(), must_know_id=st.booleans())
    def join(self, who: int, instance: str | None, other: bool, must_know_id: bool) -> None:
        fresh = f"m{len(self.ids)}"
        self.ids.append(fresh)
        member = self.ids[-1 - who] if who and who < len(self.ids) else ""
        protocols = (("range", b"other" if other else b"sub"),)
        join = Join("g", member, instance, "c", "/h", SESSION_S, REBALANCE_S, "consumer", protocols, fresh)
        self.do(self.lead.join(self.at, join._replace(must_know_id=must_know_id), self.ask()))

    @rule(who=WHO, instance=st.sampled_from([None, None, "i1"]), behind=st.integers(0, 1))
    def sync(self, who: int, instance: str | None, behind: int) -> None:
        member, generation = self.someone(who, behind)
        given = {id_: id_.encode() for id_ in self.ids}
        self.do(self.lead.sync(self.at, Sync("g", member, instance, generation, given), self.ask()))

    @rule(who=WHO, behind=st.integers(0, 1))
    def beat(self, who: int, behind: int) -> None:
        member, generation = self.someone(who, behind)
        self.do(self.lead.heartbeat(self.at, Heartbeat("g", member, None, generation), self.ask()))

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        self.do(self.lead.leave(self.at, Leave("g", (Leaving(self.someone(who, 0)[0]),)), self.ask()))

    @rule(who=WHO, behind=st.integers(-1, 2))
    def commit(self, who: int, behind: int) -> None:
        member, generation = self.someone(who, behind)
        before = self.lead.by_name.get("g")
        inside = before is not None and member in before.members and generation == before.generation
        free = generation < 0 and (before is None or before.state is State.EMPTY)     # assigns its partitions itself
        token = self.ask()
        self.offset += 1
        self.commits[token] = self.offset
        offsets = {P: OffsetValue(self.offset, -1, "", -1)}
        effects = self.lead.commit(self.at, CommitOffsets("g", member, None, generation, offsets), token)
        assert not any(isinstance(effect, Append) for effect in effects) or inside or free, "of an old generation"
        self.do(effects)

    def someone(self, who: int, behind: int) -> tuple[str, int]:
        """A member of the present group, or somebody of the past."""
        group = self.lead.by_name.get("g")
        members = list(group.members) if group is not None else []
        member = members[who] if who < len(members) else self.ids[-1]
        return member, (group.generation if group is not None else 0) - behind

    # -- the world -----------------------------------------------------------------------------------------------------
    @precondition(lambda self: self.waiting)
    @rule()
    def replicate(self) -> None:
        append = self.waiting.pop(0)
        self.do(self.lead.committed(self.at, append.id))

    @rule(seconds=st.sampled_from([0.5, 2.0, 9.0, 25.0]))
    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.lead.deadline_s()) is not None and due <= end:
            self.now = max(self.now, due)
            self.do(self.lead.tick(self.at))
            later = self.lead.deadline_s()
            assert later is None or later > self.now, "time stands still"
        self.now = end

    @rule(kept=st.integers(0, 3))
    def fail_over(self, kept: int) -> None:
        """What was not below the high watermark may be lost; everybody is sent away."""
        lost = self.waiting[kept:]
        self.do(self.lead.resigned())
        assert not self.owed
        del self.log[len(self.log) - sum(len(append.records) for append in lost) :]
        self.waiting = []
        self.life += 1
        self.lead = Groups(SETTINGS)
        for offset, record in enumerate(self.log):
            self.lead.replay(offset, record)
        self.lead.loaded(self.at)

    # -- what holds ----------------------------------------------------------------------------------------------------
    @invariant()
    def the_leader_is_a_member(self) -> None:
        for group in self.lead.by_name.values():
            if group.state in (State.COMPLETING, State.STABLE) and group.leader is not None:
                assert group.leader in group.members
            assert (group.state is State.EMPTY) == (not group.members) or group.state is State.PREPARING
            assert {group.members[id_].instance_id for id_ in group.static.values()} == set(group.static)

    @invariant()
    def an_acknowledged_offset_is_there(self) -> None:
        reply = self.lead.fetch("g", 0).reply
        assert isinstance(reply, FetchedOffsets)
        if self.accepted is not None:
            assert reply.offsets[P].offset >= self.accepted

    def teardown(self) -> None:
        """Members live and do nothing: time answers whoever is parked. Then they go: it ends every session."""
        for _ in range(25):
            while self.waiting:
                self.replicate()
            for who in range(6):
                self.beat(who, 0)
            self.pass_time(2.0)
        assert not self.owed, "somebody waits for ever"
        for _ in range(12):
            while self.waiting:
                self.replicate()
            self.pass_time(25.0)
        while self.waiting:
            self.replicate()
        assert not self.owed, "somebody waits for ever"
        assert all(group.state is State.EMPTY for group in self.lead.by_name.values())


TestCoordinator = Coordinator.TestCase
TestCoordinator.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
