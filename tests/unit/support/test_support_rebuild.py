"""The rebuild is shown to catch what it is there to catch: each test plants one flaw in a log that was right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from millrace.model.progress import (
    Change,
    CopyStarted,
    End,
    HighMark,
    LowMark,
    Manifest,
    Mark,
    ProgressRecord,
    Range,
    SchemaVersion,
)
from millrace.model.tables import Column, Place, TableSchema
from support_rebuild import Copied, LogError, Logged, Marker, Rebuild, RowChange, Values, differences

OID = 42
TABLE = TableSchema(OID, "public", "t", "d", (Column("id", 23, is_key=True), Column("v", 25), Column("big", 25)))
ADDED = TableSchema(OID, "public", "t", "d", (*TABLE.columns, Column("x", 25)))
Schemas = dict[UUID, TableSchema]


def row(op: str, lsn: int, seq: int, key: str, v: str | None = None, big: str | None = None, *, old: str | None = None,
        unchanged: Iterable[str] = ()) -> RowChange:
    after: Values = {} if op == "delete" else {"id": key, "v": v, "big": big}
    before: Values = {"id": key} if op == "delete" else {"id": old} if old else {}
    return RowChange(op, Place(lsn, seq), {k: x for k, x in after.items() if k not in unchanged}, before,
                     frozenset(unchanged))


def batch(offset: int, *rows: RowChange, schema: TableSchema = TABLE) -> Logged:
    return Logged(offset, 1, schema.id, rows[0].place, rows[-1].place, list(rows))


def marker(offset: int, lsn: int, seq: int, kind: str = "truncate", schema: TableSchema = TABLE) -> Logged:
    change = Change(1, OID, lsn, seq, kind, schema_id=schema.id)   # type: ignore[arg-type]
    return Logged(offset, 1, schema.id, Place(lsn, seq), Place(lsn, seq), Marker(Place(lsn, seq), change))


def mark(resolved: int, *ends: int, full: bool = True) -> Mark:
    return Mark(1, resolved, "sys", 1, full, tuple(End(OID, p, offset) for p, offset in enumerate(ends)))


@dataclass
class FakeLog:
    notes: list[ProgressRecord]
    tables: list[list[Logged]]
    copies: list[list[Copied]] = field(default_factory=lambda: [[], []])

    def progress(self) -> list[tuple[int, ProgressRecord]]:
        return list(enumerate(self.notes))

    def partitions(self, oid: int) -> int:
        return len(self.tables)

    def records(self, oid: int, partition: int, start: int, end: int, schemas: Schemas) -> list[Logged]:
        return [r for r in self.tables[partition] if start <= r.offset < end]

    def copied(self, topic: str, partition: int, start: int, end: int, schemas: Schemas) -> list[Copied]:
        return [r for r in self.copies[partition] if start <= r.offset < end]


def history() -> FakeLog:
    """A snapshot of keys 1 and 2, changes in two partitions with an unchanged value and a key update, a window."""
    copied: list[Values] = [{"id": "1", "v": "a", "big": "B1"}, {"id": "2", "v": "a", "big": "B2"}]
    again: list[Values] = [{"id": "1", "v": "b", "big": "B1"}, {"id": "9", "v": "d", "big": "B9"}]
    notes: list[ProgressRecord] = [
        SchemaVersion(1, TABLE, 0, 0),
        CopyStarted(1, 1, OID, "copy.1", 1, 10, "snapshot"),
        mark(10, 0, 0),
        Manifest(1, 1, 0, 1, OID, "snapshot", TABLE.id, (Range(0, 0, 1),), 2, 0),
        mark(20, 1, 1, full=False),
        CopyStarted(1, 2, OID, "copy.2", 1, 0, "watermark"),
        LowMark(1, 2, 0, 1, 25),
        Manifest(1, 2, 0, 1, OID, "watermark", TABLE.id, (Range(1, 0, 1),), 2, 0),
        HighMark(1, 2, 0, 1, 35),
        mark(40, 2, 3, full=False),
    ]
    tables = [
        [batch(0, row("update", 20, 0, "1", "b", unchanged=["big"]), row("delete", 20, 2, "2")),
         batch(1, row("update", 30, 1, "1", "c", unchanged=["big"]))],
        [batch(0, row("insert", 20, 1, "3", "n", "B3")),
         batch(1, row("delete", 30, 0, "3")),
         batch(2, row("insert", 40, 0, "2", "m", "B5"))],
    ]
    return FakeLog(notes, tables, [[Copied(0, 0, 1, TABLE.id, copied)], [Copied(0, 0, 1, TABLE.id, again)]])


EXPECTED: Counter[tuple[str | None, ...]] = Counter({("1", "c", "B1"): 1, ("2", "m", "B5"): 1, ("9", "d", "B9"): 1})


def verdict(log: FakeLog) -> list[str]:
    rebuild = Rebuild(log).run(40)
    rebuild.check_tails()
    return differences(EXPECTED, rebuild.tables[OID])


class Both(FakeLog):
    """Two copies have two topics."""

    def copied(self, topic: str, partition: int, start: int, end: int, schemas: Schemas) -> list[Copied]:
        mine = 0 if topic == "copy.1" else 1
        return [r for r in self.copies[mine] if start <= r.offset < end and partition == mine]


def right() -> Both:
    log = history()
    return Both(log.notes, log.tables, log.copies)


def test_S3_a_true_log_passes() -> None:
    assert verdict(right()) == []


def lose_row(log: FakeLog) -> None:
    log.tables[0][0] = batch(0, row("delete", 20, 2, "2"))


def lose_batch(log: FakeLog) -> None:
    del log.tables[1][1]


def double_batch(log: FakeLog) -> None:
    log.tables[0].insert(1, log.tables[0][0]._replace(offset=1))
    log.tables[0][2] = log.tables[0][2]._replace(offset=2)
    log.notes[-1] = mark(40, 3, 3, full=False)


def double_in_other_partition(log: FakeLog) -> None:
    log.tables[1][0] = batch(0, row("insert", 20, 1, "3", "n", "B3"), row("delete", 20, 2, "2"))


def swap_rows(log: FakeLog) -> None:
    log.tables[0][0] = batch(0, row("delete", 20, 2, "2"), row("update", 20, 0, "1", "b", unchanged=["big"]))


def claim_too_much(log: FakeLog) -> None:
    log.notes[4] = mark(20, 2, 1, full=False)


def claim_too_little(log: FakeLog) -> None:
    log.notes[-1] = mark(40, 2, 2, full=False)


def wrong_header(log: FakeLog) -> None:
    log.tables[0][0] = log.tables[0][0]._replace(last=Place(20, 7))


def mark_goes_back(log: FakeLog) -> None:
    log.notes.insert(5, mark(15, 1, 1, full=False))


def first_mark_in_part(log: FakeLog) -> None:
    log.notes[2] = mark(10, 0, 0, full=False)


def manifest_claims_more(log: FakeLog) -> None:
    log.notes[3] = Manifest(1, 1, 0, 1, OID, "snapshot", TABLE.id, (Range(0, 0, 1),), 3, 0)


def copy_row_twice(log: FakeLog) -> None:
    log.copies[0].append(log.copies[0][0]._replace(offset=1))
    log.notes[3] = Manifest(1, 1, 0, 1, OID, "snapshot", TABLE.id, (Range(0, 0, 2),), 4, 0)


def manifest_missing(log: FakeLog) -> None:
    del log.notes[3]


def schema_missing(log: FakeLog) -> None:
    log.tables[0][1] = log.tables[0][1]._replace(schema_id=ADDED.id)


def marker_in_one_partition(log: FakeLog) -> None:
    log.tables[1].append(marker(3, 40, 1))
    log.notes[-1] = mark(40, 2, 4, full=False)


@pytest.mark.parametrize("plant", [
    lose_row, lose_batch, double_batch, double_in_other_partition, swap_rows, claim_too_much, claim_too_little,
    wrong_header, mark_goes_back, first_mark_in_part, manifest_claims_more, copy_row_twice, manifest_missing,
    schema_missing, marker_in_one_partition,
])
def test_S3_planted_flaws_of_the_log_are_caught(plant: Callable[[FakeLog], None]) -> None:
    log = right()
    plant(log)
    with pytest.raises(LogError):
        verdict(log)


def null_for_unchanged(log: FakeLog) -> None:
    log.tables[0][1] = batch(1, row("update", 30, 1, "1", "c", None))


def lose_copied_row(log: FakeLog) -> None:
    log.copies[1][0] = log.copies[1][0]._replace(rows=log.copies[1][0].rows[:1])
    log.notes[7] = Manifest(1, 2, 0, 1, OID, "watermark", TABLE.id, (Range(1, 0, 1),), 1, 0)


def lose_last_commit(log: FakeLog) -> None:
    del log.tables[1][2]


def other_value(log: FakeLog) -> None:
    log.tables[1][2] = batch(2, row("insert", 40, 0, "2", "M", "B5"))


def chunk_row_is_older(log: FakeLog) -> None:
    """A window that began after the change must have seen it."""
    log.notes[6] = LowMark(1, 2, 0, 1, 30)


@pytest.mark.parametrize("plant", [
    null_for_unchanged, lose_copied_row, lose_last_commit, other_value, chunk_row_is_older])
def test_S5_planted_flaws_of_the_rows_are_caught(plant: Callable[[FakeLog], None]) -> None:
    log = right()
    plant(log)
    assert verdict(log)


def test_S7_columns_are_followed_by_their_place() -> None:
    log = right()
    renamed = TableSchema(OID, "public", "t", "d", (*TABLE.columns[:1], Column("w", 25), TABLE.columns[2]))
    log.notes.insert(1, SchemaVersion(1, renamed, 40, 1))
    for partition, offset in ((0, 2), (1, 3)):
        log.tables[partition].append(marker(offset, 40, 1, "alter", renamed))
    log.notes[-1] = mark(40, 3, 4, full=False)
    assert verdict(log) == []


def test_S7_a_truncation_empties_the_table() -> None:
    log = right()
    for partition, offset in ((0, 2), (1, 3)):
        log.tables[partition].append(marker(offset, 40, 1))
    log.notes[-1] = mark(40, 3, 4, full=False)
    rebuild = Rebuild(log).run(40)
    assert not rebuild.tables[OID].rows(), "also the chunk's: it was read before"
