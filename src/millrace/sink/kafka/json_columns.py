"""A column of a change batch as a column of JSON, for all rows at once [S6].

In: an Arrow array as wire/pg/types lays it out, its column, its odd cells. Out: fragments, one JSON value per row.

    typed    numbers, decimals, dates and times: by tables and casts        odd, arrays, intervals: value by value,
    text     escaped, quoted                                                each different text once
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.tables import Column
from millrace.sink.kafka import json_numbers, json_text, json_times
from millrace.sink.kafka.debezium_columns import debezium_column
from millrace.sink.kafka.debezium_shapes import shape_of
from millrace.sink.kafka.debezium_values import value_json
from millrace.sink.kafka.json_each import each, int_arrays
from millrace.sink.kafka.json_scalars import (
    BIT,
    ELEMENTS,
    INTERVAL,
    JSON_TYPES,
    NUMERIC,
    TIMETZ,
    Dialect,
    Style,
    json_of,
)
from millrace.wire.fragments import Fragments, Ints, as_binary, patched
from millrace.wire.pg.types import Form, kind_of

_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_INT_ARRAYS = frozenset({1005, 1007, 1016, 1028})

Read = Callable[[str], bytes | None]


class OddCells(NamedTuple):
    """Of one column of one image."""

    rows: Ints
    texts: pa.Array


def json_column(array: pa.Array, column: Column, style: Style, odd: OddCells | None = None) -> Fragments:
    """Nulls of the array are JSON's null, unless the cell is odd."""
    if style.dialect is Dialect.DEBEZIUM:
        found, read = debezium_column(array, column, style.modes), _debezium_of(column, style)
    else:
        found, read = _column(array, column, style), _json_of(column, style)
    if odd is None or not len(odd.rows):
        return found
    values = pa.array([read(text) for text in odd.texts.to_pylist()], pa.binary())
    return Fragments(len(array), [patched(json_text.raw(found), odd.rows, values)])


def _debezium_of(column: Column, style: Style) -> Read:
    return partial(value_json, shape=shape_of(column), modes=style.modes)


def _json_of(column: Column, style: Style) -> Read:
    return partial(json_of, type_oid=column.type_oid, typmod=column.typmod, style=style)


def _column(array: pa.Array, column: Column, style: Style) -> Fragments:
    form = kind_of(column.type_oid, column.typmod).form
    return _text(as_binary(array), column, style) if form is Form.TEXT else _typed(array, form, column, style)


def _typed(array: pa.Array, form: Form, column: Column, style: Style) -> Fragments:
    if form is Form.BYTES:
        canal = style.dialect is Dialect.CANAL
        return json_text.quoted(json_text.latin1(array) if canal else json_text.base64(array))
    if form is Form.DECIMAL:
        text = json_numbers.decimals(array)
        return _bare(text) if style.decimal_numbers and style.bare else json_text.quoted(text)
    if form in (Form.DATE, Form.TIME, Form.TIMESTAMP, Form.TIMESTAMPTZ):
        return _times(array, form, style)
    if form in (Form.FLOAT32, Form.FLOAT64):
        return _floats(array, style)
    text = json_numbers.texts(array)
    return _bare(text) if style.bare else json_text.quoted(text)


def _bare(text: pa.Array) -> Fragments:
    return Fragments(len(text), [text])


def _floats(array: pa.Array, style: Style) -> Fragments:
    text = json_numbers.floats(array)
    if style.bare:
        return _bare(text)
    return json_text.quoted(pc.replace_substring(text, b'"', b""))      # NaN and infinities have quotes already


def _times(array: pa.Array, form: Form, style: Style) -> Fragments:
    if form is Form.DATE:
        return json_text.quoted(json_times.dates(array))
    if form is Form.TIME:
        return json_text.quoted(json_times.times(array))
    text = json_times.timestamps(array, " " if style.dialect is Dialect.CANAL else "T")
    if form is Form.TIMESTAMP:
        return json_text.quoted(text)
    if not text.null_count:
        return Fragments(len(text), [b'"', text, b'Z"'])
    return Fragments(len(text), [pc.binary_join_element_wise(b'"', text, b'Z"', b"")])


def _text(array: pa.Array, column: Column, style: Style) -> Fragments:
    oid = column.type_oid
    if style.dialect is Dialect.CANAL:
        return json_text.strings(array)
    if oid in _INT_ARRAYS:
        return int_arrays(array, _json_of(column, style))
    if oid in ELEMENTS or oid == INTERVAL or (oid == BIT and column.typmod == 1):
        return each(array, _json_of(column, style))
    if oid == NUMERIC and style.decimal_numbers:
        return _loose_numbers(array)
    if oid == TIMETZ:
        zoned = pc.replace_substring_regex(array, r"([+-]\d\d)$", r"\1:00")
        return json_text.quoted(zoned)
    if oid in JSON_TYPES:
        return _bare(array)
    return json_text.strings(array)


def _loose_numbers(array: pa.Array) -> Fragments:
    """numeric without a scale: a number, but for NaN and infinities."""
    fits = pc.match_substring_regex(array, _NUMBER)
    if pc.all(fits, min_count=0).as_py():
        return _bare(array)
    return _bare(pc.if_else(fits, array, pc.binary_join_element_wise(b'"', array, b'"', b"")))
