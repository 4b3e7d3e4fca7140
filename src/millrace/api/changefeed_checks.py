"""A changefeed as somebody asks for it, held against its source's tables before anything is recorded.

    body ─▶ spec ─▶ rules, expressions, sink ─▶ the source's tables, as its `progress` names them ─▶ plans, routes

In: a spec. Out: warnings. What is wrong is refused with the field and the place shown, and nothing was changed. Spark
is asked only where a filter or projection must be analysed [P8].
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import msgspec

from millrace import limits
from millrace.changefeed.capture import Capture
from millrace.changefeed.homes.progress import ProgressReader
from millrace.core.feeds.feeds import check_spec
from millrace.core.sources.table_history import Tables
from millrace.errors import InvalidRequest, UnknownSource, Unreachable
from millrace.log.client import LogClient
from millrace.model.changefeeds import ChangefeedSpec, TableSettings
from millrace.model.tables import TableSchema
from millrace.ops.secrets import REMEDY, has_clear_password
from millrace.sink.routes import check_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SPARK = "no Spark is configured; set spark.remote or spark.master"


class SettingsRequest(TableSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of the tables that one rule takes."""

    def stored(self) -> TableSettings:
        return TableSettings(**msgspec.structs.asdict(self))


class ChangefeedRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a creation: what a user may ask of a `ChangefeedSpec`. `paused`: made, and not begun."""

    id: str
    source: str
    sink: str
    tables: tuple[str, ...] | None = None
    settings: tuple[SettingsRequest, ...] = ()
    on_error: Literal["isolate", "fail"] = "isolate"
    paused: bool = False
    rules: tuple[str, ...] | None = None                 # as answers called `tables` before

    def spec(self) -> ChangefeedSpec:
        tables = _one_of(self.tables, self.rules)
        if has_clear_password(self.sink):
            raise InvalidRequest(f"sink: holds a password in the clear; {REMEDY}")
        return ChangefeedSpec(
            id=self.id, source=self.source, sink=self.sink, tables=("*.*",) if tables is None else tables,
            settings=tuple(one.stored() for one in self.settings), on_error=self.on_error)


class ChangefeedUpdate(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of an update: what is not given stays as it is. `source` and `sink` may be told, not changed."""

    tables: tuple[str, ...] | None = None
    settings: tuple[SettingsRequest, ...] | None = None
    on_error: Literal["isolate", "fail"] | None = None
    source: str | None = None
    sink: str | None = None
    rules: tuple[str, ...] | None = None                 # as answers called `tables` before

    def changed(self, spec: ChangefeedSpec) -> ChangefeedSpec:
        tables = _one_of(self.tables, self.rules)
        settings = spec.settings if self.settings is None else tuple(one.stored() for one in self.settings)
        return msgspec.structs.replace(
            spec, tables=spec.tables if tables is None else tables, settings=settings,
            on_error=self.on_error or spec.on_error, source=self.source or spec.source, sink=self.sink or spec.sink)


def _one_of(tables: tuple[str, ...] | None, rules: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if tables is not None and rules is not None:
        raise InvalidRequest("tables and rules are the same: give tables")
    return rules if tables is None else tables


async def check(capture: Capture, spec: ChangefeedSpec) -> list[dict[str, str]]:
    """Warnings. Raises what is wrong, and Unreachable if the log or, where it is needed, Spark is away."""
    check_spec(spec)
    check_sink(spec)                                     # what needs no table is told even if the log is away
    tables = await source_tables(capture.client, spec.source)
    return await asyncio.to_thread(_check_tables, capture, spec, tables)


def _check_tables(capture: Capture, spec: ChangefeedSpec, tables: list[TableSchema]) -> list[dict[str, str]]:
    from millrace.pipeline.shape.creation import check_changefeed  # pyspark: slow to load, in a thread

    def spark() -> SparkSession:
        try:
            if capture.spark is None:
                raise Unreachable(NO_SPARK)
            return capture.spark()
        except Unreachable as error:
            raise Unreachable(f"filters and projections are checked by Spark: {error}; or leave them out") from None

    checked = check_changefeed(spark, spec, tables)
    if not checked.plans:
        none = f"no table of source {spec.source!r} matches now; those that come and match are taken"
        return [{"about": "tables", "text": none}]
    return [{"about": idle, "text": "matches no table of the source now"} for idle in checked.idle]


async def source_tables(client: LogClient, source: str) -> list[TableSchema]:
    """Those that are not dropped; none before its reader has named the first."""
    known = await read_tables(client, source)
    return [table for oid, table in known.schemas.items() if oid not in known.dropped]


async def read_tables(client: LogClient, source: str) -> Tables:
    """All that its `progress` names, with all their versions."""
    known, progress = Tables(), ProgressReader(client, source)
    try:
        async with asyncio.timeout(limits.SOURCE_TABLES_S):
            await progress.open()
            for page in await progress.there():
                for _, record in page:
                    known.replay(record)
    except UnknownSource:
        pass
    except TimeoutError:
        why = f"the tables of source {source!r} could not be read from the log in {limits.SOURCE_TABLES_S:g} s"
        raise Unreachable(why) from None
    return known
