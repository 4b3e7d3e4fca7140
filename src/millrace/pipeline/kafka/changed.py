"""Keys of a table that changed behind a chunk's low mark, and rows that only the chunk can complete [S5, S6].

    records of the table's partition, in order ─▶ Changed ─▶ keys: their rows in the chunk are older, and left out
                                                        └─▶ complete: such a row after all, as the changes left it

An update does not send what it left alone (TOAST). Where no change behind the low mark has sent a column of a row, and
nothing but updates happened to it since it was read or came to be, the chunk's row has that column as it is. Whoever
has not had the row before knows it from nowhere else: it is put, with all that the changes have sent, behind the last
of them. A key that was given up behind the low mark and taken again is not completed: the chunk may hold either row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa

from millrace.core.sources.reader import SEQ_MAX
from millrace.model.progress import Change, decode_progress
from millrace.model.tables import Lsn, TableSchema
from millrace.pipeline.keys import Key, keys_of
from millrace.wire.changes import BatchHeader, BatchKind, decode_rows
from millrace.wire.pg.types import AFTER, DELETE, INSERT, UPDATE, arrow_schema


class _Image(NamedTuple):
    """A row after its last change. `sent`: per column the change (a batch of one row) that has sent it last."""

    schema_id: bytes
    lsn: Lsn
    sent: Mapping[int, pa.RecordBatch]


@dataclass(slots=True)
class Changed:
    generation: int
    low: Lsn
    keys: set[Key] = field(default_factory=set)
    is_truncated: bool = False                           # nothing of the chunk stands
    _images: dict[Key, _Image] = field(default_factory=dict)     # with a column that nobody has sent

    def add(self, header: BatchHeader, value: bytes, schemas: Mapping[UUID, TableSchema]) -> None:
        if header.generation != self.generation or header.last_lsn <= self.low:
            return
        if header.kind == BatchKind.MARKER:
            change = decode_progress(value)
            self.is_truncated = self.is_truncated or (isinstance(change, Change) and change.kind == "truncate")
            return
        batch, table = decode_rows(header, value, schemas), schemas[UUID(bytes=header.schema_id)]
        later = np.flatnonzero(np.asarray(batch.column("commit_lsn")) > self.low)
        keys = keys_of(batch, table, later, before=header.before)
        if self._images or batch.column("unchanged").null_count < batch.num_rows:
            for row, key in zip(later.tolist(), keys, strict=True):
                self._row(header, batch, row, key, table)
                self.keys.add(key)
        self.keys.update(keys)

    def _row(self, header: BatchHeader, batch: pa.RecordBatch, row: int, key: Key, table: TableSchema) -> None:
        before, op = self._images.pop(key, None), batch.column("op")[row].as_py()
        missing = _columns(batch.column("unchanged")[row].as_py())
        if not missing or op == DELETE:
            return
        if before is None and key in self.keys:
            return                                       # whoever follows the stream knows it already, or nobody does
        if before is not None and (op != UPDATE or before.schema_id != header.schema_id):
            return
        here = batch.take(pa.array([row]))
        sent = {i: here for i in range(len(table.columns)) if i not in missing}
        if before is not None:
            sent = {**before.sent, **sent}
        if len(sent) < len(table.columns):
            self._images[key] = _Image(header.schema_id, here.column("commit_lsn")[0].as_py(), sent)

    def complete(self, copied: pa.RecordBatch, table: TableSchema, key: Key) -> pa.RecordBatch | None:
        """The row with this key as the changes have left it; `copied`: as the chunk has it, a batch of one row. None:
        it needs nothing of the chunk, or the chunk does not know."""
        image = self._images.get(key)
        if image is None or image.schema_id != table.id.bytes:
            return None
        images = [image.sent.get(i, copied) for i in range(len(table.columns))]
        odd = [entry for i, one in enumerate(images) for entry in one.column("odd")[0].as_py() or ()
               if entry["column"] == i]
        said: dict[str, Any] = {
            "op": INSERT, "lsn": image.lsn, "commit_lsn": image.lsn, "seq": SEQ_MAX, "unchanged": None,
            "odd": odd or None}
        cells = {AFTER + column.name: one for column, one in zip(table.columns, images, strict=True)}
        schema = arrow_schema(table, before=False)
        return pa.RecordBatch.from_arrays(
            [pa.array([said[one.name]], one.type) if one.name in said else cells.get(one.name, copied).column(one.name)
             for one in schema], schema=schema)


def _columns(mask: bytes | None) -> set[int]:
    bits = int.from_bytes(mask or b"", "little")
    return {i for i in range(bits.bit_length()) if bits >> i & 1}
