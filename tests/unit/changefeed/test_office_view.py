"""The coordinator's records, read by a capture that is not in office."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millrace.changefeed.office import OFFICE, OfficeWriter
from millrace.changefeed.office_snapshot import encode_snapshot
from millrace.changefeed.office_view import OfficeView
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.ids import ProcessIdentity
from millrace.ops.real import BootClock, real_ports
from millrace.store.contract import Candidate
from millrace_sim.store import MemoryStore, MemoryStoreState

ME = Candidate(1, "", ProcessIdentity("here", 1, 1))


class CountedStore(MemoryStore):
    reads = 0

    async def read(self, office: str, after_index: int, limit: int) -> list[tuple[int, bytes]]:
        self.reads += 1
        return await super().read(office, after_index, limit)


def spec(feed: str) -> ChangefeedSpec:
    return ChangefeedSpec(id=feed, source="shop", sink="kafka:?format=json")


async def office() -> tuple[CountedStore, int, OfficeWriter, OfficeView]:
    store = CountedStore(MemoryStoreState(clock=BootClock()), real_ports(), host="here")
    token = await store.acquire(OFFICE, ME, 60.0)
    return store, token, await OfficeWriter.load(store, token), OfficeView(store)


async def create(writer: OfficeWriter, feeds: Sequence[str]) -> None:
    for feed in feeds:
        await writer.submit_feeds(lambda state, feed=feed: state.create(spec(feed), wall_ms=1))  # type: ignore[misc]


def test_C1_what_was_recorded_before_it_was_asked_for_is_seen() -> None:
    async def body() -> None:
        _, _, writer, view = await office()
        assert (await view.now()).feeds.feeds == {}
        for n in range(3):
            await create(writer, [f"f{n}"])
            assert (await view.now()).feeds.entry(f"f{n}").spec == spec(f"f{n}")

    asyncio.run(body())


def test_C1_a_snapshot_in_between_is_read_anew() -> None:
    async def body() -> None:
        store, token, writer, view = await office()
        await create(writer, ["a"])
        await view.now()
        await create(writer, ["b"])
        await store.save_snapshot(OFFICE, token, writer.index, encode_snapshot(writer.state, writer.feeds))
        await create(writer, ["c"])
        assert set((await view.now()).feeds.feeds) == {"a", "b", "c"}

    asyncio.run(body())


def test_who_asks_while_it_is_read_shares_the_next_read() -> None:
    async def body() -> None:
        store, _, writer, view = await office()
        await create(writer, ["a"])
        store.reads = 0
        found = await asyncio.gather(*(view.now() for _ in range(100)))
        assert all("a" in states.feeds.feeds for states in found)
        assert store.reads == 3                         # of the first: all, and no more; of all others: no more

    asyncio.run(body())
