"""The two ways of a table's rows from the log to the encoder, which tell the same.

    fused:  rows ───────────────────────────── shape ─▶ encoder             all in one Python worker
    SQL:    rows ─▶ ask ─▶ Spark: CASE … END ─▶ hear ─ shape ─▶ encoder     two workers, and Spark between them

Through Spark go the columns that expressions need, one row per image, and the rows as they came in one cell beside
them: what is shown as it is never becomes a row of Spark, so it cannot be changed by one, and costs a copy of bytes.
All versions of a table that may be met are asked together: a frame of Spark must be known before the rows are.
In: rows with their points. Out: record batches, and rows that cannot be told, all by their places among the rows that
came in. Order is kept: nothing here moves rows between tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millrace.core.feeds.culprits import Culprit
from millrace.model.table_plans import TablePlan
from millrace.pipeline.shape.asking import (
    ASKED,
    BATCH,
    FILTER_BIT,
    KEEP,
    NONE_ASKED,
    WHICH,
    Plans,
    bare,
    frame_of,
    has_before,
    images_of,
    question,
    renamed,
)
from millrace.pipeline.shape.shaping import Answers, Shaped, keys_of, shape
from millrace.sink.kafka.encode import Encoded, Encoder, Rows
from millrace.sink.kafka.headers import Provenance
from millrace.wire.changes import encode_rows
from millrace.wire.pg.types import arrow_schema, kinds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """Rows on their way through Spark."""

    batch: bytes
    before: bool
    offset: bytes
    row: bytes
    copy: bool
    tag: bytes
    broken: tuple[Culprit, ...]
    which: int


class Asked(NamedTuple):
    """Rows of one version of a table, `which` among the plans; None: the tag alone is told. `tag`: the sender's own, to
    know them by. `broken`: rows that are known to break."""

    rows: Rows | None
    tag: bytes = b""
    broken: tuple[Culprit, ...] = ()
    which: int = 0


class Heard(NamedTuple):
    """`told` is None where the tag alone was."""

    told: Told | None
    tag: bytes


class Told(NamedTuple):
    plan: TablePlan
    rows: Rows
    shaped: Shaped


_carried: msgspec.msgpack.Decoder[Carried] = msgspec.msgpack.Decoder(Carried)


def fused(rows: Rows, plan: TablePlan) -> Shaped:
    return shape(rows.batch, plan)


# -- by way of Spark -----------------------------------------------------------------------------------------------
def ask(several: Iterable[Asked], plans: Plans) -> Iterator[pa.RecordBatch]:
    """For mapInArrow, with `frame_of(plans).schema`: what expressions are to judge."""
    for one in several:
        if one.rows is None:
            yield bare(plans, _carry(one, plans))
        elif one.rows.batch.num_rows:
            yield question(one.rows.batch, plans, one.which, _carry(one, plans),
                           broken=[culprit.row for culprit in one.broken])


def judged(frame: DataFrame, plans: Plans) -> DataFrame:
    """What Spark says of each image. A made column is asked for only where the filter takes the image: a filter keeps
    expressions from what they cannot bear. Of a plan that is not the image's nothing is asked."""
    own, ours = frame_of(plans).prefix, list(frame_of(plans).arrow.names)
    for which, plan in enumerate(plans):
        asked = f"{own}{WHICH} = {which} AND ({own}{ASKED} & {{}}L) <> 0"
        keep = f"CASE WHEN {asked.format(FILTER_BIT)} THEN ({plan.filter}\n) END" if plan.filter else "true"
        kept, made = f"{own}{which}{KEEP}", [f"{own}{which}m{j}" for j in range(len(plan.computed))]
        frame = frame.selectExpr(*ours, *renamed(plans, which)).selectExpr("*", f"{keep} AS {kept}")
        frame = frame.selectExpr(*ours, kept, *(
            f"CASE WHEN {kept} AND {asked.format(1 << 1 + j)} THEN ({plan.outputs[i].sql}\n) END AS {made[j]}"
            for j, i in enumerate(plan.computed)))
        ours += [kept, *made]
    return frame.selectExpr(own + BATCH, *ours[len(frame_of(plans).arrow.names):])


def hear(batches: Iterable[pa.RecordBatch], plans: Plans) -> Iterator[Heard]:
    """For mapInArrow behind `judged`. Spark cuts batches as it likes; rows come out together as they went in."""
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        starts = np.flatnonzero(np.asarray(batch.column(0).is_valid())).tolist()
        for start, end in zip([0, *starts], [*starts, batch.num_rows], strict=True):
            if start in starts and parts:
                yield _heard(parts, plans)
                parts = []
            if end > start:
                parts.append(batch.slice(start, end - start))
    if parts:
        yield _heard(parts, plans)


def _heard(parts: list[pa.RecordBatch], plans: Plans) -> Heard:
    first, *said = (column.combine_chunks() for column in pa.Table.from_batches(parts).combine_chunks().columns)
    rows, tag, broken, which = _asked(first[0].as_py(), plans)
    if rows is None:
        return Heard(None, tag)
    plan = plans[which]
    at = sum(1 + len(one.computed) for one in plans[:which])
    keep, *made = said[at:at + 1 + len(plan.computed)]
    assert len(keep) == sum(map(len, images_of(rows.batch, plan))), "an answer for each image, in order"
    kinds = kinds_of(plan.shown)
    answers = Answers(keep, tuple(column.cast(kinds[i].arrow) for i, column in zip(plan.computed, made, strict=True)))
    return Heard(Told(plan, rows, shape(rows.batch, plan, answers, broken)), tag)


def _carry(asked: Asked, plans: Plans) -> bytes:
    rows = asked.rows
    if rows is None:
        return msgspec.msgpack.encode(Carried(b"", False, b"", b"", False, asked.tag, (), NONE_ASKED))
    return msgspec.msgpack.encode(Carried(
        encode_rows(rows.batch, compress=False), has_before(rows.batch, plans[asked.which]),
        rows.offset.astype("<i8").tobytes(), rows.row.astype("<i8").tobytes(), rows.copy, asked.tag, asked.broken,
        asked.which))


def _asked(data: bytes, plans: Plans) -> Asked:
    found = _carried.decode(data)
    if found.which == NONE_ASKED:
        return Asked(None, found.tag)
    batch = pa.ipc.read_record_batch(
        pa.py_buffer(found.batch), arrow_schema(plans[found.which].table, before=found.before))
    rows = Rows(batch, np.frombuffer(found.offset, "<i8"), np.frombuffer(found.row, "<i8"), found.copy)
    return Asked(rows, found.tag, found.broken, found.which)


# -- what both end with --------------------------------------------------------------------------------------------
def encode(
    rows: Rows, shaped: Shaped, plan: TablePlan, encoder: Encoder, source: Provenance, *, now_us: int
) -> Encoded:
    """`encoder`: of the table as shown. Places are those of `rows`."""
    if plan.is_whole and len(shaped.places) == rows.batch.num_rows:
        return encoder.encode(rows, source, now_us=now_us)
    places = shaped.places
    told = Rows(shaped.batch, rows.offset[places], rows.row[places], rows.copy)
    found = encoder.encode(told, source, now_us=now_us)
    refused = [one._replace(place=int(places[one.place])) for one in found.refused]
    if shaped.refused:
        refused += [one._replace(key=key_of(rows, one.place, plan, encoder)) for one in shaped.refused]
    return Encoded(found.batches, places[found.places], sorted(refused, key=lambda one: one.place))


def key_of(rows: Rows, place: int, plan: TablePlan, encoder: Encoder) -> bytes | None:
    """As messages carry it, of a row that may be left out or refused."""
    if plan.is_whole:
        return encoder.key_of(rows, place)
    of = np.array([place])
    return encoder.key_of(Rows(keys_of(rows.batch, plan, of), rows.offset[of], rows.row[of]), 0)
