"""The data path of a changefeed on a real log: a source's topics as its reader writes them, the real host of a
dispatcher manager, and in place of Spark an executor that runs the real worker (`pipeline.task.Worker`) in threads, or
in processes of its own that can be killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import support_json as judge
from millrace.changefeed.dispatching.data_path import DataPath, Described
from millrace.changefeed.dispatching.feed_rounds import Jobs
from millrace.changefeed.feeds.manager_host import ManagerHost
from millrace.changefeed.feeds.surroundings import Surroundings
from millrace.core.sources.registry import progress_topic, table_topic
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.changefeeds import ChangefeedSpec, DdlPosition
from millrace.model.feed_messages import StartDispatcher, StopDispatcher
from millrace.model.positions import Point, PositionKey
from millrace.model.progress import Change, End, Mark, SchemaVersion, encode_progress
from millrace.model.rounds import TaskPlan, WorkResult, decode_task_plan, encode, unknown
from millrace.model.spans import Span, TableId
from millrace.model.tables import TableSchema
from millrace.ops.real import real_ports
from millrace.pipeline.rounds import Ending, Lost, Returned
from millrace.pipeline.task import Worker
from millrace.store.contract import Candidate
from millrace.wire.changes import HEADER_KEY, BatchHeader, BatchKind, encode_header, encode_rows
from millrace.wire.records import Record
from support_mover import TABLE, Message

FEED, OID = "orders", TABLE.oid


class LocalJobs:
    """Runner-shaped. `after`: what happens to the job's answer on its way back."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, "worker")
        self.jobs: list[tuple[TaskPlan, ...]] = []
        self.before: Callable[[Sequence[TaskPlan]], Ending | None] = lambda plans: None
        self.after: Callable[[Ending], Ending] = lambda ending: ending
        self.kill_first, self.killed = False, 0

    async def run(self, plans: Sequence[TaskPlan]) -> Ending:
        self.jobs.append(tuple(plans))
        instead = self.before(plans)
        if instead is not None:
            return instead
        loop = asyncio.get_running_loop()
        sent = [decode_task_plan(encode(plan)) for plan in plans]
        if self.kill_first and not self.killed:
            self.killed += 1
            await loop.run_in_executor(self._threads, _dying, encode(sent[0]))     # then, as Spark does, once more
        done = await asyncio.gather(*(loop.run_in_executor(self._threads, _work, plan) for plan in sent))
        return self.after(Returned(tuple(one for task in done for one in task)))

    def close(self) -> None:
        self._threads.shutdown()


def _dying(plan: bytes) -> None:
    """A worker process that has written everything, and dies with its answer."""
    dying = multiprocessing.get_context("spawn").Process(target=_work_and_die, args=(plan,))
    dying.start()
    dying.join(timeout=30)
    assert dying.exitcode == -signal.SIGKILL


def _work_and_die(plan: bytes) -> None:
    Worker().run(decode_task_plan(plan))
    os.kill(os.getpid(), signal.SIGKILL)


def _work(plan: TaskPlan) -> list[WorkResult]:
    worker = Worker()
    try:
        return worker.run(plan)
    finally:
        _close_clients(worker)
        worker.close()


def _close_clients(worker: Worker) -> None:
    """A worker keeps its client for as long as it lives; this one has one plan."""
    from millrace.pipeline.kafka import mover

    loop = worker._runner.get_loop()
    for key in [key for key in mover._opened if key[0] is loop]:
        worker._runner.run(mover._opened.pop(key).client.close())


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

    async def at(self, partition: int) -> Point:
        return (await self.positions.read(PositionKey(FEED, (await self.client.topic(self.topic)).id, partition))).at

    async def delivered(self) -> Counter[tuple[int, Point]]:
        """(source partition, point) of every message with a value."""
        topic = self.target
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
        sink: str = "kafka:?format=json&partitions=2&replication=3",
    ) -> None:
        spec = ChangefeedSpec(id=FEED, source=source, sink=sink)
        self.source, self.epoch = source, 1
        self.ddl = DdlPosition(1, 1_000_000)

        async def describe(feed: str) -> Described:
            return Described(spec, "db")

        ports = real_ports()
        self.path = DataPath(client, bootstrap, jobs, ports, cores=2, describe=describe, passed=lambda feed: self.ddl,
                             deadline_s=2.0)
        self.sent: list[Any] = []
        around = Surroundings(
            me=Candidate(capture, "", ports.processes.me()), incarnation=1, session_s=6.0, ports=ports,
            store=cast(Any, None), homes=cast(Any, None), dispatching=self.path, send=self.sent.append)
        self.host = ManagerHost(around, FEED)

    def start(self, epoch: int, *spans: tuple[int, ...]) -> None:
        """Span n has the partitions of the n-th; epochs go on from here."""
        for number, partitions in enumerate(spans):
            self._start(number, epoch + number, partitions)
        self.spans, self.epoch = spans, epoch + len(spans)

    def _start(self, number: int, epoch: int, partitions: tuple[int, ...]) -> None:
        span = Span(TableId(self.source, OID), partitions)
        self.host.receive(2, StartDispatcher(FEED, 5, 1, number, span, epoch), "alive")

    def place_again(self) -> None:
        """As the maintainer does with those it misses."""
        for number, partitions in enumerate(self.spans):
            if number not in self.host.machine.held:
                self._start(number, self.epoch, partitions)
                self.epoch += 1

    def stop(self) -> None:
        for number, held in list(self.host.machine.held.items()):
            self.host.receive(2, StopDispatcher(FEED, 5, 1, number, held.epoch), "alive")

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
