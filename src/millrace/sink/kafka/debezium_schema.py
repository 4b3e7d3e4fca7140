"""Schemas of Debezium's messages, as Kafka Connect's JsonConverter writes them in front of each payload.

In: a table with what the catalogue says of its columns, the modes. Out: JSON. NOT NULL, defaults and labels are those
that the catalogue last gave for this version of the table; where it gave none a column is optional and has no default.
"""

from __future__ import annotations

import json
import re
from typing import Any

from millrace.model.tables import Column, TableSchema
from millrace.sink.kafka.debezium_modes import Modes
from millrace.sink.kafka.debezium_shapes import Shape, shape_of
from millrace.sink.kafka.debezium_values import value_json
from millrace.sink.kafka.formats import Origin

Schema = dict[str, Any]

_PLAIN = {"bool": "boolean", "flag": "boolean", "int16": "int16", "int32": "int32", "int64": "int64", "float": "float",
          "double": "double", "string": "string"}
_NAMED = {"json": "Json", "xml": "Xml", "uuid": "Uuid", "ltree": "Ltree", "tsvector": "Tsvector"}
_BITS_MAX = 2**31 - 1                    # of bit varying without a length


# -- tables ----------------------------------------------------------------------------------------------------------
def key_schema(origin: Origin, table: TableSchema, modes: Modes) -> bytes:
    fields = [_field(table.columns[i], modes) for i in table.key_order]
    return _text({"type": "struct", "fields": fields, "optional": False, "name": _name(origin, table, "Key")})


def envelope_schema(origin: Origin, table: TableSchema, modes: Modes) -> bytes:
    row = {"type": "struct", "fields": [_field(column, modes) for column in table.columns], "optional": True,
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
    """As Debezium adjusts names, whatever the topic is called."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", f"{origin.source}.{table.schema}.{table.name}") + f".{what}"


def _field(column: Column, modes: Modes) -> Schema:
    shape, default = shape_of(column), default_json(column, modes)
    schema = type_schema(shape, modes, optional=not is_required(column))
    return {**schema, **({} if default is None else {"default": json.loads(default)}), "field": column.name}


def is_required(column: Column) -> bool:
    """It cannot be null."""
    return column.is_key if column.facts is None else column.facts.not_null


# -- types -----------------------------------------------------------------------------------------------------------
def type_schema(shape: Shape, modes: Modes, *, optional: bool) -> Schema:
    if shape.what == "array":
        items = type_schema(shape.element or Shape("string"), modes, optional=True)
        return {"type": "array", "items": items, "optional": optional}
    if shape.what in _PLAIN:
        return {"type": _PLAIN[shape.what], "optional": optional}
    if shape.what in _NAMED:
        return _named("string", f"io.debezium.data.{_NAMED[shape.what]}", optional)
    if shape.what in ("decimal", "numeric", "money"):
        return _decimal(shape, modes, optional)
    if shape.what in ("date", "time", "timestamp", "timestamptz", "timetz", "interval"):
        return _time(shape, modes, optional)
    return _other(shape, modes, optional)


def _named(kind: str, name: str, optional: bool, **parameters: str) -> Schema:
    return {"type": kind, "optional": optional, "name": name, "version": 1,
            **({"parameters": parameters} if parameters else {})}


def _decimal(shape: Shape, modes: Modes, optional: bool) -> Schema:
    if modes.decimal != "precise":
        return {"type": "string" if modes.decimal == "string" else "double", "optional": optional}
    if shape.what == "numeric":
        fields = [_of("int32", "scale", optional=False), _of("bytes", "value", optional=False)]
        return {"type": "struct", "fields": fields, "optional": optional,
                "name": "io.debezium.data.VariableScaleDecimal", "version": 1, "doc": "Variable scaled decimal"}
    precision = {"connect.decimal.precision": str(shape.precision)} if shape.what == "decimal" else {}
    return _named("bytes", "org.apache.kafka.connect.data.Decimal", optional,
                  scale=str(shape.scale if shape.what == "decimal" else 2), **precision)


def _time(shape: Shape, modes: Modes, optional: bool) -> Schema:
    if shape.what == "timestamptz":
        return _named("string", "io.debezium.time.ZonedTimestamp", optional)
    if shape.what == "timetz":
        return _named("string", "io.debezium.time.ZonedTime", optional)
    if shape.what == "interval":
        text = modes.interval == "string"
        return _named("string" if text else "int64", f"io.debezium.time.{'Interval' if text else 'MicroDuration'}",
                      optional)
    if modes.time == "connect":
        kind = "int64" if shape.what == "timestamp" else "int32"
        return _named(kind, f"org.apache.kafka.connect.data.{shape.what.capitalize()}", optional)
    if shape.what == "date":
        return _named("int32", "io.debezium.time.Date", optional)
    coarse = modes.unit_us(shape.what, shape.digits) != 1
    kind = "int32" if coarse and shape.what == "time" else "int64"
    return _named(kind, f"io.debezium.time.{'' if coarse else 'Micro'}{shape.what.capitalize()}", optional)


def _other(shape: Shape, modes: Modes, optional: bool) -> Schema:
    if shape.what == "bytes":
        return {"type": "bytes" if modes.binary == "bytes" else "string", "optional": optional}
    if shape.what == "bits":
        length = shape.typmod if shape.typmod > 0 else _BITS_MAX
        return _named("bytes", "io.debezium.data.Bits", optional, length=str(length))
    if shape.what == "enum":
        return _named("string", "io.debezium.data.Enum", optional, allowed=",".join(shape.labels))
    if shape.what == "hstore":
        if modes.hstore == "json":
            return _named("string", "io.debezium.data.Json", optional)
        return {"type": "map", "keys": {"type": "string", "optional": False},
                "values": {"type": "string", "optional": True}, "optional": optional}
    fields = [_of("double", "x", optional=False), _of("double", "y", optional=False), _of("bytes", "wkb"),
              _of("int32", "srid")]
    return {"type": "struct", "fields": fields, "optional": optional, "name": "io.debezium.data.geometry.Point",
            "version": 1, "doc": "Geometry (POINT)"}


# -- defaults --------------------------------------------------------------------------------------------------------
_FUNCTION = re.compile(r'\(?[A-Za-z0-9_."]+\(.*\)', re.DOTALL)
_LITERAL = re.compile(r"B?'((?:[^']|'')*)'(?:::|\Z)", re.DOTALL)
_BARE = re.compile(r"-?[0-9.]+|true|false")
_STRINGS = frozenset({25, 1042, 1043})   # text, char, varchar: of other texts Debezium reads no default
# What stands for a default that the server computes.
_COMPUTED = {
    "bool": "false", "flag": "0", "int16": "0", "int32": "0", "int64": "0", "float": "0", "double": "0", "decimal": "0",
    "numeric": "0", "string": "", "uuid": "00000000-0000-0000-0000-000000000000", "date": "1970-01-01",
    "time": "00:00:00",
    "timestamp": "1970-01-01 00:00:00", "timestamptz": "1970-01-01 00:00:00+00", "interval": "00:00:00", "json": "{}",
    "xml": "", "bits": "0", "enum": "", "timetz": "00:00:00+00",
}


def default_json(column: Column, modes: Modes) -> bytes | None:
    """Of a column's default as far as Debezium reads it: constants, and a zero for what functions make."""
    if column.facts is None or not column.facts.default:
        return None
    if column.facts.type is not None and column.facts.type.kind == "d":
        return None
    shape = shape_of(column)
    if shape.what not in _COMPUTED or (shape.what == "string" and shape.oid not in _STRINGS):
        return None
    if shape.what == "numeric" and modes.decimal == "precise":
        return None                                    # Kafka Connect has no defaults of structs
    text = _constant(column.facts.default, shape)
    try:
        return None if text is None else value_json(text, shape, modes)
    except ValueError:
        return None


def _constant(expression: str, shape: Shape) -> str | None:
    if _FUNCTION.match(expression):
        return _COMPUTED[shape.what]
    found = _LITERAL.match(expression)
    text = found[1].replace("''", "'") if found is not None else expression
    if found is None and not _BARE.fullmatch(expression):
        return None
    if shape.what == "timestamptz" and not text.endswith("+00"):
        return None                                    # printed for a session in another zone
    return text


# What stands for a value that was not sent and must not be null.
_LEAST = {
    **dict.fromkeys(("bool", "flag"), "f"), **dict.fromkeys(("int16", "int32", "int64", "float", "double"), "0"),
    "decimal": "0", "numeric": "0", "money": "0", "date": "1970-01-01", "time": "00:00:00",
    "timestamp": "1970-01-01 00:00:00", "timetz": "00:00:00+00", "interval": "00:00:00", "array": "{}",
    "point": "(0,0)", "bytes": "\\x",
}


def instead_of_null(column: Column, modes: Modes) -> bytes:
    """In an old row, where a column that cannot be null was not sent: its default, or what is least."""
    shape = shape_of(column)
    if (default := default_json(column, modes)) is not None:
        return default
    if shape.what == "timestamptz":
        return b'"1970-01-01T00:00:00Z"'
    least = "0." + "0" * shape.scale if shape.what == "decimal" and shape.scale > 0 else _LEAST.get(shape.what, "")
    return value_json(least, shape, modes) or b'""'


# -- the other parts of an envelope ----------------------------------------------------------------------------------
def _of(kind: str, field: str, *, optional: bool = True) -> Schema:
    return {"type": kind, "optional": optional, "field": field}


def schema_change_key_schema() -> bytes:
    return _text({**_struct("io.debezium.connector.postgresql.SchemaChangeKey",
                            [_of("string", "databaseName", optional=False)])})


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
             "parameters": {"allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,"
                                       "incremental"},
             "default": "false", "field": "snapshot"}
_SOURCE: Schema = {
    "type": "struct",
    "fields": [
        _of("string", "version", optional=False), _of("string", "connector", optional=False),
        _of("string", "name", optional=False), _of("int64", "ts_ms", optional=False), _SNAPSHOT,
        _of("string", "db", optional=False), _of("string", "sequence"), _of("int64", "ts_us"), _of("int64", "ts_ns"),
        _of("string", "schema", optional=False), _of("string", "table", optional=False), _of("int64", "txId"),
        _of("int64", "lsn"), _of("int64", "xmin"), _of("string", "origin"), _of("int64", "origin_lsn"),
    ],
    "optional": False,
    "name": "io.debezium.connector.postgresql.Source", "version": 1,
}
_TRANSACTION: Schema = {
    "type": "struct",
    "fields": [_of("string", "id", optional=False), _of("int64", "total_order", optional=False),
               _of("int64", "data_collection_order", optional=False)],
    "optional": True, "name": "event.block", "version": 1,
}
