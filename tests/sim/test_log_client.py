"""Our own client on the simulated loop, over whole brokers and every fault a seed draws [L22, L28]."""

from __future__ import annotations

import asyncio

import pytest

from millrace.log.client import LogClient, Record
from millrace.ops.ports import Ports
from millrace_sim.shell.client import KAFKA_PORT, LOG_KEY
from millrace_sim.shell.logs import captured
from millrace_sim.shell.world import World

DEADLINE_S = 300.0       # faults may keep a partition without a leader for longer than 30 s
SEEDS = (*range(7), 27)    # 27: a gap behind a refused batch was taken for the end of the writer
TOPIC = "__millrace.sim.progress"
Line = tuple[int, bytes | None]


class Run:
    """One seed: a writer and a reader over the seed's faults, and after them."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.offsets: list[int] = []
        self.log: list[Line] = []
        self.followed: list[Line] = []
        self.stopping = False

    def run(self) -> None:
        with captured(self.world.sim.loop, verbose=False):
            self.world.sim.run(self._main())

    async def _main(self) -> None:
        world = self.world
        world.nemesis.set_clocks()
        for host in world.broker_hosts:
            world.start_broker(host)
        working = asyncio.ensure_future(world._as_client(world.sim.add_host("mine"), self._program))
        await asyncio.sleep(8)
        world.nemesis.start()
        await asyncio.sleep(30)
        world.nemesis.heal()
        await asyncio.sleep(20)
        self.stopping = True
        await working

    async def _program(self, ports: Ports) -> None:
        bootstrap = [f"{host.name}:{KAFKA_PORT}" for host in self.world.broker_hosts]
        async with LogClient(
            bootstrap, deadline_s=DEADLINE_S, random=ports.random, wall=ports.clock.wall
        , key=LOG_KEY) as client:
            await client.create_topic(TOPIC, partitions=1)
            writer_id = await client.new_writer_id()
            await client.fence(TOPIC, 0, writer_id=writer_id, epoch=1)
            following = asyncio.ensure_future(self._follow(client))
            await self._write(client, ports, writer_id)
            start, end = await client.ends(TOPIC, 0)
            self.log = [(r.offset, r.value) async for page in client.read(TOPIC, 0, start, end) for r in page]
            while len(self.followed) < len(self.log):
                await asyncio.sleep(0.1)
            following.cancel()

    async def _write(self, client: LogClient, ports: Ports, writer_id: int) -> None:
        writer = client.writer(TOPIC, 0, writer_id=writer_id, epoch=1)
        futures: list[asyncio.Future[int]] = []
        while not self.stopping:
            await writer.room(20_000)
            futures.append(writer.append([Record(str(len(futures)).encode())]))
            await asyncio.sleep(ports.random.uniform(0, 0.1))
        await writer.flush()
        self.offsets = [future.result() for future in futures]

    async def _follow(self, client: LogClient) -> None:
        position = 0
        while True:
            found = (await client.fetch({(TOPIC, 0): position}, wait_s=2)).get((TOPIC, 0))
            if found is not None:
                self.followed += [(r.offset, r.value) for r in found.records]
                position = found.next_offset


@pytest.mark.parametrize("seed", SEEDS)
def test_L22_every_append_once_in_order_at_the_offset_told(seed: int) -> None:
    run = Run(seed)
    run.run()
    assert len(run.offsets) > 500
    assert run.log == [(offset, str(n).encode()) for n, offset in enumerate(run.offsets)]
    assert run.followed == run.log


def test_a_seed_is_a_run() -> None:
    runs = [Run(7), Run(7)]
    for run in runs:
        run.run()
    assert runs[0].world.sim.trace_crc == runs[1].world.sim.trace_crc
