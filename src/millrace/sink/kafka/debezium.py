"""debezium-json: Debezium's envelope, as its PostgreSQL connector and Kafka Connect's JsonConverter write it.

    {"before":…,"after":…,"source":{…},"transaction":null,"op":"c|u|d|r","ts_ms":…,"ts_us":…,"ts_ns":…}

In: images. Out: fragments. `sequence` of the source block is our order of changes: commit LSN and index in it. What
differs from Debezium's defaults, since nothing is lost so: numeric as text or exact number, interval as ISO text, bits,
money and shapes as PostgreSQL prints them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from millrace import __version__
from millrace.model.tables import TableSchema
from millrace.sink.kafka.debezium_schema import envelope_schema, key_schema
from millrace.sink.kafka.formats import Commits, Origin, key_object, names_bytes, numbers, old_key_object, op_names
from millrace.sink.kafka.images import Images
from millrace.sink.kafka.json_columns import unavailable
from millrace.sink.kafka.json_scalars import Dialect, Style
from millrace.sink.kafka.json_text import quote
from millrace.wire.fragments import Fragments, side_by_side
from millrace.wire.pg.types import AFTER, BEFORE

CONNECTOR: Final = "postgresql"
_OPS = (b"c", b"u", b"d")
_LSN, _SEQ = 1, 5


class Debezium:
    def __init__(self, origin: Origin, table: TableSchema, *, schema: bool = False, tombstones: bool = True,
                 decimal_numbers: bool = False) -> None:
        self.origin, self.table, self.tombstones = origin, table, tombstones
        self.style = Style(Dialect.DEBEZIUM, decimal_numbers)
        self._schema = schema
        self.constant_bytes = names_bytes(table) + len(self._key_schema) + len(self._value_schema)
        self._columns = tuple(range(len(table.columns)))

    def key(self, images: Images) -> Fragments:
        return self._wrapped(key_object(images), self._key_schema)

    def old_key(self, images: Images) -> Fragments:
        return self._wrapped(old_key_object(images), self._key_schema)

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
        return images.object(self._columns, lambda i: images.cell(BEFORE, i))

    def _new(self, images: Images) -> Fragments:
        return images.object(self._columns, lambda i: images.present(i, self._unavailable))

    def _unavailable(self, i: int) -> bytes:
        return unavailable(self.table.columns[i])

    def _source(self, images: Images, *, copy: bool) -> Fragments:
        commits = Commits(images)
        head, middle, named = self._source_constants
        first = commits.spread(head, commits.ms, b',"snapshot":"true"' if copy else b',"snapshot":"false"', middle,
                               commits.lsn, b'\\",\\"')
        second = commits.spread(b'\\"]","ts_us":', commits.us, b',"ts_ns":', commits.ns, named, commits.xid, b',"lsn":')
        return side_by_side(images.count, first, numbers(images, _SEQ), second, numbers(images, _LSN), b',"xmin":null}')

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
        return key_schema(self.origin, self.table, self.style) if self._schema else b""

    @cached_property
    def _value_schema(self) -> bytes:
        return envelope_schema(self.origin, self.table, self.style) if self._schema else b""
