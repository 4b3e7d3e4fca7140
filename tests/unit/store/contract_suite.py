"""The one contract suite: what every store must do. Each store's test module gives it a `World`."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from millrace import errors, limits
from millrace.model.ids import ProcessIdentity
from millrace.ops.ports import Ports
from millrace.ops.real import BootClock, RealFileSystem, RealRandom
from millrace.store import ownership
from millrace.store.contract import Candidate, Holder, Store

BOOT = "boot-1"
TTL_S = 1.0  # the shortest that etcd can give
OFFICE = "controller"


class HandClock:
    """Time that moves when the test says so."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time


@dataclass
class HandProcesses:
    """Processes that are gone when the test says so; all of one boot unless named otherwise."""

    pid: int
    gone: set[ProcessIdentity]
    boot_id: str = BOOT

    def me(self) -> ProcessIdentity:
        return ProcessIdentity(self.boot_id, self.pid, 7)

    def is_gone(self, process: ProcessIdentity) -> bool:
        return process.boot_id == self.boot_id and process in self.gone


@dataclass
class World(ABC):
    """Stores of several processes on the same state. Clean up: every opened store is closed."""

    clock: HandClock = field(default_factory=HandClock)
    gone: set[ProcessIdentity] = field(default_factory=set)
    opened: list[Store] = field(default_factory=list)
    clock_is_ours: bool = True

    def open(self, pid: int = 1, boot_id: str = BOOT) -> Store:
        processes = HandProcesses(pid, self.gone, boot_id)
        clock = self.clock if self.clock_is_ours else BootClock()
        store = self._open(Ports(clock=clock, random=RealRandom(), processes=processes, fs=RealFileSystem()))
        self.opened.append(store)
        return store

    @abstractmethod
    def _open(self, ports: Ports) -> Store: ...

    async def outlive(self, store: Store, office: str, ttl_s: float) -> None:
        """Until the holder's lease is over."""
        self.clock.time += ttl_s + 0.01

    async def close(self) -> None:
        for store in self.opened:
            await store.close()


def candidate(pid: int = 1, boot_id: str = BOOT) -> Candidate:
    return Candidate(member=pid, address=f"127.0.0.1:{9000 + pid}", process=ProcessIdentity(boot_id, pid, 7))


def run(world: World, body: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            await body()
        finally:
            await world.close()

    asyncio.run(whole())


async def held(store: Store, office: str = OFFICE) -> Holder:
    holder = await store.holder(office)
    assert holder is not None
    return holder


async def soon(condition: Callable[[], Awaitable[bool]], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < deadline, "did not come true in time"
        await asyncio.sleep(0.02)


class OwnershipContract:
    """Whose store it is [L29]."""

    def test_L29_the_first_process_claims_the_store_and_others_compare(self, world: World) -> None:
        async def body() -> None:
            ours, foreign = UUID(int=1), UUID(int=2)
            one, two = world.open(1), world.open(2)
            await asyncio.gather(
                ownership.claim(one, ours, candidate(1), url="store"),
                ownership.claim(two, ours, candidate(2), url="store"),
            )
            await ownership.claim(two, ours, candidate(2), url="store")
            with pytest.raises(errors.ConfigError) as refused:
                await ownership.claim(two, foreign, candidate(2), url="store")
            assert str(ours) in str(refused.value)
            assert str(foreign) in str(refused.value)
            assert await two.holder(OFFICE) is None

        run(world, body)


class OfficeContract:
    """Who holds an office."""

    def test_L18_an_office_has_one_holder_and_tokens_grow(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            assert await one.holder(OFFICE) is None
            first = await one.acquire(OFFICE, candidate(1), TTL_S)
            with pytest.raises(errors.OfficeHeld):
                await two.acquire(OFFICE, candidate(2), TTL_S)
            holder = await held(two)
            assert (holder.candidate, holder.token, holder.vacant) == (candidate(1), first, False)
            assert 0 < holder.expires_in_s <= max(TTL_S, 2)
            await one.release(OFFICE, first)
            assert (await held(two)).vacant
            assert await two.acquire(OFFICE, candidate(2), TTL_S) > first

        run(world, body)

    def test_L18_of_many_candidates_at_once_exactly_one_wins(self, world: World) -> None:
        async def body() -> None:
            stores = [world.open(pid) for pid in range(1, 6)]
            calls = [s.acquire(OFFICE, candidate(pid), TTL_S) for pid, s in enumerate(stores, start=1)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert sorted(type(answer).__name__ for answer in answers) == ["OfficeHeld"] * 4 + ["int"]

        run(world, body)

    def test_L18_after_a_pause_longer_than_its_lease_the_old_holder_is_deposed_everywhere(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            old = await one.acquire(OFFICE, candidate(1), TTL_S)
            assert await one.append(OFFICE, old, 0, [b"a"]) == 1
            await world.outlive(two, OFFICE, TTL_S)
            new = await two.acquire(OFFICE, candidate(2), TTL_S)
            assert new > old
            for call in (
                one.renew(OFFICE, old, TTL_S),
                one.release(OFFICE, old),
                one.append(OFFICE, old, 1, [b"late"]),
                one.save_snapshot(OFFICE, old, 1, b"late"),
            ):
                with pytest.raises(errors.Deposed):
                    await call
            assert await two.append(OFFICE, new, 1, [b"b"]) == 2
            assert await one.read(OFFICE, 0, 10) == [(1, b"a"), (2, b"b")]

        run(world, body)

    def test_L18_renewal_keeps_the_office(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            token = await one.acquire(OFFICE, candidate(1), TTL_S)
            if world.clock_is_ours:
                world.clock.time += TTL_S * 0.9
                await one.renew(OFFICE, token, TTL_S)
                world.clock.time += TTL_S * 0.9
            else:
                ends_at = time.monotonic() + 3 * TTL_S
                while time.monotonic() < ends_at:
                    await one.renew(OFFICE, token, TTL_S)
                    await asyncio.sleep(0.1)
            with pytest.raises(errors.OfficeHeld):
                await two.acquire(OFFICE, candidate(2), TTL_S)
            assert not (await held(two)).vacant

        run(world, body)

    def test_L18_a_late_renewal_counts_when_nobody_came(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            token = await one.acquire(OFFICE, candidate(1), TTL_S)
            await world.outlive(two, OFFICE, TTL_S)
            assert await one.append(OFFICE, token, 0, [b"still mine"]) == 1
            await one.renew(OFFICE, token, TTL_S)
            with pytest.raises(errors.OfficeHeld):
                await two.acquire(OFFICE, candidate(2), TTL_S)

        run(world, body)

    def test_L18_a_renewal_may_change_the_length(self, world: World) -> None:
        async def body() -> None:
            one = world.open(1)
            token = await one.acquire(OFFICE, candidate(1), TTL_S)
            await one.renew(OFFICE, token, 60.0)
            assert (await held(one)).expires_in_s > 30

        run(world, body)

    def test_L17_a_holder_that_is_provably_gone_makes_way_at_once(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            old = await one.acquire(OFFICE, candidate(1), 3600.0)
            world.gone.add(candidate(1).process)
            assert (await held(two)).vacant
            assert await two.acquire(OFFICE, candidate(2), TTL_S) > old
            with pytest.raises(errors.Deposed):
                await one.append(OFFICE, old, 0, [b"ghost"])

        run(world, body)

    def test_L18_a_process_that_lost_the_answer_acquires_again(self, world: World) -> None:
        async def body() -> None:
            one = world.open(1)
            first = await one.acquire(OFFICE, candidate(1), 3600.0)
            second = await one.acquire(OFFICE, candidate(1), 3600.0)
            assert second > first
            with pytest.raises(errors.Deposed):
                await one.append(OFFICE, first, 0, [b"x"])
            assert await one.append(OFFICE, second, 0, [b"x"]) == 1

        run(world, body)

    def test_L18_release_ends_the_writing_and_may_be_repeated(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            token = await one.acquire(OFFICE, candidate(1), 3600.0)
            await one.release(OFFICE, token)
            await one.release(OFFICE, token)
            for call in (one.append(OFFICE, token, 0, [b"x"]), one.renew(OFFICE, token, TTL_S)):
                with pytest.raises(errors.Deposed):
                    await call
            await two.acquire(OFFICE, candidate(2), TTL_S)
            with pytest.raises(errors.Deposed):
                await one.release(OFFICE, token)

        run(world, body)

    def test_L18_a_token_that_was_never_given_writes_nothing(self, world: World) -> None:
        async def body() -> None:
            one = world.open(1)
            for call in (one.append(OFFICE, 0, 0, [b"x"]), one.append(OFFICE, 1, 0, [b"x"]), one.renew(OFFICE, 1, 1.0)):
                with pytest.raises(errors.Deposed):
                    await call
            token = await one.acquire(OFFICE, candidate(1), TTL_S)
            with pytest.raises(errors.Deposed):
                await one.append(OFFICE, token + 1, 0, [b"x"])
            assert await one.read(OFFICE, 0, 10) == []

        run(world, body)

    def test_C2_a_grant_succeeds_only_above_the_stored_epoch(self, world: World) -> None:
        async def body() -> None:
            office = "changefeed/orders"
            one, two = world.open(1), world.open(2)
            await one.grant(office, candidate(1), 5)
            await one.grant(office, candidate(1), 5)
            for who, epoch in ((candidate(2), 5), (candidate(2), 4), (candidate(1), 4)):
                with pytest.raises(errors.Deposed):
                    await two.grant(office, who, epoch)
            assert await one.append(office, 5, 0, [b"a"]) == 1
            await two.grant(office, candidate(2), 9)
            with pytest.raises(errors.Deposed):
                await one.append(office, 5, 1, [b"late"])
            assert await two.append(office, 9, 1, [b"b"]) == 2
            holder = await held(one, office)
            assert (holder.candidate.member, holder.token, holder.vacant) == (2, 9, False)
            assert math.isinf(holder.expires_in_s)

        run(world, body)

    def test_C2_a_granted_office_has_no_lease_and_is_not_for_candidates(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            await one.grant("source/shop", candidate(1), 1)
            world.clock.time += 1e6
            world.gone.add(candidate(1).process)
            with pytest.raises(errors.OfficeHeld):
                await two.acquire("source/shop", candidate(2), TTL_S)
            await one.renew("source/shop", 1, TTL_S)
            assert await one.append("source/shop", 1, 0, [b"x"]) == 1

        run(world, body)

    def test_L18_offices_do_not_meet_whatever_their_names(self, world: World) -> None:
        async def body() -> None:
            names = ["a/b", "a%2fb", "a%2Fb", "A", "a", "ä", "a b", "..", "x/state", "x", "x/log/0", "-"]
            one = world.open(1)
            for number, name in enumerate(names):
                await one.grant(name, candidate(1), number + 1)
                await one.append(name, number + 1, 0, [name.encode()])
            for name in names:
                assert await one.read(name, 0, 10) == [(1, name.encode())]
            for bad in ("", "x" * 101):
                with pytest.raises(errors.InvalidRequest):
                    await one.holder(bad)

        run(world, body)


class HistoryContract:
    """What an office remembers."""

    def test_L18_records_come_back_in_order_and_whole(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            token = await one.acquire(OFFICE, candidate(1), 3600.0)
            records = [b"", b"\0\xff", b"x" * 5000, "ü".encode()]
            assert await one.append(OFFICE, token, 0, records) == 4
            assert await one.append(OFFICE, token, 4, []) == 4
            for index in range(4, 44):
                assert await one.append(OFFICE, token, index, [b"%d" % index]) == index + 1
            expected = [*enumerate(records, start=1), *((n + 1, b"%d" % n) for n in range(4, 44))]
            assert await two.read(OFFICE, 0, 1000) == expected
            assert await two.read(OFFICE, 2, 3) == expected[2:5]
            assert await two.read(OFFICE, 43, 3) == expected[43:]
            assert await two.read(OFFICE, 44, 3) == []
            assert await two.read(OFFICE, 0, 0) == []

        run(world, body)

    def test_L18_an_append_at_another_index_is_refused_and_leaves_nothing(self, world: World) -> None:
        async def body() -> None:
            one = world.open(1)
            token = await one.acquire(OFFICE, candidate(1), 3600.0)
            await one.append(OFFICE, token, 0, [b"a", b"b"])
            for wrong in (0, 1, 3):
                with pytest.raises(errors.IndexConflict):
                    await one.append(OFFICE, token, wrong, [b"x"])
            assert await one.read(OFFICE, 0, 10) == [(1, b"a"), (2, b"b")]

        run(world, body)

    def test_L18_of_two_appends_at_one_index_exactly_one_counts(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(1)
            token = await one.acquire(OFFICE, candidate(1), 3600.0)
            calls = [store.append(OFFICE, token, 0, [b"%d" % n]) for n, store in enumerate([one, two, one, two])]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert sorted(type(answer).__name__ for answer in answers) == ["IndexConflict"] * 3 + ["int"]
            winner = next(n for n, answer in enumerate(answers) if answer == 1)
            assert await two.read(OFFICE, 0, 10) == [(1, b"%d" % winner)]

        run(world, body)

    def test_L18_an_append_takes_all_records_up_to_the_limits_and_none_above(self, world: World) -> None:
        async def body() -> None:
            one = world.open(1)
            token = await one.acquire(OFFICE, candidate(1), 3600.0)
            most = [b"%0500d" % n for n in range(limits.RECORDS_PER_APPEND_MAX)]
            assert await one.append(OFFICE, token, 0, most) == len(most)
            assert await one.append(OFFICE, token, len(most), [b"y" * limits.STORE_APPEND_BYTES_MAX]) == len(most) + 1
            with pytest.raises(errors.InvalidRequest):
                await one.append(OFFICE, token, len(most) + 1, [b""] * (limits.RECORDS_PER_APPEND_MAX + 1))
            with pytest.raises(errors.MessageTooLarge):
                await one.append(OFFICE, token, len(most) + 1, [b"y" * limits.STORE_APPEND_BYTES_MAX, b"1"])
            read = await one.read(OFFICE, 0, 10_000)
            assert [data for _, data in read[:-1]] == most
            assert len(read) == len(most) + 1
            assert await one.read(OFFICE, 1500, 10) == read[1500:1510]

        run(world, body)

    def test_L18_a_snapshot_stands_for_the_records_below_it(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            token = await one.acquire(OFFICE, candidate(1), 3600.0)
            assert await one.load_snapshot(OFFICE) is None
            await one.append(OFFICE, token, 0, [b"1", b"2", b"3"])
            await one.append(OFFICE, token, 3, [b"4", b"5"])
            await one.save_snapshot(OFFICE, token, 4, b"one to four")
            assert await two.load_snapshot(OFFICE) == (4, b"one to four")
            assert await two.read(OFFICE, 4, 10) == [(5, b"5")]
            for below in (0, 3):
                with pytest.raises(errors.IndexCompacted):
                    await two.read(OFFICE, below, 10)
            for wrong in (3, 6):
                with pytest.raises(errors.IndexConflict):
                    await one.save_snapshot(OFFICE, token, wrong, b"no")
            assert await one.append(OFFICE, token, 5, [b"6"]) == 6
            await one.save_snapshot(OFFICE, token, 6, b"")
            assert await two.load_snapshot(OFFICE) == (6, b"")
            assert await two.read(OFFICE, 6, 10) == []

        run(world, body)

    def test_L18_large_snapshots_replace_each_other_whole(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            token = await one.acquire(OFFICE, candidate(1), 3600.0)
            await one.append(OFFICE, token, 0, [b"1", b"2", b"3"])
            blobs = {n: bytes([n]) * (5 * 512 * 1024 + n) for n in (1, 2, 3)}

            async def save() -> None:
                for index, blob in blobs.items():
                    await one.save_snapshot(OFFICE, token, index, blob)

            saving = asyncio.ensure_future(save())
            while not saving.done():
                loaded = await two.load_snapshot(OFFICE)
                assert loaded is None or loaded[1] == blobs[loaded[0]]
            await saving
            assert await two.load_snapshot(OFFICE) == (3, blobs[3])

        run(world, body)

    def test_L18_everything_is_there_after_a_restart(self, world: World) -> None:
        async def body() -> None:
            one = world.open(1)
            token = await one.acquire(OFFICE, candidate(1), 3600.0)
            await one.append(OFFICE, token, 0, [b"a", b"b"])
            await one.save_snapshot(OFFICE, token, 1, b"A")
            await one.close()
            again = world.open(1)
            assert (await held(again)).token == token
            assert await again.load_snapshot(OFFICE) == (1, b"A")
            assert await again.read(OFFICE, 1, 10) == [(2, b"b")]
            assert await again.append(OFFICE, token, 2, [b"c"]) == 3

        run(world, body)


class WatchContract:
    """Who waits is told."""

    def test_L18_watch_answers_at_once_what_is_already_there_and_in_time_what_is_not(self, world: World) -> None:
        async def body() -> None:
            one = world.open(1)
            token = await one.acquire(OFFICE, candidate(1), 3600.0)
            await one.append(OFFICE, token, 0, [b"a", b"b"])
            assert await one.watch(OFFICE, 1, 60.0) == 2
            assert await one.watch(OFFICE, 2, 0.05) == 2
            assert await one.watch("nobody", 0, 0.05) == 0

        run(world, body)

    def test_L18_watch_wakes_for_records_of_this_and_of_other_processes(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            token = await one.acquire(OFFICE, candidate(1), 3600.0)
            watches = [asyncio.ensure_future(store.watch(OFFICE, 0, 60.0)) for store in (one, two)]
            done, _ = await asyncio.wait(watches, timeout=0.1)
            assert not done, "nothing was written yet"
            await one.append(OFFICE, token, 0, [b"a"])
            assert await asyncio.wait_for(asyncio.gather(*watches), 10) == [1, 1]

        run(world, body)

    def test_L18_watch_wakes_when_the_office_falls_vacant_or_changes_hands(self, world: World) -> None:
        async def body() -> None:
            one, two, three = world.open(1), world.open(2), world.open(3)
            token = await one.acquire(OFFICE, candidate(1), 3600.0)
            await self._wakes(three, token, lambda: one.release(OFFICE, token))
            token = await two.acquire(OFFICE, candidate(2), 3600.0)
            await self._wakes(three, token, lambda: two.acquire(OFFICE, candidate(2), 3600.0))

            async def die() -> None:
                world.gone.add(candidate(2).process)

            await self._wakes(three, (await held(three)).token, die)

        run(world, body)

    async def _wakes(self, store: Store, token: int, cause: Callable[[], Awaitable[object]]) -> None:
        watch = asyncio.ensure_future(store.watch(OFFICE, 0, 60.0, known_token=token))
        await cause()
        assert await asyncio.wait_for(watch, 10) == 0

    def test_L18_watch_wakes_when_the_lease_ends(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            token = await one.acquire(OFFICE, candidate(1), TTL_S)
            watch = asyncio.ensure_future(two.watch(OFFICE, 0, 60.0, known_token=token))
            await world.outlive(two, OFFICE, TTL_S)
            assert await asyncio.wait_for(watch, 10) == 0

        run(world, body)


class MemberContract:
    """Who lives."""

    def test_C1_members_live_as_long_as_they_lease(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            await one.lease("capture/1", 4, 3600.0, b"here")
            await two.lease("capture/2", 1, TTL_S, b"there")
            await one.lease("capture/1", 4, 3600.0, b"moved")
            await one.lease("capture/1", 4, 3600.0, b"moved")
            living = {lease.member: lease for lease in await one.leases()}
            assert list(living) == ["capture/1", "capture/2"]
            assert (living["capture/1"].incarnation, living["capture/1"].info) == (4, b"moved")
            assert 0 < living["capture/2"].expires_in_s <= max(TTL_S, 2)
            world.clock.time += TTL_S + 0.01

            async def one_left() -> bool:
                return [lease.member for lease in await two.leases()] == ["capture/1"]

            await soon(one_left)

        run(world, body)

    def test_C1_a_gone_or_ended_member_is_not_among_the_living(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            await one.lease("a", 1, 3600.0, b"")
            await two.lease("b", 1, 3600.0, b"")
            world.gone.add(candidate(1).process)
            assert [lease.member for lease in await two.leases()] == ["b"]
            await two.lease("b", 1, 0, b"")
            assert await two.leases() == []
            await two.lease("b", 1, 3600.0, b"back")
            assert [lease.info for lease in await two.leases()] == [b"back"]

        run(world, body)

    def test_L15_an_older_incarnation_is_refused(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            await one.lease("a", 3, 3600.0, b"old")
            world.gone.add(candidate(1).process)
            await two.lease("a", 4, 3600.0, b"new")
            for ttl_s in (TTL_S, 0.0):
                with pytest.raises(errors.StaleIncarnation):
                    await one.lease("a", 3, ttl_s, b"old")
            assert [(lease.incarnation, lease.info) for lease in await one.leases()] == [(4, b"new")]

        run(world, body)

    @pytest.mark.parametrize("incarnation", [3, 4])
    def test_C1_the_place_of_a_living_member_is_not_taken(self, world: World, incarnation: int) -> None:
        """Nor is it ended, and the two may even have started in the same millisecond."""

        async def body() -> None:
            one, two, far = world.open(1), world.open(2), world.open(1, boot_id=BOOT + ":another namespace")
            await one.lease("a", 3, 3600.0, b"old")
            for other in (two, far):
                for ttl_s in (3600.0, 0.0):
                    with pytest.raises(errors.MemberHeld):
                        await other.lease("a", incarnation, ttl_s, b"new")
            (lease,) = await two.leases()
            assert (lease.incarnation, lease.info) == (3, b"old")
            assert lease.expires_in_s + lease.heard_ago_s == pytest.approx(3600.0, abs=1.0)
            await one.lease("a", 3, 3600.0, b"still here")
            await one.lease("a", 5, 3600.0, b"the same process, anew")
            assert [(lease.incarnation, lease.info) for lease in await two.leases()] == [(5, b"the same process, anew")]

        run(world, body)

    def test_C1_what_is_left_of_a_lease_grows_only_when_it_is_renewed(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            await one.lease("a", 1, 2 * TTL_S, b"")
            seen = [math.inf]

            async def ended() -> bool:
                world.clock.time += 0.1
                left = await two.leases()
                seen.extend(lease.expires_in_s for lease in left)
                return not left

            await soon(ended)
            assert len(seen) > 3
            assert seen == sorted(seen, reverse=True)

        run(world, body)

    def test_C1_who_ended_fell_silent_or_is_provably_gone_makes_way_at_once(self, world: World) -> None:
        async def body() -> None:
            one, two, three, four = (world.open(pid) for pid in (1, 2, 3, 4))
            await one.lease("a", 3, 3600.0, b"one")
            await one.lease("a", 3, 0.0, b"")
            await two.lease("a", 3, TTL_S, b"two")
            world.clock.time += TTL_S + 0.01

            async def taken() -> bool:
                try:
                    await three.lease("a", 4, 3600.0, b"three")
                except errors.MemberHeld:
                    return False
                return True

            await soon(taken)
            world.gone.add(candidate(3).process)
            await four.lease("a", 5, 3600.0, b"four")
            assert [lease.info for lease in await four.leases()] == [b"four"]

        run(world, body)


class ContractSuite(OwnershipContract, OfficeContract, HistoryContract, WatchContract, MemberContract):
    """All of it."""


class ClockContract:
    """For stores that count leases on the clock port."""

    def test_L16_a_clock_that_jumps_forward_costs_the_office_and_nothing_else(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            old = await one.acquire(OFFICE, candidate(1), TTL_S)
            world.clock.time += 1e6
            new = await two.acquire(OFFICE, candidate(2), TTL_S)
            with pytest.raises(errors.Deposed):
                await one.append(OFFICE, old, 0, [b"x"])
            assert await two.append(OFFICE, new, 0, [b"y"]) == 1

        run(world, body)

    def test_L16_a_clock_that_jumps_back_holds_nobody_longer_than_a_lease(self, world: World) -> None:
        async def body() -> None:
            one, two = world.open(1), world.open(2)
            await one.acquire(OFFICE, candidate(1), TTL_S)
            await one.lease("a", 1, TTL_S, b"")
            world.clock.time -= 900.0
            await two.acquire(OFFICE, candidate(2), TTL_S)
            assert (await held(two)).expires_in_s <= TTL_S

        run(world, body)
