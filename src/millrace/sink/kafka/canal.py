"""canal-json, as Alibaba's canal and TiCDC write it: every value a string, schema as database.

    {"id":0,"database":…,"table":…,"pkNames":[…],"isDdl":false,"type":"INSERT","es":…,"ts":…,"sql":"","sqlType":{…},
     "mysqlType":{…},"old":null,"data":[{…}],"_tidb":{"commitTs":…},"_millrace":{"seq":…,"unchanged":[…]}}

`commitTs` is the commit LSN. A column whose value was not sent, since it did not change, is left out of `data` and
named in `unchanged`. `old` of an update holds the before image, or nothing where the source has none.
"""

from __future__ import annotations

import json
from functools import cached_property

import numpy as np
import pyarrow as pa

from millrace.model.tables import TableSchema
from millrace.sink.kafka.formats import (
    Commits,
    MovedKeys,
    Origin,
    key_names,
    key_object,
    moved_key_objects,
    names_bytes,
    numbers,
    op_names,
)
from millrace.sink.kafka.images import Images
from millrace.sink.kafka.json_scalars import Dialect, Style
from millrace.sink.kafka.json_text import quote
from millrace.sink.kafka.sparse import left_out_names, sparse_object
from millrace.sink.kafka.sql_types import sql_type
from millrace.wire.fragments import Fragments, Ints, side_by_side
from millrace.wire.pg.types import AFTER, BEFORE, UPDATE

_OPS = (b"INSERT", b"UPDATE", b"DELETE")
_SEQ = 5


class Canal:
    def __init__(self, origin: Origin, table: TableSchema) -> None:
        self.origin, self.table = origin, table
        self.style = Style(Dialect.CANAL)
        self.tombstones = False
        self.constant_bytes = names_bytes(table) + len(b"".join(self._constants))
        self._columns = tuple(range(len(table.columns)))

    def key(self, images: Images) -> Fragments:
        return key_object(images)

    def moved_keys(self, images: Images, rows: Ints) -> MovedKeys:
        return moved_key_objects(images, rows)

    def value(self, images: Images, *, copy: bool, now_us: int) -> Fragments:
        commits = Commits(images)
        head, middle = self._constants
        return side_by_side(
            images.count, head, op_names(images, _OPS, copy=copy, copied=b"INSERT"), b'","es":',
            commits.spread(commits.ms), b',"ts":%d' % (now_us // 1000), middle, self._old(images), b',"data":[',
            self._data(images), b'],"_tidb":{"commitTs":', commits.spread(commits.lsn), b'},"_millrace":{"seq":',
            numbers(images, _SEQ),
            left_out_names(images, b',"unchanged":'), b"}}")

    def _data(self, images: Images) -> Fragments:
        after = images.shown(AFTER, ~images.deleted, lambda part: sparse_object(part, self._columns))
        return side_by_side(images.count, after, images.shown(BEFORE, images.deleted, self._before))

    def _before(self, images: Images) -> Fragments:
        return images.object(self._columns, lambda i: images.cell(BEFORE, i))

    def _old(self, images: Images) -> Fragments:
        """[{…}] of an update, [{}] where its before image is not known: readers expect an element. Else null."""
        updated = images.op == UPDATE
        if not updated.any():
            return Fragments(images.count, [b"null"])
        known = updated & images.with_before
        first = pa.array([b"null", b"[{}]", b"["], pa.binary()).take(pa.array(updated.astype(np.int8) + known))
        old = images.shown(BEFORE, known, lambda part: side_by_side(part.count, self._before(part), b"]"))
        return side_by_side(images.count, Fragments(images.count, [first]), old)

    @cached_property
    def _constants(self) -> tuple[bytes, bytes]:
        table = self.table
        sql_types = {column.name: sql_type(column)[0] for column in table.columns}
        names = {column.name: sql_type(column)[1] for column in table.columns}
        return (
            b'{"id":0,"database":%s,"table":%s,"pkNames":%s,"isDdl":false,"type":"' % (
                quote(table.schema), quote(table.name), _json(key_names(table) or None)),
            b',"sql":"","sqlType":%s,"mysqlType":%s,"old":' % (_json(sql_types), _json(names)),
        )


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
