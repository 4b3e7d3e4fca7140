"""The data path of a changefeed on a real log: a source's topics as its reader writes them, the real host of a
dispatcher manager, and in place of Spark an executor that runs the real worker (`pipeline.task.Worker`) in threads, or
in processes of its own that can be killed."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import support_json as judge
from millrace import limits
from millrace.changefeed.dispatching.data_path import DataPath, Described
from millrace.changefeed.dispatching.feed_jobs import Jobs
from millrace.changefeed.feeds.manager_host import ManagerHost
from millrace.changefeed.feeds.surroundings import Surroundings
from millrace.changefeed.topic_owners import Owners, nobody
from millrace.core.sources.registry import progress_topic, table_topic
from millrace.errors import Unreachable
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.changefeeds import ChangefeedSpec, DdlPosition, TableSettings
from millrace.model.feed_messages import StartDispatcher, StopDispatcher
from millrace.model.positions import Point, PositionKey, StoredPosition
from millrace.model.progress import Change, End, Mark, SchemaVersion, encode_progress
from millrace.model.rounds import TaskPlan, WorkResult, decode_task_plan, encode, unknown
from millrace.model.spans import Span, TableId
from millrace.model.table_plans import TablePlan
from millrace.model.tables import TableSchema
from millrace.ops.real import real_ports
from millrace.pipeline.kafka import mover
from millrace.pipeline.rounds import Ending, Lost, Returned
from millrace.pipeline.task import Worker
from millrace.store.contract import Candidate
from millrace.wire.changes import HEADER_KEY, BatchHeader, BatchKind, encode_header, encode_rows
from millrace.wire.records import Record
from support_cluster import Cluster
from support_mover import TABLE, Message
from support_secret import LOG_KEY

FEED, OID = "orders", TABLE.oid
_sources = itertools.count()


async def without_spark(where: str, settings: TableSettings, table: TableSchema) -> TablePlan:
    """What settings without expressions make of a table."""
    from millrace.pipeline.shape.analysis import plan_of

    def nobody() -> Any:
        raise Unreachable("there is no Spark here")

    return plan_of(nobody, where, settings, table)


class LocalWorker:
    """A thread with a worker of its own, which keeps its movers from plan to plan as a Python worker of Spark does."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "worker")
        self._worker: Worker | None = None

    def run(self, plan: bytes) -> asyncio.Future[list[WorkResult]]:
        return asyncio.get_running_loop().run_in_executor(self._thread, self._run, plan)

    def _run(self, plan: bytes) -> list[WorkResult]:
        self._worker = self._worker or Worker()
        return self._worker.run(decode_task_plan(plan))

    def close(self) -> None:
        if self._worker is not None:
            self._thread.submit(self._close, self._worker).result()
        self._thread.shutdown()

    @staticmethod
    def _close(worker: Worker) -> None:
        """Clients of the log end with their worker's process; this one's process goes on."""
        loop = worker._runner.get_loop()
        for key in [key for key in mover._opened if key[0] is loop]:
            worker._runner.run(mover._opened.pop(key).client.close())
        worker.close()


class LocalJobs:
    """Runner-shaped. `before`: what happens instead of the job; `after`: what becomes of its answer. `kill_first`: a
    worker process does the first plan and dies before it answers; then, as Spark does, another one is given it."""

    def __init__(self) -> None:
        self._workers = (LocalWorker(), LocalWorker())
        self.jobs: list[tuple[TaskPlan, ...]] = []
        self.before: Callable[[Sequence[TaskPlan]], Ending | None] = lambda plans: None
        self.after: Callable[[Ending], Ending] = lambda ending: ending
        self.kill_first, self.killed = False, 0

    async def run(self, plans: Sequence[TaskPlan]) -> Ending:
        self.jobs.append(tuple(plans))
        instead = self.before(plans)
        if instead is not None:
            return instead
        if self.kill_first and not self.killed:
            self.killed += 1
            await asyncio.to_thread(_killed, encode(plans[0]))
        done = await asyncio.gather(*(self._workers[n % 2].run(encode(plan)) for n, plan in enumerate(plans)))
        return self.after(Returned(tuple(one for task in done for one in task)))

    async def shape(self, where: str, settings: TableSettings, table: TableSchema) -> TablePlan:
        return await without_spark(where, settings, table)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


DYING = """
import os, signal, sys
from millrace.model.rounds import decode_task_plan
from millrace.pipeline.task import Worker
Worker().run(decode_task_plan(sys.stdin.buffer.read()))
os.kill(os.getpid(), signal.SIGKILL)
"""


def _killed(plan: bytes) -> None:
    ended = subprocess.run([sys.executable, "-c", DYING], input=plan, timeout=30, check=False)
    assert ended.returncode == -signal.SIGKILL


def lost(plans: Sequence[TaskPlan], *, session_lost: bool) -> Lost:
    return Lost(tuple(unknown(work, "planted") for plan in plans for work in plan.works), "planted", session_lost)


class Shop:
    """One table's topic and `progress`, written as a source's reader does."""

    def __init__(self, client: LogClient, source: str, partitions: int = 1) -> None:
        self.client, self.source, self.partitions, self.lsn = client, source, partitions, 100
        self.topic, self.told, self.target = table_topic(source, OID), progress_topic(source), f"{source}.public.t"
        self.ends = [0] * partitions
        self.positions = PositionClient(client)

    async def make(self, replication_factor: int = 3) -> None:
        for name, count in ((self.topic, self.partitions), (self.told, 1)):
            await self.client.create_topic(name, partitions=count, replication_factor=replication_factor)
        await self.progress(SchemaVersion(1, TABLE, 1, 0))
        await self.mark(full=True)
        for partition in range(self.partitions):
            key = PositionKey(FEED, (await self.client.topic(self.topic)).id, partition)
            await self.positions.create(
                key, epoch=1, at=Point(0, 0), resolved=0, writer_id=await self.client.new_writer_id())

    async def progress(self, record: Any) -> int:
        return await self.client.append(self.told, 0, [Record(encode_progress(record))])

    async def mark(self, *, full: bool = False) -> None:
        ends = tuple(End(OID, partition, end) for partition, end in enumerate(self.ends))
        await self.progress(Mark(1, self.lsn, "s", 1, full, ends))

    async def rows(self, partition: int, rows: list[judge.Row], table: TableSchema = TABLE) -> None:
        self.lsn += 1
        header = BatchHeader(
            kind=BatchKind.ROWS, schema_id=table.id.bytes, generation=1, epoch=1, first_lsn=self.lsn, first_seq=0,
            last_lsn=self.lsn, last_seq=0, rows=len(rows), before=any(row.before is not None for row in rows))
        await self._append(partition, header, encode_rows(judge.batch_of(table, rows)))

    async def change(self) -> int:
        """A marker in every partition; its number."""
        self.lsn += 1
        header = BatchHeader(
            kind=BatchKind.MARKER, schema_id=TABLE.id.bytes, generation=1, epoch=1, first_lsn=self.lsn, first_seq=0,
            last_lsn=self.lsn, last_seq=0, rows=0)
        number = await self.progress(Change(1, OID, self.lsn, 0, "alter", TABLE.id, TABLE.id))
        for partition in range(self.partitions):
            await self._append(partition, header, b"")
        return number

    async def _append(self, partition: int, header: BatchHeader, value: bytes) -> None:
        record = Record(value, None, ((HEADER_KEY, encode_header(header)),))
        self.ends[partition] = await self.client.append(self.topic, partition, [record]) + 1

    async def position(self, partition: int) -> StoredPosition:
        return await self.positions.read(PositionKey(FEED, (await self.client.topic(self.topic)).id, partition))

    async def at(self, partition: int) -> Point:
        return (await self.position(partition)).at

    async def delivered(self, topic: str = "") -> Counter[tuple[int, Point]]:
        """(source partition, point) of every message with a value."""
        topic = topic or self.target
        found: Counter[tuple[int, Point]] = Counter()
        for partition in range(len((await self.client.topic(topic)).partitions)):
            start, end = await self.client.ends(topic, partition)
            async for page in self.client.read(topic, partition, start, end):
                for record in page:
                    if record.value is not None:
                        message = Message(record)
                        found[message.told.provenance.partition, message.point] += 1
        return found


class Capture:
    """The real host of a dispatcher manager over a data path of its own."""

    def __init__(
        self, client: LogClient, bootstrap: tuple[str, ...], jobs: Jobs, source: str, *, capture: int = 1,
        sink: str = "kafka:?format=json&partitions=2&replication=3", feed: str = FEED, deadline_s: float = 3.0,
        settings: tuple[TableSettings, ...] = (), owners: Owners = nobody,
    ) -> None:
        spec = ChangefeedSpec(id=feed, source=source, sink=sink, settings=settings)
        self.feed = feed
        self.source, self.epoch = source, 1
        self.spans: tuple[tuple[int, ...], ...] = ()
        self.ddl = DdlPosition(1, 1_000_000)

        async def describe(feed: str, maintainer: int) -> Described:
            return Described(spec, "db")

        ports = real_ports()
        self.path = DataPath(client, bootstrap, jobs, ports, cores=2, describe=describe, passed=lambda feed: self.ddl,
                             deadline_s=deadline_s, owners=owners)
        self.sent: list[Any] = []
        around = Surroundings(
            me=Candidate(capture, "", ports.processes.me()), incarnation=1, session_s=6.0, ports=ports,
            store=cast(Any, None), homes=cast(Any, None), dispatching=self.path, send=self.sent.append)
        self.host = ManagerHost(around, feed)

    def start(self, epoch: int, *spans: tuple[int, ...]) -> None:
        """Span n has the partitions of the n-th; epochs go on from here."""
        for number, partitions in enumerate(spans):
            self._start(number, epoch + number, partitions)
        self.spans, self.epoch = spans, epoch + len(spans)

    def _start(self, number: int, epoch: int, partitions: tuple[int, ...]) -> None:
        span = Span(TableId(self.source, OID), partitions)
        self.host.receive(2, StartDispatcher(self.feed, 5, 1, number, span, epoch), "alive")

    def place_again(self) -> None:
        """As the maintainer does with those it misses."""
        for number, partitions in enumerate(self.spans):
            if number not in self.host.machine.held:
                self._start(number, self.epoch, partitions)
                self.epoch += 1

    def stop(self) -> None:
        for number, held in list(self.host.machine.held.items()):
            self.host.receive(2, StopDispatcher(self.feed, 5, 1, number, held.epoch), "alive")

    async def close(self) -> None:
        await self.path.close()
        await self.host.stop()


async def until(condition: Callable[[], Awaitable[bool]] | Callable[[], bool], what: str, timeout_s: float = 10.0
                ) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                value = condition()
                if value if isinstance(value, bool) else await value:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


Make = Callable[..., Capture]
Story = Callable[[Shop, LocalJobs, Make], Awaitable[None]]


def play(
    cluster: Cluster, story: Story, *, partitions: int = 1, client_deadline_s: float = limits.CLIENT_DEADLINE_S
) -> None:
    """A story about a shop of its own. `Make`: one more capture, with these settings of tables."""
    asyncio.run(_played(tuple(cluster.bootstrap.split(",")), story, partitions, client_deadline_s))


async def _played(bootstrap: tuple[str, ...], story: Story, partitions: int, client_deadline_s: float) -> None:
    jobs, captures = LocalJobs(), list[Capture]()
    async with LogClient(bootstrap, deadline_s=client_deadline_s, key=LOG_KEY) as client:
        shop = Shop(client, f"shop{next(_sources)}", partitions)
        await shop.make()

        def capture(*settings: TableSettings, **more: Any) -> Capture:
            captures.append(Capture(
                client, bootstrap, jobs, shop.source, capture=len(captures) + 1, settings=settings, **more))
            return captures[-1]

        try:
            await story(shop, jobs, capture)
        finally:
            for one in captures:
                await one.close()
            jobs.close()
