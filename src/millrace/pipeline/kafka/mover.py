"""The mover of the Kafka sink on our own log: what a task does with each Work [P2, P5, K1-K5].

A mover lives as long as its worker process: one client of the log for all movers of a cluster, since a new schema or a
changed sink makes a new mover. Claims are made where the positions are kept, one request for a whole task.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol
from uuid import UUID

from millrace import limits
from millrace.errors import MillraceError, UnknownTopicId
from millrace.log.client import LogClient
from millrace.model.positions import Claim, PositionKey
from millrace.model.rounds import TaskPlan, Work, WorkResult
from millrace.model.table_plans import TablePlan
from millrace.ops.cluster_secret import Key
from millrace.pipeline.kafka.home import LogHome
from millrace.pipeline.kafka.pieces import Maker
from millrace.pipeline.kafka.portions import Portion, asked, heard_portion, plans_of, read
from millrace.pipeline.kafka.reading import Range
from millrace.pipeline.kafka.setup import Setup, decode_setup
from millrace.pipeline.kafka.writing import Flow, Job
from millrace.pipeline.shape.paths import Asked, Heard
from millrace.sink.kafka.choice import format_of, target_of
from millrace.sink.kafka.encode import Encoder
from millrace.sink.kafka.formats import Origin
from millrace.sink.kafka.headers import Provenance
from millrace.sink.routes import Router
from millrace.sink.uri import parse_sink


class Positions(Protocol):
    """Where positions and claims are kept [P3]."""

    async def claim(self, claims: Sequence[tuple[PositionKey, Claim]]) -> Collection[int]:
        """By one request; indexes of those that were granted."""


class Services(NamedTuple):
    client: LogClient
    positions: Positions


class _Read(NamedTuple):
    """What a plan says for all of its works."""

    plan: TaskPlan
    names: Mapping[UUID, str]                            # of topics
    tables: Mapping[UUID, TablePlan]                     # by version


class KafkaMover:
    def __init__(self, setup: Setup, connect: Callable[[], Awaitable[Services]]) -> None:
        """`connect` is asked for every task: it keeps what it has opened."""
        self._setup, self._connect = setup, connect
        self._sink = parse_sink(setup.sink)
        self._origin = Origin(setup.source, setup.database)
        self._router = Router(setup.source, self._sink, setup.settings)
        self._executions: dict[tuple[PositionKey, int], int] = {}     # of the task under way
        self._read: _Read | None = None                               # of the same

    async def claim(self, plan: TaskPlan) -> Collection[int]:
        self._executions = {(work.plan.key, work.plan.round): secrets.randbits(62) for work in plan.works}
        services = await self._connect()
        claims = [self._claims_of(work) for work in plan.works]
        told, _ = await asyncio.gather(
            services.positions.claim([one for ones in claims for one in ones]), _met(services.client, plan))
        granted = set(told)
        return [n for n, mine in enumerate(_numbers(map(len, claims))) if granted.issuperset(mine)]

    def _claims_of(self, work: Work) -> list[tuple[PositionKey, Claim]]:
        """Of a copy's work two: it writes what only the owner of the table's partition may write."""
        plan, execution = work.plan, self._execution(work)
        claims = [(plan.key, Claim(plan.epoch, *plan.from_, plan.round, execution))]
        if work.copied is not None:
            stream = work.copied
            claims.append((stream.stream, Claim(plan.epoch, *stream.stream_at, plan.round, execution)))
        return claims

    def _execution(self, work: Work) -> int:
        return self._executions[work.plan.key, work.plan.round]

    async def move(self, plan: TaskPlan, work: Work) -> WorkResult:
        client, known = (await self._connect()).client, self._known(plan)
        return await self._moved(plan, work, read(client, _range(known.names, work), known.tables))

    def _known(self, plan: TaskPlan) -> _Read:
        """Made once for all works of a task: each names every table and topic of all of them."""
        if self._read is None or self._read.plan is not plan:
            self._read = _Read(plan, {topic.topic_id: topic.name for topic in plan.topics}, plans_of(plan))
        return self._read

    async def _moved(self, plan: TaskPlan, work: Work, portions: AsyncIterator[Portion]) -> WorkResult:
        began = time.monotonic()
        names = self._known(plan).names
        client = (await self._connect()).client
        job = Job(
            work.plan, portions, names, partial(self._maker, client, work, names, time.time_ns() // 1000),
            self._execution(work), _sending_s(work), work.deadline_s,
        )
        flow = Flow(client, job)
        result = await flow.run()
        took_ms = int((time.monotonic() - began) * 1000)
        return WorkResult(work.dispatcher, result, read_bytes=flow.read_bytes, took_ms=took_ms)

    def _maker(
        self, client: LogClient, work: Work, names: Mapping[UUID, str], now_us: int, table: TablePlan
    ) -> tuple[Maker, UUID]:
        """A renamed table has another topic; the plan names all that this epoch has fenced [V11]. A topic that was made
        again under the same name is not one of them: what is written by name would go there."""
        topic, routing = self._router.route(table.table)
        partitions = [target for target in work.plan.partitions if names.get(target.topic_id) == topic]
        if not partitions:
            raise UnknownTopicId(f"{topic} of {table.table.full_name} is not among the targets of this round")
        if client.known_id(topic) not in (None, partitions[0].topic_id):
            raise UnknownTopicId(f"{topic} was deleted and made again: it is not the topic of this round")
        target = target_of(self._sink, len(partitions), routing)
        encoder = Encoder(table.shown, format_of(self._sink, self._origin, table.shown), target)
        plan = work.plan
        provenance = Provenance(plan.key.topic_id.bytes, plan.key.partition, plan.writer_id, plan.epoch)
        return Maker(encoder, provenance, now_us), partitions[0].topic_id

    # -- of rows that expressions of Spark are asked about (pipeline.asked_task) ---------------------------------------
    async def ask(self, plan: TaskPlan) -> AsyncIterator[Asked]:
        """Ends with the time for sending: whoever writes would not send what comes later."""
        (work,), began = plan.works, time.monotonic()
        client = (await self._connect()).client
        async for one in asked(client, _range(self._known(plan).names, work), plan.tables, plan.broken):
            yield one
            if time.monotonic() - began >= _sending_s(work):
                return

    async def move_heard(self, plan: TaskPlan, work: Work, heard: AsyncIterator[Heard]) -> WorkResult:
        return await self._moved(plan, work, (heard_portion(one) async for one in heard))

    async def close(self) -> None:
        """The client is its worker's, not this mover's."""


async def _met(client: LogClient, plan: TaskPlan) -> None:
    """Who leads the topics of all works. What is not known by then, each asks for itself."""
    with contextlib.suppress(MillraceError):
        await client.meet(topic.name for topic in plan.topics)


def _numbers(counts: Iterable[int]) -> Iterator[range]:
    first = 0
    for count in counts:
        yield range(first, first + count)
        first += count


def _range(names: Mapping[UUID, str], work: Work) -> Range:
    wanted = work.plan
    return Range(
        names[wanted.key.topic_id], wanted.key.partition, wanted.from_, wanted.to, wanted.skip, work.copied)


def _sending_s(work: Work) -> float:
    return min(limits.WORK_SENDING_S, work.deadline_s * limits.WORK_SENDING_S / limits.WORK_DEADLINE_S)


_opened: dict[tuple[asyncio.AbstractEventLoop, tuple[str, ...], Key | None], Services] = {}


async def connect(bootstrap: tuple[str, ...], log_key: Key | None) -> Services:
    """One client per cluster for all movers of a worker, which has one loop for as long as it lives."""
    key = (asyncio.get_running_loop(), bootstrap, log_key)
    if key not in _opened:
        client = await LogClient(bootstrap, client_id="mover", key=log_key).__aenter__()
        _opened[key] = Services(client, LogHome(client))
    return _opened[key]


def make(setup: bytes) -> KafkaMover:
    """What plans name as their mover (MOVER)."""
    read = decode_setup(setup)
    return KafkaMover(read, partial(connect, read.bootstrap, read.log_key))
