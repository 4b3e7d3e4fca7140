"""Watermarks: a message in every partition of every topic, telling that all up to a commit LSN stands before it [K4].

In: the checkpoint as it was persisted, never one that is only hoped for. Out: a message per format: Debezium's logical
message (op m, prefix `millrace.watermark`), TiCDC's TIDB_WATERMARK, a flat object.
"""

from __future__ import annotations

import base64
import json
from typing import Final

from millrace import __version__
from millrace.model.tables import Lsn
from millrace.sink.kafka.formats import Message, Origin

PREFIX: Final = "millrace.watermark"


def debezium_watermark(origin: Origin, checkpoint: Lsn, *, wall_ms: int, now_us: int) -> Message:
    source = {
        "version": __version__, "connector": "postgresql", "name": origin.source, "ts_ms": wall_ms, "snapshot": "false",
        "db": origin.database, "sequence": None, "ts_us": wall_ms * 1000, "ts_ns": wall_ms * 1_000_000, "schema": "",
        "table": "", "txId": None, "lsn": checkpoint, "xmin": None, "origin": None,
        "origin_lsn": None,
    }
    message = {"transactional": False, "prefix": PREFIX, "content": base64.b64encode(b"%d" % checkpoint).decode()}
    value = {"op": "m", "ts_ms": now_us // 1000, "ts_us": now_us, "ts_ns": now_us * 1000, "source": source,
             "message": message}
    return Message(_json({"prefix": PREFIX}), _json(value))


def canal_watermark(checkpoint: Lsn, *, wall_ms: int, now_us: int) -> Message:
    value = {
        "id": 0, "database": "", "table": "", "pkNames": None, "isDdl": False, "type": "TIDB_WATERMARK", "es": wall_ms,
        "ts": now_us // 1000, "sql": "", "sqlType": None, "mysqlType": None, "old": None, "data": None,
        "_tidb": {"watermarkTs": checkpoint},
    }
    return Message(None, _json(value))


def plain_watermark(checkpoint: Lsn, *, wall_ms: int) -> Message:
    return Message(None, _json({"_change_type": "watermark", "_commit_version": checkpoint,
                                "_commit_timestamp_ms": wall_ms}))


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
