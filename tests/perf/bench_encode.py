"""Encoders: change batches -> Kafka record batches. Rows, bytes and CPU per format, and where the time goes.

    .venv/bin/python tests/perf/bench_encode.py [--rows 16000] [--seconds 2] [--profile debezium-json]

A row has seven columns and 129 bytes: bigint key, int, numeric(12,2), two texts, timestamptz, jsonb.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.model.tables import Column, TableSchema
from millrace.sink.kafka.canal import Canal
from millrace.sink.kafka.debezium import Debezium
from millrace.sink.kafka.encode import Encoder, Rows, Target
from millrace.sink.kafka.formats import Format, Origin
from millrace.sink.kafka.headers import Provenance
from millrace.sink.kafka.plain import Plain
from millrace.wire.batches_out import Codec, sealed
from millrace.wire.pg.types import arrow_schema

TABLE = TableSchema(16400, "public", "orders", "d", (
    Column("id", 20, -1, True), Column("qty", 23), Column("price", 1700, (12 << 16 | 2) + 4), Column("name", 25),
    Column("note", 25), Column("at", 1184), Column("doc", 3802)))
ORIGIN = Origin("shop", "shop")
PROVENANCE = Provenance(bytes(16), 0, 7, 3)
NOW_US = 1_800_000_000_123_456


def change_batch(rows: int, *, per_transaction: int, deletes: float = 0.0) -> pa.RecordBatch:
    rng = random.Random(7)
    ids = rng.sample(range(10**9, 2 * 10**9), rows)
    gone = np.array([rng.random() < deletes for _ in range(rows)], np.bool_)
    transaction = np.arange(rows) // per_transaction
    at = [1_790_000_000_000_000 + rng.randrange(10**12) for _ in range(rows)]
    columns: dict[str, Any] = {
        "op": np.where(gone, 2, 0).astype(np.uint8), "lsn": 10**11 + np.arange(rows) * 250,
        "commit_lsn": 10**11 + transaction * 250 * per_transaction, "commit_ts": 1_790_000_000_000_000 + transaction,
        "xid": transaction.astype(np.uint32) + 1000, "seq": np.arange(rows) % per_transaction,
        "a:id": ids, "a:qty": [rng.randrange(1000) for _ in range(rows)],
        "a:price": pa.array([rng.randrange(10**7) for _ in range(rows)]).cast(pa.decimal128(19, 0)).cast(
            pa.decimal128(38, 0)).view(pa.decimal128(38, 0)),
        "a:name": [f"customer {i % 1000:06} of the shop" for i in ids],
        "a:note": [f"please leave it at door {i % 97}" for i in ids],
        "a:at": at, "a:doc": [f'{{"a": {i % 1000}, "tag": "t{i % 50}"}}' for i in ids],
    }
    schema = arrow_schema(TABLE, before=bool(gone.any()))
    arrays = [_array(field, columns, gone, ids, rows) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(field: pa.Field, columns: dict[str, Any], gone: Any, ids: list[int], rows: int) -> pa.Array:
    if field.name not in columns:
        if field.name == "b:id":
            return pa.array(ids, field.type, mask=~gone)
        return pa.nulls(rows, field.type)
    values = columns[field.name]
    if field.name == "a:price":
        cents = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
        words = np.stack([cents, cents >> 63], axis=1)
        values = pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(np.ascontiguousarray(words))])
        return pa.compute.if_else(pa.array(gone), None, values) if gone.any() else values
    array = pa.array(values)
    array = array.cast(field.type) if array.type != field.type else array
    return pa.compute.if_else(pa.array(gone), None, array) if gone.any() and field.name[:2] == "a:" else array


def cases() -> Iterator[tuple[str, Format, Target, dict[str, Any]]]:
    one = Target(partitions=1, message_bytes_max=1 << 20, batch_bytes=1 << 19)
    yield "debezium-json", Debezium(ORIGIN, TABLE), one, {}
    yield "debezium-json, 1-row transactions", Debezium(ORIGIN, TABLE), one, {"per_transaction": 1}
    yield "debezium-json, 12 partitions", Debezium(ORIGIN, TABLE), one._replace(partitions=12), {}
    yield "debezium-json, 10 % deletes", Debezium(ORIGIN, TABLE), one, {"deletes": 0.1}
    yield "debezium-json, lz4", Debezium(ORIGIN, TABLE), one._replace(codec=Codec.LZ4), {}
    yield "debezium-json, schema", Debezium(ORIGIN, TABLE, schema=True), one, {}
    yield "canal-json", Canal(ORIGIN, TABLE), one, {}
    yield "json", Plain(ORIGIN, TABLE), one, {}


def once(encoder: Encoder, rows: Rows) -> int:
    size = 0
    for batch in encoder.encode(rows, PROVENANCE, now_us=NOW_US).batches:
        size += sum(len(part) for part in sealed(batch, producer_id=7, producer_epoch=3, base_sequence=0))
    return size


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=16_000)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--profile", default="")
    args = parser.parse_args()
    pa.set_cpu_count(1)
    print(f"{'format':36} {'rows/CPU-s':>12} {'MB/CPU-s':>9} {'CPU-s/M rows':>12} {'bytes/row':>9} {'best rows/s':>12}")
    for name, form, target, how in cases():
        batch = change_batch(args.rows, **{"per_transaction": 1000, **how})
        rows = Rows(batch, np.zeros(args.rows, np.int64), np.arange(args.rows))
        encoder = Encoder(TABLE, form, target)
        if args.profile:
            if name == args.profile:
                profiled(encoder, rows)
            continue
        once(encoder, rows)
        start, cpu, done, size, best = time.perf_counter(), time.process_time(), 0, 0, 1e9
        while time.perf_counter() - start < args.seconds:
            began = time.process_time()
            size = once(encoder, rows)
            best = min(best, time.process_time() - began)
            done += args.rows
        cpu = time.process_time() - cpu
        print(f"{name:36} {done / cpu:12,.0f} {done / args.rows * size / cpu / 1e6:9,.0f} {cpu / done * 1e6:12.2f} "
              f"{size / args.rows:9.0f} {args.rows / best:12,.0f}")


def profiled(encoder: Encoder, rows: Rows) -> None:
    profile = cProfile.Profile(time.process_time)
    profile.enable()
    for _ in range(200):
        once(encoder, rows)
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
