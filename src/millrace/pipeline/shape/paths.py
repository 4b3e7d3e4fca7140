"""The two ways of a table's rows from the log to the encoder, which tell the same.

    fused:  rows ───────────────────────────── shape ─▶ encoder             all in one Python worker
    SQL:    rows ─▶ ask ─▶ Spark: CASE … END ─▶ hear ─ shape ─▶ encoder     two workers, and Spark between them

Through Spark go the columns that expressions need, one row per image, and the rows as they came in one cell beside
them: what is shown as it is never becomes a row of Spark, so it cannot be changed by one, and costs a copy of bytes.
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
from millrace.pipeline.shape.asking import ASKED, BATCH, FILTER_BIT, KEEP, frame_of, has_before, images_of, question
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


class Asked(NamedTuple):
    """Rows of one table. `tag`: the sender's own, to know them by. `broken`: rows that are known to break."""

    rows: Rows
    tag: bytes = b""
    broken: tuple[Culprit, ...] = ()


class Heard(NamedTuple):
    rows: Rows
    shaped: Shaped
    tag: bytes


_carried: msgspec.msgpack.Decoder[Carried] = msgspec.msgpack.Decoder(Carried)


def fused(rows: Rows, plan: TablePlan) -> Shaped:
    return shape(rows.batch, plan)


# -- by way of Spark -----------------------------------------------------------------------------------------------
def ask(several: Iterable[Asked], plan: TablePlan) -> Iterator[pa.RecordBatch]:
    """For mapInArrow, with `frame_of(plan).schema`: what expressions are to judge."""
    for one in several:
        if one.rows.batch.num_rows:
            yield question(one.rows.batch, plan, _carry(one, plan), broken=[culprit.row for culprit in one.broken])


def judged(frame: DataFrame, plan: TablePlan) -> DataFrame:
    """What Spark says of each image. A made column is asked for only where the filter takes the image: a filter keeps
    expressions from what they cannot bear."""
    own = frame_of(plan).prefix
    asked = f"({own}{ASKED} & {{}}L) <> 0"
    keep = f"CASE WHEN {asked.format(FILTER_BIT)} THEN ({plan.filter}\n) END" if plan.filter else "true"
    made = [f"CASE WHEN {own}{KEEP} AND {asked.format(1 << 1 + j)} THEN ({plan.outputs[i].sql}\n) END AS {own}{j}"
            for j, i in enumerate(plan.computed)]
    kept = frame.selectExpr("*", f"{keep} AS {own}{KEEP}")
    return kept.selectExpr(own + BATCH, own + KEEP, *made)


def hear(batches: Iterable[pa.RecordBatch], plan: TablePlan) -> Iterator[Heard]:
    """For mapInArrow behind `judged`. Spark cuts batches as it likes; rows come out together as they went in."""
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        starts = np.flatnonzero(np.asarray(batch.column(0).is_valid())).tolist()
        for start, end in zip([0, *starts], [*starts, batch.num_rows], strict=True):
            if start in starts and parts:
                yield _heard(parts, plan)
                parts = []
            if end > start:
                parts.append(batch.slice(start, end - start))
    if parts:
        yield _heard(parts, plan)


def _heard(parts: list[pa.RecordBatch], plan: TablePlan) -> Heard:
    whole = pa.Table.from_batches(parts).combine_chunks()
    first, keep, *made = (column.combine_chunks() for column in whole.columns)
    rows, tag, broken = _asked(first[0].as_py(), plan)
    assert len(keep) == sum(map(len, images_of(rows.batch, plan))), "an answer for each image, in order"
    kinds = kinds_of(plan.shown)
    answers = Answers(keep, tuple(column.cast(kinds[i].arrow) for i, column in zip(plan.computed, made, strict=True)))
    return Heard(rows, shape(rows.batch, plan, answers, broken), tag)


def _carry(asked: Asked, plan: TablePlan) -> bytes:
    rows = asked.rows
    return msgspec.msgpack.encode(Carried(
        encode_rows(rows.batch, compress=False), has_before(rows.batch, plan), rows.offset.astype("<i8").tobytes(),
        rows.row.astype("<i8").tobytes(), rows.copy, asked.tag, asked.broken))


def _asked(data: bytes, plan: TablePlan) -> Asked:
    found = _carried.decode(data)
    batch = pa.ipc.read_record_batch(pa.py_buffer(found.batch), arrow_schema(plan.table, before=found.before))
    rows = Rows(batch, np.frombuffer(found.offset, "<i8"), np.frombuffer(found.row, "<i8"), found.copy)
    return Asked(rows, found.tag, found.broken)


# -- what both end with --------------------------------------------------------------------------------------------
def encode(
    rows: Rows, shaped: Shaped, plan: TablePlan, encoder: Encoder, source: Provenance, *, now_us: int
) -> Encoded:
    """`encoder`: of the table as shown. Places are those of `rows`."""
    places = shaped.places
    told = Rows(shaped.batch, rows.offset[places], rows.row[places], rows.copy)
    found = encoder.encode(told, source, now_us=now_us)
    refused = [one._replace(place=int(places[one.place])) for one in found.refused]
    if shaped.refused:
        of = np.array([one.place for one in shaped.refused])
        keys = Rows(keys_of(rows.batch, plan, of), rows.offset[of], rows.row[of])
        refused += [one._replace(key=encoder.key_of(keys, n)) for n, one in enumerate(shaped.refused)]
    return Encoded(found.batches, places[found.places], sorted(refused, key=lambda one: one.place))
