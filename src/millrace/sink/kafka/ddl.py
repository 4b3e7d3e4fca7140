"""Schema changes and truncations as messages of each format [C7].

In: a change as `progress` holds it, the schemas before and after it. Out: one message. It is written when all rows
before the change are, and before all rows after it: in a topic of schema changes, or in the table's own.
"""

from __future__ import annotations

import json
from typing import Any

from millrace import __version__
from millrace.model.progress import Change
from millrace.model.tables import TableSchema
from millrace.sink.kafka.debezium_modes import DEFAULTS, Modes
from millrace.sink.kafka.debezium_schema import (
    envelope_schema,
    is_required,
    schema_change_key_schema,
    schema_change_schema,
)
from millrace.sink.kafka.formats import Message, Origin, key_names
from millrace.sink.kafka.sql_types import sql_type
from millrace.wire.pg.types import Form, kind_of

_DEBEZIUM = {"create": "CREATE", "alter": "ALTER", "drop": "DROP"}
_CANAL = {"create": "CREATE", "alter": "ALTER", "drop": "ERASE", "truncate": "TRUNCATE"}


def debezium_change(origin: Origin, table: TableSchema, change: Change, *, schema: bool, now_us: int,
                    modes: Modes = DEFAULTS) -> Message:
    """`table`: as it is after the change; of a drop as it was. A truncation is an event of the table: op t."""
    source = {
        "version": __version__, "connector": "postgresql", "name": origin.source, "ts_ms": change.wall_ms,
        "snapshot": "false", "db": origin.database, "sequence": f'["{change.commit_lsn}","{change.seq}"]',
        "ts_us": change.wall_ms * 1000, "ts_ns": change.wall_ms * 1_000_000, "schema": table.schema,
        "table": table.name, "txId": change.xid or None, "lsn": change.commit_lsn, "xmin": None, "origin": None,
        "origin_lsn": None,
    }
    now = {"ts_ms": now_us // 1000, "ts_us": now_us, "ts_ns": now_us * 1000}
    if change.kind == "truncate":
        event = {"before": None, "after": None, "source": source, "transaction": None, "op": "t", **now}
        described = envelope_schema(origin, table, modes) if schema else None
        return Message(None, _wrapped(event, described))
    changed = {"type": _DEBEZIUM[change.kind], "id": f'"{table.schema}"."{table.name}"', "table": _described(table)}
    value = {"source": source, **now, "databaseName": origin.database, "schemaName": table.schema, "ddl": change.text,
             "tableChanges": [changed]}
    return Message(_wrapped({"databaseName": origin.database}, schema_change_key_schema() if schema else None),
                   _wrapped(value, schema_change_schema(origin) if schema else None))


def canal_change(table: TableSchema, change: Change, *, now_us: int) -> Message:
    value = {
        "id": 0, "database": table.schema, "table": table.name, "pkNames": None, "isDdl": True,
        "type": _CANAL[change.kind], "es": change.wall_ms, "ts": now_us // 1000, "sql": change.text, "sqlType": None,
        "mysqlType": None, "old": None, "data": None, "_tidb": {"commitTs": change.commit_lsn},
        "_millrace": {"seq": change.seq},
    }
    return Message(None, _json(value))


def plain_change(table: TableSchema, change: Change) -> Message:
    value = {
        "_change_type": change.kind, "_commit_version": change.commit_lsn, "_commit_timestamp_ms": change.wall_ms,
        "_seq": change.seq, "_schema": table.schema, "_table": table.name, "schema": table.schema, "table": table.name,
        "sql": change.text,
        "columns": [{"name": c.name, "type": sql_type(c)[1], "key": c.is_key} for c in table.columns],
    }
    return Message(None, _json(value))


def _described(table: TableSchema) -> dict[str, Any]:
    return {
        "defaultCharsetName": None, "primaryKeyColumnNames": key_names(table),
        "columns": [{
            "name": column.name, "jdbcType": sql_type(column)[0], "nativeType": column.type_oid,
            "typeName": sql_type(column)[1], "typeExpression": sql_type(column)[1], "charsetName": None,
            "length": _digits(column.type_oid, column.typmod)[0], "scale": _digits(column.type_oid, column.typmod)[1],
            "position": at + 1, "optional": not is_required(column), "autoIncremented": False, "generated": False,
        } for at, column in enumerate(table.columns)],
    }


def _digits(type_oid: int, typmod: int) -> tuple[int | None, int | None]:
    kind = kind_of(type_oid, typmod)
    return (kind.precision, kind.scale) if kind.form is Form.DECIMAL else (None, None)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _wrapped(payload: dict[str, Any], described: bytes | None) -> bytes:
    if described is None:
        return _json(payload)
    return b'{"schema":' + described + b',"payload":' + _json(payload) + b"}"
