"""SQLite passes the contract, and keeps its own promises: file names, boots, formats, damage, bounded waiting."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import errors
from millrace.ops.ports import Ports
from millrace.ops.real import real_ports
from millrace.store.contract import Store
from millrace.store.sqlite import SqliteStore, file_name
from unit.store.contract_suite import OFFICE, TTL_S, ClockContract, ContractSuite, World, candidate, held, run


@dataclass
class SqliteWorld(World):
    directory: str = ""

    def _open(self, ports: Ports) -> Store:
        return SqliteStore(self.directory, ports)


@pytest.fixture
def world(tmp_path: Path) -> SqliteWorld:
    return SqliteWorld(directory=str(tmp_path / "store"))


class TestContract(ContractSuite, ClockContract):
    pass


@given(st.lists(st.text(min_size=1, max_size=20), unique=True, max_size=30))
def test_L18_file_names_are_injective_and_safe(names: list[str]) -> None:
    files = [file_name(name) for name in names]
    assert len({name.casefold() for name in files}) == len(names)
    assert all("/" not in name and "\0" not in name for name in files)


def test_L18_a_holder_of_another_boot_is_gone(world: SqliteWorld) -> None:
    async def body() -> None:
        one = world.open(1)
        await one.acquire(OFFICE, candidate(1), 3600.0)
        await one.lease("a", 1, 3600.0, b"")
        later = world.open(2, boot_id="boot-2:ns")
        assert (await held(later)).vacant
        assert await later.leases() == []
        assert await later.acquire(OFFICE, candidate(2, "boot-2:ns"), TTL_S) == 2

    run(world, body)


def test_L18_another_pid_namespace_of_the_same_boot_is_not_gone(world: SqliteWorld) -> None:
    async def body() -> None:
        one = world.open(1, boot_id="boot-1:ns1")
        await one.acquire(OFFICE, candidate(1, "boot-1:ns1"), 3600.0)
        other = world.open(2, boot_id="boot-1:ns2")
        with pytest.raises(errors.OfficeHeld):
            await other.acquire(OFFICE, candidate(2, "boot-1:ns2"), TTL_S)

    run(world, body)


def test_L19_a_newer_database_is_refused_in_one_line(world: SqliteWorld) -> None:
    async def body() -> None:
        await world.open(1).grant(OFFICE, candidate(1), 1)
        await world.close()
        path = os.path.join(world.directory, file_name(OFFICE))
        _execute(path, "PRAGMA user_version = 2")
        with pytest.raises(errors.NewerFormat) as raised:
            await world.open(1).holder(OFFICE)
        assert path in str(raised.value)
        assert "\n" not in str(raised.value)

    run(world, body)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE record SET format = 2",
        "UPDATE office SET state = json_set(state, '$.format', 2, '$.token', 'not a number')",
    ],
)
def test_L19_a_newer_record_or_state_is_refused(world: SqliteWorld, change: str) -> None:
    async def body() -> None:
        one = world.open(1)
        await one.grant(OFFICE, candidate(1), 1)
        await one.append(OFFICE, 1, 0, [b"x"])
        await world.close()
        _execute(os.path.join(world.directory, file_name(OFFICE)), change)
        with pytest.raises(errors.NewerFormat):
            await world.open(1).read(OFFICE, 0, 10)

    run(world, body)


@pytest.mark.parametrize("content", [b"not a database, but long enough to be looked at" * 100, b""])
def test_L19_a_foreign_file_is_refused_and_left_alone(world: SqliteWorld, content: bytes) -> None:
    async def body() -> None:
        store = world.open(1)
        path = Path(world.directory, file_name(OFFICE))
        path.write_bytes(content)
        with pytest.raises(errors.Damaged):
            await store.holder(OFFICE)
        assert path.read_bytes() == content

    run(world, body)


def test_L19_a_directory_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.ConfigError, match="cannot use directory"):
        SqliteWorld(directory=str(tmp_path / "file")).open(1)


def test_L18_a_refused_change_is_never_seen_by_a_watch(world: SqliteWorld) -> None:
    async def body() -> None:
        one = world.open(1)
        token = await one.acquire(OFFICE, candidate(1), 3600.0)
        with pytest.raises(errors.IndexConflict):
            await one.append(OFFICE, token, 5, [b"x"])
        assert await one.watch(OFFICE, 0, 0.01) == 0

    run(world, body)


def test_L18_a_lock_that_never_opens_ends_in_store_unreachable(
    world: SqliteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is this very process's, so nobody is killed."""
    monkeypatch.setattr("millrace.limits.STORE_CALL_S", 0.3)

    async def body() -> None:
        one = world.open(1)
        token = await one.acquire(OFFICE, candidate(1), 3600.0)
        blocker = sqlite3.connect(os.path.join(world.directory, file_name(OFFICE)), isolation_level=None)
        try:
            blocker.execute("BEGIN IMMEDIATE")
            with pytest.raises(errors.StoreUnreachable):
                await one.append(OFFICE, token, 0, [b"x"])
            assert (await held(one)).token == token  # looking does not wait for a writer
        finally:
            blocker.close()
        assert await one.append(OFFICE, token, 0, [b"y"]) == 1

    run(world, body)


def test_L18_a_full_disk_refuses_the_append_and_harms_nothing(world: SqliteWorld) -> None:
    async def body() -> None:
        one = SqliteStore(world.directory, real_ports())
        world.opened.append(one)
        token = await one.acquire(OFFICE, candidate(1), 3600.0)
        connection = one._office(OFFICE).file._connection
        assert connection is not None
        connection.execute("PRAGMA max_page_count = 10")
        with pytest.raises(errors.DiskFull):
            await one.append(OFFICE, token, 0, [b"x" * 100_000])
        assert await one.read(OFFICE, 0, 10) == []
        connection.execute("PRAGMA max_page_count = 1000")
        assert await one.append(OFFICE, token, 0, [b"x" * 100_000]) == 1

    run(world, body)


def test_L18_close_leaves_no_thread_and_no_descriptor(world: SqliteWorld) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def body() -> None:
        before = descriptors(), threading.active_count()
        one = world.open(1)
        for name in ("a", "b", "c"):
            await one.grant(name, candidate(1), 1)
        await one.lease("m", 1, 1.0, b"")
        await one.close()
        assert (descriptors(), threading.active_count()) == before

    run(world, body)


def test_L18_a_cancelled_call_leaves_the_store_usable(world: SqliteWorld) -> None:
    async def body() -> None:
        one = world.open(1)
        token = await one.acquire(OFFICE, candidate(1), 3600.0)
        for _ in range(20):
            call = asyncio.ensure_future(one.append(OFFICE, token, 0, []))
            await asyncio.sleep(0)
            call.cancel()
        assert await one.append(OFFICE, token, 0, [b"x"]) == 1

    run(world, body)


def _execute(path: str, statement: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute(statement)
    finally:
        connection.close()


def test_L18_an_office_waits_for_the_disk_with_every_record(world: SqliteWorld) -> None:
    """Asked of the connection that writes: below FULL a power cut takes back what was acknowledged."""
    async def body() -> None:
        store = world.open(1)
        token = await store.acquire(OFFICE, candidate(1), 3600.0)
        await store.append(OFFICE, token, 0, [b"a"])
        assert isinstance(store, SqliteStore)
        room = store._office(OFFICE)
        level = await store._run(room, lambda deadline: room.file.read(
            lambda db: db.execute("PRAGMA synchronous").fetchone()[0], deadline=deadline))
        assert level == 2, "FULL"

    run(world, body)


def test_L19_a_database_of_another_program_is_refused_and_left_alone(world: SqliteWorld) -> None:
    async def body() -> None:
        os.makedirs(world.directory, exist_ok=True)
        path = os.path.join(world.directory, file_name(OFFICE))
        with sqlite3.connect(path) as foreign:
            foreign.execute("CREATE TABLE theirs (x)")
        foreign.close()
        store = world.open(1)
        with pytest.raises(errors.Damaged, match="not a store of millrace"):
            await store.acquire(OFFICE, candidate(1), 3600.0)
        with sqlite3.connect(path) as after:
            assert after.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]
        after.close()

    run(world, body)


def test_L10_a_file_that_failed_once_is_not_used_again(world: SqliteWorld) -> None:
    async def body() -> None:
        store = world.open(1)
        token = await store.acquire(OFFICE, candidate(1), 3600.0)
        assert isinstance(store, SqliteStore)
        store._office(OFFICE).file._failed = errors.DiskFailed("a sync that failed")
        with pytest.raises(errors.DiskFailed, match="failed before"):
            await store.append(OFFICE, token, 0, [b"a"])

    run(world, body)
