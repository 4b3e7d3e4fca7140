"""A column of a change batch as JSON the way Debezium's connector writes it, for all rows at once.

In: an Arrow array as wire/pg/types lays it out, its column, the modes. Out: fragments. Typed columns and texts without
a closer look; what must be parsed is read value by value, each different one once (debezium_values).
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.tables import Column
from millrace.sink.kafka import json_numbers, json_text, json_times
from millrace.sink.kafka.debezium_modes import Modes
from millrace.sink.kafka.debezium_shapes import Shape, shape_of
from millrace.sink.kafka.debezium_values import value_json
from millrace.sink.kafka.json_each import each, int_arrays
from millrace.wire.fragments import Fragments, as_binary, as_string
from millrace.wire.pg.types import Form, kind_of

_TEXTS = frozenset({"string", "json", "xml", "uuid", "ltree", "tsvector", "enum"})
_INTS = frozenset({"int16", "int32", "int64"})


def debezium_column(array: pa.Array, column: Column, modes: Modes) -> Fragments:
    """Nulls of the array are JSON's null."""
    shape, form = shape_of(column), kind_of(column.type_oid, column.typmod).form
    if form is not Form.TEXT:
        return _typed(array, form, shape, modes)
    text = as_binary(array)
    if shape.what in _TEXTS or _are_numbers(text, shape, modes):
        return json_text.strings(text)
    if shape.what in _INTS:
        return Fragments(len(text), [text])                   # of a domain
    read = partial(value_json, shape=shape, modes=modes)
    if shape.what == "array" and shape.element is not None and shape.element.what in _INTS:
        return int_arrays(text, read)
    return each(text, read)


def _are_numbers(text: pa.Array, shape: Shape, modes: Modes) -> bool:
    """Decimals that are written as they are printed: no NaN or infinity among them."""
    return (shape.what in ("numeric", "decimal") and modes.decimal == "string"
            and not pc.any(pc.match_substring_regex(text, "[A-Za-z]"), min_count=0).as_py())


def _typed(array: pa.Array, form: Form, shape: Shape, modes: Modes) -> Fragments:
    if form is Form.BYTES:
        return json_text.quoted(_binary(array, modes))
    if form is Form.DECIMAL:
        return _decimals(array, modes)
    if form is Form.TIMESTAMPTZ:
        return _zoned(array, shape.digits)
    if form in (Form.DATE, Form.TIME, Form.TIMESTAMP):
        return _times(array, form, shape, modes)
    found = json_numbers.floats(array) if form in (Form.FLOAT32, Form.FLOAT64) else json_numbers.texts(array)
    return Fragments(len(array), [found])


def _binary(array: pa.Array, modes: Modes) -> pa.Array:
    if modes.binary == "hex":
        return json_text.spelt(array, _hex())
    text = json_text.base64(array)
    if modes.binary == "base64-url-safe":
        text = pc.replace_substring(pc.replace_substring(text, b"+", b"-"), b"/", b"_")
    return text


@cache
def _hex() -> pa.Array:
    return pa.array([b"%02x" % byte for byte in range(256)], pa.binary())


def _decimals(array: pa.Array, modes: Modes) -> Fragments:
    if modes.decimal == "precise":
        return json_text.quoted(json_text.base64(two_complement(array)))
    if modes.decimal == "double":
        # By its digits: a cast of the number would round twice.
        text = as_string(json_numbers.decimals(array))
        return Fragments(len(array), [json_numbers.floats(text.cast(pa.float64()))])
    text = json_numbers.decimals(array)
    return json_text.quoted(text) if modes.decimal == "string" else Fragments(len(array), [text])


def two_complement(array: pa.Array) -> pa.Array:
    """Unscaled values, big-endian and as short as they can be, as Java's BigInteger."""
    count = len(array)
    octets = np.frombuffer(array.buffers()[1], np.uint8, 16 * count, 16 * array.offset).reshape(count, 16)[:, ::-1]
    sign = np.where(octets[:, 0] >= 0x80, np.uint8(0xFF), np.uint8(0))
    # A leading byte says nothing if it repeats the sign and the next byte begins with that sign.
    idle = (octets[:, :15] == sign[:, None]) & ((octets[:, 1:] ^ sign[:, None]) < 0x80)
    lengths = 16 - np.cumprod(idle, axis=1, dtype=np.uint8).sum(axis=1, dtype=np.int64)
    if array.null_count:
        lengths[~np.asarray(array.is_valid())] = 0
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    kept = octets[np.arange(16)[None, :] >= (16 - lengths)[:, None]]
    valid = None
    if array.null_count:
        valid = pa.py_buffer(np.packbits(np.asarray(array.is_valid()), bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), count, [valid, pa.py_buffer(ends), pa.py_buffer(kept)])


def _times(array: pa.Array, form: Form, shape: Shape, modes: Modes) -> Fragments:
    whole = array.cast(pa.int32() if form is Form.DATE else pa.int64())
    unit = 1 if form is Form.DATE else modes.unit_us("time" if form is Form.TIME else "timestamp", shape.digits)
    if unit != 1:
        whole = pa.array(np.asarray(whole.fill_null(0)) // unit, mask=np.asarray(whole.is_null()))
    return Fragments(len(array), [json_numbers.texts(whole)])


def _zoned(array: pa.Array, digits: int) -> Fragments:
    text = json_times.timestamps(array, "T", digits=digits)
    if not text.null_count:
        return Fragments(len(text), [b'"', text, b'Z"'])
    return Fragments(len(text), [pc.binary_join_element_wise(b'"', text, b'Z"', b"")])


