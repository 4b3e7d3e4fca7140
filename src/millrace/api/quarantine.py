"""Quarantine routes: rows of a changefeed that could not be written: list, show, replay, drop [P9].

In: requests; the coordinator answers. Out: table, key, position and reason of each row; its values where they are kept.
Promise: replayed or dropped is durable when it is answered; all rows that were named are dropped or none.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
from starlette.responses import Response

from millrace import limits
from millrace.api.changefeed_checks import read_tables
from millrace.api.changefeeds import Desk, at_desk
from millrace.api.problems import Json
from millrace.changefeed.changefeeds import database_name
from millrace.changefeed.quarantine import Quarantine, Standing
from millrace.changefeed.replay import Replay, fresh_epoch
from millrace.core.sources.table_history import Tables
from millrace.errors import InvalidRequest, RowRefused, TimedOut, UnknownQuarantinedRow, UnknownTable
from millrace.model.tables import TableSchema, lsn_text
from millrace.wire.pg.types import AFTER, BEFORE, arrow_schema

TOO_LARGE = "it is too large to be kept twice: the source topic has it"
NO_SCHEMA = "its schema version is not known"
OPS = ("insert", "update", "delete")


@at_desk
async def list_rows(desk: Desk) -> Response:
    """Rows that could not be written: table, key, position, reason. `?table=schema.name`: of one table."""
    table = desk.request.query_params.get("table", "")
    rows = [row for row in await _of(desk).rows() if table in ("", row.row.table)]
    if table and not rows:
        await _refuse_unless_known(desk, table)
    return Json({"total": len(rows), "items": [_row(row) for row in rows]})


@at_desk
async def get_row(desk: Desk) -> Response:
    """One of them with its values."""
    found = await _of(desk).row(_number(desk.request.path_params["row"]))
    change, why = None, TOO_LARGE
    if found.row.change is not None:
        schema = _schema(await read_tables(desk.capture.client, desk.state.entry(desk.name).spec.source), found)
        change, why = (_change(found, schema), "") if schema is not None else (None, NO_SCHEMA)
    return Json({**_row(found), "change": change, "why": why})


@at_desk
async def drop_rows(desk: Desk) -> Response:
    """Settle rows for good. `?rows=12,15` names them, `?rows=all` means those that stand there now."""
    said, quarantine = desk.request.query_params.get("rows", ""), _of(desk)
    if said == "all":
        wanted = [row.offset for row in await quarantine.rows()]
    else:
        wanted = sorted({_number(text) for text in said.split(",") if text})
        if not wanted:
            raise InvalidRequest("rows: name them, as ?rows=12,15, or say ?rows=all")
    await quarantine.drop(wanted, wall_ms=int(desk.capture.ports.clock.wall() * 1000))
    return Json({"changefeed": desk.name, "dropped": [str(row) for row in wanted]})


@at_desk
async def replay_row(desk: Desk) -> Response:
    """Write one to its target now, once; the changefeed must be paused or failed, so that order is kept."""
    capture, spec = desk.capture, desk.state.entry(desk.name).spec
    found = await _of(desk).row(_number(desk.request.path_params["row"]))
    if found.row.change is None:
        raise RowRefused(TOO_LARGE)
    schemas = {schema.id: schema for versions in (await read_tables(capture.client, spec.source)).versions.values()
               for schema in versions.values()}
    if found.row.schema_id not in schemas:
        raise RowRefused(NO_SCHEMA)
    database = database_name(desk.reign.state.entry(spec.source).spec.url, desk.capture.places)
    assert capture.feeds is not None, "it is in office"
    try:
        async with asyncio.timeout(limits.REPLAY_S):
            epoch = await fresh_epoch(capture.feeds, desk.host, desk.name)
            at = await Replay(capture.client, spec, found, schemas, database=database, epoch=epoch).run(
                wall_ms=int(capture.ports.clock.wall() * 1000))
    except TimeoutError:
        raise TimedOut(f"not replayed in {limits.REPLAY_S:g} s; ask again: it will not be written twice") from None
    return Json({"changefeed": desk.name, "row": str(found.offset), "topic": at.topic, "partition": at.partition,
                 "offset": str(at.offset)})


async def _refuse_unless_known(desk: Desk, table: str) -> None:
    """A name that is spelt wrong has no rows in quarantine, either."""
    source = desk.state.entry(desk.name).spec.source
    known = (await read_tables(desk.capture.client, source)).versions.values()
    if table not in {schema.full_name for versions in known for schema in versions.values()}:
        raise UnknownTable(f"source {source!r} has no table {table!r}; write it as schema.table")


def _of(desk: Desk) -> Quarantine:
    desk.state.entry(desk.name)
    return Quarantine(desk.capture.client, desk.name)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UnknownQuarantinedRow(f"{text!r} names no row; see: millrace quarantine list")
    return int(text)


# -- views ---------------------------------------------------------------------------------------------------------


def _row(found: Standing) -> dict[str, Any]:
    row, point = found.row, found.written.point
    return {
        "row": str(found.offset), "table": row.table, "key": _text(found.key), "commit_lsn": lsn_text(row.commit_lsn),
        "seq": row.seq, "reason": row.reason, "quarantined_ms": str(found.wall_ms),
        "partition": found.written.provenance.partition, "offset": str(point.offset), "row_of_record": point.row,
    }


def _schema(tables: Tables, found: Standing) -> TableSchema | None:
    return next((versions[found.row.schema_id] for versions in tables.versions.values()
                 if found.row.schema_id in versions), None)


def _change(found: Standing, table: TableSchema) -> dict[str, Any]:
    """Null: the value is null, or was not sent (`unchanged` names those)."""
    schema = arrow_schema(table, before=found.row.before)
    batch = pa.ipc.read_record_batch(pa.py_buffer(found.row.change), schema)
    mask, count = batch.column("unchanged")[0].as_py() or b"", len(table.columns)
    odd = {one["column"]: one["text"] for one in batch.column("odd")[0].as_py() or ()}      # what its type cannot hold
    images = [("after", AFTER, 0), *([("before", BEFORE, count)] if found.row.before else [])]
    return {
        "op": OPS[batch.column(0)[0].as_py()],
        "unchanged": [column.name for i, column in enumerate(table.columns)
                      if i // 8 < len(mask) and mask[i // 8] >> i % 8 & 1],
        **{image: {column.name: odd.get(first + i, _value(batch.column(prefix + column.name)[0]))
                   for i, column in enumerate(table.columns)} for image, prefix, first in images},
    }


def _value(cell: Any) -> Any:
    """As JSON has it, or its text; bytes, and text that is none, in hexadecimal."""
    try:
        value = cell.as_py()
    except UnicodeDecodeError:
        return cell.as_buffer().to_pybytes().hex()
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, (str, bool, float)) else str(value)


def _text(key: bytes | None) -> str | None:
    if key is None:
        return None
    try:
        return bytes(key).decode()
    except UnicodeDecodeError:
        return bytes(key).hex()
