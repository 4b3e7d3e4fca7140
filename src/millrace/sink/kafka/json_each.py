"""Columns whose texts must be read value by value, each different one once; and arrays of integers, which need not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.wire.fragments import Fragments, data_of, ends_of

_PLAIN_INTS = r"^\{-?[0-9]+(,-?[0-9]+)*\}$"


def each(array: pa.Array, read: Callable[[str], bytes | None]) -> Fragments:
    """`read`: None is null."""
    coded = array.dictionary_encode()
    texts = [read(text.decode()) for text in coded.dictionary.to_pylist()]
    return Fragments(len(array), [pa.array(texts, pa.binary()).take(coded.indices)])


def int_arrays(array: pa.Array, read: Callable[[str], bytes | None]) -> Fragments:
    """{1,2} is [1,2] but for the brackets; nulls, dimensions and bounds need a closer look."""
    if not pc.all(pc.match_substring_regex(array, _PLAIN_INTS), min_count=0).as_py():
        return each(array, read)
    ends = ends_of(array)
    octets = data_of(array).copy()
    filled = np.flatnonzero(ends[1:] != ends[:-1])            # nulls are empty
    octets[ends[filled]] = ord("[")
    octets[ends[filled + 1] - 1] = ord("]")
    found = pa.Array.from_buffers(pa.binary(), len(array), [array.buffers()[0], array.buffers()[1],
                                                            pa.py_buffer(octets)], offset=array.offset)
    return Fragments(len(array), [found])
