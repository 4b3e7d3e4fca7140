"""Tables that come, go, are refused and owed a copy: what is decided from looks and news [S5, S7, S9, S11]."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.core.sources import keeper
from millrace.core.sources.keeper import Before, Carried, Leaf, Missing, Plan, Refused, Settled, Statement
from millrace.core.sources.registry import SourceState, Table
from millrace.errors import InvalidRequest, UnknownTable
from millrace.model.progress import ChunksAbandoned, TableState
from millrace.model.sources import ChunkDone, ChunkSpan, CopyPlanned, SnapshotLost, TableLeaves, TablePublished
from millrace.model.tables import Column, TableSchema

T, U = 16, 17
KNOWN = Before(frozenset({T, U}), frozenset())


def write(state: SourceState, decision: Any) -> Any:
    for record in decision.records:
        state.replay(record)
    return decision.reply


def source(*, copied: bool = True) -> SourceState:
    state = SourceState("shop")
    write(state, state.raise_generation(generation=3, reason="begins", at=9, system_id="1", timeline=1))
    write(state, state.add_table(oid=T, schema="public", name="t", partitions=2))
    write(state, state.add_table(oid=U, schema="App", name="u.v", partitions=1))
    for oid in (T, U) if copied else ():
        copy(state, oid)
        write(state, state.copies.high_mark_found(
            state.copies.attempt(state.copies.next_id - 1, 0).reply, rows=0, bytes_=0))
    return state


def copy(state: SourceState, oid: int, *, kind: str = "watermark", chunks: int = 1) -> int:
    number: int = write(state, state.plan_copy(
        oid, kind=kind, at=9 if kind == "snapshot" else 0,  # type: ignore[arg-type]
        chunks=tuple(ChunkSpan(oid, n, n + 1) for n in range(chunks))))
    return number


def done(state: SourceState, number: int) -> None:
    state.replay(ChunkDone(number, 0, 1, 5, 50))


def table(state: SourceState, oid: int = T) -> tuple[str, str]:
    found = state.tables[oid]
    return found.state, found.reason


def look(state: SourceState, seen: Carried, before: Before = KNOWN) -> tuple[str, str]:
    said = write(state, keeper.met(state, before, seen))
    for one in said:
        assert (one.generation, one.oid, (one.state, one.reason)) == (3, seen.oid, table(state, seen.oid))
    return table(state, seen.oid)


# -- looks -----------------------------------------------------------------------------------------------------------
def test_S5_a_table_that_stays_as_it_is_changes_nothing() -> None:
    state = source()
    seen = Carried(T, terms="a", leaves={20: Leaf(True)})
    look(state, seen)
    assert state.tables[T].terms == "a"
    assert state.tables[T].leaves == (20,)
    assert keeper.met(state, KNOWN, seen).records == ()
    assert table(state) == ("streaming", "")


def test_S9_a_table_that_was_not_published_for_a_while_is_owed_a_copy() -> None:
    assert look(source(), Carried(T, published_now=True)) == ("needs_copy", "it was not published for a while")


def test_S5_a_table_that_joined_during_the_look_was_never_without() -> None:
    assert look(source(), Carried(T, published_now=True), Before(frozenset({U}), frozenset())) == ("streaming", "")


def test_S5_a_table_that_joined_counts_as_uncopied_until_its_copy_is_planned() -> None:
    state = source(copied=False)
    assert keeper.uncopied(state) == {T, U}
    assert keeper.dues(state) == [keeper.Plan(T), keeper.Plan(U)]
    copy(state, T)
    assert keeper.uncopied(state) == {U}, "from now on its copy says how far it is"
    write(state, keeper.set_state(state, U, "dropped"))
    assert keeper.uncopied(state) == set()


def test_S11_a_table_that_was_refused_and_is_fit_again_is_owed_a_copy() -> None:
    state = source()
    assert write(state, keeper.unfit(state, KNOWN, T, "no key")) == (TableState(3, T, "refused", "no key"),)
    assert keeper.unfit(state, KNOWN, T, "no key").records == ()
    assert keeper.unfit(state, KNOWN, 99, "no key").records == ()
    assert write(state, keeper.owe(state, T, "whatever")) == ()
    assert table(state) == ("refused", "no key"), "it gets its copy when it is carried again"
    assert look(state, Carried(T)) == ("needs_copy", "it was not carried for a while")


@pytest.mark.parametrize(("here", "why"), [
    ({20: True, 21: False}, ""), ({20: False, 21: True, 22: False}, ""),
    ({20: True, 21: True, 22: True}, "a partition came with its rows"), ({20: True}, "a partition went with its rows"),
    ({20: True, 30: False}, "a partition went with its rows"), ({}, "a partition went with its rows"),
], ids=["same", "an empty one came", "one came with rows", "one went", "exchanged", "all went"])
def test_S5_S12_partitions_that_come_or_go_with_rows_are_owed_a_copy(here: dict[int, bool], why: str) -> None:
    state = source()
    state.replay(TableLeaves(T, (20, 21)))
    found = look(state, Carried(T, leaves={oid: Leaf(has_rows) for oid, has_rows in here.items()}))
    assert found == (("needs_copy", why) if why else ("streaming", ""))
    assert state.tables[T].leaves == tuple(here)
    assert state.tables[T].replaces == ("went" in why), "what came has taken nothing away"


def test_A4_S12_a_partition_with_another_file_was_truncated() -> None:
    state = source()
    assert look(state, Carried(T, leaves={20: Leaf(True, 7), 21: Leaf(True, 8)})) == ("streaming", "")
    found = look(state, Carried(T, leaves={20: Leaf(True, 7), 21: Leaf(False, 9)}))
    assert found == ("needs_copy", "a partition was truncated, or rewritten")
    assert state.tables[T].replaces
    assert state.tables[T].files == (7, 9), "the next look knows"


def test_S12_files_that_were_never_known_say_nothing() -> None:
    state = source()
    state.replay(TableLeaves(T, (20,)))
    assert look(state, Carried(T, leaves={20: Leaf(True, 7)})) == ("streaming", "")
    assert state.tables[T].files == (7,)


@pytest.mark.parametrize(("labels", "has_enum_key", "owed"), [
    ({1: "a", 2: "b"}, False, False), ({1: "a", 2: "b", 3: "c"}, False, False), ({1: "a", 2: "z"}, False, True),
    ({1: "a", 2: "z"}, True, True), ({}, False, False)],
    ids=["same", "one came", "renamed", "renamed in a key", "column gone"])
def test_A4_S12_renamed_values_of_an_enum_are_owed_a_copy(
    labels: dict[int, str], has_enum_key: bool, owed: bool
) -> None:
    state = source()
    look(state, Carried(T, labels={1: "a", 2: "b"}))
    found = look(state, Carried(T, labels=labels, has_enum_key=has_enum_key))
    assert found == (("needs_copy", "values of an enum were renamed") if owed else ("streaming", ""))
    assert state.tables[T].labels == labels
    assert state.tables[T].replaces == (owed and has_enum_key)


def test_S5_the_partitions_of_a_table_that_joins_are_its_first() -> None:
    assert look(source(), Carried(T, leaves={20: Leaf(True)})) == ("streaming", "")


def test_S9_other_terms_of_publication_are_owed_a_copy_but_for_the_first() -> None:
    state = source()
    assert look(state, Carried(T, terms="1")) == ("streaming", "")
    assert look(state, Carried(T, terms="2")) == ("needs_copy", "how it is published was changed")
    assert state.tables[T].terms == "2"


def test_S5_several_reasons_of_one_look_are_one_debt_and_all_is_on_record() -> None:
    state = source()
    state.replay(TableLeaves(T, (20,)))
    state.replay(TablePublished(T, "1"))
    assert look(state, Carried(T, published_now=True, terms="2", leaves={})) == (
        "needs_copy", "it was not published for a while")
    assert (state.tables[T].terms, state.tables[T].leaves) == ("2", ())
    assert keeper.met(state, KNOWN, Carried(T, terms="2", leaves={})).records == ()


def test_S7_a_table_that_became_a_partition_and_is_one_of_its_own_again_is_owed_a_copy() -> None:
    state = source()
    write(state, keeper.told(state, Statement("drop", T)))
    before = keeper.before_look(state, state.tables)
    assert before == Before(frozenset({T, U}), frozenset({T}))
    assert look(state, Carried(T), before) == ("needs_copy", "it is a table of its own again")
    number = copy(state, T)
    assert not state.copies.by_id[number].is_done


def test_S7_a_look_is_not_believed_against_a_drop_that_came_meanwhile() -> None:
    state = source()
    before = keeper.before_look(state, state.tables)
    write(state, keeper.told(state, Statement("drop", T)))
    assert look(state, Carried(T, published_now=True, terms="9", leaves={20: Leaf(True)}), before) == (
        "dropped", "the table was dropped")
    assert write(state, keeper.unfit(state, before, T, "no key")) == ()
    assert table(state) == ("dropped", "the table was dropped")


# -- tables that are not there ---------------------------------------------------------------------------------------
def tell(missing: Missing, *, partitions: dict[int, bool] | None = None, has_triggers: bool = False, resolved: int = 0,
         wal_end: int = 100) -> list[int]:
    return missing.to_tell([T], partitions=partitions or {}, has_triggers=has_triggers, resolved=resolved,
                           wal_end=wal_end)


def test_S7_only_tables_that_are_not_dropped_are_missed() -> None:
    state, missing = source(), Missing()
    assert missing.gone(state, {T, U}) == []
    assert missing.gone(state, {U}) == [T]
    write(state, keeper.told(state, Statement("drop", T)))
    assert missing.gone(state, {U}) == []


def test_S7_without_triggers_we_say_ourselves_that_a_table_is_gone_once() -> None:
    missing = Missing()
    assert tell(missing) == [T]
    assert tell(missing) == []


def test_S7_where_a_trigger_tells_it_we_wait_until_its_word_must_have_come() -> None:
    missing = Missing()
    assert tell(missing, has_triggers=True, resolved=90, wal_end=100) == []
    assert tell(missing, has_triggers=True, resolved=100, wal_end=150) == []
    assert tell(missing, has_triggers=True, resolved=101, wal_end=200) == [T], "a reader died with the news"


def test_S7_a_table_that_is_now_part_of_another_is_gone_one_that_is_only_elsewhere_is_not() -> None:
    assert tell(Missing(), partitions={T: True}, has_triggers=True) == [T]
    assert tell(Missing(), partitions={T: False}) == []


def test_S7_a_table_that_came_back_can_go_again() -> None:
    state, missing = source(), Missing()
    assert tell(missing, wal_end=100) == [T]
    missing.gone(state, {T, U})
    assert tell(missing, has_triggers=True, resolved=150, wal_end=200) == [], "missed from now on, not from then"
    assert tell(missing, wal_end=200) == [T]


def test_S4_nobody_waits_for_the_snapshot_of_a_table_that_is_gone() -> None:
    state, missing = source(copied=False), Missing()
    number = copy(state, T, kind="snapshot", chunks=3)
    copy(state, U, kind="snapshot")
    done(state, number)
    assert missing.to_give_up(state) == []
    write(state, keeper.told(state, Statement("drop", T)))
    assert missing.to_give_up(state) == [ChunksAbandoned(3, number, (1, 2))]
    assert missing.to_give_up(state) == []
    assert Missing().to_give_up(state) == [ChunksAbandoned(3, number, (1, 2))], "said again in every life"


def test_S4_windows_of_a_table_that_is_gone_are_nobodys_wait() -> None:
    state = source(copied=False)
    number = copy(state, T, kind="snapshot")
    state.replay(SnapshotLost(number, (0,)))
    write(state, keeper.told(state, Statement("drop", T)))
    assert Missing().to_give_up(state) == []


# -- news ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("query", [
    "ALTER TABLE t ALTER n TYPE int USING n + 1", "alter table t alter column n\nset data type int\nusing (n)",
])
def test_S7_a_rewrite_that_keeps_the_type_is_owed_a_copy(query: str) -> None:
    state = source()
    write(state, keeper.told(state, Statement("ddl", T, query)))
    assert table(state) == ("needs_copy", "a column was rewritten")


@pytest.mark.parametrize("query", [
    "ALTER TABLE t ADD type_id int", "CREATE INDEX i ON t USING btree (type)", "ALTER TABLE t ALTER n TYPE bigint"])
def test_S7_other_statements_are_owed_nothing(query: str) -> None:
    state = source()
    assert keeper.told(state, Statement("ddl", T, query)).records == ()
    assert keeper.told(state, Statement("ddl", 99, "alter table x alter n type int using 1")).records == ()


def test_S7_a_statement_that_was_cut_off_may_have_said_anything() -> None:
    state = source()
    write(state, keeper.told(state, Statement("ddl", T, "ALTER TABLE t", is_cut=True)))
    assert table(state)[0] == "needs_copy"


def test_S7_a_drop_is_on_record_and_ends_the_copies_of_its_table() -> None:
    state = source()
    number = copy(state, T)
    assert write(state, keeper.told(state, Statement("drop", T))) == (
        TableState(3, T, "dropped", "the table was dropped"),)
    assert state.copies.by_id[number].is_over
    assert keeper.told(state, Statement("drop", T)).records == (), "told again by the next stream"
    assert write(state, keeper.owe(state, T, "whatever")) == ()
    assert table(state)[0] == "dropped"


def schema(*columns: tuple[str, int, bool], name: str = "t", identity: str = "d") -> TableSchema:
    return TableSchema(T, "public", name, identity, tuple(Column(*one[:2], -1, one[2]) for one in columns))


ID, V = ("id", 23, True), ("v", 25, False)


@pytest.mark.parametrize(("now", "why", "replaces"), [
    (schema(ID, V), "", False),
    (schema(ID, V, name="u"), "it was renamed from public.t", True),
    (schema(("pk", 23, True), V), "its key was changed", True),
    (schema(("id", 23, False), ("v", 25, True)), "its key was changed", True),
    (schema(("id", 25, True), V), "its key was changed", True),
    (schema(("id", 20, True), V), "", False),
    (schema(("id", 23, False), V), "", False),
    (schema(ID, ("w", 25, False)), "columns were renamed (v is gone, w came)", False),
    (schema(ID), "", False),
    (schema(ID, V, ("w", 25, False)), "", False),
], ids=["same", "renamed", "key column renamed", "other key", "key as text", "key as bigint", "key lost",
        "column renamed", "column dropped", "column added"])
def test_A4_S12_what_the_schemas_say_of_rows_that_were_there(now: TableSchema, why: str, replaces: bool) -> None:
    state = source()
    write(state, keeper.changed(state, schema(ID, V), now))
    assert table(state) == (("needs_copy", why) if why else ("streaming", ""))
    assert state.tables[T].replaces == replaces


def test_S12_a_debt_that_waits_becomes_one_that_replaces() -> None:
    state = source()
    write(state, keeper.filled(state, T, ["n"]))
    assert not keeper.beginning(state, T).empties
    write(state, keeper.owe(state, T, "keys are gone"))
    assert keeper.beginning(state, T)[:2] == (True, "keys are gone")
    write(state, keeper.filled(state, T, ["n"]))
    assert keeper.beginning(state, T).empties, "what is owed is not made less"
    write(state, keeper.planned(state, T, copy(state, T)))
    write(state, keeper.filled(state, T, ["n"]))
    assert not keeper.beginning(state, T).empties, "the copy that is planned has replaced the table"


def test_S12_a_first_copy_has_nothing_to_replace_and_one_by_hand_is_a_debt_before_it_is_planned() -> None:
    state = source(copied=False)
    write(state, keeper.asked_for(state, T))
    assert keeper.beginning(state, T)[:2] == (False, "")
    copy(state, T)
    assert keeper.beginning(state, T)[:2] == (True, ""), "asked for: nothing broke"
    assert keeper.dues(state)[:1] == [Plan(T)]


@pytest.mark.parametrize(("query", "why", "replaces"), [
    ("ALTER TABLE t ADD n int DEFAULT 5", "a column came with a default", False),
    ("alter table t add column n serial", "a column came with a default", False),
    ("ALTER TABLE t ALTER n TYPE text USING n::text", "a column was rewritten", False),
    ("ALTER TABLE t ALTER id TYPE int USING -id", "a column was rewritten", True),
    ("ALTER TABLE t ADD n int", "", False)])
def test_S12_what_a_statement_says_of_rows_that_were_there(query: str, why: str, replaces: bool) -> None:
    state = source()
    write(state, keeper.told(state, Statement("ddl", T, query, keys=("id",))))
    assert table(state) == (("needs_copy", why) if why else ("streaming", ""))
    assert state.tables[T].replaces == replaces


def columns(*names: tuple[str, int, int]) -> TableSchema:
    return TableSchema(T, "public", "t", "d", tuple(Column(name, oid, typmod) for name, oid, typmod in names))


def test_S7_columns_that_the_server_rewrites_or_fills() -> None:
    before = columns(("id", 20, -1), ("n", 23, -1), ("v", 1043, 14), ("w", 1043, 14), ("gone", 25, -1))
    now = columns(("id", 20, -1), ("n", 20, -1), ("v", 1043, 24), ("w", 25, -1), ("new", 25, -1))
    assert keeper.retyped(before, now) == ["n", "w"], "a longer varchar leaves its rows alone"
    assert keeper.added(before, now) == ["new"]
    state = source()
    assert keeper.filled(state, T, []).records == ()
    write(state, keeper.filled(state, T, ["n", "new"]))
    assert table(state) == ("needs_copy", "the server changed n, new in the rows that were there")


# -- debts -----------------------------------------------------------------------------------------------------------
def test_S4_a_table_that_joined_is_copied_and_one_that_was_is_not_again() -> None:
    assert keeper.dues(source(copied=False)) == [Plan(T), Plan(U)]
    assert keeper.dues(source()) == []


def test_S4_a_debt_is_planned_once_and_settled_by_its_copy() -> None:
    state = source()
    write(state, keeper.owe(state, T, "first"))
    write(state, keeper.owe(state, T, "second"))
    assert table(state) == ("needs_copy", "first"), "one copy makes good for both"
    assert keeper.dues(state) == [Plan(T)]
    number = copy(state, T)
    assert write(state, keeper.planned(state, T, number)) == (TableState(3, T, "needs_copy", f"first [copy {number}]"),)
    assert keeper.dues(state) == []
    assert write(state, keeper.settled(state, T)) == ()
    done(state, number)
    assert keeper.dues(state) == [Settled(T)]
    assert write(state, keeper.settled(state, T)) == (TableState(3, T, "streaming"),)
    assert keeper.dues(state) == []


def test_S4_a_copy_that_was_planned_before_pays_for_nothing_that_came_later() -> None:
    state = source()
    write(state, keeper.owe(state, T, "first"))
    number = copy(state, T)
    write(state, keeper.planned(state, T, number))
    write(state, keeper.owe(state, T, "later"))
    done(state, number)
    assert keeper.dues(state) == [Plan(T)]
    assert write(state, keeper.settled(state, T)) == ()
    assert table(state) == ("needs_copy", "later")


def test_S4_a_plan_that_is_not_on_record_is_made_again() -> None:
    state = source()
    write(state, keeper.owe(state, T, "first"))
    write(state, keeper.planned(state, T, 99))
    assert keeper.dues(state) == [Plan(T)]


def test_S8_a_table_with_an_oversize_row_waits_for_somebody_and_for_the_copy_he_asks_for() -> None:
    state = source()
    write(state, keeper.oversize(state, T, "a row of 99 bytes"))
    assert table(state) == ("needs_copy", "a row of 99 bytes [by hand]")
    assert keeper.dues(state) == [], "a copy would meet the row again"
    number = copy(state, keeper.to_copy(state, "public.t"))
    write(state, keeper.planned(state, T, number))
    assert table(state) == ("needs_copy", f"a row of 99 bytes [copy {number}]")
    done(state, number)
    assert keeper.dues(state) == [Settled(T)]


def test_S5_a_copy_by_hand_of_a_table_that_is_owed_nothing_changes_no_state() -> None:
    state = source()
    assert keeper.planned(state, T, copy(state, T)).records == ()


@pytest.mark.parametrize(("name", "oid"), [("public.t", T), ('"public"."t"', T), ("App.u.v", U), ('"App"."u.v"', U)])
def test_S5_a_table_to_copy_is_found_by_any_way_to_write_its_name(name: str, oid: int) -> None:
    assert keeper.to_copy(source(), name) == oid


def test_S5_a_copy_of_a_refused_table_is_refused_with_its_reason() -> None:
    state = source()
    write(state, keeper.unfit(state, KNOWN, T, "it has no key"))
    with pytest.raises(InvalidRequest, match="not carried, so a copy would go stale: it has no key"):
        keeper.to_copy(state, "public.t")
    with pytest.raises(InvalidRequest, match="would go stale: nobody may read it"):
        keeper.to_copy(state, '"public"."never"', [Refused("public", "never", "nobody may read it")])


def test_S5_a_copy_of_a_table_that_is_not_there_is_refused() -> None:
    state = source()
    with pytest.raises(UnknownTable, match=r"source 'shop' has no table 'public\.none'"):
        keeper.to_copy(state, "public.none")
    write(state, keeper.told(state, Statement("drop", T)))
    with pytest.raises(UnknownTable):
        keeper.to_copy(state, "public.t")
    write(state, state.add_table(oid=18, schema="public", name="t", partitions=1))
    assert keeper.to_copy(state, "public.t") == 18, "another table of that name"


def test_S9_copies_of_an_earlier_generation_do_not_count() -> None:
    state = source(copied=False)
    state.replay(CopyPlanned(7, 2, T, "old", 1, "watermark", 0, (ChunkSpan(T),), ()))
    assert keeper.dues(state) == [Plan(T), Plan(U)]


def test_S4_the_copy_under_way_is_read_from_the_reason() -> None:
    assert keeper.copy_under_way(Table(T, "s", "t", "x", 1, 1, "needs_copy", "why [copy 12]")) == 12
    assert keeper.copy_under_way(Table(T, "s", "t", "x", 1, 1, "needs_copy", "[copy 12] was said")) is None
    assert keeper.copy_under_way(Table(T, "s", "t", "x", 1, 1, "refused", "why [copy 12]")) is None
