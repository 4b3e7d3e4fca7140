"""Rows of a group as pieces: batches ready to send, and rows for the quarantine, in the order of the source [K5, P9].

A piece remembers what it was made of: if the log finds it too large, its halves are encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np

from millrace.model.positions import Point
from millrace.model.table_plans import TablePlan
from millrace.pipeline.kafka.reading import picked
from millrace.pipeline.shape.paths import Told, encode, key_of
from millrace.sink.kafka.encode import Encoder, Rows
from millrace.sink.kafka.headers import Provenance
from millrace.wire.batches_out import OutBatch
from millrace.wire.fragments import Ints


class Maker(NamedTuple):
    """Of one work and one schema version. `encoder`: of the table as the sink sees it."""

    encoder: Encoder
    provenance: Provenance
    now_us: int

    def pieces(self, told: Told) -> Iterator[Made]:
        """A row that cannot be written stands between what was before it and what comes behind it."""
        encoded = encode(told.rows, told.shaped, told.plan, self.encoder, self.provenance, now_us=self.now_us)
        if not encoded.refused:
            for batch in encoded.batches:
                yield Made(Points(told, encoded.places[batch.first:batch.first + batch.messages], self, batch))
            return
        at = 0
        for refused in encoded.refused:
            yield from self._some(told, at, refused.place)
            yield Made(Points(told, np.array([refused.place]), self), f"{refused.reason}: {refused.detail}")
            at = refused.place + 1
        yield from self._some(told, at, told.rows.batch.num_rows)

    def _some(self, told: Told, start: int, stop: int) -> Iterator[Made]:
        shaped = told.shaped.between(start, stop)
        if len(shaped.places):
            yield from self.pieces(told._replace(shaped=shaped))


class Points(Sequence[Point]):
    """The rows of one batch, message by message, as points; a delete and its tombstone have the same. `places`: among
    the rows as the log has them."""

    __slots__ = ("_batch", "_places", "_told", "maker")

    def __init__(self, told: Told, places: Ints, maker: Maker, batch: OutBatch | None = None) -> None:
        self._told, self._places, self.maker, self._batch = told, places, maker, batch

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> Point: ...
    @overload
    def __getitem__(self, at: slice) -> Points: ...
    def __getitem__(self, at: int | slice) -> Point | Points:
        if isinstance(at, slice):
            return Points(self._told, self._places[at], self.maker)
        rows, place = self._told.rows, self._places[at]
        return Point(int(rows.offset[place]), int(rows.row[place]))

    @property
    def plan(self) -> TablePlan:
        return self._told.plan

    def first_row(self) -> Rows:
        """As the log has it."""
        return picked(self._told.rows, self._places[:1])

    def first_key(self) -> bytes | None:
        return key_of(self._told.rows, int(self._places[0]), self.plan, self.maker.encoder)

    def batch(self) -> OutBatch:
        """As it was encoded, or anew for a part of it: keys route it to the same partition."""
        if self._batch is None:
            rows, shaped = self._told.rows, self._told.shaped.picked(np.unique(self._places))
            maker = self.maker
            encoded = encode(rows, shaped, self.plan, maker.encoder, maker.provenance, now_us=maker.now_us)
            (self._batch,) = encoded.batches
            assert self._batch.messages == len(self)
        return self._batch


class Made(NamedTuple):
    """`poison`: why its one row cannot be written; "" if it can."""

    points: Points
    poison: str = ""
