"""What `progress` says to a starting reader: the mark, schemas in force there, what was named behind it [S3, S7]."""

from __future__ import annotations

from millrace.model.progress import Change, End, Mark, SchemaVersion
from millrace.model.tables import Column, Place, TableSchema
from millrace.source.reading.schemas import ProgressFold


def table(*names: str, oid: int = 7) -> TableSchema:
    return TableSchema(oid, "public", "t", "d", tuple(Column(name, 23, -1, name == "id") for name in names))


def mark(resolved: int, *ends: tuple[int, int, int], full: bool = False, generation: int = 1) -> Mark:
    return Mark(generation, resolved, "system", 1, full, tuple(End(*end) for end in ends))


def test_S7_the_schema_in_force_is_the_last_one_at_or_below_the_mark() -> None:
    fold = ProgressFold(1)
    for record in (
        SchemaVersion(1, table("id"), 9, -1), mark(9, (7, 0, 1), full=True),
        SchemaVersion(1, table("id", "a"), 20, 3), mark(20, (7, 0, 4)),
        SchemaVersion(1, table("id", "a", "b"), 30, 0),
    ):
        fold.record(record)
    assert fold.mark is not None
    schemas = fold.schemas(fold.mark.resolved)
    assert schemas.at(20) == {7: table("id", "a")}
    assert schemas.is_named(7, Place(30, 0))       # it came behind the mark: not named twice when it is read again
    assert not schemas.is_named(7, Place(30, 1))
    assert fold.named_lsn == 30


def test_S3_incremental_marks_count_from_the_first_full_one_on() -> None:
    fold = ProgressFold(1)
    fold.record(mark(5, (7, 0, 2)))
    assert fold.mark is None
    fold.record(mark(6, (7, 0, 3), (7, 1, 1), full=True))
    fold.record(mark(8, (7, 1, 9)))
    assert fold.mark is not None
    assert fold.mark.resolved == 8
    assert fold.mark.ends == {(7, 0): 3, (7, 1): 9}


def test_S3_other_generations_say_nothing_about_schemas() -> None:
    fold = ProgressFold(2)
    fold.record(SchemaVersion(1, table("old"), 50, 0))
    fold.record(Change(1, 7, 60, 0, "truncate"))
    fold.record(SchemaVersion(2, table("id"), 4, -1))
    assert fold.schemas(10).at(10) == {7: table("id")}
    assert fold.named_lsn == 4


def test_S7_a_schema_read_ahead_by_a_copy_is_known_but_not_in_force() -> None:
    fold = ProgressFold(1)
    fold.record(SchemaVersion(1, table("id"), 9, -1))
    fold.record(SchemaVersion(1, table("id", "ahead"), -1, -1))
    schemas = fold.schemas(100)
    assert schemas.at(100) == {7: table("id")}
    assert table("id", "ahead").id in schemas.ids


def test_S7_after_a_reconnect_the_schema_of_the_resumed_place_is_in_force_again() -> None:
    fold = ProgressFold(1)
    fold.record(SchemaVersion(1, table("id"), 9, -1))
    schemas = fold.schemas(9)
    schemas.use(table("id", "a"), Place(20, 1))
    schemas.use(table("id", "a", "b"), Place(30, 0))
    assert schemas.at(25) == {7: table("id", "a")}
    schemas.use(table("id", "a"), Place(20, 1))    # sent again
    assert schemas.at(30) == {7: table("id", "a", "b")}
    assert schemas.in_force[7] == table("id", "a")


def test_S7_restated_versions_say_the_same_as_the_history() -> None:
    fold = ProgressFold(1)
    for record in (
        SchemaVersion(1, table("id"), 9, -1), SchemaVersion(1, table("id", "a"), 20, 3), mark(20, full=True),
        SchemaVersion(1, table("id", "a", "b"), 30, 0), SchemaVersion(1, table("x", oid=8), 4, -1),
    ):
        fold.record(record)
    again = ProgressFold(1)
    for record in fold.restated(20):
        again.record(record)
    for resolved in (20, 29, 30):
        assert again.schemas(resolved).at(resolved) == fold.schemas(resolved).at(resolved)
    assert again.named_lsn == fold.named_lsn


def test_S12_a_table_is_dropped_from_its_drop_on_until_it_is_back_whoever_reads() -> None:
    fold = ProgressFold(1)
    for record in (SchemaVersion(1, table("id"), 9, -1), Change(1, 7, 20, 0, "drop"), Change(1, 7, 40, 0, "create")):
        fold.record(record)
    schemas = fold.schemas(9, dropped=[8])
    assert [schemas.dropped_at(lsn) for lsn in (9, 20, 39, 40)] == [{8}, {7, 8}, {7, 8}, {8}]
    schemas.lived(7, 40, is_there=True)
    schemas.lived(7, 60, is_there=False)
    assert schemas.dropped_at(60) == {7, 8}


def test_S12_a_drop_that_progress_has_not_kept_is_known_by_the_office_and_a_return_behind_it_counts() -> None:
    fold = ProgressFold(1)
    fold.record(Change(1, 7, 40, 0, "create"))
    schemas = fold.schemas(9, dropped=[8])
    assert [schemas.dropped_at(lsn) for lsn in (30, 40)] == [{7, 8}, {8}]
