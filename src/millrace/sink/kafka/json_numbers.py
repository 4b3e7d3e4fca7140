"""Numbers of a column as JSON text, for all rows at once. Exact: nothing goes through a float that was none."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.sink.kafka.json_text import per_row
from millrace.wire.fragments import as_binary, data_of, ends_of, patched

_PLAIN_SCALE_MAX = 6               # above it Arrow may print 0E-10; plain digits are made by hand


def texts(array: pa.Array) -> pa.Array:
    """As Arrow prints them."""
    return as_binary(array.cast(pa.string()))


def floats(array: pa.Array) -> pa.Array:
    """Shortest digits that give the same number; whole ones keep a point, so that readers see a float.

    NaN and infinities are JSON strings, as Debezium's."""
    text = texts(array)
    values = np.asarray(array.fill_null(0.5))
    octets, ends = data_of(text), ends_of(text)
    whole = per_row((octets == ord(".")) | (octets == ord("e")), ends) == 0
    if whole.any():
        text = pc.binary_join_element_wise(text, _points().take(pa.array(whole.astype(np.int8))),
                                           pa.scalar(b"", pa.binary()))
    odd = np.flatnonzero(~np.isfinite(values))
    if len(odd):
        names = [b'"NaN"' if value != value else b'"Infinity"' if value > 0 else b'"-Infinity"'
                 for value in values[odd].tolist()]
        text = patched(text, odd, pa.array(names, pa.binary()))
    return text


@cache
def _points() -> pa.Array:
    return pa.array([b"", b".0"], pa.binary())


def decimals(array: pa.Array) -> pa.Array:
    """All digits of the scale, never an exponent."""
    scale = array.type.scale
    if scale <= _PLAIN_SCALE_MAX:
        return texts(array)
    whole = pa.Array.from_buffers(pa.decimal128(array.type.precision, 0), len(array), array.buffers(),
                                  offset=array.offset)
    text = whole.cast(pa.string())
    negative = pc.starts_with(text, "-")
    digits = pc.ascii_lpad(pc.ascii_ltrim(text, "-"), scale + 1, "0")
    pointed = pc.binary_replace_slice(as_binary(digits), -scale, -scale, b".")
    return pc.if_else(negative, pc.binary_join_element_wise(b"-", pointed, b""), pointed)
