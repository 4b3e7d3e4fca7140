"""SIGSTOP inside a SQLite call holds the others up no longer than a tenure [L18], with real processes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace import errors, limits
from millrace.ops.real import process_stat, real_ports
from millrace.store import open_store
from millrace.store.contract import Candidate, Store
from millrace.store.sqlite import file_name

TESTS = Path(__file__).parents[1]
OFFICE = "controller"
MARGIN_S = 1.0  # two cores shared by many processes

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/store"


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        environment = dict(os.environ, PYTHONPATH=f"{TESTS}:{TESTS.parent / 'src'}")
        command = [sys.executable, "-m", "support_store_child", *arguments]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def heard(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    line: dict[str, object] = json.loads(process.stdout.readline())
    return line


def wait_until_stopped(process: subprocess.Popen[str]) -> float:
    """When the process was seen to be stopped."""
    assert "stopping" in heard(process)
    deadline = time.monotonic() + 10
    while True:
        stat = process_stat(process.pid)
        assert stat is not None
        if stat.state == "T":
            return time.monotonic()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def me() -> Candidate:
    process = real_ports().processes.me()
    return Candidate(member=0, address="127.0.0.1:1", process=process)


async def take_over(store: Store) -> int:
    """As a candidate does it: watch, look, acquire."""
    deadline = time.monotonic() + 20
    while True:
        holder = await store.holder(OFFICE)
        if holder is None or holder.vacant:
            try:
                return await store.acquire(OFFICE, me(), limits.TENURE_S)
            except errors.OfficeHeld:
                pass
        assert time.monotonic() < deadline
        await store.watch(OFFICE, 1 << 40, 1.0, known_token=None if holder is None else holder.token)


@pytest.mark.parametrize(
    ("call", "point"),
    [("append", "before_commit"), ("renew", "begun"), ("save_snapshot", "before_commit")],
)
def test_L18_a_holder_stopped_inside_a_call_is_killed_and_replaced_after_its_tenure(
    url: str, start: Start, call: str, point: str
) -> None:
    stopped = start("stop", url, call, point, str(limits.TENURE_S))
    since = wait_until_stopped(stopped)

    async def body() -> None:
        store = open_store(url, real_ports())
        try:
            token = await take_over(store)
            assert time.monotonic() - since <= limits.TENURE_S + MARGIN_S
            assert await store.append(OFFICE, token, 0, [b"mine"]) == 1
        finally:
            await store.close()

    asyncio.run(body())
    assert stopped.wait(5) == -signal.SIGKILL


@pytest.mark.parametrize("call", ["acquire", "grant"])
def test_L18_a_stopped_newcomer_is_killed_before_it_costs_a_holder_its_tenure(
    url: str, start: Start, call: str
) -> None:
    async def body() -> None:
        store = open_store(url, real_ports())
        try:
            stopped = start("stop", url, call, "begun", "60")
            wait_until_stopped(stopped)
            began = time.monotonic()
            await store.grant(OFFICE, me(), 100)
            assert time.monotonic() - began < limits.TENURE_S
            assert stopped.wait(5) == -signal.SIGKILL
        finally:
            await store.close()

    asyncio.run(body())


def test_L18_a_process_stopped_outside_a_call_holds_nobody_up_and_is_left_alone(url: str, start: Start) -> None:
    stopped = start("stop", url, "idle", "", str(limits.TENURE_S))
    since = wait_until_stopped(stopped)

    async def body() -> None:
        store = open_store(url, real_ports())
        try:
            token = await take_over(store)
            assert time.monotonic() - since <= limits.TENURE_S + MARGIN_S
            assert await store.append(OFFICE, token, 0, [b"mine"]) == 1
        finally:
            await store.close()

    asyncio.run(body())
    stopped.send_signal(signal.SIGCONT)
    assert heard(stopped) == {"refused": "Deposed"}
    assert stopped.wait(5) == 0


def test_L17_a_killed_holder_is_replaced_at_once(url: str, start: Start) -> None:
    holder = start("busy", url)
    heard(holder)

    async def body() -> None:
        store = open_store(url, real_ports())
        try:
            watching = asyncio.ensure_future(take_over(store))
            done, _ = await asyncio.wait([watching], timeout=0.2)
            assert not done, "the holder lives"
            holder.kill()
            killed_at = time.monotonic()
            await watching
            assert time.monotonic() - killed_at < 0.5
        finally:
            await store.close()

    asyncio.run(body())


def test_L18_a_busy_holder_that_gets_on_is_not_killed(url: str, start: Start) -> None:
    busy = start("busy", url)
    heard(busy)

    async def body() -> None:
        store = open_store(url, real_ports())
        try:
            ends_at = time.monotonic() + limits.TENURE_S * 1.5
            while time.monotonic() < ends_at:
                with pytest.raises(errors.Deposed):
                    await store.renew(OFFICE, 99, 1.0)
        finally:
            await store.close()

    asyncio.run(body())
    assert busy.poll() is None


def test_L18_a_writer_stopped_at_any_time_holds_the_next_one_up_for_less_than_a_tenure(url: str, start: Start) -> None:
    async def body() -> None:
        store = open_store(url, real_ports())
        try:
            for epoch in (100, 200, 300):
                writer = start("busy", url)
                heard(writer)
                await asyncio.sleep(random.uniform(0, 0.1))
                writer.send_signal(signal.SIGSTOP)
                began = time.monotonic()
                await store.grant(OFFICE, me(), epoch)
                assert time.monotonic() - began < limits.TENURE_S + MARGIN_S
                writer.kill()
                await store.release(OFFICE, epoch)
        finally:
            await store.close()

    asyncio.run(body())


def test_L18_a_stranger_that_locks_the_file_is_not_killed(
    url: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.limits.STORE_CALL_S", limits.TENURE_S + 0.5)

    async def body() -> None:
        store = open_store(url, real_ports())
        try:
            token = await store.acquire(OFFICE, me(), 60.0)
            stranger = start("hold", os.path.join(url.removeprefix("sqlite:"), file_name(OFFICE)))
            heard(stranger)
            with pytest.raises(errors.StoreUnreachable):
                await store.append(OFFICE, token, 0, [b"x"])
            assert stranger.poll() is None
            stranger.kill()
            stranger.wait()
            assert await store.append(OFFICE, token, 0, [b"x"]) == 1
        finally:
            await store.close()

    asyncio.run(body())
