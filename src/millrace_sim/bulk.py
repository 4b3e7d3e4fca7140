"""Seeds in bulk, on several processes; a failed one with the command that replays it.

In: a kind of world, and the rules that can be switched off in it. Out: outcomes in the order of the seeds, whatever the
number of processes. The rooms `source`, `control` and `takeover` give their worlds here.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from millrace_sim.checkers import Violation


class Measured(NamedTuple):
    """What a run amounted to; `crc` of everything that became durable."""

    steps: int
    crc: int
    facts: str


class World(Protocol):
    trace: list[str] | None

    def run(self) -> None: ...

    def measured(self) -> Measured: ...


class Outcome(NamedTuple):
    """`violation` "" when every rule held."""

    room: str
    seed: int
    off: tuple[str, ...]
    violation: str
    steps: int
    crc: int

    @property
    def command(self) -> str:
        off = f" --off {','.join(self.off)}" if self.off else ""
        return f".venv/bin/python -m millrace_sim.{self.room} --seed {self.seed}{off}"

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.violation or 'no violation'}\n  replay: {self.command}"


@dataclass(frozen=True)
class Bulk:
    room: str
    world: Callable[[int, frozenset[str]], World]
    flaws: tuple[str, ...]

    def simulate(self, seed: int, off: Iterable[str] = ()) -> Outcome:
        world, violation = self._run(seed, frozenset(off), trace=False)
        measured = world.measured()
        return Outcome(self.room, seed, tuple(sorted(off)), violation, measured.steps, measured.crc)

    def _run(self, seed: int, off: frozenset[str], *, trace: bool) -> tuple[World, str]:
        world = self.world(seed, off)
        world.trace = [] if trace else None
        try:
            world.run()
        except Violation as violation:
            return world, str(violation)
        except Exception as broken:  # a machine refused what it was given, or worse: the seed is what matters
            return world, f"{type(broken).__name__}: {broken}"
        return world, ""

    def sweep(self, seeds: Iterable[int], off: tuple[str, ...] = (), *, jobs: int = 1) -> Iterator[Outcome]:
        one = partial(self.simulate, off=off)
        if jobs == 1:
            yield from map(one, seeds)
            return
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            yield from pool.imap(one, seeds, chunksize=8)

    def first_found(self, flaws: str, seeds: Iterable[int]) -> Outcome | None:
        """The first seed that notices the flaw, or, with commas, that notices several at once."""
        return next((found for found in self.sweep(seeds, tuple(flaws.split(","))) if found.violation), None)

    # -- the command -------------------------------------------------------------------------------------------------

    def main(self, arguments: list[str] | None = None) -> int:
        parser = argparse.ArgumentParser(prog=f"millrace_sim.{self.room}", description="Runs seeds, or replays one.")
        parser.add_argument("--seed", type=int, help="replay one seed and print what happened")
        parser.add_argument("--seeds", type=int, default=500, help="how many seeds to run")
        parser.add_argument("--first", type=int, default=0, help="the first of them")
        parser.add_argument("--jobs", type=int, default=1, help="processes")
        parser.add_argument("--off", default="", help="rules to switch off, comma between them")
        parser.add_argument("--table", action="store_true", help="switch off each rule (of --off) in turn, until found")
        parser.add_argument("--tail", type=int, default=60, help="how many lines of a replay to print, 0: all")
        options = parser.parse_args(arguments)
        off = tuple(sorted(name for name in options.off.split(",") if name))
        if unknown := set(off) - set(self.flaws):
            parser.error(f"no such rule: {', '.join(sorted(unknown))}; there are: {', '.join(sorted(self.flaws))}")
        if options.seed is not None:
            return self._replay(options.seed, off, options.tail)
        seeds = range(options.first, options.first + options.seeds)
        return self._table(seeds, off or self.flaws) if options.table else self._many(seeds, off, options.jobs)

    def _replay(self, seed: int, off: tuple[str, ...], tail: int) -> int:
        world, violation = self._run(seed, frozenset(off), trace=True)
        assert world.trace is not None
        print(*world.trace[-tail:], sep="\n")
        print(f"seed {seed}: {world.measured().facts}")
        print(f"VIOLATION: {violation}" if violation else "no violation")
        return 1 if violation else 0

    def _many(self, seeds: range, off: tuple[str, ...], jobs: int) -> int:
        started, kinds, steps = time.monotonic(), Counter[str](), 0
        for outcome in self.sweep(seeds, off, jobs=jobs):
            steps += outcome.steps
            if outcome.violation:
                kinds[re.split("[: ]", outcome.violation, maxsplit=1)[0]] += 1
                print(outcome, flush=True)
        took_s = time.monotonic() - started
        print(f"{len(seeds)} seeds, {kinds.total()} with a violation {dict(kinds)}; {steps} steps in {took_s:.1f} s")
        return 1 if kinds else 0

    def _table(self, seeds: range, flaws: tuple[str, ...]) -> int:
        """0 when every rule is missed by somebody."""
        missed = 0
        for name in flaws:
            started = time.monotonic()
            found = self.first_found(name, seeds)
            missed += found is None
            said = "not found" if found is None else f"seed {found.seed:5}  {found.violation[:90]}"
            print(f"{name:22} {time.monotonic() - started:6.1f} s  {said}", flush=True)
        return 1 if missed else 0
