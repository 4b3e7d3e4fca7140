"""A changed spec against what is recorded: tables join, leave, have other settings; whoever dies on the way [C2-C4]."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.feeds.barrier import DdlDispatcher, SchemaChange
from millrace.core.feeds.captures import NO_FLAWS
from millrace.core.feeds.checkpoint import Progress
from millrace.core.feeds.choice import Rules
from millrace.core.feeds.office import FeedState
from millrace.core.feeds.placing import Placing
from millrace.core.feeds.settling import Settling, changed_tables
from millrace.core.feeds.sight import FeedSight
from millrace.model.changefeeds import (
    LEFT,
    STAYS,
    ChangefeedSpec,
    DdlPosition,
    FeedRecords,
    SpanEnded,
    SpanPlaced,
    SpanRecorded,
    SpecSettled,
    TableEnds,
    TableNeedsCopy,
    TableSettings,
)
from millrace.model.spans import Place, SpanId, TableId, split, whole
from millrace.model.tables import TableSchema

T, U, V = (TableId("shop", oid) for oid in (1, 2, 3))
PARTITIONS = {T: 2, U: 1, V: 1}
SCHEMAS = {table: TableSchema(table.oid, "public", f"t{table.oid}", "d", ()) for table in PARTITIONS}


def spec(*tables: TableId, **said: str) -> ChangefeedSpec:
    """`said`: filters, by table."""
    settings = tuple(TableSettings(tables=f"public.{name}", filter=text) for name, text in sorted(said.items()))
    rules = tuple(f"public.t{table.oid}" for table in tables)
    return ChangefeedSpec(id="orders", source="shop", sink="kafka:", tables=rules, settings=settings)


def said_of(of: ChangefeedSpec, table: TableId) -> str:
    entry = Rules(of).entry("public", f"t{table.oid}")
    return "" if entry is None else of.settings[entry].filter


class Feed:
    """One maintainer after another over one office; captures do at once what they are asked."""

    def __init__(self, flaws: frozenset[str] = NO_FLAWS) -> None:
        self.state, self.flaws = FeedState(), flaws
        self.written: list[FeedRecords] = []
        self.began: dict[SpanId, str] = {}                   # with which settings whoever is recorded was started

    def maintainer(self, now: ChangefeedSpec, *, passed: int = 0, changes: tuple[SchemaChange, ...] = ()) -> Settling:
        self.spec = now
        ddl = DdlDispatcher(self.state, Progress())
        for change in changes:
            ddl.on_change(change)
        ddl.begin(1, 0.0)
        ddl.taken(DdlPosition(1, passed), (), 0.0)
        placing = Placing(self.state, FeedSight(0.0, session_s=6.0), lambda span: "there")
        changed = changed_tables(self.state.spec, now, SCHEMAS.values())
        taken = {table: n for table, n in PARTITIONS.items() if Rules(now).takes("public", f"t{table.oid}")}
        self.settling = Settling(
            self.state, ddl, placing, spec=now, tables=taken, flaws=self.flaws,
            changed=frozenset(TableId("shop", oid) for oid in changed))
        self.replay = placing.replay
        return self.settling

    def write(self, record: FeedRecords) -> None:
        self.written.append(record)
        self.replay(record)
        if isinstance(record, SpanPlaced):
            self.began[record.id] = said_of(self.spec, self.state.spans[record.id].span.table)

    def settle(self, deaths: list[int] | None = None) -> bool:
        """False: it died after so many records."""
        left = deaths.pop() if deaths else 10_000
        while self.settling.is_due:
            records = self.settling.step()
            for record in records or self._ends():
                if not left:
                    return False
                left -= 1
                self.write(record)
        return True

    def _ends(self) -> list[FeedRecords]:
        return [SpanEnded(span.id) for span in list(self.state.spans.values())
                if self.state.ends.get(span.span.table) == LEFT]

    def place_all(self) -> None:
        for span in self.state.spans.values():
            if span.place is None:
                self.write(SpanPlaced(span.id, Place(1, 1, self.state.epoch + 1)))

    def tables(self) -> set[TableId]:
        return set(self.state.by_table)


def begun(now: ChangefeedSpec) -> Feed:
    feed = Feed()
    feed.maintainer(now)
    feed.settle()
    feed.place_all()
    feed.written.clear()
    return feed


def test_C4_a_table_that_joins_is_recorded_and_one_that_leaves_ends_and_then_it_is_settled() -> None:
    feed = begun(spec(T, U))
    feed.maintainer(spec(U, V))
    feed.settle()
    assert feed.written == [
        SpecSettled(None), TableEnds(T, LEFT), SpanRecorded(2, whole(V, 1)), SpanEnded(0), SpecSettled(spec(U, V))]
    assert feed.tables() == {U, V}


def test_C2_dispatchers_of_a_table_with_other_settings_are_placed_again_where_they_are_under_raised_epochs() -> None:
    feed = begun(spec(T, U))
    before = {span.id: span.place for span in feed.state.spans.values()}
    feed.maintainer(spec(T, U, t1="v > 1"))
    feed.settle()
    place = before[0]
    assert place is not None
    assert feed.written[1:-1] == [SpanPlaced(0, Place(place.capture, place.incarnation, 3))]
    feed.maintainer(msgspec.structs.replace(spec(T, U, t1="v > 1"), on_error="fail"))
    feed.written.clear()
    feed.settle()
    assert [record.id for record in feed.written if isinstance(record, SpanPlaced)] == [0, 1], "of every table"


def test_C4_a_table_that_comes_back_while_it_leaves_ends_first() -> None:
    feed = begun(spec(T, U))
    feed.maintainer(spec(U))
    feed.settle([2])
    assert feed.state.ends == {T: LEFT}
    feed.maintainer(spec(T, U))                              # as it was settled last: all the same something is to do
    feed.settle()
    unsure = SpanPlaced(1, Place(1, 1, 3))                   # what was said of it when it was placed nobody knows
    assert feed.written[2:] == [unsure, SpanEnded(0), SpanRecorded(2, whole(T, 2)), SpecSettled(spec(T, U))]
    assert feed.state.ends == {}


def test_C7_a_table_whose_making_has_not_passed_neither_leaves_nor_joins() -> None:
    feed = begun(spec(T))
    feed.write(SpanRecorded(1, whole(V, 1), 7))              # recorded before the change may pass
    create = SchemaChange(7, 50, "create", (V,), 1)
    settling = feed.maintainer(spec(T, U), changes=(create,))
    assert settling.step() == [SpecSettled(None)]
    feed.write(SpecSettled(None))
    assert settling.step() == [SpanRecorded(2, whole(U, 1))]
    feed.maintainer(spec(T), changes=(create._replace(tables=(U,)),), passed=8)
    assert [record for record in feed.settling.step() if isinstance(record, TableEnds)] == [TableEnds(V, LEFT)]


def test_C7_what_has_passed_since_the_tables_were_read_counts() -> None:
    """A maintainer that was replaced may have passed a change that its own rules did not take."""
    feed = begun(spec(T))
    changes = (SchemaChange(7, 50, "create", (V,), 1), SchemaChange(9, 60, "drop", (U,)))
    feed.maintainer(spec(T, U), changes=changes, passed=10)
    feed.settle()
    assert feed.tables() == {T, V}


def test_C4_partitions_of_a_table_whose_drop_was_undone_are_recorded_again() -> None:
    feed = begun(spec(T))
    one, two = split(whole(T, 2))
    for record in (SpanEnded(0), SpanRecorded(1, one), TableEnds(T, 5)):
        feed.write(record)
    feed.state.spec = None
    feed.maintainer(spec(T), passed=3, changes=(SchemaChange(5, 50, "drop", (T,)),))
    feed.written.clear()
    feed.settle()
    assert feed.written == [SpanRecorded(2, two), SpecSettled(spec(T))]


def test_C7_an_end_that_has_not_passed_and_is_none_by_the_new_rules_is_taken_back() -> None:
    """A renaming that the former rules did not follow."""
    feed = begun(spec(T, U))
    feed.write(TableEnds(T, 5))
    feed.maintainer(spec(T), passed=5, changes=(SchemaChange(5, 50, "alter", (T,)),))
    feed.settle()
    assert TableEnds(T, STAYS) in feed.written
    assert (feed.tables(), T in feed.state.ends) == ({T}, False)
    feed.write(TableEnds(V, 7))                              # before the changefeed went back: V is to come again
    changes = (SchemaChange(6, 60, "create", (V,), 1), SchemaChange(7, 70, "alter", (V,)))
    feed.maintainer(spec(T, U), passed=5, changes=changes)
    feed.settle()
    assert TableEnds(V, STAYS) in feed.written


def test_C7_an_end_of_a_table_that_needs_a_copy_is_taken_back_as_well() -> None:
    feed = begun(spec(T, U))
    for record in (SpanEnded(0), TableEnds(T, 5), TableNeedsCopy(T, "cut")):
        feed.write(record)
    feed.maintainer(spec(T), passed=5, changes=(SchemaChange(5, 50, "alter", (T,)),))
    feed.settle()
    assert TableEnds(T, STAYS) in feed.written
    assert T not in feed.tables(), "it begins when it is copied"


def test_C7_a_table_that_was_renamed_away_and_is_taken_under_its_new_name_joins_when_what_it_was_has_ended() -> None:
    feed = begun(spec(T, U))
    feed.write(TableEnds(T, 5))
    settling = feed.maintainer(spec(T), passed=6)
    for record in (SpecSettled(None), TableEnds(U, LEFT), SpanEnded(1)):
        feed.write(record)
    assert (settling.step(), settling.is_due) == ([], True), "its dispatcher has not stopped"
    feed.write(SpanEnded(0))
    feed.written.clear()
    feed.settle()
    assert feed.written == [SpanRecorded(2, whole(T, 2), 5), SpecSettled(spec(T))]
    assert T not in feed.state.ends


def test_C7_a_table_that_the_rules_take_when_it_is_renamed_and_not_before_leaves_until_then() -> None:
    feed = begun(spec(T, U))
    feed.maintainer(spec(U), passed=3, changes=(SchemaChange(9, 90, "create", (T,), 2),))
    feed.settle()
    assert feed.written == [SpecSettled(None), TableEnds(T, LEFT), SpanEnded(0), SpecSettled(spec(U))]


def test_C7_a_table_that_is_there_and_will_go_and_come_again_is_left_as_it_is() -> None:
    feed = Feed()
    feed.maintainer(spec(T))
    feed.settle()                                            # recorded, and not placed yet
    feed.written.clear()
    changes = (SchemaChange(5, 50, "drop", (T,)), SchemaChange(9, 90, "create", (T,), 2))
    feed.maintainer(spec(T, U), passed=3, changes=changes)
    feed.settle()
    assert feed.written == [SpecSettled(None), SpanRecorded(1, whole(U, 1)), SpecSettled(spec(T, U))]


SPECS = st.builds(
    lambda tables, said: spec(*sorted(tables), **said),
    st.sets(st.sampled_from([T, U, V]), min_size=1),
    st.dictionaries(st.sampled_from(["t1", "t2", "t3"]), st.sampled_from(["v > 1", "v > 2"]), max_size=2))


@given(st.lists(st.tuples(SPECS, st.booleans()), min_size=1, max_size=6), st.lists(st.integers(0, 6), max_size=6))
def test_C4_whatever_is_changed_and_whoever_dies_the_last_spec_is_in_force(
    changes: list[tuple[ChangefeedSpec, bool]], deaths: list[int]
) -> None:
    feed = Feed()
    for now, again in changes:
        for _ in range(1 + again):                           # another maintainer, with nothing new to say
            feed.maintainer(now)
            if feed.settle(deaths):
                feed.place_all()
    feed.maintainer(changes[-1][0])
    while not feed.settle(deaths):
        feed.maintainer(changes[-1][0])                      # whoever died does nothing more
    feed.place_all()
    last = changes[-1][0]
    assert feed.state.spec == last
    assert feed.tables() == {table for table in PARTITIONS if Rules(last).takes("public", f"t{table.oid}")}
    assert sorted(p for s in feed.state.spans.values() for p in s.span.parts) == sorted(
        part for table in feed.tables() for part in whole(table, PARTITIONS[table]).parts)
    for span in feed.state.spans.values():
        assert feed.began[span.id] == said_of(last, span.span.table)


def test_a_table_of_which_nothing_new_is_said_is_left_alone() -> None:
    said = (TableSettings(tables="public.t1", filter="a"),)
    before = ChangefeedSpec(id="f", source="s", sink="kafka:", settings=said)
    moved = msgspec.structs.replace(before, settings=(
        TableSettings(tables="public.t9", filter="b"), TableSettings(tables="public.t1*", filter="a")))
    assert changed_tables(before, moved, SCHEMAS.values()) == frozenset()
    wider = msgspec.structs.replace(before, settings=(TableSettings(tables="public.*", filter="a"),))
    assert changed_tables(before, wider, SCHEMAS.values()) == {2, 3}
    assert changed_tables(None, before, SCHEMAS.values()) == {1, 2, 3}, "nobody knows what was said before"
    renamed = TableSchema(1, "public", "t9", "d", ())
    assert changed_tables(before, moved, [renamed]) == {1}, "under any name that it has had"
