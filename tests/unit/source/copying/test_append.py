"""Rows of a chunk as records: none too large, none lost, in order."""

from __future__ import annotations

from concurrent.futures import Future
from random import Random
from struct import pack
from typing import Any

import pytest

import support_pgoutput as wire
from millrace.limits import COPY_RECORD_BYTES, COPY_ROWS_BYTES_MAX
from millrace.model.progress import Range
from millrace.model.tables import Column, TableSchema
from millrace.source.copying.append import RowAppender, attempt_header
from millrace.wire.changes import Assembler, decode_header, decode_rows
from millrace.wire.pg.copybinary import CopyDecoder
from millrace.wire.pg.partition import partition_of
from millrace.wire.records import Record

TABLE = TableSchema(7, "s", "t", "d", (Column("id", 20, is_key=True), Column("body", 25)))


class Log:
    """A client whose log keeps everything at once; another writer's record stands between ours now and then."""

    def __init__(self, *, others_every: int = 0) -> None:
        self.partitions: dict[int, list[Record | None]] = {}
        self._others_every = others_every

    def new_writer_id(self) -> int:
        return 1

    def writer(self, topic: str, partition: int, **_: int) -> Writer:
        return Writer(self.partitions.setdefault(partition, []), self._others_every)


class Writer:
    def __init__(self, log: list[Record | None], others_every: int) -> None:
        self._log, self._others_every = log, others_every

    def append(self, records: list[Record]) -> Future[int]:
        if self._others_every and len(self._log) % self._others_every == 0:
            self._log.append(None)
        answer: Future[int] = Future()
        answer.set_result(len(self._log))
        self._log += records
        return answer


def appended(bodies: list[bytes], *, partitions: int = 1, batch: int = 3000, log: Log) -> tuple[Range, ...]:
    client: Any = log
    appender = RowAppender(client, "copy", partitions=partitions, table=TABLE, generation=1, epoch=1,
                           header=attempt_header(1, 0, 1))
    decoder = CopyDecoder(TABLE, at=9)
    decoder.decode([wire.COPY_HEADER])
    for at in range(0, len(bodies), batch):
        appender.write(decoder.decode([wire.copy_row([pack(">q", at + i), body])
                                       for i, body in enumerate(bodies[at:at + batch])]))
    ranges = appender.finish()
    assert appender.rows == len(bodies)
    return ranges


def read(log: Log, ranges: tuple[Range, ...]) -> dict[int, bytes]:
    """What the ranges hold, by key; each row stands where its key belongs, and in order."""
    found: dict[int, bytes] = {}
    for part in ranges:
        assembler, last = Assembler(), -1
        for record in log.partitions[part.partition][part.start:part.end]:
            assert record is not None
            assert record.value is not None
            header = decode_header(dict(record.headers)["h"] or b"")
            value = assembler.add(header, record.value)
            if value is None:
                continue
            rows = decode_rows(header, value, {TABLE.id: TABLE})
            assert len(value) <= COPY_RECORD_BYTES or rows.num_rows == 1
            assert rows.nbytes <= COPY_ROWS_BYTES_MAX or rows.num_rows == 1
            assert (header.first_seq, header.last_seq) == (rows["seq"][0].as_py(), rows["seq"][-1].as_py())
            assert header.first_seq > last
            last = header.last_seq
            keys = rows["a:id"].to_pylist()
            assert set(partition_of(rows, TABLE, len(log.partitions)).tolist()) == {part.partition}
            found |= dict(zip(keys, (body.encode() for body in rows["a:body"].to_pylist()), strict=True))
    return found


@pytest.mark.parametrize("partitions", [1, 3])
def test_S4_rows_that_compress_well_and_then_not_at_all_stay_below_the_limit(partitions: int) -> None:
    random = Random(4)
    bodies = [b"x" * 500] * 12_000 + [random.randbytes(250).hex().encode() for _ in range(12_000)]
    bodies += [b"y" * 500] * 3000
    log = Log()
    ranges = appended(bodies, partitions=partitions, log=log)
    assert read(log, ranges) == dict(enumerate(bodies))
    assert [(r.partition, r.start) for r in ranges] == [(p, 0) for p in range(partitions)]


def test_S4_rows_that_compress_share_records() -> None:
    log = Log()
    read(log, appended([b"x" * 500] * 40_000, batch=8000, log=log))
    raw_bytes = 40_000 * 560
    assert len(log.partitions[0]) < 0.8 * raw_bytes / COPY_RECORD_BYTES


def test_S8_a_row_larger_than_a_record_is_cut_into_parts() -> None:
    random = Random(5)
    bodies = [b"small", random.randbytes(5 << 20).hex().encode(), b"small again"]
    log = Log()
    ranges = appended(bodies, log=log)
    assert read(log, ranges) == dict(enumerate(bodies))
    assert len(log.partitions[0]) > 3


def test_S4_ranges_name_no_records_of_others() -> None:
    random = Random(6)
    bodies = [random.randbytes(300).hex().encode() for _ in range(9000)]
    log = Log(others_every=3)
    ranges = appended(bodies, log=log)
    assert len(ranges) > 1
    assert read(log, ranges) == dict(enumerate(bodies))
