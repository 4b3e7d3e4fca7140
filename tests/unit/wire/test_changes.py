"""Records of a table's topic: there and back, in parts, and what a dead reader leaves."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import support_pgoutput as wire
from millrace.errors import Malformed, NewerFormat
from millrace.model.tables import Column, Place, TableSchema
from millrace.wire.changes import (
    Assembler,
    BatchHeader,
    BatchKind,
    cut_parts,
    decode_header,
    decode_rows,
    encode_header,
    encode_rows,
)
from millrace.wire.pg.chunks import join
from millrace.wire.pg.messages import Rows
from millrace.wire.pg.pgoutput import Decoder
from support_changes import histories

TABLE = TableSchema(7, "s", "t", "d", (Column("id", 20, is_key=True), Column("v", 25)))


def header(**changes: Any) -> BatchHeader:
    plain = BatchHeader(kind=BatchKind.ROWS, schema_id=TABLE.id.bytes, generation=1, epoch=2, first_lsn=10, first_seq=0,
                        last_lsn=12, last_seq=3, rows=4)
    return msgspec.structs.replace(plain, **changes)


@settings(max_examples=20, deadline=None)
@given(histories(), st.booleans(), st.data())
def test_S7_batches_come_back_as_they_were(history: tuple[list[bytes], dict[int, list[str]]], compress: bool,
                                           data: st.DataObject) -> None:
    messages, keys = history
    decoder = Decoder(keys=keys)
    for item in decoder.decode(join(messages)).items:
        if not isinstance(item, Rows):
            continue
        first = data.draw(st.integers(0, item.batch.num_rows - 1))
        batch = item.batch.slice(first)
        head = header(schema_id=item.table.id.bytes, rows=batch.num_rows, before=item.before)
        back = decode_rows(head, encode_rows(batch, compress=compress), {item.table.id: item.table})
        back.validate(full=True)
        assert back.schema == batch.schema
        assert back.equals(batch) or repr(back.to_pylist()) == repr(batch.to_pylist())    # NaN is not itself


def large_batch(rows: int) -> Rows:
    bodies = [wire.insert(7, [b"%d" % i, b"some text, repeated"]) for i in range(rows)]
    messages = [wire.xlog(body) for body in (wire.begin(5, 0, 1), *bodies, wire.commit(5, 6, 0))]
    (item,) = Decoder(tables=[TABLE]).decode(join(messages)).items
    assert isinstance(item, Rows)
    return item


def test_S8_compressed_and_cut_slices_hold_no_more_than_their_rows() -> None:
    batch = large_batch(2000).batch
    plain, packed = encode_rows(batch, compress=False), encode_rows(batch)
    assert len(packed) < len(plain) / 2
    assert len(encode_rows(batch.slice(5, 1))) < 2000
    for value in (plain, packed):
        assert decode_rows(header(rows=2000), value, {TABLE.id: TABLE}).equals(batch)


def test_S3_header_round_trip_and_its_places() -> None:
    head = header(before=True, part=1, parts=3)
    assert decode_header(encode_header(head)) == head
    assert (head.first, head.last) == (Place(10, 0), Place(12, 3))
    with pytest.raises(NewerFormat):
        decode_header(encode_header(header(version=2)))
    for broken in (b"", b"\xc1", encode_header(header(part=3, parts=3)), encode_header(header(schema_id=b"short"))):
        with pytest.raises(Malformed):
            decode_header(broken)


def test_S7_broken_values_are_malformed() -> None:
    value = encode_rows(large_batch(4).batch)
    schemas = {TABLE.id: TABLE}
    for head, data, known in [
        (header(), b"", schemas), (header(), value[:100], schemas), (header(), b"\0" * 64, schemas),
        (header(rows=5), value, schemas), (header(rows=3), value, schemas),
        (header(schema_id=UUID(int=1).bytes), value, schemas),
    ]:
        with pytest.raises(Malformed):
            decode_rows(head, data, known)


@given(st.binary(min_size=1, max_size=50), st.integers(1, 20))
def test_S8_parts_are_joined_again(value: bytes, part_bytes: int) -> None:
    parts = cut_parts(value, part_bytes)
    assert max(map(len, parts)) <= part_bytes
    assembler = Assembler()
    given_ = [assembler.add(header(part=i, parts=len(parts)), part) for i, part in enumerate(parts)]
    assert given_ == [*[None] * (len(parts) - 1), value]
    assert not assembler.open


def test_S8_unfinished_parts_are_dropped() -> None:
    assembler = Assembler()
    assert assembler.add(header(part=0, parts=3), b"a") is None
    assert assembler.add(header(part=1, parts=3), b"b") is None
    assert assembler.open
    # The reader died there; the next one writes under a higher epoch, the same changes in parts again.
    assert assembler.add(header(part=0, parts=3, epoch=3), b"a") is None
    assert assembler.add(header(part=2, parts=3), b"c") is None            # of the dead one: cannot be, but drops
    assert not assembler.open
    assert assembler.add(header(part=1, parts=3, epoch=3), b"b") is None
    assert assembler.add(header(), b"whole") == b"whole"
    assert assembler.add(header(part=0, parts=2), b"x") is None
    assert assembler.add(header(), b"whole") == b"whole"
    assert assembler.add(header(part=1, parts=2), b"y") is None
