"""The office of a source in the hands of its reader: appends without an answer, and callers that are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from millrace.errors import StoreUnreachable
from millrace.model.ids import ProcessIdentity
from millrace.ops.ports import Ports
from millrace.ops.real import BootClock, RealFileSystem, RealRandom
from millrace.source.reading.office import SourceOffice
from millrace.store.contract import Candidate
from millrace_sim.store import MemoryStore, MemoryStoreState
from support_brokers import Machine, OneProcess


class Doubtful(MemoryStore):
    """`held`: an append waits for it, then is stored or not; its caller may be gone by then."""

    held: asyncio.Event | None = None
    fails = ""                      # of the next append: "before" or "after" it is stored

    async def append(self, office: str, token: int, expected_index: int, records: Sequence[bytes]) -> int:
        if self.held is not None:
            held, self.held = self.held, None
            return await asyncio.shield(asyncio.create_task(self._late(held, office, token, expected_index, records)))
        fails, self.fails = self.fails, ""
        if fails == "before":
            raise StoreUnreachable("no answer")
        index = await super().append(office, token, expected_index, records)
        if fails:
            raise StoreUnreachable("no answer")
        return index

    async def _late(self, held: asyncio.Event, *call: object) -> int:
        await held.wait()
        return await super().append(*call)  # type: ignore[arg-type]


async def opened() -> tuple[SourceOffice, Doubtful]:
    ports = Ports(clock=BootClock(), random=RealRandom(), processes=OneProcess(Machine()), fs=RealFileSystem())
    store = Doubtful(MemoryStoreState(), ports)
    office = SourceOffice(store, "s", 1)
    await office.open(Candidate(1, "", ProcessIdentity("t", 1, 1)))
    return office, store


async def add(office: SourceOffice, oid: int) -> None:
    await office.decide(lambda state: state.add_table(oid=oid, schema="public", name=f"t{oid}", partitions=1))


async def cancelled_add(office: SourceOffice, store: Doubtful, oid: int) -> asyncio.Event:
    """Its caller is gone while the append is on its way; it is stored when the event is set."""
    store.held = held = asyncio.Event()
    caller = asyncio.create_task(add(office, oid))
    while store.held is not None:
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    return held


def recorded(office: SourceOffice, store: Doubtful) -> int:
    return len(store._state.history(office._office))


def test_S9_a_decision_whose_caller_was_cancelled_does_not_stop_the_next() -> None:
    """A session ends in the middle of a write: the next one goes on with what the write left."""
    async def main() -> None:
        office, store = await opened()
        held = await cancelled_add(office, store, 1)
        held.set()
        while not recorded(office, store):
            await asyncio.sleep(0)
        await add(office, 2)
        await add(office, 1)             # it is there: nothing to write
        assert sorted(office.state.tables) == [1, 2]
        assert recorded(office, store) == 2

    asyncio.run(main())


def test_S9_a_cancelled_write_that_arrives_after_the_next_was_decided() -> None:
    async def main() -> None:
        office, store = await opened()
        held = await cancelled_add(office, store, 1)
        store.held = second = asyncio.Event()
        other = asyncio.create_task(add(office, 2))
        while store.held is not None:
            await asyncio.sleep(0)
        held.set()
        while not recorded(office, store):
            await asyncio.sleep(0)
        second.set()
        await other
        assert sorted(office.state.tables) == [1, 2]
        assert recorded(office, store) == 2

    asyncio.run(main())


@pytest.mark.parametrize("fails", ["before", "after"])
def test_C2_a_write_without_an_answer_is_there_once(fails: str) -> None:
    async def main() -> None:
        office, store = await opened()
        store.fails = fails
        await add(office, 1)
        await add(office, 2)
        assert sorted(office.state.tables) == [1, 2]
        assert recorded(office, store) == 2

    asyncio.run(main())
