"""Committed offsets and stored positions over whole brokers and every fault a seed draws [L21, P3].

What was acknowledged is never taken back, not by a change of coordinator, nor by a replay that begins at a restatement.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from millrace import limits
from millrace.core.delivery.positions import Commit
from millrace.errors import MillraceError, PositionMoved, Superseded
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.log.groups import Coordinator
from millrace.model.positions import Point, PositionKey
from millrace.ops.ports import Ports
from millrace_sim.shell.client import KAFKA_PORT, LOG_KEY, CallFailed, Client
from millrace_sim.shell.logs import captured
from millrace_sim.shell.world import World

SEEDS = (2, 4, 5, *(pytest.param(seed, marks=pytest.mark.long) for seed in (0, 1, 3)))
DEADLINE_S = 300.0          # faults may keep a partition without a leader for longer than 30 s
KEY = PositionKey("feed", UUID(int=7), 0)
GROUP, TOPIC = "readers", "t"


class Run:
    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.stopping = False
        self.acked, self.tried = -1, -1                 # offsets of the ordinary group
        self.moves: list[tuple[int, Point]] = []        # (epoch, to) of every commit that was acknowledged
        self.last: Point | None = None
        self.fetches = 0

    def run(self) -> None:
        with captured(self.world.sim.loop, verbose=False):
            self.world.sim.run(self._main())

    async def _main(self) -> None:
        world = self.world
        world.nemesis.set_clocks()
        for host in world.broker_hosts:
            world.start_broker(host)
        programs = [self._positions, self._ordinary]
        working = [
            asyncio.ensure_future(world._as_client(world.sim.add_host(f"mine{n}"), program))
            for n, program in enumerate(programs)
        ]
        await asyncio.sleep(8)
        world.nemesis.start()
        await asyncio.sleep(30)
        world.nemesis.heal()
        await asyncio.sleep(20)
        self.stopping = True
        await asyncio.gather(*working)

    # -- positions: two owners, the one with the greater epoch moves it ---------------------------------------------
    async def _positions(self, ports: Ports) -> None:
        bootstrap = [f"{host.name}:{KAFKA_PORT}" for host in self.world.broker_hosts]
        async with LogClient(
            bootstrap, deadline_s=DEADLINE_S, random=ports.random, wall=ports.clock.wall
        , key=LOG_KEY) as client:
            positions = PositionClient(client)
            await positions.create(KEY, epoch=0, at=Point(0, 0), resolved=0, writer_id=9)
            await asyncio.gather(*(self._own(positions, ports, first) for first in (1, 2)))
            self.last = (await positions.read(KEY)).at

    async def _own(self, positions: PositionClient, ports: Ports, epoch: int) -> None:
        while not self.stopping:
            try:
                at = (await positions.take(KEY, epoch)).at
                for _ in range(20):
                    to = Point(at.offset + 1, 0)
                    await positions.commit(KEY, Commit(epoch, at, to, (), 0))
                    self.moves.append((epoch, to))
                    at = to
                    await asyncio.sleep(ports.random.uniform(0, 0.1))
            except Superseded:
                epoch += 2                              # odd and even: no epoch has two owners

    # -- an ordinary group: a tool that commits, and asks what is committed -----------------------------------------
    async def _ordinary(self, ports: Ports) -> None:
        client = self.world.client(self.world.seed)
        brokers = sorted(int(host.name[1:]) for host in self.world.broker_hosts)
        await self._create(client, brokers)
        before = -1
        while not self.stopping or self.acked == before:       # the last pass must come through
            before = self.acked
            for at in brokers:
                try:
                    await self._commit_and_fetch(client, at)
                except (CallFailed, MillraceError):
                    continue
            await asyncio.sleep(ports.random.uniform(0, 0.1))

    async def _create(self, client: Client, brokers: list[int]) -> None:
        topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 3}
        while True:
            for at in brokers:
                try:
                    answer = await client.call(at, "CreateTopics", 5, {"topics": [topic], "timeout_ms": 2000})
                except CallFailed:
                    continue
                if answer["topics"][0]["error_code"] in (0, 36):
                    return
            await asyncio.sleep(0.2)

    async def _commit_and_fetch(self, client: Client, at: int) -> None:
        offset = self.tried = self.tried + 1
        topics = [{"name": TOPIC, "partitions": [{"partition": 0, "offset": offset, "metadata": ""}]}]
        answer = await client.call(at, "OffsetCommit", 8, {"group_id": GROUP, "topics": topics})
        if answer["topics"][0]["partitions"][0]["error_code"] == 0:
            self.acked = offset
        known = self.acked
        told = await self._fetch(client, at)
        if told is not None:
            self.fetches += 1
            assert known <= told <= self.tried, f"acknowledged {known}, told {told}, tried {self.tried}"

    async def _fetch(self, client: Client, at: int) -> int | None:
        answer = await client.call(at, "OffsetFetch", 8, {"groups": [{"group_id": GROUP, "topics": None}]})
        found: dict[str, Any] = answer["groups"][0]
        if found["error_code"]:
            return None
        return next((p["offset"] for topic in found["topics"] for p in topic["partitions"]), -1)


    def judge(self) -> None:
        assert min(self.acked, self.fetches, len(self.moves)) > 50
        offsets = [to.offset for _, to in self.moves]
        assert sorted(offsets) == sorted(set(offsets)), "two owners were told of the same step"
        by_place = [epoch for epoch, _ in sorted(self.moves, key=lambda move: move[1])]
        assert by_place == sorted(by_place), "an owner moved what a later one had taken"
        assert self.last is not None
        assert max(offsets) <= self.last.offset, "a step that was told is gone"


@pytest.mark.parametrize("seed", SEEDS)
def test_L21_what_was_acknowledged_is_never_taken_back(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESTATE_EVERY_RECORDS", 40)
    run = Run(seed)
    run.run()
    run.judge()


def test_an_answer_before_its_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted mistake: the checks above are able to fail."""
    monkeypatch.setattr(Coordinator, "_when_committed", lambda self, _, then: self._outcome(then, None))
    assert any(is_caught(seed) for seed in (5, 1, 2))


def is_caught(seed: int) -> bool:
    run = Run(seed)
    try:
        run.run()
        run.judge()
    except (AssertionError, PositionMoved):
        return True
    return False


@pytest.mark.long
def test_a_seed_is_a_run() -> None:
    runs = [Run(7), Run(7)]
    for run in runs:
        run.run()
    assert runs[0].world.sim.trace_crc == runs[1].world.sim.trace_crc
