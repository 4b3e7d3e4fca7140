"""Tables that lost a part of their log: out, shown, begun anew with a copy; whoever dies on the way [F10]."""

from __future__ import annotations

from millrace.core.feeds.barrier import DdlDispatcher, SchemaChange
from millrace.core.feeds.captures import NO_FLAWS
from millrace.core.feeds.checkpoint import Progress
from millrace.core.feeds.effects import BeginTable, CommitDdl
from millrace.core.feeds.office import FeedState
from millrace.core.feeds.placing import Placing
from millrace.core.feeds.releasing import Releasing
from millrace.core.feeds.sight import FeedSight
from millrace.model.changefeeds import (
    LEFT,
    DdlPosition,
    EpochsTaken,
    FeedRecords,
    SpanEnded,
    SpanPlaced,
    SpanRecorded,
    TableEnds,
    TableNeedsCopy,
)
from millrace.model.spans import Place, TableId, whole

T, U = TableId("shop", 1), TableId("shop", 2)
TABLES = {T: 2, U: 1}


class Feed:
    def __init__(self, flaws: frozenset[str] = NO_FLAWS) -> None:
        self.state, self.flaws = FeedState(), flaws
        for number, (table, partitions) in enumerate(TABLES.items()):
            self.state.replay(SpanRecorded(number, whole(table, partitions)))
            self.state.replay(SpanPlaced(number, Place(1, 1, number + 1)))
        self.live()

    def live(self, *changes: SchemaChange, passed: int = 0) -> None:
        """Another maintainer."""
        self.ddl = DdlDispatcher(self.state, Progress())
        for change in changes:
            self.ddl.on_change(change)
        self.ddl.begin(10, 0.0)
        self.ddl.taken(DdlPosition(10, passed), (), 0.0)
        self.placing = Placing(self.state, FeedSight(0.0, session_s=6.0), lambda span: "there")
        self.releasing = Releasing(self.state, self.ddl, self.placing, tables=TABLES, flaws=self.flaws)

    def write(self, records: list[FeedRecords]) -> list[FeedRecords]:
        for record in records:
            self.placing.replay(record)
        return records

    def lose(self, table: TableId = T, why: str = "cut") -> list[FeedRecords]:
        self.releasing.lost(table, why, 5)
        return self.write(self.releasing.losses())

    def end(self, table: TableId = T) -> None:
        for span in list(self.state.by_table[table]):
            self.write([SpanEnded(span)])


def test_F10_a_table_that_lost_something_leaves_and_says_why() -> None:
    feed = Feed()
    assert feed.lose() == [TableNeedsCopy(T, "cut", told=True, wall_ms=5), TableEnds(T, LEFT)]
    assert feed.lose() == [], "said once"
    assert feed.releasing.is_leaving
    assert "stop" in feed.releasing.waits_for(T)
    feed.end()
    assert not feed.releasing.is_leaving
    assert "millrace table copy" in feed.releasing.waits_for(T)
    assert feed.releasing.waits_for_people(T)
    assert not feed.ddl.counts(T), "it holds no checkpoint"
    assert feed.ddl.counts(U)
    assert feed.releasing.step() == [], "nothing to begin with"


def test_S10_F10_of_a_table_without_a_key_it_is_said_that_a_copy_does_not_help() -> None:
    feed = Feed()
    for table in (T, U):
        feed.lose(table)
        feed.end(table)
    feed.releasing.keyless = {T}
    said = feed.releasing.waits_for(T)
    assert "no key" in said
    assert "changefeed update --tables" in said, "what to do instead"
    assert "no key" not in feed.releasing.waits_for(U)


def test_F10_it_begins_anew_with_its_copy_under_a_fresh_epoch() -> None:
    feed = Feed()
    feed.lose()
    feed.releasing.based(T, 7)
    assert feed.releasing.step() == [], "its dispatchers have not stopped"
    feed.end()
    before = feed.state.epoch
    assert feed.write(feed.releasing.step()) == [EpochsTaken(before + 1)]
    effect = feed.ddl.next_effect()
    assert effect == BeginTable(10, T, before + 1, 7, truncates=True)
    assert feed.ddl.next_effect() is None, "one at a time"
    feed.ddl.table_begun(effect, 1.0, ok=True)
    span, over = feed.write(feed.releasing.step())
    assert isinstance(span, SpanRecorded)
    assert span.span == whole(T, 2)
    assert over == TableNeedsCopy(T, None)
    assert T in feed.state.by_table
    assert not feed.state.needs
    assert feed.state.ends.get(T) is None
    assert feed.releasing.step() == []


def test_F10_a_table_that_had_left_when_it_was_lost_again_is_truncated() -> None:
    feed = Feed()
    feed.write([TableEnds(T, LEFT)])
    feed.end()
    assert feed.lose() == [TableNeedsCopy(T, "cut", told=True, wall_ms=5)]


def test_F10_a_table_that_never_began_is_not_truncated() -> None:
    feed = Feed()
    feed.end()
    assert feed.lose() == [TableNeedsCopy(T, "cut", told=False, wall_ms=5)]
    feed.releasing.based(T, 7)
    feed.write(feed.releasing.step())
    effect = feed.ddl.next_effect()
    assert isinstance(effect, BeginTable)
    assert not effect.truncates


def test_C7_it_waits_until_changes_from_before_its_copy_have_passed() -> None:
    feed = Feed()
    feed.lose()
    feed.end()
    alter = SchemaChange(4, 40, "alter", (T, U))
    feed.live(alter)
    feed.releasing.based(T, 7)
    assert feed.releasing.step() == []
    assert "schema changes" in feed.releasing.waits_for(T)
    assert feed.ddl.missing(alter) == [U], "nobody waits for a table that is out"
    feed.live(alter, passed=5)
    feed.releasing.based(T, 7)
    assert feed.releasing.step()
    feed.live(SchemaChange(9, 40, "alter", (T,)))
    feed.releasing.based(T, 7)
    assert feed.releasing.step(), "that one stands behind its copy: it will reach it"
    flawed = Feed(frozenset({"begins_before_change"}))
    flawed.lose()
    flawed.end()
    flawed.live(alter)
    flawed.releasing.based(T, 7)
    assert flawed.releasing.step()


def test_F10_an_answer_that_did_not_come_is_asked_for_again_under_a_greater_epoch() -> None:
    feed = Feed()
    feed.lose()
    feed.end()
    feed.releasing.based(T, 7)
    feed.write(feed.releasing.step())
    first = feed.ddl.next_effect()
    assert isinstance(first, BeginTable)
    feed.ddl.unknown()
    feed.ddl.begin(11, 0.0)
    feed.ddl.taken(DdlPosition(11, 0), (), 0.0)
    feed.write(feed.releasing.step())
    second = feed.ddl.next_effect()
    assert isinstance(second, BeginTable)
    assert second.made > first.made
    assert second.epoch == 11
    feed.ddl.table_begun(second, 1.0, ok=False)
    feed.releasing.based(T, None)
    assert feed.releasing.step() == [], "its copy is gone, too"


def test_F10_whoever_dies_between_positions_and_record_begins_the_table_again() -> None:
    feed = Feed()
    feed.lose()
    feed.end()
    feed.releasing.based(T, 7)
    feed.write(feed.releasing.step())
    effect = feed.ddl.next_effect()
    assert isinstance(effect, BeginTable)
    feed.ddl.table_begun(effect, 1.0, ok=True)
    feed.live()                                              # the span was never recorded
    feed.releasing.based(T, 7)
    feed.write(feed.releasing.step())
    again = feed.ddl.next_effect()
    assert isinstance(again, BeginTable)
    assert again.made > effect.made


def test_F10_what_nobody_wants_any_more_needs_no_copy() -> None:
    feed = Feed()
    feed.lose()
    feed.end()
    feed.live(SchemaChange(4, 40, "drop", (T,)), passed=5)
    assert feed.write(feed.releasing.step()) == [TableNeedsCopy(T, None)]


def test_F10_a_table_that_was_renamed_away_and_comes_back_without_its_log_begins_with_a_copy() -> None:
    feed = Feed()
    feed.write([TableEnds(T, 4)])
    feed.end()
    back = SchemaChange(6, 60, "create", (T,), 2)
    feed.live(SchemaChange(4, 40, "drop", (T,)), passed=5)
    assert feed.lose() == [], "it is over"
    feed.live(SchemaChange(4, 40, "drop", (T,)), back, passed=5)
    assert feed.lose() == [TableNeedsCopy(T, "cut", told=True, wall_ms=5)]
    assert feed.ddl.needs() == []
    feed.live(SchemaChange(4, 40, "drop", (T,)), back, passed=7)
    feed.releasing.based(T, 9)
    feed.write(feed.releasing.step())
    effect = feed.ddl.next_effect()
    assert isinstance(effect, BeginTable)
    feed.ddl.table_begun(effect, 1.0, ok=True)
    assert feed.write(feed.releasing.step()) == [SpanRecorded(2, whole(T, 2), 4), TableNeedsCopy(T, None)]
    assert not feed.ddl.ended(T)
    assert feed.ddl.counts(T)


def test_F10_a_table_that_nobody_wanted_and_that_comes_again_still_needs_a_copy() -> None:
    feed = Feed()
    feed.lose()
    feed.end()
    feed.live(SchemaChange(4, 40, "drop", (T,)), passed=5)
    feed.write(feed.releasing.step())
    assert not feed.state.needs
    feed.ddl.on_change(SchemaChange(6, 60, "create", (T,), 2))
    assert feed.lose() == [TableNeedsCopy(T, "cut", told=True, wall_ms=5)], "told with its change"
    assert feed.releasing.step() == []
    assert feed.ddl.needs() == []


def test_C8_an_isolated_table_that_leaves_is_no_more_isolated() -> None:
    feed = Feed()
    feed.lose()
    feed.end()
    feed.ddl.taken(DdlPosition(10, 5, ((T, 3),)), (), 0.0)
    feed.ddl.rejoin = {T}
    effect = feed.ddl.next_effect()
    assert isinstance(effect, CommitDdl)
    assert effect.wanted.isolated == ()


def test_F10_the_flaw_goes_on_silently() -> None:
    assert Feed(frozenset({"released_goes_on"})).lose() == []
