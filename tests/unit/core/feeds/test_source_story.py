"""What a source's `progress` means for one changefeed: its tables, its changes, under numbers that never change."""

from __future__ import annotations

from millrace.core.feeds.source_story import SourceStory, Told
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.progress import Change, End, Mark, ProgressRecord, SchemaVersion
from millrace.model.spans import TableId, TablePartition
from millrace.model.tables import Column, TableSchema

SPEC = ChangefeedSpec(id="orders", source="shop", sink="kafka:", tables=("public.*", "!public.secret*"))
OID = 16400


def table(name: str, *more: str, oid: int = OID) -> TableSchema:
    columns = (Column("id", 20, -1, True), *(Column(one, 25) for one in more))
    return TableSchema(oid, "public", name, "d", columns)


def version(schema: TableSchema, lsn: int = 5, *, generation: int = 1) -> SchemaVersion:
    return SchemaVersion(generation, schema, lsn, -1)


def altered(schema: TableSchema, lsn: int) -> tuple[SchemaVersion, Change]:
    return version(schema, lsn), Change(1, schema.oid, lsn, 0, "alter", schema.id)


def told(*records: ProgressRecord) -> list[Told]:
    story = SourceStory(SPEC)
    return [one for offset, record in enumerate(records) if (one := story.replay(offset, record)) is not None]


def kinds(*records: ProgressRecord) -> list[tuple[int, str, str]]:
    return [(one.number, one.kind, one.table.name) for one in told(*records)]


def test_C7_a_table_comes_with_its_first_naming_and_changes_by_its_changes() -> None:
    t, wider = table("t"), table("t", "x")
    truncate, drop = Change(1, OID, 30, 0, "truncate", wider.id), Change(1, OID, 40, 0, "drop", None, wider.id)
    assert kinds(version(t), *altered(wider, 20), truncate, drop) == [
        (0, "create", "t"), (2, "alter", "t"), (3, "truncate", "t"), (4, "drop", "t")]


def test_C7_what_is_said_again_is_told_once() -> None:
    t, wider = table("t"), table("t", "x")
    again = altered(wider, 20)
    assert kinds(version(t), version(t, 9), version(t, generation=2), *again, *again) == [
        (0, "create", "t"), (4, "alter", "t")]


def test_C7_tables_outside_the_rules_are_not_told_of() -> None:
    secret = table("secret")
    assert kinds(version(secret), *altered(table("secret", "x"), 20), Change(1, OID, 30, 0, "drop")) == []


def test_C7_a_table_is_renamed_into_the_rules_at_a_marker_and_out_of_them_as_it_was() -> None:
    away, back = altered(table("secret"), 20), altered(table("t"), 30)
    into, = told(version(table("secret")), *back)
    assert (into.number, into.kind, into.table.name, into.has_marker) == (2, "create", "t", True)
    _, out = told(version(table("t")), *away)
    assert (out.number, out.kind, out.table.name) == (2, "drop", "t")


def test_C7_a_marker_is_looked_for_behind_the_ends_that_were_marked_before_its_change() -> None:
    story = SourceStory(SPEC)
    t, wider = table("t"), table("t", "x")
    ends = (End(OID, 0, 3), End(OID, 1, 8), End(99, 0, 50))
    records = [version(t), Mark(1, 15, "s", 1, True, ends), *altered(wider, 20)]
    one = [found for offset, record in enumerate(records) if (found := story.replay(offset, record)) is not None][-1]
    assert one.floors == {0: 3, 1: 8}
    assert story.markers == {one.marker: 3}
    assert (one.marker, story.first_change) == ((1, OID, 20, 0), 3)
    assert not told(version(t))[0].has_marker


def test_C6_marks_are_folded_until_somebody_takes_them() -> None:
    story = SourceStory(SPEC)
    part, other = (TablePartition(TableId("shop", OID), n) for n in (0, 1))
    for offset, mark in enumerate([Mark(1, 15, "s", 1, True, (End(OID, 0, 3), End(OID, 1, 8))),
                                   Mark(1, 16, "s", 1, False, (End(OID, 1, 9),))]):
        story.replay(offset, mark)
    assert story.take_mark() == (16, {part: 3, other: 9}, True, 1, {})
    assert story.take_mark() is None
    story.replay(2, Mark(1, 17, "s", 1, False, ()))
    assert story.take_mark() == (17, {}, False, 1, {})


def test_S10_whether_a_table_has_a_key_is_told_by_its_last_version() -> None:
    keyless = TableSchema(OID, "public", "t", "f", (Column("x", 25),))
    story = SourceStory(SPEC)
    assert not story.is_keyless(OID)
    story.replay(0, version(keyless))
    assert story.is_keyless(OID)
    for offset, record in enumerate(altered(table("t", "x"), 20), 1):
        story.replay(offset, record)
    assert not story.is_keyless(OID)
    assert [story.is_keyless(OID, at) for at in range(4)] == [True, False, False, False]
    story.replay(3, version(table("t", "x"), generation=2))
    assert not story.is_keyless(OID, 2), "said again"
    story.replay(4, version(keyless))
    assert story.is_keyless(OID, 3)
    keyed = SourceStory(SPEC)
    keyed.replay(5, version(table("t")))
    assert not keyed.is_keyless(OID, 1), "as long as anybody knows"
