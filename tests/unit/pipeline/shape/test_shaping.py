"""Rows under a filter and a projection, against rows told one by one in plain Python [P4]."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import support_json as judge
from millrace.core.feeds.filtering import Op, Outcome, Verdict, outcome
from millrace.model.table_plans import Output, TablePlan, whole
from millrace.model.tables import Column, TableSchema
from millrace.pipeline.shape.asking import asked_of, images_of, question, renamed
from millrace.pipeline.shape.paths import encode, fused
from millrace.pipeline.shape.shaping import Answers, Shaped, shape
from millrace.sink.kafka.debezium import Debezium
from millrace.sink.kafka.encode import Encoded, Encoder, Rows, Target
from millrace.sink.kafka.formats import Origin
from millrace.sink.kafka.headers import Provenance
from millrace.wire.batches_out import sealed

ORIGIN = Origin("shop", "db")
FROM = Provenance(bytes(16), 0, 7, 1)
MADE = Column("made", 25)


class Case(NamedTuple):
    changes: judge.Changes
    plan: TablePlan


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A filter that looks at some columns, a projection in any order with new names, a column made of some others."""
    changes = draw(judge.changes(rows_max=8))
    table = changes.table
    every = range(len(table.columns))
    some = st.lists(st.sampled_from(every), unique=True, max_size=3).map(lambda found: tuple(sorted(found)))
    order = draw(st.permutations(every))
    kept = [i for i in order if table.columns[i].is_key or draw(st.booleans())]
    outputs = [Output(msgspec.structs.replace(table.columns[i], name=f"{table.columns[i].name}!"), i) for i in kept]
    if not outputs or draw(st.booleans()):
        outputs.insert(draw(st.integers(0, len(outputs))), Output(MADE, None, "…", draw(some)))
    filter_ = draw(st.sampled_from(["", "…"]))
    return Case(changes, TablePlan(table, tuple(outputs), filter_, draw(some) if filter_ else ()))


def takes(plan: TablePlan, image: list[judge.Cell]) -> bool:
    """Some filter."""
    return len(made(plan.filter_needs, image)) % 2 == 0


def made(needs: tuple[int, ...], image: list[judge.Cell]) -> str:
    """Some expression."""
    return "|".join(repr(image[i].arrow) for i in needs)


def answers(case: Case) -> Answers | None:
    """As Spark would: of each image that is asked, nothing of what cannot be told."""
    if case.plan.is_fused:
        return None
    rows, images = case.changes.rows, images_of(case.changes.batch, case.plan)
    seen = [*(rows[i].after for i in images.after), *(rows[i].before or [] for i in images.before)]
    asked = asked_of(case.changes.batch, case.plan).tolist()
    keep = [None if not bits & 1 else takes(case.plan, image) for image, bits in zip(seen, asked, strict=True)]
    columns = []
    for j, i in enumerate(case.plan.computed):
        shown = [made(case.plan.outputs[i].needs, image) if bits >> 1 + j & 1 and (not case.plan.filter or taken)
                 else None for image, bits, taken in zip(seen, asked, keep, strict=True)]
        columns.append(pa.array(shown, pa.string()))
    return Answers(pa.array(keep, pa.bool_()), tuple(columns))


# -- the slow way ---------------------------------------------------------------------------------------------------
def verdict(plan: TablePlan, image: list[judge.Cell] | None, *, keys_only: bool) -> Verdict:
    needs = plan.filter_needs
    if not plan.filter:
        return Verdict.IN
    if image is None or any(not image[i].sent for i in needs) or (
            keys_only and not set(needs) <= set(plan.table.keys)):
        return Verdict.UNKNOWN
    return Verdict.IN if takes(plan, image) else Verdict.OUT


def shown(plan: TablePlan, image: list[judge.Cell] | None, *, keys_only: bool) -> list[judge.Cell]:
    if not image:
        return []
    cells = []
    for output in plan.outputs:
        if output.of is not None:
            cells.append(image[output.of] if not keys_only or plan.table.columns[output.of].is_key else judge.NULL)
        elif keys_only:
            cells.append(judge.NULL)
        elif any(not image[i].sent for i in output.needs):
            cells.append(judge.Cell(sent=False))
        else:
            cells.append(judge._text(made(output.needs, image)))
    return cells


def expected(case: Case) -> tuple[list[tuple[int, judge.Row]], list[int]]:
    """(place, row) of what is told, and places of what is refused."""
    plan, told, refused = case.plan, [], []
    full = plan.table.identity == "f"
    for place, row in enumerate(case.changes.rows):
        old = row.before if row.op == 2 or (row.op == 1 and full) else row.after if row.op == 1 else None
        before = verdict(plan, old, keys_only=not full) if old else Verdict.UNKNOWN
        after = verdict(plan, row.after, keys_only=False) if row.after else Verdict.OUT
        becomes = outcome(Op(row.op), before, after)
        others = [[i for i in output.needs if i not in plan.table.keys] for output in plan.outputs if output.of is None]
        halves = bool(row.after) and any(0 < sum(not row.after[i].sent for i in some) < len(some) for some in others)
        if becomes == Outcome.REFUSED or (becomes in (0, 1) and halves):
            refused.append(place)
            continue
        if becomes == Outcome.NOTHING:
            continue
        new = replace(row)
        new.op = int(becomes)
        new.after = [] if becomes == Outcome.DELETE else shown(plan, row.after, keys_only=False)
        if becomes == Outcome.DELETE:
            new.before = shown(plan, row.before if row.op == 2 or full else row.after, keys_only=not full)
        elif row.op == 1 and becomes == Outcome.INSERT:
            new.before = None
        elif row.before is not None:
            new.before = shown(plan, row.before, keys_only=not full or row.op == 0)
            if row.op == 0:
                new.before = [cell if output.of is not None and plan.table.columns[output.of].is_key else judge.NULL
                              for cell, output in zip(new.before, plan.outputs, strict=True)]
        told.append((place, new))
    return told, refused


def rows_of(batch: pa.RecordBatch) -> Rows:
    return Rows(batch, np.arange(batch.num_rows) + 100, np.arange(batch.num_rows) % 3)


def bytes_of(encoded: Encoded) -> list[tuple[int, bytes]]:
    return [(batch.partition, b"".join(sealed(batch))) for batch in encoded.batches]


def encoder(table: TableSchema) -> Encoder:
    return Encoder(table, Debezium(ORIGIN, table, tombstones=True), Target(3))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_P4_rows_are_told_as_one_by_one(case: Case) -> None:
    rows = rows_of(case.changes.batch)
    shaped = shape(rows.batch, case.plan, answers(case))
    told, refused = expected(case)
    assert shaped.places.tolist() == [place for place, _ in told]
    assert [one.place for one in shaped.refused] == refused
    shaped.batch.validate(full=True)
    found = encode(rows, shaped, case.plan, encoder(case.plan.shown), FROM, now_us=5)
    slow = [row for _, row in told]
    if not slow:
        assert found.batches == []
        return
    places = np.array([place for place, _ in told])
    batch = judge.batch_of(case.plan.shown, slow)
    wanted = encoder(case.plan.shown).encode(Rows(batch, rows.offset[places], rows.row[places]), FROM, now_us=5)
    assert bytes_of(found) == bytes_of(wanted)
    assert found.places.tolist() == places[wanted.places].tolist()


@settings(max_examples=15, deadline=None)
@given(judge.changes(rows_max=8))
def test_P4_a_table_of_which_nothing_is_said_is_not_touched(changes: judge.Changes) -> None:
    plan = whole(changes.table)
    assert plan.is_whole
    shaped = fused(rows_of(changes.batch), plan)
    assert shaped.batch is changes.batch
    # ... and would come out the same if it were.
    same = msgspec.structs.replace(plan, filter="true")
    count = sum(map(len, images_of(changes.batch, same)))
    through = shape(changes.batch, same, Answers(pa.array([True] * count), ()))
    rows = rows_of(changes.batch)
    assert bytes_of(encode(rows, through, same, encoder(changes.table), FROM, now_us=5)) == bytes_of(
        encode(rows, shaped, plan, encoder(changes.table), FROM, now_us=5))


ITEMS = TableSchema(7, "public", "t", "d", (Column("id", 20, -1, True), Column("a", 25), Column("b", 25)))


def item(op: int, key: int, a: judge.Cell, b: judge.Cell) -> judge.Row:
    cell = judge._same(key, key, str(key))
    return judge.Row(op, [cell, a, b], None)


def _one(row: judge.Row, plan: TablePlan, keep: bool | None, *texts: str | None) -> tuple[Shaped, Rows]:
    rows = rows_of(judge.batch_of(plan.table, [row]))
    return shape(rows.batch, plan, Answers(pa.array([keep], pa.bool_()), tuple(
        pa.array([text], pa.string()) for text in texts))), rows


def test_P9_a_row_that_cannot_be_judged_is_told_with_its_key_and_the_remedy() -> None:
    plan = TablePlan(ITEMS, whole(ITEMS).outputs, "a > 'x'", (1,))
    row = item(1, 5, judge.Cell(sent=False), judge._text("b"))
    shaped, rows = _one(row, plan, None)
    found = encode(rows, shaped, plan, encoder(ITEMS), FROM, now_us=5)
    assert found.batches == []
    [refused] = found.refused
    assert (refused.place, refused.reason, refused.key) == (0, "not_sent", b'{"id":5}')
    assert "the filter needs 'a', which was not sent" in refused.detail
    assert "REPLICA IDENTITY FULL" in refused.detail


def test_S6_what_is_made_of_columns_that_were_not_sent_is_unchanged_or_refused() -> None:
    outputs = (Output(ITEMS.columns[0], 0), Output(MADE, None, "a || b", (1, 2)))
    plan = TablePlan(ITEMS, outputs)
    unsent = judge.Cell(sent=False)
    shaped, _ = _one(item(1, 5, unsent, unsent), plan, None, None)
    assert shaped.batch.column("unchanged").to_pylist() == [b"\x02"]
    shaped, _ = _one(item(1, 5, unsent, judge._text("b")), plan, None, None)
    assert [one.detail[:25] for one in shaped.refused] == ["column 'made' needs 'a', "]


@pytest.mark.parametrize("days", [-800_000, 3_000_000])
def test_S6_a_date_that_no_message_can_tell_is_refused(days: int) -> None:
    plan = TablePlan(ITEMS, (Output(ITEMS.columns[0], 0), Output(Column("d", 1082), None, "…", (1,))))
    rows = rows_of(judge.batch_of(ITEMS, [item(0, 5, judge._text("a"), judge.NULL)]))
    far = pa.array([days], pa.int32()).cast(pa.date32())
    shaped = shape(rows.batch, plan, Answers(pa.array([True]), (far,)))
    assert [(one.place, one.reason) for one in shaped.refused] == [(0, "out_of_range")]


def test_P4_names_of_ours_never_meet_those_of_the_table() -> None:
    table = TableSchema(7, "s", "t", "d", (Column("_asked", 20, -1, True), Column("__batch", 25)))
    plan = TablePlan(table, whole(table).outputs, "…", (0, 1))
    cells = [judge._same(1, 1, "1"), judge._text("x")]
    asked = question(judge.batch_of(table, [judge.Row(0, cells, None)]), (plan,), 0, b"rows")
    assert asked.schema.names == ["___batch", "___which", "___asked", "___0c0", "___0c1"]
    assert renamed((plan,), 0) == ["___0c0 AS `_asked`", "___0c1 AS `__batch`"]
