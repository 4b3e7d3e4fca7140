"""The simulated store passes the same contract suite as the real ones, and is deterministic."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from millrace import errors
from millrace.ops.ports import Ports
from millrace.store.contract import Store
from millrace_sim.store import MemoryStore, MemoryStoreState
from unit.store.contract_suite import OFFICE, ClockContract, ContractSuite, World, candidate, run


@dataclass
class MemoryWorld(World):
    state: MemoryStoreState = field(init=False)

    def __post_init__(self) -> None:
        self.state = MemoryStoreState(seed=1, clock=self.clock)

    def _open(self, ports: Ports) -> Store:
        return MemoryStore(self.state, ports, host=str(ports.processes.me().pid))


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld()


class TestContract(ContractSuite, ClockContract):
    pass


def test_L18_a_host_that_is_cut_off_gets_no_answer_and_a_late_cut_leaves_the_write_done(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.limits.STORE_CALL_S", 0.01)

    async def body() -> None:
        one, two = world.open(1), world.open(2)
        token = await one.acquire(OFFICE, candidate(1), 3600.0)
        world.state.cut("1")
        with pytest.raises(errors.StoreUnreachable):
            await one.append(OFFICE, token, 0, [b"never"])
        assert await two.read(OFFICE, 0, 10) == []
        world.state.heal("1")
        world.state.latency_min_s = world.state.latency_max_s = 0.05
        call = asyncio.ensure_future(one.append(OFFICE, token, 0, [b"done"]))
        while not world.state.history(OFFICE):
            await asyncio.sleep(0.005)
        world.state.cut("1")
        with pytest.raises(errors.StoreUnreachable):
            await call
        assert await two.read(OFFICE, 0, 10) == [(1, b"done")]

    run(world, body)


def test_L18_the_same_seed_gives_the_same_delays() -> None:
    one, two = MemoryStoreState(seed=5), MemoryStoreState(seed=5)
    random.seed()
    assert [one.delay_s() for _ in range(50)] == [two.delay_s() for _ in range(50)]
