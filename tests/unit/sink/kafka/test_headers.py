from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from millrace.errors import Malformed, NewerFormat
from millrace.model.positions import Point
from millrace.sink.kafka.headers import NAME, Extra, Provenance, Written, headers, read, written
from millrace.wire.batches_out import Messages, frame, measured, sealed
from millrace.wire.fragments import Fragments
from millrace.wire.records import parse_produced, records_of

FROM = Provenance(bytes(range(16)), 7, 2**62, 2**33)


def test_K3_headers_tell_where_a_message_comes_from() -> None:
    extra = Extra("more", np.array([1]), pa.array([b"old"]))
    column = headers(FROM, np.array([5, 2**60]), np.array([0, 99]), [extra])
    messages = Messages(Fragments(2, [b"k"]), Fragments(2, [b"v"]), column, 0)
    [batch] = frame(messages, measured(messages, 9), batch_bytes_max=9999, batch_count_max=9)
    raw = b"".join(sealed(batch))
    first, second = (record.headers for record in records_of(raw, parse_produced(raw)[0]))
    assert written(first) == Written(FROM, Point(5, 0))
    assert written(second) == Written(FROM, Point(2**60, 99))
    assert len(first) == 1
    assert second[1] == ("more", b"old")


def test_K3_headers_of_others_are_left_alone() -> None:
    assert written([("trace", b"1"), (NAME, None)]) is None


@pytest.mark.parametrize(("value", "error"), [
    (b"\x02" + bytes(48), NewerFormat), (b"\x01abc", Malformed), (b"", Malformed),
    (b"\x01" + bytes(47), Malformed), (b"\x01" + bytes(49), Malformed)])
def test_L19_a_header_that_is_not_ours_is_refused(value: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        read(value)
