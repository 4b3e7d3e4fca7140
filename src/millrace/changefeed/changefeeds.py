"""Changefeeds on one capture: control plane, homes on our own log, data path, Spark, put together.

    links, leases ─▶ FeedCapture ─┬─▶ LogHomes ───────────────────▶ positions, marks, schema changes on the log
                                  └─▶ DataPath ─▶ SparkJobs ─▶ rounds; PassedChanges tells which barriers have passed

In: what the process has. Out: changefeeds that move. Promises: a capture without changefeeds and copies opens no Spark
session, one without changefeeds follows no source; `stop` returns within CHANGEFEEDS_STOP_S even if Spark answers no
more: whoever takes over fences what was under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import psycopg
from psycopg.conninfo import conninfo_to_dict

from millrace import limits
from millrace.changefeed.dispatching.data_path import DataPath, Described
from millrace.changefeed.dispatching.passed import PassedChanges
from millrace.changefeed.dispatching.spark_jobs import SparkJobs
from millrace.changefeed.feeds.capture import FeedCapture, Office
from millrace.changefeed.homes.homes import LogHomes
from millrace.changefeed.office_view import OfficeView
from millrace.changefeed.topic_owners import TopicOwners
from millrace.core.sources.copy_hosts import chunks_on_spark_max
from millrace.errors import ConfigError, MillraceError
from millrace.log.client import LogClient
from millrace.ops.cluster_secret import Key
from millrace.ops.ports import Ports
from millrace.ops.secrets import NOWHERE, Places, Secret
from millrace.pipeline.errands import Errands
from millrace.pipeline.session import Place
from millrace.store.contract import Candidate, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedSettings:
    """`spark`: where it is, asked for when it is first needed; ConfigError: nobody has named one."""

    cluster_id: UUID
    link_key: Key                  # what links between captures prove
    log_key: Key                   # what our clients of the log prove to brokers
    bootstrap: tuple[str, ...]
    session_s: float
    link_host: str
    link_port: int
    spark: Callable[[], Place]
    spark_cores: int
    floor_move_s: float = limits.FLOOR_MOVE_S
    places: Places = NOWHERE       # where references to secrets may lead


class Changefeeds:
    def __init__(
        self, settings: ChangefeedSettings, me: Candidate, incarnation: int, ports: Ports, store: Store, *,
        put_out: Callable[[MillraceError], None],
    ) -> None:
        self._settings, self._office = settings, OfficeView(store)
        owners = TopicOwners(self._office.now).taken
        self._client = LogClient(settings.bootstrap, client_id=f"capture-{me.member}-changefeeds",
                                 key=settings.log_key)
        self.spark = SparkJobs(settings.spark, ports.clock, f"{me.member}-{incarnation}")
        self.errands = Errands(lambda: self.spark.session, f"{me.member}-{incarnation}",
                               at_once=chunks_on_spark_max(settings.spark_cores))
        self._passed = PassedChanges(
            self._client, is_barred=lambda feed, position: self.data_path.is_barred(feed, position),
            moved=lambda feed: self.data_path.wake(feed))
        self.data_path = DataPath(
            self._client, settings.bootstrap, self.spark, ports, cores=settings.spark_cores, describe=self._describe,
            passed=self._passed.of, look=self._passed.look, owners=owners)
        homes = LogHomes(
            self._client, database_of=self._database_of, shape=self.spark.shape, wall=ports.clock.wall, owners=owners,
            floor_move_s=settings.floor_move_s)
        self.control = FeedCapture(
            me=me, incarnation=incarnation, cluster_id=settings.cluster_id, session_s=settings.session_s, ports=ports,
            store=store, homes=homes, dispatching=self.data_path, put_out=put_out,
            link_key=settings.link_key)

    async def start(self, office: Office) -> None:
        """OSError: the links' port is not to be had."""
        await self._client.__aenter__()
        await self.control.start(office, self._settings.link_host, self._settings.link_port)

    async def stop(self) -> None:
        """After the office was left."""
        for end in (self.control.stop, self.data_path.close, self._passed.close, self.errands.close, self.spark.close,
                    self._client.close):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.CHANGEFEEDS_STOP_S):
                    await end()

    # -- what the data path asks ---------------------------------------------------------------------------------------
    async def _describe(self, feed: str, maintainer: int) -> Described:
        states = await self._office.now()
        spec = states.feeds.entry(feed).spec_for(maintainer)
        url = states.sources.entry(spec.source).spec.url
        await self._passed.meet(feed, spec.source)
        return Described(spec, database_name(url, self._settings.places))

    async def _database_of(self, source: str) -> str:
        url = (await self._office.now()).sources.entry(source).spec.url
        return database_name(url, self._settings.places)


def database_name(url: str, places: Places) -> str:
    """As libpq finds it: of the URL, of the environment, else the user's name."""
    try:
        said = conninfo_to_dict(Secret.expand(url, places=places).reveal())
    except (psycopg.ProgrammingError, ValueError):       # its text repeats parts of the URL, maybe of the password
        raise ConfigError("url: not a PostgreSQL URL or connection string") from None
    usual = {one.keyword.decode(): (one.val or b"").decode() for one in psycopg.pq.Conninfo.get_defaults()}
    return str(said.get("dbname") or usual.get("dbname") or said.get("user") or usual.get("user") or "")
