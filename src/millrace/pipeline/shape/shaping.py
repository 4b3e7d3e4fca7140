"""Change batches of the log as the sink's encoder gets them: rows left out, told otherwise, with other columns.

    change batch + answers ─▶ verdict of each image ─▶ outcome of each row (core.feeds.filtering)
                           └▶ outputs: columns as they are, with what is odd or was not sent; columns that Spark made

In: a change batch, its plan, what Spark said. Out: a change batch of the table as shown, and which rows it holds; rows
that cannot be told, as values [P9]. Pure: the same in, the same out. Promise: what is shown as it is goes on to the
bit, whether Spark was asked or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.feeds.culprits import Culprit
from millrace.core.feeds.filtering import TABLE, Outcome, Verdict
from millrace.model.table_plans import TablePlan
from millrace.model.tables import IDENTITY_FULL
from millrace.pipeline.shape.asking import Bools, Ints, asked_of, has_before, images_of, unsent_of
from millrace.sink.kafka.encode import Refused
from millrace.wire.pg.cells import bitmap
from millrace.wire.pg.odd import Odd, odd_list, odd_rows
from millrace.wire.pg.types import (
    AFTER,
    BEFORE,
    DATE_MAX,
    DATE_MIN,
    DELETE,
    INSERT,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    UPDATE,
    arrow_schema,
    kinds_of,
    mask_bytes,
)

assert (INSERT, UPDATE, DELETE) == (Outcome.INSERT, Outcome.UPDATE, Outcome.DELETE)
_OUTCOMES: Final = np.array(TABLE, np.uint8)
_REMEDY: Final = "was not sent, since the update left it as it was; REPLICA IDENTITY FULL makes it known"


class Answers(NamedTuple):
    """Of the images of a batch, in the order of `images_of`. `keep`: what the filter said. `made`: a column for each
    expression; null where it was not asked or the image is not kept."""

    keep: pa.Array
    made: tuple[pa.Array, ...]


class Shaped(NamedTuple):
    """`places[j]`: of row j of `batch` among the rows handed over."""

    batch: pa.RecordBatch
    places: Ints
    refused: list[Refused]

    def between(self, start: int, stop: int) -> Shaped:
        """Of the rows handed over those from `start` to `stop`; none of them is refused."""
        first, last = np.searchsorted(self.places, (start, stop)).tolist()
        return Shaped(self.batch.slice(first, last - first), self.places[first:last], [])

    def picked(self, places: Ints) -> Shaped:
        """Of the rows handed over these, which go on."""
        return Shaped(self.batch.take(pa.array(np.searchsorted(self.places, places))), places, [])


def shape(
    batch: pa.RecordBatch, plan: TablePlan, answers: Answers | None = None, broken: Sequence[Culprit] = ()
) -> Shaped:
    """`answers` may be missing only if nothing needs to be asked. `broken`: rows that break an expression."""
    if plan.is_whole:
        return Shaped(batch, np.arange(batch.num_rows), [])
    assert answers is not None or plan.is_fused
    work = _Shaping(batch, plan, answers)
    outcomes = work.outcomes()
    outcomes[[one.row for one in broken]] = Outcome.NOTHING
    refused = {one.place: one for one in [
        *(Refused(one.row, "expression", one.why) for one in broken),
        *work.not_judged(outcomes), *work.not_made(outcomes), *work.out_of_range(outcomes)]}
    outcomes[list(refused)] = Outcome.REFUSED
    places = np.flatnonzero(outcomes <= DELETE)
    return Shaped(work.told(places, outcomes[places]), places, [refused[place] for place in sorted(refused)])


def keys_of(batch: pa.RecordBatch, plan: TablePlan, places: Ints) -> pa.RecordBatch:
    """These rows as deletes: all that is sure of rows that cannot be told is their key."""
    answers = None if plan.is_fused else _nothing_said(batch, plan)
    return _Shaping(batch, plan, answers).told(places, np.full(len(places), DELETE, np.uint8))


def _nothing_said(batch: pa.RecordBatch, plan: TablePlan) -> Answers:
    count, kinds = sum(map(len, images_of(batch, plan))), kinds_of(plan.shown)
    return Answers(pa.nulls(count, pa.bool_()), tuple(pa.nulls(count, kinds[i].arrow) for i in plan.computed))


class _Shaping:
    def __init__(self, batch: pa.RecordBatch, plan: TablePlan, answers: Answers | None) -> None:
        self._batch, self._plan, self._answers = batch, plan, answers
        self._ops: Ints = np.asarray(batch.column(0))
        self._full = plan.table.identity == IDENTITY_FULL
        self._has_before = has_before(batch, plan)

    # -- which rows go on, as what
    def outcomes(self) -> Ints:
        count, images = self._batch.num_rows, images_of(self._batch, self._plan)
        after, before = (np.full(count, Verdict.IN, np.uint8) for _ in range(2))
        if self._plan.filter:
            assert self._answers is not None
            keep = np.asarray(self._answers.keep.fill_null(False))
            said = np.where(self._asked & 1 == 1, keep, Verdict.UNKNOWN).astype(np.uint8)
            after[images.after] = said[:len(images.after)]
            before[:] = Verdict.UNKNOWN
            if frozenset(self._plan.table.keys).issuperset(self._plan.filter_needs):
                before[images.after] = after[images.after]     # an update leaves the key as it was
            before[images.before] = said[len(images.after):]
        found: Ints = _OUTCOMES[self._ops, before, after]
        return found

    @cached_property
    def _asked(self) -> Ints:
        return asked_of(self._batch, self._plan)

    @cached_property
    def _unsent(self) -> Bools | None:
        return unsent_of(self._batch, self._plan)

    # -- rows that cannot be told
    def not_judged(self, outcomes: Ints) -> list[Refused]:
        rows = np.flatnonzero(outcomes == Outcome.REFUSED)
        return [Refused(place, "not_sent", f"the filter needs {self._names_unsent(place, self._plan.filter_needs)}")
                for place in rows.tolist()]

    def not_made(self, outcomes: Ints) -> list[Refused]:
        """Of columns that were all not sent what is made is unchanged, too; of some of them it is not known."""
        found = []
        for i in self._plan.computed:
            needs = self._plan.outputs[i].needs
            rows = np.flatnonzero(self._some_unsent(needs) & ~self._unchanged(needs) & (outcomes < DELETE))
            found += [Refused(place, "not_sent", f"column {self._plan.outputs[i].column.name!r} needs "
                                                 f"{self._names_unsent(place, needs)}") for place in rows.tolist()]
        return found

    def _some_unsent(self, needs: Sequence[int]) -> Bools:
        return self._every(np.logical_or, needs)

    def _unchanged(self, needs: Sequence[int]) -> Bools:
        """Rows in which none of these columns but those of the key was sent."""
        return self._every(np.logical_and, [i for i in needs if i not in self._plan.table.keys])

    def _every(self, joined: np.ufunc, columns: Sequence[int]) -> Bools:
        if self._unsent is None or not columns:
            return np.zeros(self._batch.num_rows, np.bool_)
        found: Bools = joined.reduce(self._unsent[:, list(columns)], axis=1)
        return found

    def _names_unsent(self, place: int, needs: Sequence[int]) -> str:
        assert self._unsent is not None
        names = [repr(self._plan.table.columns[i].name) for i in needs if self._unsent[place, i]]
        return f"{' and '.join(names)}, which {_REMEDY}"

    def out_of_range(self, outcomes: Ints) -> list[Refused]:
        """Dates and times that Spark can reckon and messages cannot tell: before the year 1, after 9999."""
        found = []
        for j, i in enumerate(self._plan.computed):
            assert self._answers is not None
            made = self._answers.made[j]
            if pa.types.is_date32(made.type):
                number, low, high = made.cast(pa.int32()), DATE_MIN, DATE_MAX
            elif pa.types.is_timestamp(made.type):
                number, low, high = made.cast(pa.int64()), TIMESTAMP_MIN, TIMESTAMP_MAX
            else:
                continue
            values = np.asarray(number.fill_null(0))
            rows = np.concatenate(images_of(self._batch, self._plan))[(values < low) | (values > high)]
            found += [Refused(place, "out_of_range", f"column {self._plan.outputs[i].column.name!r} is not within the "
                                                     "years 1 to 9999")
                      for place in rows.tolist() if outcomes[place] <= DELETE]
        return found

    # -- the batch
    def told(self, places: Ints, outcomes: Ints) -> pa.RecordBatch:
        ops = self._ops[places]
        turned: Bools = (outcomes == DELETE) & (ops != DELETE)          # rows that left the filter
        from_after = turned if not self._full else turned & (ops == INSERT)
        entered: Bools = (outcomes == INSERT) & (ops == UPDATE)
        before = self._has_before or bool(turned.any())
        rows = _Rows(places, gone=turned, entered=entered, key_from_after=from_after)
        plan, take = self._plan, pa.array(places)
        vectors = [pa.array(outcomes.astype(np.uint8)), *(self._batch.column(i).take(take) for i in range(1, 6))]
        after = [self._after(i, rows) for i in range(len(plan.outputs))]
        images = [*after, *(self._before(i, rows) for i in range(len(plan.outputs)))] if before else after
        return pa.RecordBatch.from_arrays([*vectors, self._mask(rows), self._odd(rows), *images],
                                          schema=arrow_schema(plan.shown, before=before))

    def _after(self, i: int, rows: _Rows) -> pa.Array:
        output = self._plan.outputs[i]
        if output.of is None:
            found = self._made(i, after=True).take(pa.array(rows.places))
        else:
            found = self._batch.column(AFTER + self._plan.table.columns[output.of].name).take(pa.array(rows.places))
        return _without(found, rows.gone)

    def _before(self, i: int, rows: _Rows) -> pa.Array:
        output, take = self._plan.outputs[i], pa.array(rows.places)
        if output.of is None:
            found = self._made(i, after=False).take(take)
            return _without(found, rows.entered | rows.key_from_after)
        column = self._plan.table.columns[output.of]
        kind = kinds_of(self._plan.table)[output.of].arrow
        found = self._batch.column(BEFORE + column.name).take(take) if self._has_before else pa.nulls(len(take), kind)
        found = _without(found, rows.entered | rows.key_from_after)
        if column.is_key and rows.key_from_after.any():
            found = pc.if_else(pa.array(rows.key_from_after), self._batch.column(AFTER + column.name).take(take), found)
        return found

    def _made(self, i: int, *, after: bool) -> pa.Array:
        """A column that Spark made, at the rows of the batch; null where there is no such image."""
        assert self._answers is not None
        images = images_of(self._batch, self._plan)
        made = self._answers.made[self._plan.computed.index(i)]
        of, part = (images.after, made[:len(images.after)]) if after else (images.before, made[len(images.after):])
        at = np.full(self._batch.num_rows, -1, np.int64)
        at[of] = np.arange(len(of))
        return part.take(pa.array(at, mask=at < 0))

    def _mask(self, rows: _Rows) -> pa.Array:
        width = mask_bytes(self._plan.shown)
        if self._unsent is None:
            return pa.nulls(len(rows.places), pa.binary(width))
        marks = np.zeros((len(rows.places), width * 8), np.bool_)
        for i, output in enumerate(self._plan.outputs):
            unsent = self._unchanged(output.needs) if output.of is None else self._unsent[:, output.of]
            marks[:, i] = unsent[rows.places] & ~rows.gone
        packed = np.ascontiguousarray(np.packbits(marks, axis=1, bitorder="little"))
        some = bitmap(packed.max(axis=1, initial=0) > 0)
        return pa.Array.from_buffers(pa.binary(width), len(marks), [some, pa.py_buffer(packed)])

    def _odd(self, rows: _Rows) -> pa.Array:
        if self._batch.column(7).null_count == self._batch.num_rows:
            return odd_list([], len(rows.places))
        batch_rows, columns, texts = odd_rows(self._batch)
        at = np.full(self._batch.num_rows, -1, np.int64)
        at[rows.places] = np.arange(len(rows.places))
        width, shown, found = len(self._plan.table.columns), len(self._plan.outputs), []
        for i, output in enumerate(self._plan.outputs):
            if output.of is None:
                continue
            is_key = self._plan.table.columns[output.of].is_key
            for image, of, hidden in ((0, output.of, rows.gone),
                                      (shown, width + output.of, rows.entered | rows.key_from_after)):
                here = np.flatnonzero((columns == of) & (at[batch_rows] >= 0))
                here = here[~hidden[at[batch_rows[here]]]]
                found.append(Odd(image + i, at[batch_rows[here]], texts.take(pa.array(here))))
            if is_key and rows.key_from_after.any():
                here = np.flatnonzero((columns == output.of) & (at[batch_rows] >= 0))
                here = here[rows.key_from_after[at[batch_rows[here]]]]
                found.append(Odd(shown + i, at[batch_rows[here]], texts.take(pa.array(here))))
        return odd_list([odd for odd in found if len(odd.rows)], len(rows.places))


class _Rows(NamedTuple):
    """Rows that go on, by their places. `gone`: told as deletes, and were none; `entered`: told as inserts, and were
    updates; `key_from_after`: of the gone, those whose row before the change is not known but for its key."""

    places: Ints
    gone: Bools
    entered: Bools
    key_from_after: Bools


def _without(found: pa.Array, rows: Bools) -> pa.Array:
    return pc.if_else(pa.array(rows), pa.scalar(None, found.type), found) if rows.any() else found
