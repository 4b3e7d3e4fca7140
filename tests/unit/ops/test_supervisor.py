"""The supervisor: crashed children come back with back-off, all are ended, and the state file tells the truth."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace import limits
from millrace.ops import processes
from millrace.ops.supervisor import (
    BACKOFF_MAX_S,
    RUNNING,
    STEADY_S,
    Backoff,
    ChildSpec,
    FailedToStart,
    Supervisor,
    write_atomically,
)
from support_cluster import wait_for

SLEEPER = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text('up'); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
FAILING = "import sys; print('no such thing', file=sys.stderr); sys.exit(2)"


def spec(tmp_path: Path, code: str, name: str = "child") -> ChildSpec:
    flag = tmp_path / f"{name}.up"

    async def not_ready() -> str:
        return "" if flag.exists() else "no flag"

    return ChildSpec(name=name, command=(sys.executable, "-c", code, str(flag)), environ=dict(os.environ),
                     stderr_path=str(tmp_path / f"{name}.stderr"), not_ready=not_ready, about={"id": 7})


def state(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "state.json").read_text())
    return found


def run(tmp_path: Path, code: str, body: Callable[[Supervisor], Awaitable[None]], *, stop_s: float = 5.0) -> None:
    async def main() -> None:
        supervisor = Supervisor([spec(tmp_path, code)], state_path=str(tmp_path / "state.json"), about={"x": 1},
                                stop_s=stop_s)
        try:
            await supervisor.start(still_s=20)
            await body(supervisor)
        finally:
            await supervisor.stop()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def test_state_names_pids_and_stop_ends_all(tmp_path: Path) -> None:
    pids = []

    async def body(supervisor: Supervisor) -> None:
        child = state(tmp_path)["children"][0]
        assert (child["id"], child["state"], child["restarts"]) == (7, RUNNING, 0)
        assert processes.is_running(child["pid"], child["start_time"])
        assert state(tmp_path)["supervisor"]["pid"] == os.getpid()
        pids.append(child["pid"])

    run(tmp_path, SLEEPER, body)
    assert processes.start_time(pids[0]) is None
    assert state(tmp_path)["children"][0]["pid"] is None


def test_a_killed_child_is_restarted_and_it_is_said(tmp_path: Path) -> None:
    async def body(supervisor: Supervisor) -> None:
        child = supervisor.children[0]
        assert child.process is not None
        first = child.process.pid
        (tmp_path / "child.up").unlink()
        os.kill(first, signal.SIGKILL)
        await until(lambda: child.state == RUNNING and child.restarts == 1)
        assert child.process.pid != first
        assert state(tmp_path)["children"][0]["last_exit"] == -signal.SIGKILL

    run(tmp_path, SLEEPER, body)


def test_a_child_that_fails_at_the_start_fails_it_with_its_last_words(tmp_path: Path) -> None:
    async def body(supervisor: Supervisor) -> None:
        raise AssertionError("not reached")

    with pytest.raises(FailedToStart) as caught:
        run(tmp_path, FAILING, body)
    assert (caught.value.status, caught.value.line) == (2, "no such thing")


@pytest.mark.parametrize("paused", [False, True])
def test_a_deaf_or_paused_child_is_ended(tmp_path: Path, paused: bool) -> None:
    pids = []

    async def body(supervisor: Supervisor) -> None:
        process = supervisor.children[0].process
        assert process is not None
        pids.append(process.pid)
        if paused:
            os.kill(process.pid, signal.SIGSTOP)

    run(tmp_path, SLEEPER if paused else DEAF, body, stop_s=0.3)
    assert processes.start_time(pids[0]) is None


def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "env = {**os.environ, 'MILLRACE_SUPERVISOR_PID': str(os.getpid())}\n"
        "child = 'from millrace.ops.processes import die_with_supervisor as d; d(); print(1, flush=True); "
        "import time; time.sleep(600)'\n"
        "p = subprocess.Popen([sys.executable, '-c', child], env=env, stdout=subprocess.PIPE)\n"
        "p.stdout.readline(); print(p.pid, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert processes.start_time(child) is not None
        parent.kill()
    wait_for(lambda: processes.start_time(child) is None, "the child to end")


def test_backoff_doubles_up_to_its_bound_and_forgives_a_steady_child() -> None:
    top = Backoff(uniform=lambda low, high: high)
    delays = [top.failed(ran_s=0) for _ in range(10)]
    assert delays[:4] == [0.1, 0.2, 0.4, 0.8]
    assert delays[-1] == BACKOFF_MAX_S
    assert top.failed(ran_s=STEADY_S) == 0.1
    assert Backoff(uniform=lambda low, high: low).failed(ran_s=0) == 0.05


def test_a_signal_goes_to_exactly_that_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        started = processes.start_time(process.pid)
        assert started is not None
        assert not processes.send(process.pid, started + 1, signal.SIGKILL)
        assert process.poll() is None
        assert processes.send(process.pid, started, signal.SIGKILL)


def test_atomic_write_replaces_or_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomically(str(path), b"one")
    write_atomically(str(path), b"two")
    assert path.read_bytes() == b"two"
    with pytest.raises(FileNotFoundError):
        write_atomically(str(tmp_path / "missing" / "f"), b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_P8_a_child_that_is_not_needed_keeps_nobody_from_starting(tmp_path: Path) -> None:
    broken = replace(spec(tmp_path, FAILING, "broken"), needed=False, backoff_max_s=60.0)

    async def main() -> None:
        supervisor = Supervisor([spec(tmp_path, SLEEPER), broken], state_path=str(tmp_path / "state.json"), about={})
        try:
            await supervisor.start(still_s=20)
            good, bad = supervisor.children
            while bad.restarts == 0:
                await asyncio.sleep(0.01)
            assert (good.state, good.restarts, bad.last_exit) == (RUNNING, 0, 2)
            assert bad.last_words() == "no such thing"
            assert bad.backoff.most_s == 60.0
        finally:
            await supervisor.stop()

    asyncio.run(main())


def test_A2_a_start_that_stands_still_is_given_up_and_says_why(tmp_path: Path) -> None:
    said: list[str] = []

    async def main() -> None:
        late = spec(tmp_path, "import time; time.sleep(600)")
        supervisor = Supervisor([late], state_path=str(tmp_path / "state.json"), about={})
        try:
            with pytest.raises(TimeoutError, match=r"nothing has moved for 0.5 s: child \(no flag\)"):
                await supervisor.start(still_s=0.5, say=said.append)
        finally:
            await supervisor.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "START_SAY_S", 0.1)
        asyncio.run(main())
    assert "waits for child (no flag)" in said


def test_A2_a_start_that_moves_slowly_is_waited_for(tmp_path: Path) -> None:
    """Its steps take longer together than a start may stand still."""
    begun: list[float] = []
    still_s, step_s, steps = 2.0, 0.5, "abcdefghi"

    async def not_ready() -> str:
        begun.append(now := time.monotonic())
        step = int((now - begun[0]) / step_s)
        return f"at step {steps[step]}" if step < len(steps) else ""

    async def main() -> float:
        slow = replace(spec(tmp_path, "import time; time.sleep(600)"), not_ready=not_ready)
        supervisor = Supervisor([slow], state_path=str(tmp_path / "state.json"), about={})
        try:
            await supervisor.start(still_s=still_s)
        finally:
            await supervisor.stop()
        return time.monotonic() - begun[0]

    assert asyncio.run(main()) > 2 * still_s
