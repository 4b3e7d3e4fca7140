"""A changefeed as somebody asks for it, held against its source's tables before anything is recorded.

    body ─▶ spec ─▶ rules, expressions, sink ─▶ the source's tables, as its `progress` names them ─▶ plans, routes

In: a spec. Out: warnings, and what is to be asked again when it is recorded: whether its topics are free. What is wrong
is refused with the field and the place shown, and nothing was changed. Spark is asked only where a filter or projection
must be analysed [P8].
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Literal

import msgspec

from millrace import limits
from millrace.changefeed.capture import Capture
from millrace.changefeed.homes.progress import ProgressReader
from millrace.core.feeds.feeds import FeedEntry, FeedsState, check_spec
from millrace.core.feeds.topic_claims import refuse_taken
from millrace.core.sources.table_history import Tables
from millrace.errors import InvalidRequest, Refused, UnknownSource, Unreachable
from millrace.log.client import LogClient
from millrace.model.changefeeds import ChangefeedSpec, TableSettings
from millrace.model.tables import TableSchema
from millrace.ops.secrets import REMEDY, has_clear_password
from millrace.pipeline.session import Open
from millrace.sink.routes import check_sink, claims, may_meet
from millrace.sink.uri import refuse_too_few


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
    on_schema_break: Literal["copy", "stop"] = "copy"
    paused: bool = False
    rules: tuple[str, ...] | None = None                 # as answers called `tables` before

    def spec(self) -> ChangefeedSpec:
        tables = _one_of(self.tables, self.rules)
        if has_clear_password(self.sink):
            raise InvalidRequest(f"sink: holds a password in the clear; {REMEDY}")
        return ChangefeedSpec(
            id=self.id, source=self.source, sink=self.sink, tables=("*.*",) if tables is None else tables,
            settings=tuple(one.stored() for one in self.settings), on_error=self.on_error,
            on_schema_break=self.on_schema_break)


class ChangefeedUpdate(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of an update: what is not given stays as it is. `source` and `sink` may be told, not changed."""

    tables: tuple[str, ...] | None = None
    settings: tuple[SettingsRequest, ...] | None = None
    on_error: Literal["isolate", "fail"] | None = None
    on_schema_break: Literal["copy", "stop"] | None = None
    source: str | None = None
    sink: str | None = None
    rules: tuple[str, ...] | None = None                 # as answers called `tables` before

    def changed(self, spec: ChangefeedSpec) -> ChangefeedSpec:
        tables = _one_of(self.tables, self.rules)
        settings = spec.settings if self.settings is None else tuple(one.stored() for one in self.settings)
        return msgspec.structs.replace(
            spec, tables=spec.tables if tables is None else tables, settings=settings,
            on_error=self.on_error or spec.on_error, source=self.source or spec.source, sink=self.sink or spec.sink,
            on_schema_break=self.on_schema_break or spec.on_schema_break)


def _one_of(tables: tuple[str, ...] | None, rules: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if tables is not None and rules is not None:
        raise InvalidRequest("tables and rules are the same: give tables")
    return rules if tables is None else tables


class Checked:
    """`tables`: of its source, and of those whose changefeeds could meet it in a topic."""

    def __init__(
        self, spec: ChangefeedSpec, tables: Mapping[str, list[TableSchema]], warnings: list[dict[str, str]]
    ) -> None:
        self.warnings, self._tables, self._own = warnings, tables, claims(spec, tables[spec.source])
        self._free: dict[str, ChangefeedSpec] = {}       # of other changefeeds, as they were when nothing was met

    def refuse_taken(self, others: Mapping[str, FeedEntry], spec: ChangefeedSpec) -> None:
        """By what is recorded now, without waiting for anything: nobody comes between this and the record. What was
        looked at before is not looked at again."""
        before = others.get(spec.id)
        mine = claims(before.spec, self._tables[spec.source]) if before is not None else []
        for name, entry in others.items():
            if name == spec.id or self._free.get(name) is entry.spec:
                continue
            if may_meet(spec, entry.spec):
                if entry.spec.source not in self._tables:
                    raise Refused(f"changefeed {name!r} was made meanwhile; ask again")
                refuse_taken(self._own, claims(entry.spec, self._tables[entry.spec.source]), mine)
            self._free[name] = entry.spec


async def check(capture: Capture, spec: ChangefeedSpec, state: FeedsState) -> Checked:
    """Raises what is wrong, and Unreachable if the log or, where it is needed, Spark is away."""
    check_spec(spec)
    sink = check_sink(spec)                              # what needs no table is told even if the log is away
    if spec.id not in state.feeds and sink.replication > 1:
        refuse_too_few(spec.sink, await _brokers(capture.client))
    sources = {spec.source} | {entry.spec.source for entry in state.feeds.values() if may_meet(spec, entry.spec)}
    tables = {source: await source_tables(capture.client, source) for source in sorted(sources)}
    warnings = await _asked(capture, spec, tables[spec.source])
    return await asyncio.to_thread(_checked, spec, tables, warnings, dict(state.feeds))


async def _asked(capture: Capture, spec: ChangefeedSpec, tables: list[TableSchema]) -> list[dict[str, str]]:
    """Warnings of the tables' settings, which Spark knows."""
    if capture.spark is None:
        raise Unreachable(f"capture {capture.id} is still starting; ask again")
    question, within_s = partial(_check_tables, spec=spec, tables=tables), limits.SPARK_CHECK_S
    try:
        return await capture.spark.ask("the settings", question, within_s=within_s)
    except Unreachable as error:
        raise Unreachable(f"filters and projections are checked by Spark: {error}; or leave them out") from None


def _checked(
    spec: ChangefeedSpec, tables: Mapping[str, list[TableSchema]], warnings: list[dict[str, str]],
    others: Mapping[str, FeedEntry],
) -> Checked:
    checked = Checked(spec, tables, warnings)
    checked.refuse_taken(others, spec)
    return checked


async def _brokers(client: LogClient) -> int:
    """All that belong to the cluster, also those that are down: they come back."""
    try:
        async with asyncio.timeout(limits.SOURCE_TABLES_S):
            told = await client.ask_anybody("DescribeCluster", {"include_cluster_authorized_operations": False})
    except TimeoutError:
        raise Unreachable(f"no broker has answered in {limits.SOURCE_TABLES_S:g} s") from None
    return len(told["brokers"])


def _check_tables(spark: Open, *, spec: ChangefeedSpec, tables: list[TableSchema]) -> list[dict[str, str]]:
    from millrace.pipeline.shape.creation import check_changefeed  # pyspark: slow to load, in a thread

    checked = check_changefeed(spark, spec, tables)
    if not checked.plans:
        none = f"no table of source {spec.source!r} matches now; those that come and match are taken"
        return [{"about": "tables", "text": none}]
    return [{"about": idle, "text": "matches no table of the source now"} for idle in checked.idle]


async def source_tables(client: LogClient, source: str) -> list[TableSchema]:
    """Those that are not dropped; none before its reader has named the first."""
    known = await read_tables(client, source)
    return list(known.present)


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
