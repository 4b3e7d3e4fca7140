"""Ranges of offsets: cut so that every record is read once, whole, whatever stands at the cuts [P1] [S8]."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import DataLost, OffsetOutOfRange
from millrace.log.client import PlainClient
from millrace.model.tables import Column, TableSchema
from millrace.pipeline.datasource.reading import joined
from millrace.pipeline.datasource.work import Piece, Span, Work, cut_pieces
from millrace.wire.changes import HEADER_KEY, BatchHeader, BatchKind, encode_header
from millrace.wire.records import Record


class MemoryLog:
    """A partition in memory, as PlainClient reads it: pages of any size, an error below its start or above its end."""

    def __init__(self, records: Sequence[Record], start: int = 0) -> None:
        self._records, self._start = list(records), start
        self.end = start + len(records)

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        return self._start, self.end

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[list[Record]]:
        if not self._start <= start <= self.end or end > self.end:
            raise OffsetOutOfRange(f"{start}")
        wanted = self._records[start - self._start:end - self._start]
        for at in range(0, len(wanted), 3):
            yield wanted[at:at + 3]


def client(log: MemoryLog) -> PlainClient:
    return cast(PlainClient, log)


def record(offset: int, place: int, part: int = 0, parts: int = 1, epoch: int = 1) -> Record:
    header = BatchHeader(kind=BatchKind.ROWS, schema_id=bytes(16), generation=1, epoch=epoch, first_lsn=place,
                         first_seq=0, last_lsn=place, last_seq=0, rows=1, part=part, parts=parts)
    return Record(b"%d.%d" % (place, part), headers=((HEADER_KEY, encode_header(header)),), offset=offset)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[list[Record], list[bytes]]:
    """Records, some in parts, some runs left open by a reader that died; and the whole values that count."""
    records: list[Record] = []
    whole: list[bytes] = []
    for place, (parts, dead) in enumerate(draw(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=12))):
        if dead and parts > 1:
            records += [record(len(records) + n, place, n, parts) for n in range(parts - 1)]
            dead_at = len(records)
            records += [record(dead_at + n, place, n, parts, epoch=2) for n in range(parts)]
        else:
            at = len(records)
            records += [record(at + n, place, n, parts) for n in range(parts)]
        whole.append(b"".join(b"%d.%d" % (place, n) for n in range(parts)))
    return records, whole


@given(partitions(), st.integers(1, 30), st.integers(1, 8))
def test_S8_cuts_lose_and_double_nothing(made: tuple[list[Record], list[bytes]], most: int, tasks: int) -> None:
    records, whole = made
    log = MemoryLog(records)
    piece = Piece(Span("t", 0, 0, log.end, log.end))
    work = cut_pieces([piece], records_max=most, tasks_min=tasks) if records else []
    assert all(one.span.end - one.span.start <= most for task in work for one in task)
    found = [one.value for task in work for piece in task for one in joined(client(log), piece.span, fail=True)]
    assert found == whole


def test_P1_as_many_tasks_as_were_asked_for_and_chunks_are_not_cut() -> None:
    pieces = [Piece(Span("t", n, 0, 100, 100)) for n in range(2)]
    assert len(cut_pieces(pieces, records_max=1000, tasks_min=8)) == 8
    assert len(cut_pieces(pieces, records_max=1000, tasks_min=1)) == 2
    chunks = [Piece(Span("c", 0, n * 10, n * 10 + 10, n * 10 + 10), copy=1, chunk=n) for n in range(10)]
    packed = cut_pieces(chunks, records_max=35, tasks_min=1)
    assert [len(task) for task in packed] == [3, 3, 3, 1]
    assert [piece for task in packed for piece in task] == chunks
    assert [len(task) for task in cut_pieces(chunks, records_max=4, tasks_min=1)] == [1] * 10


def test_P1_what_is_gone_is_an_error_unless_told_otherwise() -> None:
    log = MemoryLog([record(n, n) for n in range(10, 20)], start=10)
    with pytest.raises(DataLost, match=r"offsets from 5 on were asked for, the log has 10 to 19.*failOnDataLoss=false"):
        list(joined(client(log), Span("t", 0, 5, 20, 20), fail=True))
    assert [one.offset for one in joined(client(log), Span("t", 0, 5, 20, 20), fail=False)] == list(range(10, 20))
    with pytest.raises(DataLost):                                  # the log ends below the position: it is another log
        list(joined(client(log), Span("t", 0, 25, 30, 30), fail=False))


def test_P1_work_goes_to_executors_by_value() -> None:
    table = TableSchema(7, "public", "t", "d", (Column("id", 23, is_key=True),))
    work = Work((Piece(Span("t", 0, 1, 2, 2), changed=Span("t", 0, 0, 1, 1)),), (table,))
    assert pickle.loads(pickle.dumps(work)) == work
