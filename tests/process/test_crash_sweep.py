"""A process that writes to a real disk, killed at each of its file calls; and calls that fail.

strace counts the calls of a kind and kills the process at the n-th, so every state between two calls is met once. The
page cache outlives the process: here each log must be exactly as before or as after the step it died in. What a power
cut leaves is simulated (tests/unit/log/files/test_crash_model.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import support_crash_work as work
from millrace.errors import ConfigError
from millrace.log.files.formats import log_name
from millrace.log.files.log_dir import LogDir

TESTS = Path(__file__).parent.parent
CALLS = ("pwrite64", "fdatasync", "fsync", "rename", "ftruncate", "unlink", "unlinkat", "mkdir")
RUN_S = 30.0
ALL = 1_000_000


@dataclass(frozen=True)
class Ending:
    """How one run ended: the steps it said were done, and what it refused."""

    opened: bool
    done: int
    refused: str
    killed: bool


class Sweep:
    """The same work again and again on copies of one directory, each time with a fault somewhere else."""

    def __init__(self, tmp: Path, base: Path | None = None) -> None:
        self.tmp, self.base = tmp, base
        self.past = 0 if base is None else 10
        self.steps = work.steps(self.past)
        self.expected = self._versions()
        self.calls = self._count()

    def fresh(self, name: str) -> Path:
        path = self.tmp / name
        if self.base is not None:
            shutil.copytree(self.base, path)
        return path

    def _versions(self) -> list[list[str]]:
        """What each log holds before step 0, before step 1, ... and at the end."""
        directory = work.open_dir(str(self.fresh("plain")))
        found = [work.digests(directory)]
        for name, step in self.steps:
            step(directory)
            found.append(found[-1] if name == "close" else work.digests(directory))
        return found

    def _count(self) -> dict[str, int]:
        trace = self.tmp / "trace"
        only = f"trace={','.join(CALLS)}"
        ending = self.run(self.fresh("count"), "strace", "-f", "-qq", "-o", str(trace), "-e", only)
        assert ending.done == len(self.steps) - 1, ending
        names = [line.split(None, 1)[1].split("(")[0] for line in trace.read_text().splitlines() if "(" in line]
        return {call: names.count(call) for call in CALLS if call in names}

    def run(self, path: Path, *strace: str) -> Ending:
        python_path = f"{TESTS.parent / 'src'}:{TESTS}"
        command = [*strace, sys.executable, str(TESTS / "support_crash_work.py"), str(path), str(self.past)]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_S, check=False,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert result.returncode in (0, 1, -9, 137), result.stderr
        lines = result.stdout.splitlines()
        return Ending(
            opened="open" in lines,
            done=max([int(line.split()[1]) for line in lines if line.startswith("done")], default=-1),
            refused=next((line for line in lines if line.startswith("refused")), ""),
            killed=result.returncode in (-9, 137),
        )

    def inject(self, call: str, fault: str, when: int) -> Ending:
        """One run with one fault, and what it left behind."""
        path = self.fresh(f"{call}-{when}")
        fault = f"inject={call}:{fault}:when={when}"
        ending = self.run(path, "strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", fault)
        self.check(path, ending, fault)
        shutil.rmtree(path)
        return ending

    def check(self, path: Path, ending: Ending, fault: str) -> None:
        """Each log is as it was before or after the step the process died in, and works on."""
        directory = open_when_free(path)
        at = ending.done + 1
        allowed = self.expected[at : at + 2] if ending.opened else self.expected[:1]
        for n in range(work.LOGS):
            log = directory.partition(work.tp(n))
            assert log.damaged is None, (fault, directory.reports)
            assert work.digest(log) in [version[n] for version in allowed], (fault, ending, self.steps[at : at + 1])
            log.append(work.build_batch([work.Record(b"after")]), epoch=50)
        after = work.digests(directory)
        directory.close_now(clean=True)
        again = open_when_free(path)
        assert work.digests(again) == after, fault
        again.close_now(clean=False)

    def everywhere(self, calls: Iterable[str], fault: str, *, points_max: int) -> list[Ending]:
        """At every call, or at this many of them, spread evenly."""
        points = [(call, n) for call in calls for n in range(1, self.calls.get(call, 0) + 1)]
        chosen = points[:: -(-len(points) // points_max)]
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda point: self.inject(point[0], fault, point[1]), chosen))


def open_when_free(path: Path) -> LogDir:
    """A lock outlives its process for a moment: strace ends first, or another thread's child has it until its exec."""
    deadline = time.monotonic() + RUN_S
    while True:
        try:
            return work.open_dir(str(path))
        except ConfigError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@pytest.fixture
def left_by_a_crash(tmp_path: Path) -> Path:
    """A directory whose journal holds more than its files: the tail of a file is gone, another is torn."""
    path = tmp_path / "base"
    directory = work.open_dir(str(path))
    for _, step in work.steps(0)[:15]:
        step(directory)
    files = [directory.partition(work.tp(n)).files[-1] for n in range(work.LOGS)]
    directory.close_now(clean=False)
    with open(files[0].path, "r+b") as file:
        file.truncate(files[0].size - 120)
    with open(files[2].path, "ab") as file:
        file.write(b"torn")
    return path


FEW_OR_ALL = [pytest.param(16, id="few"), pytest.param(ALL, id="all", marks=pytest.mark.long)]


@pytest.mark.parametrize("points_max", FEW_OR_ALL)
def test_L10_killed_at_any_file_call_nothing_is_lost(tmp_path: Path, points_max: int) -> None:
    endings = Sweep(tmp_path).everywhere(CALLS, "signal=KILL", points_max=points_max)
    assert all(ending.killed for ending in endings), [e for e in endings if not e.killed]
    assert len(endings) >= min(points_max // 2, 100)


@pytest.mark.parametrize("points_max", FEW_OR_ALL)
def test_L10_killed_at_any_file_call_of_a_recovery_nothing_is_lost(
    tmp_path: Path, left_by_a_crash: Path, points_max: int
) -> None:
    endings = Sweep(tmp_path, left_by_a_crash).everywhere(CALLS, "signal=KILL", points_max=points_max)
    assert all(ending.killed for ending in endings), [e for e in endings if not e.killed]
    assert any(not ending.opened for ending in endings)


@pytest.mark.parametrize(("call", "error", "points_max"), [
    ("fdatasync", "EIO", 6), ("fsync", "EIO", 3), ("pwrite64", "ENOSPC", 3), ("pwrite64", "EIO", 3),
    ("ftruncate", "EIO", 1),
    *(pytest.param(c, e, ALL, marks=pytest.mark.long) for c in CALLS[:5] for e in ("EIO", "ENOSPC")),
])
def test_L10_after_a_failed_call_nothing_is_acknowledged_and_nothing_is_lost(
    tmp_path: Path, call: str, error: str, points_max: int
) -> None:
    sweep = Sweep(tmp_path)
    endings = sweep.everywhere([call], f"error={error}", points_max=points_max)
    assert not any(ending.killed for ending in endings)
    assert all(ending.refused or ending.done == len(sweep.steps) - 1 for ending in endings)
    assert any(ending.refused for ending in endings)


def test_L10_a_flipped_bit_below_the_high_watermark_is_found_and_never_served_or_cut(tmp_path: Path) -> None:
    path = tmp_path / "data"
    before = work.open_dir(str(path))
    for _, step in work.steps(0)[:-1]:
        step(before)
    good, name = work.digest(before.partition(work.tp(0))), before.partition(work.tp(0)).files[0].path
    before.close_now(clean=True)
    assert name.endswith(log_name(0))
    size = os.path.getsize(name)
    for byte in range(64, size, 97):
        flip(name, byte)
        directory = work.open_dir(str(path))
        log = directory.partition(work.tp(0))
        with pytest.raises(work.MillraceError):
            work.digest(log)
        assert log.damaged is not None
        directory.close_now(clean=True)
        assert os.path.getsize(name) == size
        flip(name, byte)
    after = work.open_dir(str(path))
    assert work.digest(after.partition(work.tp(0))) == good


def flip(name: str, byte: int) -> None:
    with open(name, "r+b") as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ 4]))
