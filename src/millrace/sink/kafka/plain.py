"""json: the row itself, flat, with what happened to it in front.

    {"_change_type":"insert|update_postimage|delete","_commit_version":…,"_commit_timestamp":"…Z","_seq":…,
     "_schema":"…","_table":"…","id":…,…}

`_commit_version` is the commit LSN. `_schema` and `_table` tell tables apart that share a topic. Rows of a copy are
inserts with "_copy":true. A value that was not sent, since it did not change, is left out and its column named in
"_unchanged". json and jsonb stand as they are; a JSON null in such a column cannot be told from NULL (debezium-json
can). A column with a name of ours keeps it: ours gets one underscore more.
"""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa

from millrace.model.tables import TableSchema
from millrace.sink.kafka.formats import (
    Commits,
    MovedKeys,
    Origin,
    key_object,
    moved_key_objects,
    names_bytes,
    numbers,
    op_names,
)
from millrace.sink.kafka.images import Images
from millrace.sink.kafka.json_scalars import Dialect, Style
from millrace.sink.kafka.json_text import keyed, quote
from millrace.sink.kafka.json_times import timestamps
from millrace.sink.kafka.sparse import left_out_names, sparse_fields
from millrace.wire.fragments import Fragments, Ints, side_by_side
from millrace.wire.pg.types import AFTER, BEFORE

_OPS = (b'"insert"', b'"update_postimage"', b'"delete"')
_SEQ = 5
_NAMES = ("_change_type", "_commit_version", "_commit_timestamp", "_seq", "_schema", "_table", "_copy", "_unchanged")


class Plain:
    def __init__(self, origin: Origin, table: TableSchema, *, tombstones: bool = False,
                 decimal_numbers: bool = False) -> None:
        self.origin, self.table, self.tombstones = origin, table, tombstones
        self.style = Style(Dialect.PLAIN, decimal_numbers)
        self.constant_bytes = names_bytes(table)
        self._columns = tuple(range(len(table.columns)))

    def key(self, images: Images) -> Fragments:
        return key_object(images)

    def moved_keys(self, images: Images, rows: Ints) -> MovedKeys:
        return moved_key_objects(images, rows)

    def value(self, images: Images, *, copy: bool, now_us: int) -> Fragments:
        commits = Commits(images)
        what, version, at, seq, schema, table, copied, unchanged = self._names
        whose = b"," + schema + quote(self.table.schema) + b"," + table + quote(self.table.name)
        spelt = timestamps(pa.array(commits.us_of_each).cast(pa.timestamp("us")), "T")
        return side_by_side(
            images.count, b"{" + what, op_names(images, _OPS, copy=copy, copied=_OPS[0]),
            commits.spread(b"," + version, commits.lsn, b"," + at + b'"', spelt, b'Z",' + seq), numbers(images, _SEQ),
            whose + b"," + copied + b"true" if copy else whose, left_out_names(images, b"," + unchanged),
            self._fields(images), b"}")

    def _fields(self, images: Images) -> Fragments:
        after = images.shown(AFTER, ~images.deleted, lambda part: sparse_fields(part, self._columns, follows=True))
        return side_by_side(images.count, after, images.shown(BEFORE, images.deleted, self._before))

    def _before(self, images: Images) -> Fragments:
        names = keyed([column.name for column in self.table.columns])
        parts: list[Fragments | bytes] = []
        for i, name in enumerate(names):
            parts += [b"," + name, images.cell(BEFORE, i)]
        return side_by_side(images.count, *parts)

    @cached_property
    def _names(self) -> list[bytes]:
        return [quote(name) + b":" for name in own_names(self.table)]


def own_names(table: TableSchema) -> list[str]:
    """Names of ours, none of which a column has."""
    taken = {column.name for column in table.columns}
    found = []
    for name in _NAMES:
        while name in taken:
            name = "_" + name
        found.append(name)
        taken.add(name)
    return found
