"""Rows from a table's topic to a Kafka topic, on real brokers that are killed, by works that are given up half way.

A dispatcher takes over, plans a round, and its work runs; now and then the dispatcher forgets a work under way, which
goes on as a zombie while the next epoch takes over, and now and then a broker is killed. At the end every row stands in
the target once, keys in their order [V11, K3, K5, P5].
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from millrace.core.delivery.takeover import Takeover
from millrace.core.delivery.taking import State
from millrace.errors import MillraceError
from millrace.log.client import LogClient
from millrace.model.positions import Point
from millrace.model.rounds import Work, WorkResult
from millrace.model.spans import Dispatcher
from millrace.model.writes import Targets
from millrace.pipeline.kafka.takeover import Taker
from support_cluster import Cluster
from support_mover import QUARANTINE, Message, Route, delete, insert
from support_secret import LOG_KEY

RECORDS, ROWS = 240, 50
KEYS = 40


@dataclass
class World:
    route: Route
    rng: random.Random
    flaws: frozenset[str]
    cluster: Cluster
    end: Point = field(default_factory=lambda: Point(0, 0))
    epoch: int = 3
    striking: asyncio.Task[None] | None = None
    zombies: set[asyncio.Task[WorkResult]] = field(default_factory=set)
    count: Counter[str] = field(default_factory=Counter)

    async def targets(self, stored: frozenset[UUID]) -> Targets:
        return Targets(self.route.targets, self.route.quarantine)

    def name_of(self, topic_id: UUID) -> str:
        return next(name for name, found in self.route.ids.items() if found == topic_id)

    def fencing(self) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    def refused(self, error: MillraceError) -> None:
        self.count["refused"] += 1

    def took(self) -> None:
        self.count["fenced"] += 1

    async def at(self) -> Point:
        return (await self.route.positions.read(self.route.key)).at

    async def deliver(self) -> None:
        while await self.at() < self.end:
            self.epoch += 1
            self.count["epochs"] += 1
            await self._dispatcher(Takeover(self.route.key, self.epoch, self.flaws))

    async def _dispatcher(self, machine: Takeover) -> None:
        """Rounds under one epoch, until it ends or is forgotten."""
        taker = Taker(machine, self.route.client, self.route.home, self, self)
        while True:
            await taker.run()
            if machine.state is State.ENDED or machine.position is None or machine.position.at >= self.end:
                return
            to = Point(min(self.end.offset, machine.position.next_offset + self.rng.randint(1, 6)), 0)
            self._strike()
            self.route.round += 1
            plan = machine.plan(self.route.round, to, 0)
            task = self.route.plan(Point(0, 0), Point(0, 0))     # its frame; the machine's plan goes in
            work = Work(Dispatcher(1, machine.epoch), plan, deadline_s=5.0)
            running = asyncio.create_task(self.route.executed(task, work))
            if self.rng.random() < 0.35:
                self.count["forgotten"] += 1
                self.zombies.add(running)
                running.add_done_callback(self.zombies.discard)
                await asyncio.wait([running], timeout=self.rng.uniform(0, 0.05))
                return
            self.count["rounds"] += 1
            result = (await running).result
            self.count[result.outcome] += 1
            machine.result(result)


    def _strike(self) -> None:
        """One at a time: with two of three gone nobody could go on."""
        if (self.striking is None or self.striking.done()) and self.rng.random() < 0.5:
            self.count["kills"] += 1
            restart = asyncio.to_thread(self.cluster.restart, self.rng.randrange(3))
            self.striking = asyncio.create_task(restart)


async def run(seed: int, flaws: frozenset[str] = frozenset()) -> tuple[World, list[Message], list[Message]]:
    rng = random.Random(seed)
    with Cluster(3) as cluster:
        async with LogClient(cluster.bootstrap.split(","), key=LOG_KEY) as client:
            world = World(Route(client), rng, flaws, cluster)
            await world.route.make(partitions=3, replication_factor=3)
            for record in range(RECORDS):
                rows = [delete(n % KEYS) if (n + record) % 9 == 0 else insert(n % KEYS, f"{record}/{n}")
                        for n in range(ROWS)]
                world.end = Point(await world.route.source(rows), 0)
            async with asyncio.timeout(120):
                await world.deliver()
            await asyncio.gather(*world.zombies, *filter(None, [world.striking]))
            return world, await world.route.messages(), await world.route.messages(QUARANTINE)


def doubled(messages: list[Message]) -> list[Point]:
    """A delete and its tombstone are one row."""
    counted = Counter(m.point for m in messages if m.record.value is not None)
    return [point for point, count in counted.items() if count > 1]


@pytest.mark.timeout(180)
def test_K3_every_row_once_whoever_dies(capsys: pytest.CaptureFixture[str]) -> None:
    world, found, quarantined = asyncio.run(run(seed=7))
    with capsys.disabled():
        print(f"\n{dict(world.count)}, {len(found)} messages")
    assert doubled(found) == []
    assert {m.point for m in found} == {Point(offset, row) for offset in range(RECORDS) for row in range(ROWS)}
    assert quarantined == []
    by_key: dict[bytes, list[Point]] = {}
    for message in found:
        by_key.setdefault(bytes(message.record.key or b""), []).append(message.point)
    assert all(places == sorted(places) for places in by_key.values()), "keys in their order"
    assert world.count["forgotten"] >= 3
    assert world.count["kills"] >= 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_judge_sees_a_take_over_that_does_not_scan() -> None:
    for seed in range(5):
        _, found, _ = asyncio.run(run(seed, frozenset({"scan"})))
        if doubled(found):
            return
    raise AssertionError("nobody noticed")
