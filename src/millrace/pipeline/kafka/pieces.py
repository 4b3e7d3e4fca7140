"""Rows of a group as pieces: batches ready to send, and rows for the quarantine, in the order of the source [K5, P9].

A piece remembers what it was made of: if the log finds it too large, its halves are encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np

from millrace.model.positions import Point
from millrace.pipeline.kafka.reading import picked
from millrace.sink.kafka.encode import Encoder, Rows
from millrace.sink.kafka.headers import Provenance
from millrace.wire.batches_out import OutBatch
from millrace.wire.fragments import Ints


class Maker(NamedTuple):
    """Of one work and one schema version."""

    encoder: Encoder
    provenance: Provenance
    now_us: int

    def pieces(self, rows: Rows) -> Iterator[Made]:
        """A row that cannot be written stands between what was before it and what comes behind it."""
        encoded = self.encoder.encode(rows, self.provenance, now_us=self.now_us)
        if not encoded.refused:
            for batch in encoded.batches:
                yield Made(Points(rows, encoded.places[batch.first:batch.first + batch.messages], self, batch))
            return
        at = 0
        for refused in encoded.refused:
            yield from self._some(rows, at, refused.place)
            yield Made(Points(rows, np.array([refused.place]), self), f"{refused.reason}: {refused.detail}")
            at = refused.place + 1
        yield from self._some(rows, at, rows.batch.num_rows)

    def _some(self, rows: Rows, start: int, stop: int) -> Iterator[Made]:
        if start < stop:
            yield from self.pieces(rows.slice(start, stop))


class Points(Sequence[Point]):
    """The rows of one batch, message by message, as points; a delete and its tombstone have the same."""

    __slots__ = ("_batch", "_places", "_rows", "maker")

    def __init__(self, rows: Rows, places: Ints, maker: Maker, batch: OutBatch | None = None) -> None:
        self._rows, self._places, self.maker, self._batch = rows, places, maker, batch

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> Point: ...
    @overload
    def __getitem__(self, at: slice) -> Points: ...
    def __getitem__(self, at: int | slice) -> Point | Points:
        if isinstance(at, slice):
            return Points(self._rows, self._places[at], self.maker)
        place = self._places[at]
        return Point(int(self._rows.offset[place]), int(self._rows.row[place]))

    def first_row(self) -> Rows:
        return picked(self._rows, self._places[:1])

    def first_key(self) -> bytes | None:
        return self.maker.encoder.key_of(self._rows, int(self._places[0]))

    def batch(self) -> OutBatch:
        """As it was encoded, or anew for a part of it: keys route it to the same partition."""
        if self._batch is None:
            rows = picked(self._rows, np.unique(self._places))
            encoded = self.maker.encoder.encode(rows, self.maker.provenance, now_us=self.maker.now_us)
            (self._batch,) = encoded.batches
            assert self._batch.messages == len(self)
        return self._batch


class Made(NamedTuple):
    """`poison`: why its one row cannot be written; "" if it can."""

    points: Points
    poison: str = ""
