"""How fast the stream and copies are decoded, without a server: `python tests/perf/bench_decode.py`.

Rows as in the other benchmarks of sources: bigint, int, numeric(12,2), text, text, timestamptz, jsonb; about 208 bytes
each on the wire. Chunks of 1 MiB, joined from single messages as the reader gets them. Best of some passes, CPU time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from struct import pack

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

from millrace.model.tables import Column, TableSchema  # noqa: E402
from millrace.wire import changes  # noqa: E402
from millrace.wire.pg.chunks import join  # noqa: E402
from millrace.wire.pg.copybinary import CopyDecoder  # noqa: E402
from millrace.wire.pg.partition import partition_of  # noqa: E402
from millrace.wire.pg.pgoutput import Decoder, Rows  # noqa: E402
from support_pgoutput import COPY_HEADER, begin, commit, copy_row, delete, insert, relation, update, xlog  # noqa: E402

CHUNK_BYTES = 1 << 20
TABLE = TableSchema(16400, "public", "orders", "d", (
    Column("id", 20, is_key=True), Column("customer", 23), Column("amount", 1700, (12 << 16 | 2) + 4),
    Column("status", 25), Column("note", 25), Column("at", 1184), Column("data", 3802)))
STATUS = (b"new", b"paid", b"shipped", b"returned")


def cells(i: int) -> list[bytes]:
    return [
        b"%d" % (i + 1_000_000), b"%d" % (i % 50_000), b"%d.%02d" % (i % 9973, i % 100), STATUS[i % 4],
        b"a note of some length for order %09d, as people write" % i,
        b"2026-11-%02d %02d:%02d:%02d.%06d+00" % (i % 28 + 1, i % 24, i % 60, i % 60, i * 7919 % 1_000_000),
        b'{"sku": "SKU-%05d", "qty": %d, "tags": ["a", "b"]}' % (i % 99_991, i % 9)]


def large(count: int, per_transaction: int = 1000) -> list[bytes]:
    """Inserts, many to a transaction."""
    messages = [xlog(begin(1, 0, 1)), xlog(relation(TABLE)), xlog(commit(1, 2, 0))]
    for i in range(count):
        lsn = 1000 + i * 250
        if i % per_transaction == 0:
            messages.append(xlog(begin(lsn + 250 * per_transaction, i, i), lsn))
        messages.append(xlog(insert(TABLE.oid, cells(i)), lsn))
        if i % per_transaction == per_transaction - 1:
            messages.append(xlog(commit(lsn + 250, lsn + 300, i), lsn))
    return messages


def small(count: int) -> list[bytes]:
    """One row to a transaction: two updates, two inserts, a delete, in turn."""
    messages = [xlog(begin(1, 0, 1)), xlog(relation(TABLE)), xlog(commit(1, 2, 0))]
    for i in range(count):
        lsn = 1000 + i * 250
        body = (update(TABLE.oid, cells(i)) if i % 5 < 2 else insert(TABLE.oid, cells(i)) if i % 5 < 4
                else delete(TABLE.oid, [b"%d" % i, *[None] * 6]))
        messages += [xlog(begin(lsn + 100, i, i), lsn), xlog(body, lsn), xlog(commit(lsn + 100, lsn + 200, i), lsn)]
    return messages


def chunks(messages: list[bytes]) -> list[list[bytes]]:
    found: list[list[bytes]] = [[]]
    size = 0
    for message in messages:
        if size > CHUNK_BYTES:
            found.append([])
            size = 0
        found[-1].append(message)
        size += len(message)
    return found


def decode(parts: list[list[bytes]]) -> int:
    decoder = Decoder()
    rows = 0
    for messages in parts:
        rows += sum(item.batch.num_rows for item in decoder.decode(join(messages)).items if isinstance(item, Rows))
    return rows


def copy(parts: list[list[bytes]]) -> int:
    decoder = CopyDecoder(TABLE)
    for messages in parts:
        decoder.decode(messages)
    return decoder.rows


def numeric(value: int) -> bytes:
    """numeric(12,2) of hundredths."""
    whole, cents = divmod(value, 100)
    groups = [whole // 10_000, whole % 10_000, cents * 100]
    return pack(">hhHH3h", 3, 1, 0, 2, *groups)


def copy_rows(count: int) -> list[bytes]:
    messages = []
    for i in range(count):
        text = cells(i)
        messages.append(copy_row([
            pack(">q", i), pack(">i", i % 50_000), numeric(i * 7 % 10_000_000), text[3], text[4], pack(">q", i * 10**6),
            text[6]]))
    messages[0] = COPY_HEADER + messages[0]
    return messages


def best(what: str, run: Callable[[], int], passes: int = 5) -> None:
    seconds = []
    rows = 0
    for _ in range(passes):
        start = time.process_time()
        rows = run()
        seconds.append(time.process_time() - start)
    print(f"{what:34} {rows / min(seconds):>12,.0f} rows/s   {rows} rows")


def main() -> None:
    parts = chunks(large(100_000))
    best("stream, 1000 rows to a transaction", lambda: decode(parts))
    tiny = chunks(small(60_000))
    best("stream, 1 row to a transaction", lambda: decode(tiny))
    copied = chunks(copy_rows(100_000))
    best("copy", lambda: copy(copied))
    decoder = Decoder()
    items = [item for messages in parts for item in decoder.decode(join(messages)).items]
    batches = [item.batch for item in items if isinstance(item, Rows)]
    best("partition by key", lambda: sum(len(partition_of(batch, TABLE, 4)) for batch in batches))
    for compress in (False, True):
        size = sum(len(changes.encode_rows(batch, compress=compress)) for batch in batches)
        best(f"encode, lz4 {compress}, {size / 100_000:.0f} bytes a row",
             lambda c=compress: sum(bool(changes.encode_rows(b, compress=c)) * b.num_rows for b in batches))


if __name__ == "__main__":
    main()
