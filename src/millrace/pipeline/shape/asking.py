"""Rows of a change batch as Spark is asked about them: one row for each image that could be judged.

    change batch ─▶ images: all after images, then all before images ─▶ columns that expressions need, typed
                          `which`: its plan among those asked together: versions of one table
                          `asked`: bit 0: the filter can be told of this image; bit 1 + j: so can expression j

In: a change batch and its plan. Out: a batch of images. Which images there are follows from the batch alone, so whoever
has the batch knows which answer is whose. What cannot be told (a value that was not sent, all but the key of a row that
is gone) is not asked: an expression that meets a null there would say something, and be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from millrace.model.table_plans import TablePlan
from millrace.model.tables import IDENTITY_FULL
from millrace.pipeline.datasource.columns import as_spark, spark_type
from millrace.wire.pg.types import AFTER, BEFORE, DELETE, UPDATE, kinds_of

Ints = NDArray[Any]
Bools = NDArray[np.bool_]
BATCH: Final = "batch"             # the change batch that follows, with its first image; null with all others
WHICH: Final = "which"
ASKED: Final = "asked"
KEEP: Final = "keep"
FILTER_BIT: Final = 1
NONE_ASKED: Final = -1             # as `which`: a row that only carries
Plans = tuple[TablePlan, ...]


class Frame(NamedTuple):
    """What Spark sees of plans: columns of ours, whose names begin with `prefix`, and those that are asked, of each
    plan under names of ours, too: versions of a table have the same names for columns of different types."""

    prefix: str
    schema: st.StructType
    arrow: pa.Schema


class Images(NamedTuple):
    """Rows of the batch whose after, and whose before image is asked, in this order."""

    after: Ints
    before: Ints


@lru_cache(maxsize=256)
def frame_of(plans: Plans) -> Frame:
    prefix = "_"
    while any(plan.table.columns[i].name.lower().startswith(prefix) for plan in plans for i in plan.asked):
        prefix += "_"
    fields = [st.StructField(prefix + BATCH, st.BinaryType()), st.StructField(prefix + WHICH, st.IntegerType()),
              st.StructField(prefix + ASKED, st.LongType())]
    for which, plan in enumerate(plans):
        kinds = kinds_of(plan.table)
        fields += [st.StructField(_name(prefix, which, i), spark_type(kinds[i])) for i in plan.asked]
    schema = st.StructType(fields)
    return Frame(prefix, schema, to_arrow_schema(schema, timezone="UTC"))


def _name(prefix: str, which: int, column: int) -> str:
    return f"{prefix}{which}c{column}"


def renamed(plans: Plans, which: int) -> list[str]:
    """Its columns under the names that its expressions know, as Spark reads it."""
    plan, prefix = plans[which], frame_of(plans).prefix
    quoted = {i: plan.table.columns[i].name.replace("`", "``") for i in plan.asked}
    return [f"{_name(prefix, which, i)} AS `{quoted[i]}`" for i in plan.asked]


def images_of(batch: pa.RecordBatch, plan: TablePlan) -> Images:
    ops = np.asarray(batch.column(0))
    whole_before = has_before(batch, plan) and plan.table.identity == IDENTITY_FULL
    return Images(np.flatnonzero(ops != DELETE),
                  np.flatnonzero((ops == DELETE) | (ops == UPDATE) if whole_before else ops == DELETE))


def has_before(batch: pa.RecordBatch, plan: TablePlan) -> bool:
    return bool(batch.num_columns > 8 + len(plan.table.columns))


def asked_of(batch: pa.RecordBatch, plan: TablePlan) -> Ints:
    """Bits of each image."""
    images = images_of(batch, plan)
    keys = frozenset(plan.table.keys)
    full = plan.table.identity == IDENTITY_FULL
    unsent = unsent_of(batch, plan)
    found = np.zeros(len(images.after) + len(images.before), np.int64)
    for bit, needs in _asking(plan):
        told = np.ones(batch.num_rows, np.bool_)
        for i in needs:
            if unsent is not None:
                told &= ~unsent[:, i]
        found[:len(images.after)] |= np.where(told[images.after], bit, 0)
        # Of a row whose key alone is known a message shows the key alone, whatever could be made of it.
        if full or (bit == FILTER_BIT and keys.issuperset(needs)):
            found[len(images.after):] |= bit
    return found


def _asking(plan: TablePlan) -> Sequence[tuple[int, tuple[int, ...]]]:
    return [(FILTER_BIT, plan.filter_needs),
            *((1 << 1 + j, plan.outputs[i].needs) for j, i in enumerate(plan.computed))]


def unsent_of(batch: pa.RecordBatch, plan: TablePlan) -> Bools | None:
    """Per row and column: its value after the change was not sent [S6]. None: all were."""
    masks = batch.column(6)
    if masks.null_count == len(masks):
        return None
    width = masks.type.byte_width
    bits = np.frombuffer(masks.buffers()[1], np.uint8, width * len(masks), width * masks.offset).reshape(-1, width)
    bits = np.where(np.asarray(masks.is_valid())[:, None], bits, np.uint8(0))
    return np.unpackbits(bits, axis=1, bitorder="little")[:, :len(plan.table.columns)].astype(np.bool_)


def question(
    batch: pa.RecordBatch, plans: Plans, which: int, carried: bytes, *, broken: Sequence[int] = ()
) -> pa.RecordBatch:
    """`carried`: travels with the first image. `broken`: rows of which nothing is asked. For a batch with rows."""
    plan = plans[which]
    images = images_of(batch, plan)
    asked = asked_of(batch, plan)
    asked[np.isin(np.concatenate(images), list(broken))] = 0
    columns = []
    for i in plan.asked:
        name = plan.table.columns[i].name
        parts = [batch.column(AFTER + name).take(pa.array(images.after))]
        if len(images.before):
            parts.append(batch.column(BEFORE + name).take(pa.array(images.before)))
        columns.append(pa.concat_arrays(parts))
    return _framed(plans, which, carried, asked, columns)


def bare(plans: Plans, carried: bytes) -> pa.RecordBatch:
    """What is to travel without rows."""
    return _framed(plans, NONE_ASKED, carried, np.zeros(1, np.int64), [])


def _framed(plans: Plans, which: int, carried: bytes, asked: Ints, columns: Sequence[pa.Array]) -> pa.RecordBatch:
    frame, count = frame_of(plans), len(asked)
    arrays = [pa.concat_arrays([pa.array([carried], pa.binary()), pa.nulls(count - 1, pa.binary())]),
              pa.array(np.full(count, which, np.int32)), pa.array(asked)]
    for at, plan in enumerate(plans):
        fields = list(frame.arrow)[len(arrays):len(arrays) + len(plan.asked)]
        arrays += ([as_spark(column, field.type) for column, field in zip(columns, fields, strict=True)]
                   if at == which else [pa.nulls(count, field.type) for field in fields])
    return pa.RecordBatch.from_arrays(arrays, schema=frame.arrow)
