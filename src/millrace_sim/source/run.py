"""Seeds in bulk; a failed one with the command that replays it."""

from __future__ import annotations

import argparse
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from millrace_sim.source.flaws import FLAWS
from millrace_sim.source.log import Violation
from millrace_sim.source.world import World


class Outcome(NamedTuple):
    """`violation` "" when every rule held."""

    seed: int
    off: tuple[str, ...]
    violation: str
    steps: int
    crc: int

    @property
    def command(self) -> str:
        off = f" --off {','.join(self.off)}" if self.off else ""
        return f".venv/bin/python -m millrace_sim.source --seed {self.seed}{off}"

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.violation or 'no violation'}\n  replay: {self.command}"


def simulate(seed: int, off: Iterable[str] = ()) -> Outcome:
    world, violation = _run(seed, off, trace=False)
    crc = zlib.crc32(repr([partition.records for partition in world.log.values()]).encode())
    return Outcome(seed, tuple(sorted(off)), violation, world.count.total(), crc)


def _run(seed: int, off: Iterable[str], *, trace: bool) -> tuple[World, str]:
    world = World(seed, frozenset(off))
    world.trace = [] if trace else None
    try:
        world.run()
    except Violation as violation:
        return world, str(violation)
    except AssertionError as broken:  # a machine refused what it was given
        return world, f"assertion: {broken}"
    return world, ""


def first_found(flaw: str, seeds: Iterable[int]) -> Outcome | None:
    """The first seed that notices the flaw."""
    return next((found for seed in seeds if (found := simulate(seed, (flaw,))).violation), None)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="millrace_sim.source", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed and print what happened")
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to run")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--off", default="", help="rules to switch off, comma between them")
    parser.add_argument("--table", action="store_true", help="switch off each rule in turn, stop at the first found")
    parser.add_argument("--tail", type=int, default=60, help="how many lines of a replay to print, 0: all")
    options = parser.parse_args(arguments)
    off = tuple(sorted(name for name in options.off.split(",") if name))
    if unknown := set(off) - FLAWS.keys():
        parser.error(f"no such rule: {', '.join(sorted(unknown))}; there are: {', '.join(sorted(FLAWS))}")
    if options.seed is not None:
        return _replay(options.seed, off, options.tail)
    seeds = range(options.first, options.first + options.seeds)
    return _table(seeds) if options.table else _sweep(seeds, off)


def _replay(seed: int, off: tuple[str, ...], tail: int) -> int:
    world, violation = _run(seed, off, trace=True)
    assert world.trace is not None
    print(*world.trace[-tail:], sep="\n")
    print(f"seed {seed}: {world.count.total()} steps, generation {world.store.state.generation}")
    print(f"VIOLATION: {violation}" if violation else "no violation")
    return 1 if violation else 0


def _sweep(seeds: range, off: tuple[str, ...]) -> int:
    started, kinds, steps = time.monotonic(), Counter[str](), 0
    for seed in seeds:
        outcome = simulate(seed, off)
        steps += outcome.steps
        if outcome.violation:
            kinds[outcome.violation.split(":")[0]] += 1
            print(outcome, flush=True)
    took_s = time.monotonic() - started
    print(f"{len(seeds)} seeds, {kinds.total()} with a violation {dict(kinds)}; {steps} steps in {took_s:.1f} s")
    return 1 if kinds else 0


def _table(seeds: range) -> int:
    """0 when every rule is missed by somebody."""
    missed = 0
    for name in FLAWS:
        found = first_found(name, seeds)
        missed += found is None
        said = "not found" if found is None else f"seed {found.seed:5}  {found.violation[:90]}"
        print(f"{name:18} {said}", flush=True)
    return 1 if missed else 0
