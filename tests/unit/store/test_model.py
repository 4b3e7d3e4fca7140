"""Random calls by several processes on one office, against a model of thirty lines [L18]."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace import errors
from millrace.ops.ports import Ports
from millrace.store.contract import Store
from millrace.store.sqlite import SqliteStore
from millrace_sim.store import MemoryStore, MemoryStoreState
from unit.store.contract_suite import OFFICE, World, candidate

PIDS = st.integers(1, 3)
TTL_S = 10.0


class OfficeMachine(RuleBasedStateMachine):
    """The model: token, who has it until when, records as a list, floor. Any process may use any token it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.world = self.make_world()
        self.stores: dict[int, Store] = {pid: self.world.open(pid) for pid in (1, 2, 3)}
        self.token, self.owner, self.until, self.writable = 0, 0, 0.0, False
        self.granted = False
        self.records: list[bytes] = []
        self.floor = 0

    def make_world(self) -> World:
        raise NotImplementedError

    def ask(self, call: Awaitable[Any]) -> Any:
        async def wrapped() -> Any:
            try:
                return await call
            except errors.MillraceError as error:
                return type(error)

        return self.runner.run(wrapped())

    def is_vacant(self) -> bool:
        if not self.writable:
            return True
        return not self.granted and (
            self.world.clock.time >= self.until or candidate(self.owner).process in self.world.gone
        )

    # -- calls -----------------------------------------------------------------------------------------------------
    @rule(pid=PIDS)
    def acquire(self, pid: int) -> None:
        answer = self.ask(self.stores[pid].acquire(OFFICE, candidate(pid), TTL_S))
        if self.is_vacant() or (pid == self.owner and not self.granted):
            assert answer == self.token + 1
            self.token, self.owner, self.writable, self.granted = answer, pid, True, False
            self.until = self.world.clock.time + TTL_S
        else:
            assert answer is errors.OfficeHeld

    @rule(pid=PIDS, back=st.integers(0, 2))
    def renew(self, pid: int, back: int) -> None:
        answer = self.ask(self.stores[pid].renew(OFFICE, self.token - back, TTL_S))
        if back == 0 and self.writable:
            assert answer is None
            self.until = self.world.clock.time + TTL_S
        else:
            assert answer is errors.Deposed

    @rule(pid=PIDS, back=st.integers(0, 1))
    def release(self, pid: int, back: int) -> None:
        answer = self.ask(self.stores[pid].release(OFFICE, self.token - back))
        if back == 0 and self.owner:
            assert answer is None
            self.writable = False
        else:
            assert answer is errors.Deposed

    @rule(pid=PIDS, step=st.integers(-1, 2))
    def grant(self, pid: int, step: int) -> None:
        answer = self.ask(self.stores[pid].grant(OFFICE, candidate(pid), self.token + step))
        if step > 0:
            assert answer is None
            self.token, self.owner, self.writable, self.granted = self.token + step, pid, True, True
        elif step == 0 and pid == self.owner and self.granted:
            assert answer is None
        else:
            assert answer is errors.Deposed

    @rule(pid=PIDS, back=st.integers(0, 1), off=st.sampled_from([0, 0, 0, -1, 1]), count=st.integers(0, 4))
    def append(self, pid: int, back: int, off: int, count: int) -> None:
        new = [b"%d/%d" % (self.token, len(self.records) + n) for n in range(count)]
        answer = self.ask(self.stores[pid].append(OFFICE, self.token - back, len(self.records) + off, new))
        if back or not self.writable:
            assert answer is errors.Deposed
        elif off:
            assert answer is errors.IndexConflict
        else:
            self.records += new
            assert answer == len(self.records)

    @rule(pid=PIDS, back=st.integers(0, 1), index=st.integers(0, 12))
    def save_snapshot(self, pid: int, back: int, index: int) -> None:
        answer = self.ask(self.stores[pid].save_snapshot(OFFICE, self.token - back, index, b"s%d" % index))
        if back or not self.writable:
            assert answer is errors.Deposed
        elif not self.floor <= index <= len(self.records):
            assert answer is errors.IndexConflict
        else:
            assert answer is None
            self.floor = index

    @rule(pid=PIDS, after=st.integers(0, 12), limit=st.integers(0, 5))
    def read(self, pid: int, after: int, limit: int) -> None:
        answer = self.ask(self.stores[pid].read(OFFICE, after, limit))
        if after < self.floor:
            assert answer is errors.IndexCompacted
        else:
            assert answer == list(enumerate(self.records, start=1))[after : after + limit]

    # -- the world -------------------------------------------------------------------------------------------------
    @rule(seconds=st.sampled_from([0.1, 5.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.time += seconds

    @precondition(lambda self: self.owner and not self.granted)
    @rule()
    def holder_dies(self) -> None:
        self.world.gone.add(candidate(self.owner).process)

    @rule()
    def everyone_lives(self) -> None:
        self.world.gone.clear()

    @rule(pid=PIDS)
    def restart(self, pid: int) -> None:
        self.ask(self.stores[pid].close())
        self.stores[pid] = self.world.open(pid)

    @invariant()
    def holder_is_as_modelled(self) -> None:
        holder = self.ask(self.stores[1].holder(OFFICE))
        if not self.owner:
            assert holder is None
        else:
            found = (holder.candidate.member, holder.token, holder.vacant)
            assert found == (self.owner, self.token, self.is_vacant())

    def teardown(self) -> None:
        self.runner.run(self.world.close())
        self.runner.close()


class MemoryWorld(World):
    def __init__(self) -> None:
        super().__init__()
        self.state = MemoryStoreState(clock=self.clock, latency_min_s=0, latency_max_s=0)

    def _open(self, ports: Ports) -> Store:
        return MemoryStore(self.state, ports)


class SqliteWorld(World):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="millrace-store-")

    def _open(self, ports: Ports) -> Store:
        return SqliteStore(self.directory, ports)

    async def close(self) -> None:
        await super().close()
        shutil.rmtree(self.directory)


class MemoryMachine(OfficeMachine):
    def make_world(self) -> World:
        return MemoryWorld()


class SqliteMachine(OfficeMachine):
    def make_world(self) -> World:
        return SqliteWorld()


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
