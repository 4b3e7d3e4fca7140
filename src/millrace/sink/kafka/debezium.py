"""debezium-json: Debezium's envelope, as its PostgreSQL connector and Kafka Connect's JsonConverter write it.

    {"before":…,"after":…,"source":{…},"transaction":null,"op":"c|u|d|r","ts_ms":…,"ts_us":…,"ts_ns":…}

In: images. Out: fragments: the same keys, values and schemas as Debezium's connector writes with its own defaults, or
with its options (debezium_modes). What differs on purpose is listed in docs/formats.md, and Debezium itself is compared
with it by tests/source/test_debezium_beside.py.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Final

from millrace import __version__
from millrace.model.tables import TableSchema
from millrace.sink.kafka.debezium_modes import DEFAULTS, Modes
from millrace.sink.kafka.debezium_schema import envelope_schema, instead_of_null, is_required, key_schema
from millrace.sink.kafka.debezium_shapes import shape_of
from millrace.sink.kafka.debezium_values import unavailable
from millrace.sink.kafka.formats import Commits, MovedKeys, Origin, names_bytes, numbers, op_names
from millrace.sink.kafka.images import Images
from millrace.sink.kafka.json_scalars import Dialect, Style
from millrace.sink.kafka.json_text import quote, raw
from millrace.wire.fragments import Fragments, Ints, side_by_side
from millrace.wire.pg.types import AFTER, BEFORE

CONNECTOR: Final = "postgresql"
_OPS = (b"c", b"u", b"d")
_LSN, _SEQ = 1, 5
_SOURCE_END = b',"xmin":null,"origin":null,"origin_lsn":null}'


class Debezium:
    def __init__(self, origin: Origin, table: TableSchema, *, schema: bool = False, tombstones: bool = True,
                 modes: Modes = DEFAULTS) -> None:
        self.origin, self.table, self.tombstones, self.modes = origin, table, tombstones, modes
        self.style = Style(Dialect.DEBEZIUM, modes=modes)
        self._schema = schema
        self.constant_bytes = names_bytes(table) + len(self._key_schema) + len(self._value_schema)
        self._columns = tuple(range(len(table.columns)))

    def key(self, images: Images) -> Fragments:
        return self._wrapped(images.object(self.table.key_order, images.key_cell), self._key_schema)

    def moved_keys(self, images: Images, rows: Ints) -> MovedKeys:
        """As Kafka Connect's converter of headers writes them: without a schema, decimals as plain numbers."""
        modes = self.modes._replace(decimal="number") if self.modes.decimal == "precise" else self.modes
        moved = Images(images.take(rows).batch, self.table, self.style._replace(modes=modes))
        return MovedKeys(*(moved.object(self.table.key_order, partial(moved.cell, image)).joined()
                           for image in (BEFORE, AFTER)))

    def value(self, images: Images, *, copy: bool, now_us: int) -> Fragments:
        count = images.count
        before = self._image(images, before=True)
        after = self._image(images, before=False)
        tail = b'","ts_ms":%d,"ts_us":%d,"ts_ns":%d}' % (now_us // 1000, now_us, now_us * 1000)
        envelope = side_by_side(
            count, b'{"before":', before, b',"after":', after, b',"source":', self._source(images, copy=copy),
            b',"transaction":null,"op":"', op_names(images, _OPS, copy=copy, copied=b"r"), tail)
        return self._wrapped(envelope, self._value_schema)

    def _image(self, images: Images, *, before: bool) -> Fragments:
        if before:
            return images.shown(BEFORE, images.with_before, self._old, nulls=True)
        return images.shown(AFTER, ~images.deleted, self._new, nulls=True)

    def _old(self, images: Images) -> Fragments:
        return images.object(self._columns, partial(self._old_cell, images))

    def _old_cell(self, images: Images, i: int) -> Fragments:
        """A column that is no part of the identity was not sent; one that cannot be null needs something all the
        same: a schema that asks for it would refuse the message."""
        column, found = self.table.columns[i], images.cell(BEFORE, i)
        if column.is_key or not is_required(column):
            return found
        values = raw(found)
        return Fragments(images.count, [values.fill_null(instead_of_null(column, self.modes))])

    def _new(self, images: Images) -> Fragments:
        return images.object(self._columns, lambda i: images.present(i, self._unavailable))

    def _unavailable(self, i: int) -> bytes:
        return unavailable(shape_of(self.table.columns[i]), self.modes)

    def _source(self, images: Images, *, copy: bool) -> Fragments:
        commits = Commits(images)
        head, middle, named = self._source_constants
        first = commits.spread(head, commits.ms, b',"snapshot":"true"' if copy else b',"snapshot":"false"', middle,
                               commits.lsn, b'\\",\\"')
        # Rows of a copy are of no transaction.
        second = commits.spread(b'\\"]","ts_us":', commits.us, b',"ts_ns":', commits.ns, named,
                                b"null" if copy else commits.xid, b',"lsn":')
        return side_by_side(images.count, first, numbers(images, _SEQ), second, numbers(images, _LSN), _SOURCE_END)

    @cached_property
    def _source_constants(self) -> tuple[bytes, bytes, bytes]:
        origin, table = self.origin, self.table
        return (
            b'{"version":%s,"connector":"%s","name":%s,"ts_ms":' % (
                quote(__version__), CONNECTOR.encode(), quote(origin.source)),
            b',"db":%s,"sequence":"[\\"' % quote(origin.database),
            b',"schema":%s,"table":%s,"txId":' % (quote(table.schema), quote(table.name)),
        )

    def _wrapped(self, payload: Fragments, schema: bytes) -> Fragments:
        if not self._schema:
            return payload
        return side_by_side(payload.count, b'{"schema":' + schema + b',"payload":', payload, b"}")

    @cached_property
    def _key_schema(self) -> bytes:
        return key_schema(self.origin, self.table, self.modes) if self._schema else b""

    @cached_property
    def _value_schema(self) -> bytes:
        return envelope_schema(self.origin, self.table, self.modes) if self._schema else b""
