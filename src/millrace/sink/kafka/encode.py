"""Change batches of one table -> record batches of its topic.

    rows ─▶ set aside: not UTF-8, too large ─▶ keys ─▶ partitions ─▶ in that order: values, tombstones, headers ─▶ frame

In: rows of one schema version with the points they have in the log. Out: batches, and what cannot be written as (row,
reason): a value for the quarantine, while the rest goes on [P9]. Promise: rows of one partition keep their order; rows
of one key share a partition [K3]; a delete and its tombstone share a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from millrace import limits
from millrace.model.tables import TableSchema
from millrace.sink.kafka.formats import Format
from millrace.sink.kafka.headers import NEW_KEY, OLD_KEY, Extra, Provenance, headers
from millrace.sink.kafka.images import Images
from millrace.sink.kafka.routing import Routing, partitions
from millrace.wire.batches_out import Codec, Messages, OutBatch, Sizes, frame, measured
from millrace.wire.fragments import Fragments, Ints, data_of, ends_of, spread

T = TypeVar("T", bound=np.generic)
Reason = Literal["not_utf8", "too_large", "not_sent", "out_of_range", "expression"]   # the last ones: pipeline.shape


class Target(NamedTuple):
    """Where messages of a table go, and what its topic takes."""

    partitions: int
    message_bytes_max: int = limits.SINK_MESSAGE_BYTES_MAX     # set aside above it; what the topic takes it says itself
    batch_bytes: int = limits.SINK_BATCH_BYTES                 # wanted; a larger message has a batch of its own
    batch_count_max: int = limits.SINK_BATCH_MESSAGES_MAX
    codec: Codec = Codec.NONE
    routing: Routing = Routing()


class Rows(NamedTuple):
    """A change batch, or several of one schema in the order of the log. `offset` and `row` tell each row's point."""

    batch: pa.RecordBatch
    offset: Ints
    row: Ints
    copy: bool = False

    def slice(self, start: int, stop: int) -> Rows:
        if not start and stop >= self.batch.num_rows:
            return self
        return Rows(self.batch.slice(start, stop - start), self.offset[start:stop], self.row[start:stop], self.copy)


class Refused(NamedTuple):
    """A row that cannot be written, by its place among the rows handed over. `key`: None if it has none, or none that
    can be written either."""

    place: int
    reason: Reason
    detail: str
    key: bytes | None = None


class Encoded(NamedTuple):
    """`places[m]`: of the row of message m among the rows handed over. Batches name runs of messages."""

    batches: list[OutBatch]
    places: Ints
    refused: list[Refused]


class Encoder:
    """Of one table in one schema version."""

    def __init__(self, table: TableSchema, form: Format, target: Target) -> None:
        self.table, self._form, self._target = table, form, target

    def encode(self, rows: Rows, provenance: Provenance, *, now_us: int) -> Encoded:
        count = rows.batch.num_rows
        step = max(1, limits.SINK_ENCODE_BYTES // (self._form.constant_bytes + rows.batch.nbytes // max(count, 1)))
        return _together([self._encode(rows.slice(at, at + step), provenance, now_us=now_us)
                          for at in range(0, max(count, 1), step)], step)

    def _encode(self, rows: Rows, provenance: Provenance, *, now_us: int) -> Encoded:
        target = self._target
        refused = [*_not_text(rows.batch), *_hopeless(rows.batch, target.message_bytes_max)]
        places = np.arange(rows.batch.num_rows)
        images = Images(rows.batch, self.table, self._form.style)
        if refused:
            places = np.delete(places, [one.place for one in refused])
            images = images.take(places)
        if not images.count:
            return Encoded([], places, self._told(refused, rows))
        messages, of_message = self._messages(self._keyed(images, places), rows, provenance, now_us)
        sizes = measured(messages, target.batch_count_max)
        units = sizes.of_units()
        if units.max(initial=0) > target.message_bytes_max:
            refused += _too_large(units, of_message, target.message_bytes_max)
            kept = np.flatnonzero(units <= target.message_bytes_max)
            messages, of_message, units = _picked(messages, kept), of_message[kept], units[kept]
            sizes = measured(messages, target.batch_count_max)
        return Encoded(_framed(messages, sizes, units, target), of_message, self._told(refused, rows))

    def _told(self, refused: list[Refused], rows: Rows) -> list[Refused]:
        """Each row once, with its key; one by one, since a key may be what cannot be written."""
        once = {one.place: one for one in reversed(refused)}
        return [one._replace(key=self.key_of(rows, place)) for place, one in sorted(once.items())]

    def key_of(self, rows: Rows, place: int) -> bytes | None:
        """As messages carry it; None: it has none that can be written."""
        if not self.table.keys:
            return None
        one = Images(rows.batch.slice(place, 1), self.table, self._form.style)
        try:
            key = bytes(self._form.key(one).joined()[0].as_py())
            key.decode()
        except UnicodeDecodeError:
            return None
        return key if len(key) <= self._target.message_bytes_max else None

    def _keyed(self, images: Images, places: Ints) -> _Keyed:
        """In the order of partitions, before anything but keys is encoded: cells are cheaper to move than texts."""
        key = self._form.key(images) if self.table.keys else None
        shared = b"" if key is None else key.first_constant
        if key is not None and self._target.partitions > 1:
            key = Fragments(images.count, [key.joined()])
        found = partitions(self._target.routing, images, key, shared, self._target.partitions)
        if found is None or not (found[1:] < found[:-1]).any():
            return _Keyed(images, places, key, found)
        order = np.argsort(found, kind="stable")
        return _Keyed(images.take(order), places[order], None if key is None else key.take(order), found[order])

    def _messages(self, keyed: _Keyed, rows: Rows, provenance: Provenance, now_us: int) -> tuple[Messages, Ints]:
        images, places, key, partition = keyed
        value = self._form.value(images, copy=rows.copy, now_us=now_us)
        extras = _moves(self._form, images) if images.moved is not None else []
        value_valid, unit, of_message = None, None, places
        if self._form.tombstones and key is not None and images.deleted.any():
            unit = np.repeat(np.arange(images.count), 1 + images.deleted)
            first = np.flatnonzero(np.diff(unit, prepend=-1))
            value_valid = np.zeros(len(unit), np.bool_)
            value_valid[first] = True
            value = Fragments(len(unit), [spread(value.joined(), first, len(unit))])
            key, of_message = key.take(unit), places[unit]
            partition = None if partition is None else partition[unit]
            extras = [_with_tombstones(extra, first) for extra in extras]
        count = len(of_message)
        return Messages(
            key=key or Fragments(count, []), key_valid=np.zeros(count, np.bool_) if key is None else None,
            value=value, value_valid=value_valid, timestamp_ms=now_us // 1000, partition=partition, unit=unit,
            headers=headers(provenance, rows.offset[of_message], rows.row[of_message], extras)), of_message


def _together(parts: list[Encoded], step: int) -> Encoded:
    """What came of slices of `step` rows, as if they had been one."""
    if len(parts) == 1:
        return parts[0]
    batches, refused, first = [], [], 0
    for at, part in enumerate(parts):
        batches += [batch._replace(first=batch.first + first) for batch in part.batches]
        refused += [one._replace(place=one.place + at * step) for one in part.refused]
        first += len(part.places)
    return Encoded(batches, np.concatenate([part.places + at * step for at, part in enumerate(parts)]), refused)


class _Keyed(NamedTuple):
    """Rows in the order in which they are framed. `places`: among the rows handed over."""

    images: Images
    places: Ints
    key: Fragments | None
    partition: Ints | None


def _too_large(units: Ints, of_message: Ints, limit: int) -> list[Refused]:
    return [Refused(int(of_message[m]), "too_large", f"{int(units[m])} bytes, {limit} are allowed")
            for m in np.flatnonzero(units > limit).tolist()]


def _framed(messages: Messages, sizes: Sizes, units: Ints, target: Target) -> list[OutBatch]:
    """A message larger than the batches we like has one of its own: the log may refuse it, and it alone [P9]."""
    codec, count_max = target.codec, target.batch_count_max
    large = units > target.batch_bytes
    if not large.any():
        return frame(messages, sizes, batch_bytes_max=target.batch_bytes, batch_count_max=count_max, codec=codec)
    unit = np.arange(len(units)) if messages.unit is None else messages.unit
    cuts = np.flatnonzero((large[1:] != large[:-1]) | (large[1:] & (unit[1:] != unit[:-1]))) + 1
    found: list[OutBatch] = []
    for start, stop in pairwise([0, *cuts.tolist(), len(units)]):
        some = _picked(messages, np.arange(start, stop))
        batches = frame(some, measured(some, count_max), batch_bytes_max=max(target.batch_bytes, int(units[start])),
                        batch_count_max=count_max, codec=codec)
        found += [batch._replace(first=batch.first + start) for batch in batches]
    return found


def _picked(messages: Messages, kept: Ints) -> Messages:
    return Messages(
        key=messages.key.take(kept), value=messages.value.take(kept), headers=messages.headers.take(kept),
        timestamp_ms=messages.timestamp_ms, partition=_some(messages.partition, kept),
        key_valid=_some(messages.key_valid, kept), value_valid=_some(messages.value_valid, kept),
        unit=_some(messages.unit, kept))


def _some(column: NDArray[T] | None, kept: Ints) -> NDArray[T] | None:
    return None if column is None else column[kept]


def _moves(form: Format, images: Images) -> list[Extra]:
    """Debezium's headers of key updates. The delete knows the new key only if the insert stands right behind it."""
    assert images.moved is not None
    inserts = np.flatnonzero(images.moved)
    keys = form.moved_keys(images, inserts)
    found = [Extra(OLD_KEY, inserts, keys.old)]
    seq = np.asarray(images.batch.column(5))
    commit = np.asarray(images.batch.column(2))
    before = np.maximum(inserts - 1, 0)
    pairs = (inserts > 0) & images.deleted[before] & (commit[before] == commit[inserts]) & (
        seq[before] + 1 == seq[inserts])
    if pairs.any():
        found.append(Extra(NEW_KEY, inserts[pairs] - 1, keys.new.filter(pa.array(pairs))))
    return found


def _with_tombstones(extra: Extra, first: Ints) -> Extra:
    """`first`: the message of each row. What a delete carries, its tombstone carries too."""
    if extra.name != NEW_KEY:
        return extra._replace(messages=first[extra.messages])
    messages = np.repeat(first[extra.messages], 2)
    messages[1::2] += 1
    return Extra(extra.name, messages, extra.values.take(pa.array(np.repeat(np.arange(len(extra.values)), 2))))


def _not_text(batch: pa.RecordBatch) -> Iterator[Refused]:
    """A database in SQL_ASCII may hold bytes that are no text, and JSON cannot carry them."""
    for i in range(8, batch.num_columns):
        column = batch.column(i)
        if not pa.types.is_string(column.type):
            continue
        ends = ends_of(column)
        if data_of(column)[ends[0]:ends[-1]].max(initial=0) < 0x80:
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            for row, value in enumerate(column.cast(pa.binary()).to_pylist()):
                if value is not None and not _is_text(value):
                    yield Refused(row, "not_utf8", f"column {batch.schema.field(i).name[2:]!r} is not valid UTF-8")


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _hopeless(batch: pa.RecordBatch, limit: int) -> Iterator[Refused]:
    """Rows whose bare texts are above the limit: not even encoded, since escapes make them up to six times larger."""
    columns = [ends_of(column) for column in batch.columns[8:]
               if pa.types.is_string(column.type) or pa.types.is_binary(column.type)]
    if sum(int(ends[-1] - ends[0]) for ends in columns) <= limit or not columns:
        return
    if sum(int((ends[1:] - ends[:-1]).max()) for ends in columns) <= limit:
        return
    total = np.diff(sum(ends.astype(np.int64) for ends in columns))
    for row in np.flatnonzero(total > limit).tolist():
        yield Refused(row, "too_large", f"{int(total[row])} bytes before encoding, {limit} are allowed")
