"""What a sink URI chose: the format of a table's rows, schema changes and watermarks, and the limits of its topic."""

from __future__ import annotations

from millrace.model.progress import Change
from millrace.model.tables import Lsn, TableSchema
from millrace.sink.kafka.canal import Canal
from millrace.sink.kafka.ddl import canal_change, debezium_change, plain_change
from millrace.sink.kafka.debezium import Debezium
from millrace.sink.kafka.encode import Target
from millrace.sink.kafka.formats import Format, Message, Origin
from millrace.sink.kafka.plain import Plain
from millrace.sink.kafka.routing import Routing
from millrace.sink.kafka.watermark import canal_watermark, debezium_watermark, plain_watermark
from millrace.sink.uri import KafkaSink


def format_of(sink: KafkaSink, origin: Origin, table: TableSchema) -> Format:
    numbers = sink.decimals == "number"
    if sink.format == "canal-json":
        return Canal(origin, table)
    if sink.format == "json":
        return Plain(origin, table, tombstones=sink.tombstones, decimal_numbers=numbers)
    return Debezium(origin, table, schema=sink.schema, tombstones=sink.tombstones, modes=sink.modes)


def target_of(sink: KafkaSink, partitions: int, routing: Routing | None = None) -> Target:
    """`partitions`: those the topic has, whatever was wanted when it was made. `routing`: of this table; None: of the
    sink."""
    return Target(partitions, message_bytes_max=sink.message_bytes, codec=sink.compression,
                  routing=routing or sink.partition)


def change_message(sink: KafkaSink, origin: Origin, table: TableSchema, change: Change, *, now_us: int) -> Message:
    if sink.format == "canal-json":
        return canal_change(table, change, now_us=now_us)
    if sink.format == "json":
        return plain_change(table, change)
    return debezium_change(origin, table, change, modes=sink.modes, schema=sink.schema, now_us=now_us)


def watermark_message(sink: KafkaSink, origin: Origin, checkpoint: Lsn, *, wall_ms: int, now_us: int) -> Message:
    if sink.format == "canal-json":
        return canal_watermark(checkpoint, wall_ms=wall_ms, now_us=now_us)
    if sink.format == "json":
        return plain_watermark(checkpoint, wall_ms=wall_ms)
    return debezium_watermark(origin, checkpoint, wall_ms=wall_ms, now_us=now_us)
