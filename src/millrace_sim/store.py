"""The store in memory, for simulation: the contract of millrace.store with simulated latency and faults.

In: the calls of `store.contract.Store`, from any number of simulated processes that share one `MemoryStoreState`.
Out: the same answers as the durable stores give; the same contract suite runs on it.

Promises: everything happens at one instant inside the call, between two delays drawn from the state's seeded generator,
so the same seed gives the same run; state survives the processes (it models disk or etcd); a host that is cut off waits
its call time-out and gets StoreUnreachable, and a cut that falls between the instant and the answer leaves the write
done: the caller cannot know.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from millrace import limits
from millrace.errors import StoreUnreachable
from millrace.model.ids import ProcessIdentity
from millrace.ops.ports import Ports
from millrace.store import rules
from millrace.store.contract import Candidate, Holder, MemberLease
from millrace.store.rules import NEVER_HELD, OfficeState

T = TypeVar("T")
GONE_POLL_S = 0.1  # a watch looks this often whether the holder's process is gone


class Now(Protocol):
    """The store's own clock; brokers' clocks may be skewed against it."""

    def now(self) -> float: ...


@dataclass(slots=True)
class _Member:
    incarnation: int
    ttl_s: float
    expires_at: float
    process: ProcessIdentity
    info: bytes


@dataclass(slots=True)
class _Office:
    state: OfficeState = NEVER_HELD
    records: dict[int, bytes] = field(default_factory=dict)
    snapshot: tuple[int, bytes] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryStoreState:
    """What several MemoryStores share: the "disk". Without a clock the running loop's time is the store's time."""

    def __init__(
        self, *, seed: int = 0, clock: Now | None = None, latency_min_s: float = 0.0003, latency_max_s: float = 0.002
    ) -> None:
        self.latency_min_s = latency_min_s
        self.latency_max_s = latency_max_s
        self._rng = random.Random(seed)
        self._clock = clock
        self._offices: dict[str, _Office] = {}
        self.members: dict[str, _Member] = {}
        self._cut: set[str] = set()

    def now(self) -> float:
        return asyncio.get_running_loop().time() if self._clock is None else self._clock.now()

    def office(self, name: str) -> _Office:
        rules.check_name(name)
        return self._offices.setdefault(name, _Office())

    def delay_s(self) -> float:
        return self._rng.uniform(self.latency_min_s, self.latency_max_s)

    # -- faults and looks for tests ------------------------------------------------------------------------------
    def cut(self, host: str) -> None:
        """From now on `host` gets no answer."""
        self._cut.add(host)

    def heal(self, host: str) -> None:
        self._cut.discard(host)

    def is_cut(self, host: str) -> bool:
        return host in self._cut

    def history(self, office: str) -> list[tuple[int, bytes]]:
        """The records still there, for checkers outside the system."""
        return sorted(self.office(office).records.items())

    def token(self, office: str) -> int:
        return self.office(office).state.token


class MemoryStore:
    """One process's view of a shared MemoryStoreState."""

    def __init__(self, state: MemoryStoreState, ports: Ports, *, host: str = "") -> None:
        self._state = state
        self._ports = ports
        self._host = host

    async def acquire(self, office: str, candidate: Candidate, ttl_s: float) -> int:
        def step() -> int:
            room = self._state.office(office)
            state = rules.acquired(
                room.state, candidate, office=office, vacant=self._is_vacant(room.state), ttl_s=ttl_s
            )
            self._store(room, self._with_lease(state, ttl_s))
            return state.token

        return await self._call("acquire", step)

    async def renew(self, office: str, token: int, ttl_s: float) -> None:
        def step() -> None:
            room = self._state.office(office)
            rules.refuse_stale(room.state, token, office=office)
            room.state = self._with_lease(room.state, ttl_s)

        await self._call("renew", step)

    async def release(self, office: str, token: int) -> None:
        def step() -> None:
            room = self._state.office(office)
            self._store(room, rules.released(room.state, token, office=office))

        await self._call("release", step)

    async def grant(self, office: str, candidate: Candidate, epoch: int) -> None:
        def step() -> None:
            room = self._state.office(office)
            self._store(room, rules.granted(room.state, candidate, epoch, office=office))

        await self._call("grant", step)

    async def holder(self, office: str) -> Holder | None:
        def step() -> Holder | None:
            state = self._state.office(office).state
            left_s = state.expires_at - self._state.now()
            return rules.holder_of(state, expires_in_s=left_s, vacant=self._is_vacant(state))

        return await self._call("holder", step)

    async def append(self, office: str, token: int, expected_index: int, records: Sequence[bytes]) -> int:
        rules.check_records(records)
        kept = [bytes(record) for record in records]

        def step() -> int:
            room = self._state.office(office)
            state = rules.appended(room.state, token, expected_index, len(kept), office=office)
            room.records.update(enumerate(kept, start=expected_index + 1))
            self._store(room, state)
            return state.index

        return await self._call("append", step)

    async def read(self, office: str, after_index: int, limit: int) -> list[tuple[int, bytes]]:
        def step() -> list[tuple[int, bytes]]:
            room = self._state.office(office)
            rules.refuse_compacted(room.state, after_index, office=office)
            last = min(room.state.index, after_index + max(0, limit))
            return [(index, room.records[index]) for index in range(after_index + 1, last + 1)]

        return await self._call("read", step)

    async def save_snapshot(self, office: str, token: int, index: int, blob: bytes) -> None:
        rules.check_snapshot(blob)

        def step() -> None:
            room = self._state.office(office)
            state = rules.snapshotted(room.state, token, index, office=office)
            room.snapshot = (index, bytes(blob))
            room.records = {at: record for at, record in room.records.items() if at > index}
            self._store(room, state)

        await self._call("save_snapshot", step)

    async def load_snapshot(self, office: str) -> tuple[int, bytes] | None:
        return await self._call("load_snapshot", lambda: self._state.office(office).snapshot)

    async def watch(
        self, office: str, after_index: int, timeout_s: float, *, known_token: int | None = None
    ) -> int:
        room = await self._call("watch", lambda: self._state.office(office))
        before = self._who(room) if known_token is None else (known_token, False)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while room.state.index <= after_index and self._who(room) == before:
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                break
            await self._changed(room, min(left_s, GONE_POLL_S))
        return await self._call("watch", lambda: room.state.index)

    async def lease(self, member: str, incarnation: int, ttl_s: float, info: bytes) -> None:
        rules.check_name(member)

        def step() -> None:
            known = self._state.members.get(member)
            if known is not None:
                rules.refuse_stale_incarnation(member, given=incarnation, stored=known.incarnation)
                over = self._state.now() >= known.expires_at
                rules.refuse_living_other(member, known.process, over=over, processes=self._ports.processes)
            expires_at = self._state.now() + ttl_s
            me = self._ports.processes.me()
            self._state.members[member] = _Member(incarnation, ttl_s, expires_at, me, bytes(info))

        await self._call("lease", step)

    async def leases(self) -> list[MemberLease]:
        def step() -> list[MemberLease]:
            now = self._state.now()
            return [
                MemberLease(name, known.incarnation, known.expires_at - now, known.ttl_s - (known.expires_at - now),
                            known.info)
                for name, known in sorted(self._state.members.items())
                if now < known.expires_at and not self._ports.processes.is_gone(known.process)
            ]

        return await self._call("leases", step)

    async def close(self) -> None:
        """Nothing is held outside the shared state."""

    # -- inside ----------------------------------------------------------------------------------------------------
    async def _call(self, name: str, step: Callable[[], T]) -> T:
        await self._reach(name)
        self._ports.buggify(f"store.{name}.before")
        answer = step()
        self._ports.buggify(f"store.{name}.after")
        await self._reach(name)
        return answer

    async def _reach(self, name: str) -> None:
        await asyncio.sleep(self._state.delay_s())
        if self._state.is_cut(self._host):
            await asyncio.sleep(limits.STORE_CALL_S)
            raise StoreUnreachable(f"store.{name}: no answer within {limits.STORE_CALL_S} s")

    def _with_lease(self, state: OfficeState, ttl_s: float) -> OfficeState:
        return msgspec.structs.replace(state, ttl_s=ttl_s, expires_at=self._state.now() + ttl_s)

    def _is_vacant(self, state: OfficeState) -> bool:
        over = rules.is_over(state, self._state.now())
        return rules.is_vacant(state, over=over, processes=self._ports.processes)

    def _who(self, room: _Office) -> tuple[int, bool]:
        return room.state.token, self._is_vacant(room.state)

    def _store(self, room: _Office, state: OfficeState) -> None:
        room.state = state
        room.changed.set()
        room.changed = asyncio.Event()

    async def _changed(self, room: _Office, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(room.changed.wait(), timeout_s)
        except TimeoutError:
            pass
