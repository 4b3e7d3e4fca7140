"""Schemas of Debezium's messages, as Kafka Connect's JsonConverter writes them in front of each payload."""

from __future__ import annotations

import json
from typing import Any

from millrace.model.tables import Column, TableSchema
from millrace.sink.kafka.formats import Origin
from millrace.sink.kafka.json_scalars import BIT, ELEMENTS, INTERVAL, JSON_TYPES, NUMERIC, TIMETZ, Style, unit_us
from millrace.wire.pg.types import Form, kind_of

Schema = dict[str, Any]

_FORMS = {
    Form.BOOL: "boolean", Form.INT16: "int16", Form.INT32: "int32", Form.INT64: "int64", Form.UINT32: "int64",
    Form.FLOAT32: "float", Form.FLOAT64: "double", Form.BYTES: "bytes",
}
_NAMED_TEXTS = {
    **dict.fromkeys(JSON_TYPES, "io.debezium.data.Json"), 2950: "io.debezium.data.Uuid", 142: "io.debezium.data.Xml",
    INTERVAL: "io.debezium.time.Interval", TIMETZ: "io.debezium.time.ZonedTime",
}


def key_schema(origin: Origin, table: TableSchema, style: Style) -> bytes:
    fields = [_field(table.columns[i], style) for i in table.keys]
    return _text({"type": "struct", "fields": fields, "optional": False, "name": _name(origin, table, "Key")})


def envelope_schema(origin: Origin, table: TableSchema, style: Style) -> bytes:
    row = {"type": "struct", "fields": [_field(column, style) for column in table.columns], "optional": True,
           "name": _name(origin, table, "Value")}
    fields = [
        {**row, "field": "before"}, {**row, "field": "after"}, {**_SOURCE, "field": "source"},
        {**_TRANSACTION, "field": "transaction"}, _of("string", "op", optional=False),
        _of("int64", "ts_ms"), _of("int64", "ts_us"), _of("int64", "ts_ns"),
    ]
    return _text({"type": "struct", "fields": fields, "optional": False, "name": _name(origin, table, "Envelope"),
                  "version": 2})


def _text(schema: Schema) -> bytes:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode()


def _name(origin: Origin, table: TableSchema, what: str) -> str:
    return f"{origin.source}.{table.schema}.{table.name}.{what}"


def _field(column: Column, style: Style) -> Schema:
    return {**_type(column.type_oid, column.typmod, style), "optional": not column.is_key, "field": column.name}


def _type(oid: int, typmod: int, style: Style) -> Schema:
    form = kind_of(oid, typmod).form
    if form in _FORMS:
        return {"type": _FORMS[form]}
    if form is Form.DECIMAL or oid == NUMERIC:
        return {"type": "double" if style.decimal_numbers else "string"}
    if form is Form.TEXT:
        return _text_type(oid, typmod, style)
    coarse = unit_us(typmod) != 1
    return {
        Form.DATE: _named("int32", "io.debezium.time.Date"),
        Form.TIME: _named("int32" if coarse else "int64", f"io.debezium.time.{'' if coarse else 'Micro'}Time"),
        Form.TIMESTAMP: _named("int64", f"io.debezium.time.{'' if coarse else 'Micro'}Timestamp"),
        Form.TIMESTAMPTZ: _named("string", "io.debezium.time.ZonedTimestamp"),
    }[form]


def _text_type(oid: int, typmod: int, style: Style) -> Schema:
    if oid in ELEMENTS:
        return {"type": "array", "items": {**_type(ELEMENTS[oid], -1, style), "optional": True}}
    if oid == BIT and typmod == 1:
        return {"type": "boolean"}
    return _named("string", _NAMED_TEXTS[oid]) if oid in _NAMED_TEXTS else {"type": "string"}


def _named(kind: str, name: str) -> Schema:
    return {"type": kind, "name": name, "version": 1}


def _of(kind: str, field: str, *, optional: bool = True) -> Schema:
    return {"type": kind, "optional": optional, "field": field}


def schema_change_schema(origin: Origin) -> bytes:
    """Of messages that tell a schema change."""
    column = _struct("io.debezium.connector.schema.Column", [
        _of("string", "name", optional=False), _of("int32", "jdbcType", optional=False), _of("int32", "nativeType"),
        _of("string", "typeName", optional=False), _of("string", "typeExpression"), _of("string", "charsetName"),
        _of("int32", "length"), _of("int32", "scale"), _of("int32", "position", optional=False),
        _of("boolean", "optional"), _of("boolean", "autoIncremented"), _of("boolean", "generated")])
    table = _struct("io.debezium.connector.schema.Table", [
        _of("string", "defaultCharsetName"), _list("primaryKeyColumnNames", {"type": "string", "optional": False}),
        _list("columns", column)])
    change = _struct("io.debezium.connector.schema.Change", [
        _of("string", "type", optional=False), _of("string", "id", optional=False), {**table, "field": "table"}])
    return _text(_struct(f"{origin.source}.SchemaChangeValue", [
        {**_SOURCE, "field": "source"}, _of("int64", "ts_ms"), _of("int64", "ts_us"), _of("int64", "ts_ns"),
        _of("string", "databaseName"), _of("string", "schemaName"), _of("string", "ddl"),
        _list("tableChanges", change)]))


def _struct(name: str, fields: list[Schema]) -> Schema:
    return {"type": "struct", "fields": fields, "optional": False, "name": name, "version": 1}


def _list(field: str, items: Schema) -> Schema:
    return {"type": "array", "items": items, "optional": False, "field": field}


_SNAPSHOT = {"type": "string", "optional": True, "name": "io.debezium.data.Enum", "version": 1,
             "parameters": {"allowed": "true,false"},
             "default": "false", "field": "snapshot"}
_SOURCE: Schema = {
    "type": "struct",
    "fields": [
        _of("string", "version", optional=False), _of("string", "connector", optional=False),
        _of("string", "name", optional=False), _of("int64", "ts_ms", optional=False), _SNAPSHOT,
        _of("string", "db", optional=False), _of("string", "sequence"), _of("int64", "ts_us"), _of("int64", "ts_ns"),
        _of("string", "schema", optional=False), _of("string", "table", optional=False), _of("int64", "txId"),
        _of("int64", "lsn"), _of("int64", "xmin"),
    ],
    "optional": False,
    "name": "io.debezium.connector.postgresql.Source",
}
_TRANSACTION: Schema = {
    "type": "struct",
    "fields": [_of("string", "id", optional=False), _of("int64", "total_order", optional=False),
               _of("int64", "data_collection_order", optional=False)],
    "optional": True, "name": "event.block", "version": 1,
}
