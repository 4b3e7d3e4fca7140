"""Planted flaws, one by one, each with the tests near it: how sharp the tests are.

    tests/mutants/<room>.toml ─▶ a copy with one flaw ─▶ pytest of its tests ─▶ found | lived ─▶ docs/benchmarks

    scripts/mutants.py [--room ROOM] [--jobs 2] [--again]     what has no result yet; the page if all have one
    scripts/mutants.py --check                                whether every flaw still applies, nothing else

A flaw is a text that occurs once in its file, and what stands there instead. One that no longer applies is an error:
flaws follow their files. A flaw with a `guard` is not counted: the text names the second guard that makes it harmless.
Results are kept in `.mutants/` and used again while the flaw and its tests are the same; `--again` asks anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FLAWS, KEPT, PAGE = ROOT / "tests/mutants", ROOT / ".mutants", ROOT / "docs/benchmarks/mutants"
COPIED = ("src", "tests", "pyproject.toml", "docs", "examples")
FLAW_S = 180                     # tests that take longer have found it: a flaw may make them wait for ever
GOAL_ALL, GOAL_ROOM = 0.95, 0.90


class Flaw(NamedTuple):
    room: str
    name: str
    file: str
    old: str
    new: str
    tests: str
    guard: str

    @property
    def key(self) -> str:
        near = [path for word in shlex.split(self.tests) if (path := ROOT / word.partition("::")[0]).is_file()]
        parts = [*self, *(path.read_text() for path in near)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]

    def wrong(self) -> str:
        """Why it cannot be planted; empty: it can."""
        path = ROOT / self.file
        if not path.is_file():
            return f"{self.file} is gone"
        count = path.read_text().count(self.old)
        if count != 1:
            return f"its text occurs {count} times in {self.file}"
        gone = [word for word in shlex.split(self.tests) if word.startswith("tests/")
                and not (ROOT / word.partition("::")[0]).exists()]
        return f"{gone[0]} is gone" if gone else ""


def flaws(room: str | None = None) -> list[Flaw]:
    found = []
    for path in sorted(FLAWS.glob("*.toml")):
        if room in (None, path.stem):
            for one in tomllib.loads(path.read_text())["flaw"]:
                found.append(Flaw(path.stem, one["name"], one["file"], one["old"], one["new"], one["tests"],
                                  one.get("guard", "")))
    return found


def check(found: list[Flaw]) -> list[str]:
    wrong = [f"{flaw.room}: {flaw.name}: {why}" for flaw in found if (why := flaw.wrong())]
    seen: dict[tuple[str, str, str], str] = {}
    for flaw in found:
        before = seen.setdefault((flaw.file, flaw.old, flaw.new), flaw.name)
        if before != flaw.name:
            wrong.append(f"{flaw.room}: {flaw.name} is {before} again")
    return wrong


# -- running -----------------------------------------------------------------------------------------------------------
@contextmanager
def scratch() -> Iterator[Path]:
    """In memory where there is some: thousands of small files."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=memory) as made:
        copy = Path(made)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.is_file():
                shutil.copy(source, copy / name)
        yield copy


def pytest(copy: Path, tests: str) -> tuple[int, str]:
    """Its exit code; 1: a test failed. None of its processes outlives it."""
    command = [str(ROOT / ".venv/bin/python"), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly",
               *shlex.split(tests)]
    # A compiled file of a second ago would be taken for the changed one's: none is written.
    environment = {**os.environ, "PYTHONPATH": f"{copy}/src:{copy}/tests", "PYTHONDONTWRITEBYTECODE": "1"}
    shutil.rmtree(copy / ".hypothesis", ignore_errors=True)       # examples that another flaw has left
    with subprocess.Popen(command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, start_new_session=True) as process:
        try:
            out, _ = process.communicate(timeout=FLAW_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return 1, "no end"
        return process.returncode, out


def judge(copy: Path, flaw: Flaw) -> dict[str, object]:
    path, began = copy / flaw.file, time.monotonic()
    text = path.read_text()
    path.write_text(text.replace(flaw.old, flaw.new))
    try:
        code, out = pytest(copy, flaw.tests)
    finally:
        path.write_text(text)
    if code not in (0, 1, 2):
        raise RuntimeError(f"pytest ended with {code}: {out[-500:]}")
    return {"room": flaw.room, "name": flaw.name, "found": code != 0, "seconds": round(time.monotonic() - began, 1)}


def run(wanted: list[Flaw], jobs: int, *, trust: bool) -> None:
    copies: SimpleQueue[Path] = SimpleQueue()

    def one(flaw: Flaw) -> None:
        copy = copies.get()
        try:
            told = judge(copy, flaw)
        except RuntimeError as error:
            print(f"ERROR  {flaw.room}: {flaw.name}: {error}", flush=True)
            return
        finally:
            copies.put(copy)
        (KEPT / flaw.key).write_text(json.dumps(told))
        print(f"{'found' if told['found'] else 'LIVED'}  {flaw.room}: {flaw.name} ({told['seconds']} s)", flush=True)

    with contextmanager(_scratches)(jobs) as made, ThreadPoolExecutor(jobs) as pool:
        for copy in made:
            copies.put(copy)
        if not trust:
            _refuse_broken(pool, copies, wanted)
        list(pool.map(one, wanted))


def _scratches(count: int) -> Iterator[list[Path]]:
    if not count:
        yield []
        return
    with scratch() as first:
        more = contextmanager(_scratches)(count - 1)
        with more as others:
            yield [first, *others]


def _refuse_broken(pool: ThreadPoolExecutor, copies: SimpleQueue[Path], wanted: list[Flaw]) -> None:
    """Tests that fail without a flaw would find every one."""
    def refuse(tests: str) -> None:
        copy = copies.get()
        try:
            code, out = pytest(copy, tests)
            if code:
                code, out = pytest(copy, tests)          # a machine that stood still once is no reason to stop
            if code:
                raise SystemExit(f"without any flaw, these tests end with {code}: {tests}\n{out[-3000:]}")
        finally:
            copies.put(copy)

    list(pool.map(refuse, sorted({flaw.tests for flaw in wanted})))


# -- the page ----------------------------------------------------------------------------------------------------------
def results(found: list[Flaw]) -> dict[Flaw, dict[str, object]]:
    return {flaw: json.loads(path.read_text()) for flaw in found if (path := KEPT / flaw.key).is_file()}


def report(told: dict[Flaw, dict[str, object]]) -> tuple[str, dict[str, object]]:
    rooms: dict[str, list[tuple[Flaw, bool]]] = {}
    for flaw, result in told.items():
        rooms.setdefault(flaw.room, []).append((flaw, bool(result["found"])))
    lines = ["# Planted flaws", "", "Written by `make mutants`: each flaw of `tests/mutants/` is planted alone, and the"
             " tests near it must find it.",
             "A flaw counts out only where its entry names the second guard that makes it harmless.", "",
             "| room | flaws | counted out | found | share |", "|---|---|---|---|---|"]
    table = {}
    totals = [0, 0, 0]
    for room, planted in sorted(rooms.items()):
        out = sum(1 for flaw, is_found in planted if flaw.guard and not is_found)
        hits = sum(is_found for _, is_found in planted)
        share = hits / max(1, len(planted) - out)
        table[room] = {"flaws": len(planted), "counted_out": out, "found": hits, "share": round(share, 3)}
        totals = [a + b for a, b in zip(totals, (len(planted), out, hits), strict=True)]
        lines.append(f"| {room} | {len(planted)} | {out} | {hits} | {share:.0%} |")
    share = totals[2] / max(1, totals[0] - totals[1])
    lines.append(f"| all | {totals[0]} | {totals[1]} | {totals[2]} | {share:.1%} |")
    lived = [flaw for flaw, result in told.items() if not result["found"]]
    if lived:
        lines += ["", "Not found:", ""]
        lines += [f"- {flaw.room}: {flaw.name}" + (f": {flaw.guard}" if flaw.guard else "") for flaw in lived]
    return "\n".join(lines) + "\n", {"rooms": table, "flaws": totals[0], "found": totals[2], "share": round(share, 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description="planted flaws, one by one, each with the tests near it")
    parser.add_argument("--room")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="run also what has a result")
    parser.add_argument("--trust", action="store_true", help="the tests are known to pass without any flaw")
    parser.add_argument("--check", action="store_true", help="only whether every flaw applies")
    asked = parser.parse_args()
    everything = flaws()
    if wrong := check(everything):
        print("\n".join(wrong), file=sys.stderr)
        return 2
    if asked.check:
        return 0
    KEPT.mkdir(exist_ok=True)
    known = {} if asked.again else results(everything)
    wanted = [flaw for flaw in everything if flaw not in known and asked.room in (None, flaw.room)]
    if wanted:
        run(wanted, asked.jobs, trust=asked.trust)
    told = results(everything)
    page, figures = report(told)
    print("\n" + page)
    if len(told) == len(everything):
        PAGE.with_suffix(".md").write_text(page)
        PAGE.with_suffix(".json").write_text(json.dumps(figures, indent=2) + "\n")
    shares = [room["share"] for room in figures["rooms"].values()]       # type: ignore[attr-defined]
    return 0 if figures["share"] >= GOAL_ALL and min(shares) >= GOAL_ROOM else 1     # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main())
