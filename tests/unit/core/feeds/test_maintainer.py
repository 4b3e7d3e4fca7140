"""One maintainer and the managers of three captures, messages delivered by hand [C1-C7, V9]."""

from __future__ import annotations

import math

import pytest

from millrace import limits
from millrace.core.feeds.barrier import SchemaChange
from millrace.core.feeds.blockers import Blocker
from millrace.core.feeds.checkpoint import Committed
from millrace.core.feeds.effects import (
    ClosePositions,
    CommitDdl,
    FailFeed,
    FeedEffect,
    GiveUp,
    Send,
    TakeDdl,
    TakeOver,
    WriteChange,
)
from millrace.core.feeds.maintainer import Maintainer
from millrace.core.feeds.manager import Manager
from millrace.core.feeds.office import FeedState
from millrace.core.feeds.states import SEARCHING, Health
from millrace.errors import InvalidRequest
from millrace.model.changefeeds import (
    LEFT,
    ChangefeedSpec,
    CheckpointReached,
    DdlPosition,
    EpochsTaken,
    FeedError,
    FeedRecords,
    SpanEnded,
    SpanPlaced,
    SpansReplaced,
    TableTrouble,
)
from millrace.model.feed_messages import (
    MaintainerPing,
    ManagerAnswer,
    PrepareDispatcher,
    StartDispatcher,
    StopDispatcher,
    View,
)
from millrace.model.spans import Dispatcher, Place, TableId, TablePartition

T, U = TableId("shop", 1), TableId("shop", 2)
PARTS = (TablePartition(T, 0), TablePartition(T, 1), TablePartition(U, 0))


class Cluster:
    def __init__(self) -> None:
        self.now = 0.0
        self.managers = {n: Manager("orders", n, 1, session_s=6.0) for n in range(3)}
        self.cut: set[int] = set()
        self.slow: set[int] = set()                      # captures whose take-overs do not end
        self.records: list[FeedRecords] = []
        self.ddl = DdlPosition()
        self.effects: list[FeedEffect] = []
        self.schedulable = {0, 1, 2}
        self.view = 0
        self.begin(1)

    def begin(
        self, epoch: int, *, spec: ChangefeedSpec | None = None, tables: dict[TableId, int] | None = None
    ) -> None:
        """A new maintainer replays what stands. `tables`: that the spec takes."""
        state = FeedState()
        for record in self.records:
            state.replay(record)
        self.m = Maintainer(
            "orders", state, capture=0, epoch=epoch, now=self.now, session_s=6.0, health=Health(), spec=spec,
            tables={T: 2, U: 1} if tables is None else tables)
        self.m.on_mark(50, {}, full=True)
        self.m.on_positions(dict.fromkeys(PARTS, Committed(0, 0)))

    def pass_once(self, *, lose_commands: bool = False) -> list[FeedRecords]:
        self.now += 0.5
        self.view += 1
        pairs = tuple((n, 1) for n in sorted(self.schedulable))
        self.m.on_view(View(1, self.view, pairs, (0, 1, 2), {"orders": 1}, (), 1))
        for send in self.m.pings(self.now):
            assert isinstance(send.message, MaintainerPing)
            if send.to not in self.cut:
                for answer in self.managers[send.to].on_ping(0, send.message):
                    assert isinstance(answer, Send)
                    assert isinstance(answer.message, ManagerAnswer)
                    self.m.on_answer(answer.message)
        records = self.m.decide(self.now)
        self.records += records
        for record in records:
            self.m.replay(record)
        self.effects = self.m.effects(self.now)
        for effect in self.effects:
            if isinstance(effect, Send):
                if not lose_commands and effect.to not in self.cut:
                    self._deliver(effect)
            else:
                self._do(effect)
        return records

    def _do(self, effect: FeedEffect) -> None:
        match effect:
            case TakeDdl():
                self.ddl = DdlPosition(effect.epoch, self.ddl.next, self.ddl.isolated)
                self.m.ddl_taken(self.ddl, (), self.now)
            case WriteChange():
                self.m.ddl.change_written(effect, self.now)
            case CommitDdl():
                self.ddl = effect.wanted
                self.m.ddl_committed(effect, self.now)
            case ClosePositions():
                self.m.closed(effect, ok=True)

    def _deliver(self, send: Send) -> None:
        manager, message = self.managers[send.to], send.message
        match message:
            case PrepareDispatcher():
                manager.on_prepare(self.now, 0, message)
            case StartDispatcher():
                for effect in manager.on_start(self.now, 0, message):
                    assert isinstance(effect, TakeOver)
                    if send.to not in self.slow:
                        manager.taken(effect.id, effect.epoch, ok=True)
            case StopDispatcher():
                manager.on_stop(0, message)

    def settle(self, passes: int = 20) -> None:
        for _ in range(passes):
            self.pass_once()

    def working(self) -> dict[int, tuple[int, int]]:
        """Span -> (capture, epoch)."""
        found = {}
        for n, manager in self.managers.items():
            for span_id, held in manager.held.items():
                assert span_id not in found, "one owner"
                found[span_id] = (n, held.epoch)
        return found

    def recorded(self) -> dict[int, tuple[int, int]]:
        return {s.id: (s.place.capture, s.place.epoch) for s in self.m.state.spans.values() if s.place is not None}


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.settle(8)
    return cluster


def test_C5_spans_are_placed_on_the_least_loaded(cluster: Cluster) -> None:
    assert cluster.working() == cluster.recorded()
    assert {capture for capture, _ in cluster.working().values()} == {0, 1}
    assert not cluster.m.placing.operators


def test_C2_an_epoch_is_durable_before_anyone_hears_of_it() -> None:
    cluster, given = Cluster(), 0
    for _ in range(8):
        for record in cluster.pass_once():
            given = max(given, record.place.epoch if isinstance(record, SpanPlaced) else 0)
            given = max(given, record.upto if isinstance(record, EpochsTaken) else 0)
        for effect in cluster.effects:
            message = effect.message if isinstance(effect, Send) else None
            if isinstance(message, StartDispatcher | PrepareDispatcher):
                assert message.epoch <= given


def test_V9_a_new_maintainer_gives_out_greater_epochs(cluster: Cluster) -> None:
    before = cluster.m.state.epoch
    cluster.begin(2)
    cluster.settle(3)
    assert cluster.ddl.epoch > before


def test_C1_a_new_maintainer_decides_nothing_before_everyone_has_answered(cluster: Cluster) -> None:
    cluster.cut = {1}
    cluster.begin(2)
    cluster.settle(10)
    assert not cluster.m.ready
    assert any(blocker.owner == "capture 1" for blocker in cluster.m.blockers())
    cluster.settle(4)
    assert cluster.m.ready, "or is lost"


def test_C1_recorded_and_not_reported_is_placed_again(cluster: Cluster) -> None:
    before = cluster.working()
    capture, epoch = before[1]
    cluster.managers[capture].unknown(Dispatcher(1, epoch))
    cluster.settle(4)
    after = cluster.working()
    assert after == cluster.recorded()
    assert after[1][1] > epoch
    assert after[0] == before[0], "nobody else is touched"


def test_C3_C7_a_table_that_leaves_is_stopped_closed_and_forgotten_before_any_change_passes(cluster: Cluster) -> None:
    spec = ChangefeedSpec(id="orders", source="shop", sink="kafka:", tables=("public.u",))
    capture, epoch = cluster.working()[0]
    cluster.managers[capture].begin_round([0])               # it is in a round: it stops when that has ended
    cluster.begin(2, spec=spec, tables={U: 1})
    cluster.m.on_change(SchemaChange(0, 40, "alter", (U,)))
    cluster.m.on_positions({PARTS[2]: Committed(0, 39, marker=0)})
    cluster.settle(6)
    assert cluster.m.state.ends == {T: LEFT}
    assert cluster.ddl.next == 0, "what has not stopped yet would take the change for its own"
    assert any(b.what == "changefeed orders" and "settled" in b.reason for b in cluster.m.blockers())
    assert cluster.m.done_upto()[0] == 39, "and it counts no more"
    cluster.managers[capture].round_ended(cluster.now, Dispatcher(0, epoch))
    closed = list[ClosePositions]()
    for _ in range(8):
        cluster.pass_once()
        closed += [effect for effect in cluster.effects if isinstance(effect, ClosePositions)]
    assert [(effect.id, effect.epoch > epoch, effect.forget) for effect in closed] == [(0, True, True)]
    assert (set(cluster.m.state.by_table), cluster.m.state.spec) == ({U}, spec)
    assert set(cluster.working()) == {1}
    assert cluster.ddl.next == 1
    cluster.m.closed(closed[0], ok=False)                    # an answer that was late says nothing any more
    cluster.settle(2)
    assert not any(isinstance(effect, GiveUp) for effect in cluster.effects)


def test_C7_captures_are_told_once_when_the_ddl_position_has_moved(cluster: Cluster) -> None:
    def told() -> list[bool]:
        return [send.message.moved for send in cluster.m.pings(cluster.now) if isinstance(send.message, MaintainerPing)]

    assert told() == [False, False, False]
    cluster.m.on_change(SchemaChange(0, 40, "alter", (U,)))
    cluster.m.on_positions({PARTS[2]: Committed(1, 39, marker=0)})
    cluster.pass_once()
    assert not cluster.m.has_moved, "written, not committed"
    cluster.pass_once()
    assert cluster.ddl.next == 1
    assert cluster.m.has_moved
    assert told() == [True, True, True]
    assert told() == [False, False, False]


def test_C7_P7_positions_are_looked_at_in_growing_steps_while_a_change_waits_for_them(cluster: Cluster) -> None:
    m = cluster.m
    assert m.look_within_s(cluster.now) == math.inf, "nothing waits"
    m.on_change(SchemaChange(0, 40, "alter", (U,)))
    cluster.pass_once()
    began = cluster.now
    assert m.look_within_s(began) == limits.FEED_PASS_GAP_S
    assert m.look_within_s(began + 2.0) == 0.5
    m.on_positions({PARTS[0]: Committed(1, 39)})
    cluster.pass_once()
    assert m.look_within_s(began + 2.0) == 0.5, "of a table that it does not touch"
    m.on_positions({PARTS[2]: Committed(1, 39)})
    cluster.pass_once()
    assert m.look_within_s(cluster.now + 2.0) == 0.5
    m.on_positions({PARTS[2]: Committed(2, 39, marker=0)})
    m.decide(cluster.now)
    m.effects(cluster.now)
    assert m.look_within_s(cluster.now) == math.inf, "it is being written: the answer tells"


def test_C1_reported_and_not_recorded_is_told_to_stop(cluster: Cluster) -> None:
    stray = StartDispatcher("orders", 1, 1, 99, cluster.m.state.spans[0].span, 1)
    cluster.managers[2].on_start(0.0, 0, stray)
    cluster.managers[2].taken(99, 1, ok=True)
    cluster.settle(3)
    assert 99 not in cluster.working()


def test_C1_a_lost_captures_spans_go_elsewhere_and_what_it_kept_is_stopped(cluster: Cluster) -> None:
    span_id, (capture, _) = next(item for item in cluster.working().items() if item[1][0] == 1)
    cluster.cut = {capture}
    cluster.settle(16)
    place = cluster.m.state.spans[span_id].place
    assert place is not None
    assert place.capture != capture
    cluster.cut = set()
    cluster.settle(4)
    assert cluster.working() == cluster.recorded()


def test_C4_a_move_is_warm(cluster: Cluster) -> None:
    origin, epoch = cluster.working()[0]
    record = cluster.m.placing.move(0, 2, cluster.now)
    cluster.records.append(record)
    cluster.m.replay(record)
    states = []
    for _ in range(6):
        cluster.pass_once()
        states.append(tuple(getattr(cluster.managers[n].held.get(0), "state", "") for n in (origin, 2)))
    assert ("working", "prepared") in states, "prepared while the origin works"
    assert cluster.working()[0][0] == 2
    assert cluster.working()[0][1] > epoch
    assert cluster.working() == cluster.recorded()


def test_C4_a_new_maintainer_converges_whatever_was_in_flight(cluster: Cluster) -> None:
    record = cluster.m.placing.move(0, 2, cluster.now)
    cluster.records.append(record)
    cluster.m.replay(record)
    cluster.pass_once()
    cluster.begin(2)                                      # it knows nothing of the move
    cluster.settle(20)
    assert cluster.working() == cluster.recorded()
    assert not cluster.m.placing.operators


def test_C4_lost_commands_are_repeated(cluster: Cluster) -> None:
    record = cluster.m.placing.move(0, 2, cluster.now)
    cluster.records.append(record)
    cluster.m.replay(record)
    for _ in range(4):
        cluster.pass_once(lose_commands=True)
    assert any(blocker.what == "span 0" for blocker in cluster.m.blockers())
    cluster.settle(10)
    assert cluster.working()[0][0] == 2


def test_C4_split_and_merge_keep_every_partition(cluster: Cluster) -> None:
    cluster.m.placing.split(0, cluster.now)
    cluster.settle(8)
    spans = sorted(s.id for s in cluster.m.state.spans.values() if s.span.table == T)
    assert len(spans) == 2
    assert cluster.working() == cluster.recorded()
    cluster.m.placing.merge(tuple(spans), cluster.now)
    cluster.settle(12)
    (merged,) = [s for s in cluster.m.state.spans.values() if s.span.table == T]
    assert merged.span.partitions == (0, 1)
    assert merged.id not in spans, "ids are given out once"
    assert sum(isinstance(record, SpansReplaced) for record in cluster.records) == 2


def test_C4_what_cannot_be_split_moved_or_merged_is_refused(cluster: Cluster) -> None:
    placing = cluster.m.placing
    with pytest.raises(InvalidRequest, match="one partition"):
        placing.split(1, cluster.now)
    with pytest.raises(InvalidRequest, match="one table"):
        placing.merge((0, 1), cluster.now)
    with pytest.raises(InvalidRequest, match="no span 9"):
        placing.split(9, cluster.now)
    with pytest.raises(InvalidRequest, match="takes nothing"):
        placing.move(0, 7, cluster.now)
    placing.split(0, cluster.now)
    with pytest.raises(InvalidRequest, match="ask again"):
        placing.move(0, 2, cluster.now)


def test_C5_nothing_is_placed_on_a_capture_that_the_coordinator_does_not_offer(cluster: Cluster) -> None:
    cluster.schedulable = {2}
    cluster.managers[0].held.clear()
    cluster.managers[0] = Manager("orders", 0, 2, session_s=6.0)       # it starts again
    cluster.settle(6)
    moved = [place for span_id, place in cluster.recorded().items() if place[0] != 1]
    assert [capture for capture, _ in moved] == [2]


def test_C9_with_nobody_schedulable_absent_spans_say_so(cluster: Cluster) -> None:
    cluster.schedulable = set()
    cluster.managers[0] = Manager("orders", 0, 2, session_s=6.0)
    cluster.settle(4)
    shown = [b for b in cluster.m.blockers() if "no capture is schedulable" in b.reason]
    assert shown
    assert all(b.since <= cluster.now for b in shown)


def test_C6_the_checkpoint_follows_positions_marks_and_changes(cluster: Cluster) -> None:
    assert cluster.m.state.checkpoint == 50
    cluster.m.on_mark(80, {PARTS[2]: 4}, full=False)
    cluster.m.on_positions({PARTS[2]: Committed(2, 61)})
    cluster.settle(4)
    assert cluster.m.state.checkpoint == 61
    assert [b.reason for b in cluster.m.blockers() if b.what == "checkpoint"] == ["partition 2/0 is behind"]
    cluster.m.on_positions({PARTS[2]: Committed(4, 80, owes=61)})
    assert ["is not copied" in b.reason for b in cluster.m.blockers() if b.what == "checkpoint"] == [True]
    cluster.m.on_change(SchemaChange(0, 71, "alter", (T,)))
    cluster.m.on_positions({PARTS[2]: Committed(4, 80)})
    cluster.settle(4)
    assert cluster.m.state.checkpoint == 70, "not past a change that has not passed"
    lsns = [record.lsn for record in cluster.records if isinstance(record, CheckpointReached)]
    assert lsns == sorted(set(lsns))


def test_C9_a_wait_counts_from_the_oldest_change_that_is_not_done(cluster: Cluster) -> None:
    """Not from the last checkpoint: nothing was there to wait for in between."""
    idle_since = cluster.m.checkpoint_since
    cluster.settle(400)
    began = cluster.now
    cluster.m.on_mark(80, {PARTS[2]: 4}, full=False)
    cluster.settle(16)

    def waits() -> Blocker:
        (found,) = (blocker for blocker in cluster.m.blockers() if blocker.what == "checkpoint")
        return found

    assert cluster.m.checkpoint_since == idle_since
    assert (waits().since, cluster.now - waits().since) == (began, 8.0)
    later = cluster.now
    cluster.m.on_mark(90, {PARTS[2]: 6}, full=False)
    cluster.settle(4)
    assert waits().since == began, "the older one is not done"
    cluster.m.on_positions({PARTS[2]: Committed(4, 80)})
    cluster.settle(4)
    assert waits().since == later
    cluster.m.on_positions({PARTS[2]: Committed(6, 90)})
    assert cluster.m.blockers() == []


def test_C9_who_comes_back_behind_the_checkpoint_has_waited_since_then(cluster: Cluster) -> None:
    """No mark is beyond the checkpoint: its position was made anew."""
    cluster.m.on_mark(80, {PARTS[2]: 4}, full=False)
    cluster.m.on_positions({PARTS[2]: Committed(4, 80)})
    cluster.settle(400)
    assert (cluster.m.state.checkpoint, cluster.m.blockers()) == (80, [])
    back = cluster.now
    cluster.m.on_positions({PARTS[2]: Committed(0, 61, made=9)})
    cluster.settle(16)
    assert [blocker.since for blocker in cluster.m.blockers()] == [back]


def test_C7_a_created_table_is_placed_when_its_change_has_passed(cluster: Cluster) -> None:
    made = TableId("shop", 3)
    cluster.m.on_change(SchemaChange(0, 60, "create", (made,), 1))
    cluster.settle(6)
    (span,) = cluster.m.state.by_table[made].values()
    assert span.born == 0
    assert span.id in cluster.working()
    assert cluster.m.state.checkpoint == 50, "its position is not known yet"
    assert any("not read yet" in blocker.reason for blocker in cluster.m.blockers())


def test_C3_a_dropped_table_is_stopped_and_its_positions_are_closed(cluster: Cluster) -> None:
    cluster.m.on_change(SchemaChange(0, 60, "drop", (U,)))
    cluster.m.on_positions({PARTS[2]: Committed(0, 59, 0)})
    closed = []
    for _ in range(8):
        cluster.pass_once()
        closed += [effect for effect in cluster.effects if isinstance(effect, ClosePositions)]
    assert [(effect.id, effect.span.table) for effect in closed] == [(1, U)]
    assert closed[0].epoch > cluster.working()[0][1]
    assert sum(isinstance(record, SpanEnded) for record in cluster.records) == 1
    assert list(cluster.working()) == [0]


def test_C8_one_bad_table_is_isolated_and_rejoins_when_it_is_well(cluster: Cluster) -> None:
    capture, epoch = cluster.working()[1]
    manager = cluster.managers[capture]
    (dispatcher,) = manager.begin_round([1])
    error = FeedError(code="schema_refused", kind="isolate", table=U, span=1)
    manager.round_ended(cluster.now, dispatcher, error=error)
    cluster.settle(3)
    assert cluster.ddl.isolated == ((U, 0),)
    assert cluster.m.state.troubles == {U: error}
    assert cluster.m.health.state == "warning"
    assert any(blocker.what == "table 2" for blocker in cluster.m.blockers())
    (dispatcher,) = manager.begin_round([1])
    manager.round_ended(cluster.now, dispatcher)
    cluster.settle(4)
    assert cluster.ddl.isolated == ()
    assert cluster.records[-1] == TableTrouble(U, None)
    assert cluster.m.health.state == "normal"
    assert dispatcher == Dispatcher(1, epoch)


def test_C9_a_search_for_rows_that_break_an_expression_is_a_blocker_with_an_age_and_isolates_nobody(
    cluster: Cluster
) -> None:
    place = cluster.m.state.spans[1].place
    assert place is not None
    manager, dispatcher = cluster.managers[place.capture], Dispatcher(1, place.epoch)
    said = FeedError(code=SEARCHING, kind="retry", message="5 of 9 rows are not known yet", table=U, span=1,
                     first_ms=10_000, last_ms=17_000)
    manager.begin_round([1])
    manager.round_ended(cluster.now, dispatcher, error=said)
    cluster.settle(2)
    [shown] = [one for one in cluster.m.blockers() if one.reason == said.message]
    assert (shown.what, shown.owner) == (f"table {U.oid}", f"capture {place.capture}")
    assert shown.since == cluster.m.sight.now - 7.0
    assert (cluster.m.health.state, cluster.m.health.to_isolate()) == ("warning", set())
    manager.begin_round([1])
    manager.round_ended(cluster.now, dispatcher)
    cluster.settle(2)
    assert not [one for one in cluster.m.blockers() if one.reason == said.message]
    assert cluster.m.health.state == "normal"


def test_C8_an_error_that_only_a_person_can_mend_fails_the_changefeed(cluster: Cluster) -> None:
    capture, _ = cluster.working()[1]
    (dispatcher,) = cluster.managers[capture].begin_round([1])
    error = FeedError(code="sink_denied", kind="fail", table=U, span=1)
    cluster.managers[capture].round_ended(cluster.now, dispatcher, error=error)
    cluster.pass_once()
    assert FailFeed(error) in cluster.effects


def test_C2_a_maintainer_that_was_overtaken_gives_up(cluster: Cluster) -> None:
    cluster.m.closed(ClosePositions(0, 1, cluster.m.state.spans[0].span), ok=False)
    assert cluster.pass_once() == []
    assert cluster.effects == [GiveUp("somebody else maintains it")]


def test_C5_a_capture_that_joins_gets_its_share(cluster: Cluster) -> None:
    made = [TableId("shop", n) for n in range(10, 14)]
    for number, table in enumerate(made):
        cluster.m.on_change(SchemaChange(number, 60 + number, "create", (table,), 1))
    cluster.schedulable = {0, 1}
    cluster.settle(20)
    assert {capture for capture, _ in cluster.recorded().values()} == {0, 1}
    cluster.schedulable = {0, 1, 2}
    cluster.settle(20)
    assert sorted(cluster.m.placing.loads.values()) == [2, 2, 2]
    assert cluster.working() == cluster.recorded()


def test_C4_a_destination_that_does_nothing_in_time_is_given_up(cluster: Cluster) -> None:
    record = cluster.m.placing.move(0, 2, cluster.now)
    cluster.records.append(record)
    cluster.m.replay(record)
    for _ in range(int(limits.OPERATOR_S / 0.5) + 3):
        cluster.pass_once(lose_commands=True)
    assert 0 not in cluster.m.placing.operators
    assert cluster.recorded()[0] != (2, 1)
    assert not cluster.m.sight.schedulable(2), "not again at once"


def test_C4_who_says_that_it_takes_over_is_given_longer_but_not_for_ever(cluster: Cluster) -> None:
    """A move begins the same work elsewhere: a dispatcher with hundreds of copies went round for ever."""
    cluster.schedulable = {2}
    record = cluster.m.placing.move(0, 2, cluster.now)
    cluster.records.append(record)
    cluster.m.replay(record)
    cluster.slow.add(2)
    for _ in range(int(limits.OPERATOR_S / 0.5) + 20):
        cluster.pass_once()
    place = cluster.m.state.spans[0].place
    assert place is not None
    assert place.capture == 2, "still there"
    assert cluster.managers[2].held[0].state == "taking_over"
    epoch = place.epoch
    for _ in range(int(limits.TAKE_OVER_S / 0.5)):
        cluster.pass_once()
    last = cluster.m.state.spans[0].place
    assert last is None or last.epoch > epoch, "given up at last"


def test_C1_the_place_of_a_half_started_dispatcher_is_gone_on_with(cluster: Cluster) -> None:
    """A maintainer dies after the record of a start and before the command arrived."""
    held = cluster.managers[2]
    record = SpanPlaced(0, Place(2, 1, cluster.m.state.epoch + 1))
    command = PrepareDispatcher("orders", 1, 1, 0, cluster.m.state.spans[0].span, record.place.epoch)
    held.on_prepare(cluster.now, 0, command)
    cluster.records.append(record)
    cluster.begin(2)
    cluster.settle(4)
    assert held.held[0].state == "working"
    assert cluster.working() == cluster.recorded()
