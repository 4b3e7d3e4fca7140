"""Both ways from change batches to record batches, for tests: in this process, and through a Spark job whose workers
import this module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.core.feeds.culprits import Culprit
from millrace.model.table_plans import TablePlan, decode_plan, encode_plan
from millrace.pipeline.shape.asking import frame_of
from millrace.pipeline.shape.paths import Asked, ask, encode, fused, hear, judged
from millrace.sink.kafka.choice import format_of, target_of
from millrace.sink.kafka.encode import Encoder, Rows
from millrace.sink.kafka.formats import Origin
from millrace.sink.kafka.headers import Provenance
from millrace.sink.uri import parse_sink
from millrace.wire.batches_out import sealed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FROM = Provenance(bytes(16), 0, 7, 1)
OUT = pa.schema([("at", pa.int64()), ("partition", pa.int64()), ("records", pa.binary())])
NOW_US = 1_800_000_000_123_456


class Told(NamedTuple):
    """Record batches of one change batch, each with its partition; places of rows that could not be told."""

    batches: list[tuple[int, bytes]]
    refused: list[int]


def rows_of(batch: pa.RecordBatch) -> Rows:
    return Rows(batch, np.arange(batch.num_rows) // 3 + 500, np.arange(batch.num_rows) % 3)


def encoder(plan: TablePlan, sink: str) -> Encoder:
    chosen = parse_sink(sink)
    return Encoder(plan.shown, format_of(chosen, Origin("shop", "db"), plan.shown), target_of(chosen, 3))


def in_process(batches: list[pa.RecordBatch], plan: TablePlan, sink: str) -> list[Told]:
    found = []
    for batch in batches:
        rows = rows_of(batch)
        encoded = encode(rows, fused(rows, plan), plan, encoder(plan, sink), FROM, now_us=NOW_US)
        found.append(Told([(one.partition, b"".join(sealed(one))) for one in encoded.batches],
                          [one.place for one in encoded.refused]))
    return found


def through_spark(
    spark: SparkSession, batches: list[pa.RecordBatch], plan: TablePlan, sink: str, broken: tuple[Culprit, ...] = ()
) -> list[Told]:
    """One task; each change batch is told apart by its tag. `broken`: of each of them."""
    sent = tuple(_bytes(batch) for batch in batches)
    plan_bytes = encode_plan(plan)
    read = partial(_read, sent, plan_bytes, broken)
    asked = spark.range(0, 1, numPartitions=1).mapInArrow(read, frame_of((plan,)).schema)
    columns = "at long, partition long, records binary"
    answer = judged(asked, (plan,)).mapInArrow(partial(_write, plan_bytes, sink), columns)
    found = [Told([], []) for _ in batches]
    for row in answer.toArrow().to_pylist():
        if row["records"] is None:
            found[row["at"]].refused.append(row["partition"])
        else:
            found[row["at"]].batches.append((row["partition"], row["records"]))
    return found


def _read(
    sent: tuple[bytes, ...], plan: bytes, broken: tuple[Culprit, ...], rows: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for _ in rows:
        yield from ask((Asked(rows_of(pa.ipc.open_stream(data).read_next_batch()), str(at).encode(), broken)
                        for at, data in enumerate(sent)), (decode_plan(plan),))


def _write(plan_bytes: bytes, sink: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    plan = decode_plan(plan_bytes)
    for told, tag in hear(batches, (plan,)):
        assert told is not None
        encoded = encode(told.rows, told.shaped, plan, encoder(plan, sink), FROM, now_us=NOW_US)
        found = [*((one.partition, b"".join(sealed(one))) for one in encoded.batches),
                 *((one.place, None) for one in encoded.refused)]
        yield pa.RecordBatch.from_pylist(
            [{"at": int(tag), "partition": partition, "records": records} for partition, records in found], OUT)


def _bytes(batch: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue().to_pybytes()      # type: ignore[no-any-return]
