"""Captures with HTTP, changefeeds on one real broker, a source whose reader only stands there. No rows are moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx

from millrace.api.app import HttpServer
from millrace.api.capture_app import build
from millrace.changefeed.capture import Capture
from millrace.changefeed.coordinator import CoordinatorShell, Workshop
from millrace.changefeed.dispatching.spark_jobs import SparkJobs
from millrace.changefeed.feeds.capture import FeedCapture
from millrace.changefeed.members import CaptureInfo, Membership, living
from millrace.changefeed.quarantine_counts import QuarantineCounts
from millrace.core.sources.registry import SourceState, Table
from millrace.errors import ConfigError
from millrace.model.sources import ReaderPlaced, SourceSpec
from millrace.ops.real import real_ports
from millrace.ops.secrets import Places
from millrace.pipeline.session import Place
from millrace.source.reading.status import ReaderStatus
from millrace.store.campaign import CampaignTimes
from millrace.store.contract import Candidate
from millrace.store.sqlite import SqliteStore
from support_brokers import until
from support_feeds import CLUSTER, HEARTBEAT_S
from support_homes import SOURCE, Dispatchers, Log, a_log, homes, table
from support_http import PEER_KEY, client_at, door, ended
from support_ports import free_ports
from support_secret import LINK_KEY

SESSION_S, TENURE_S = 8.0, 6.0           # nobody dies here: a busy machine is no reason to change hands
ORDERS, ITEMS = table(1, "orders", "note", "total"), table(2, "items", "note")
SHOP = SourceSpec(name=SOURCE, url="postgresql://h/d", tables=("public.*",))


class StandingReader:
    """Knows the names of its source's tables, as a reader does."""

    def __init__(self) -> None:
        self.status = ReaderStatus(state="streaming")
        self.state = SourceState(SOURCE, tables={
            one.oid: Table(one.oid, one.schema, one.name, f"__millrace.{SOURCE}.{one.oid}", 1, 1)
            for one in (ORDERS, ITEMS)})

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def copy_table(self, name: str) -> int:
        raise AssertionError("nothing is copied here")


class Face:
    """As `Capture` is to the API, with a lease, links, a candidacy and changefeeds; without Spark unless told."""

    def __init__(self, number: int, http_port: int, link_port: int, store: SqliteStore, log: Log) -> None:
        self.id, self.ports, self.store, self.client = number, real_ports(), store, log.client
        self.http_key, self.places = PEER_KEY, Places(env=("MILLRACE_SECRET_*",))
        self.link_port, self.changefeeds = link_port, None
        self.spark = SparkJobs(_nowhere, self.ports.clock)
        self.quarantined = QuarantineCounts(self.client)
        process = self.ports.processes.me()
        me = Candidate(number, f"127.0.0.1:{http_port}", process)
        info = CaptureInfo(number, 1, me.address, process.pid, f"127.0.0.1:{link_port}", process)
        self.membership = Membership(store, self.ports, info, session_s=SESSION_S, lost=lambda error: None)
        self.feeds = FeedCapture(
            me=me, incarnation=1, cluster_id=CLUSTER, session_s=SESSION_S, ports=self.ports, store=store,
            homes=homes(log), dispatching=Dispatchers(log), put_out=lambda error: None, heartbeat_s=HEARTBEAT_S,
            link_key=LINK_KEY)
        self.shell = CoordinatorShell(
            store, self.ports, CampaignTimes(tenure_s=TENURE_S, renew_s=TENURE_S / 4), me,
            Workshop(number, 1, _reader, _remove), feeds=self.feeds.serve_office)

    reign = property(lambda self: self.shell.reign)
    coordinator_address = property(lambda self: self.shell.other_address)
    coordinator_id = property(lambda self: self.shell.holder_id)

    def not_ready(self) -> str:
        return ""

    async def members(self) -> list[CaptureInfo]:
        return await living(self.store)

    async def start(self) -> None:
        await self.membership.start()
        await self.feeds.start(self.shell, "127.0.0.1", self.link_port)
        self.shell.start()

    async def stop(self) -> None:
        await self.shell.stop()
        await self.feeds.stop()
        await self.spark.close()
        await self.membership.stop()


def _nowhere() -> Place:
    raise ConfigError("spark.remote: missing")


def _reader(spec: SourceSpec, placed: ReaderPlaced) -> StandingReader:
    return StandingReader()


async def _remove(*_: object) -> list[str]:
    return []


class Faces:
    def __init__(self, log: Log, store: SqliteStore, count: int) -> None:
        self.log = log
        ports = free_ports(2 * count)
        self.captures = [Face(n, ports[n], ports[count + n], store, log) for n in range(count)]
        self.http: list[httpx.AsyncClient] = []
        self.http_ports = ports[:count]

    @property
    def coordinator(self) -> int:
        return next(c.id for c in self.captures if c.reign is not None)

    def has_coordinator(self) -> bool:
        return any(c.reign is not None and c.feeds.coordinator is not None for c in self.captures) and all(
            c.coordinator_id is not None for c in self.captures)

    async def eventually(self, path: str, holds: Callable[[Any], bool], capture: int = 0) -> Any:
        """The body of an answer for which this holds."""
        async with asyncio.timeout(20):
            while True:
                answer = await self.http[capture].get(path)
                if answer.status_code == 200 and holds(answer.json()):
                    return answer.json()
                await asyncio.sleep(0.02)


@asynccontextmanager
async def faces(path: Path, count: int = 2) -> AsyncIterator[Faces]:
    async with a_log(path / "log") as log, AsyncExitStack() as stack:
        await log.add(ORDERS)
        await log.add(ITEMS, partitions=2)
        await log.mark(1000)
        store = SqliteStore(str(path / "store"), real_ports())
        stack.push_async_callback(store.close)
        made = Faces(log, store, count)
        for capture, port in zip(made.captures, made.http_ports, strict=True):
            server = HttpServer(build(cast(Capture, capture), door(port)), ended=ended)
            await server.start("127.0.0.1", port)
            stack.push_async_callback(server.close)
            await capture.start()
            stack.push_async_callback(capture.stop)
            made.http.append(await stack.enter_async_context(client_at(port)))
        await until(made.has_coordinator, "a coordinator that everybody knows")
        reign = made.captures[made.coordinator].reign
        assert reign is not None
        await reign.create(SHOP)
        yield made


def run(path: Path, story: Callable[[Faces], Awaitable[None]], count: int = 2) -> None:
    async def main() -> None:
        async with faces(path, count) as made:
            await story(made)

    asyncio.run(main())
