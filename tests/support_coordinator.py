"""Captures without HTTP and databases, in virtual time, on a store in memory. Shared by the coordinator's tests.

A reader here is the plainest thing that keeps the protocol of `reader_host.Reader`: it runs until it is cancelled or
told to fail, and notes when it began and ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from millrace.changefeed.coordinator import CoordinatorShell, Reign, Workshop
from millrace.core.sources.registry import SourceState
from millrace.model.sources import CoordinatorRecords, ReaderPlaced, SourceSpec, decode_coordinator
from millrace.ops.ports import Ports
from millrace.source.reading.status import ReaderStatus
from millrace.store.campaign import CampaignTimes
from millrace.store.contract import Candidate
from millrace_sim.kit import Sim
from millrace_sim.processes import Host
from millrace_sim.store import MemoryStore, MemoryStoreState


class StandInReader:
    def __init__(self, world: World, spec: SourceSpec, placed: ReaderPlaced) -> None:
        self.world, self.spec, self.placed = world, spec, placed
        self.status = ReaderStatus()
        self.state = SourceState(spec.name)

    async def run(self) -> None:
        self.world.running.add(self.placed)
        self.status.state = "streaming"
        try:
            if self.world.failures:
                raise self.world.failures.pop(0)
            await asyncio.get_running_loop().create_future()
        finally:
            self.world.running.discard(self.placed)
            self.world.ended.append(self.placed)

    async def copy_table(self, name: str) -> int:
        self.world.copied.append(name)
        return len(self.world.copied)


class World:
    def __init__(self, seed: int = 1, *, one_machine: bool = True) -> None:
        self.sim = Sim(seed)
        self.store = MemoryStoreState(seed=seed)
        self.shells: dict[int, CoordinatorShell] = {}
        self.hosts: dict[int, Host] = {
            n: self.sim.add_host(f"c{n}", machine="m" if one_machine else None) for n in (0, 1)}
        self.running: set[ReaderPlaced] = set()
        self.ended: list[ReaderPlaced] = []
        self.built: list[tuple[ReaderPlaced, list[CoordinatorRecords]]] = []    # with what stood in the store then
        self.failures: list[Exception] = []          # what the next readers end by
        self.removals: list[tuple[str, bool]] = []
        self.left: list[str] = []                    # what removals leave behind
        self.removal_error: Exception | None = None
        self.copied: list[str] = []
        self.build_error: Exception | None = None    # a reader cannot even be made

    def boot(self, *captures: int) -> None:
        for capture in captures:
            self.sim.start(self.hosts[capture], self._program(capture))

    def _program(self, capture: int) -> Callable[[Ports], Coroutine[Any, Any, None]]:
        async def program(ports: Ports) -> None:
            me = Candidate(capture, f"c{capture}:1", ports.processes.me())
            store = MemoryStore(self.store, ports, host=f"c{capture}")
            self.shells[capture] = CoordinatorShell(store, ports, CampaignTimes(), me, self._workshop(capture))
            self.shells[capture].start()
            await asyncio.get_running_loop().create_future()

        return program

    def _workshop(self, capture: int) -> Workshop:
        def reader(spec: SourceSpec, placed: ReaderPlaced) -> StandInReader:
            if self.build_error is not None:
                raise self.build_error
            self.built.append((placed, self.records()))
            return StandInReader(self, spec, placed)

        async def remove(spec: SourceSpec, placed: ReaderPlaced, force: bool) -> list[str]:
            assert not [p for p in self.running if p.source == spec.name], "a removal beside a running reader"
            self.removals.append((spec.name, force))
            if self.removal_error is not None and not force:
                raise self.removal_error
            return list(self.left)

        return Workshop(capture, 1000 + capture, reader, remove)

    def crash(self, capture: int) -> None:
        """kill -9: what its readers were doing ends with it."""
        self.running = {placed for placed in self.running if placed.capture != capture}
        self.sim.crash(self.hosts[capture])

    @property
    def coordinator(self) -> int | None:
        found = [n for n, shell in self.shells.items() if self.hosts[n].is_running() and shell.reign is not None]
        assert len(found) <= 1, "two coordinators"
        return found[0] if found else None

    def reign(self) -> Reign:
        assert self.coordinator is not None
        reign = self.shells[self.coordinator].reign
        assert reign is not None
        return reign

    def records(self) -> list[CoordinatorRecords]:
        return [decode_coordinator(data) for _, data in self.store.history("coordinator")]

    async def until(self, what: Callable[[], object], within_s: float = 30.0) -> float:
        """Virtual seconds until it holds."""
        started = self.sim.loop.time()
        while not what():
            assert self.sim.loop.time() - started < within_s, "not in time"
            await asyncio.sleep(0.005)
        return self.sim.loop.time() - started


def play(story: Callable[[World], Awaitable[None]], **how: Any) -> World:
    world = World(**how)

    async def main() -> None:
        await story(world)

    world.sim.run(main())
    return world


def spec(name: str = "shop", url: str = "postgresql://u@h/db") -> SourceSpec:
    return SourceSpec(name=name, url=url)
