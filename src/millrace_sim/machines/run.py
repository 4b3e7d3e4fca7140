"""Seeds in bulk, on several processes; a failed one with the command that replays it."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import NamedTuple

from millrace.core.flaws import NO_FLAWS, Flaws
from millrace_sim.machines.checkers import Violation
from millrace_sim.machines.world import World

FLAWS = tuple(field.name for field in fields(Flaws))


class Outcome(NamedTuple):
    """`violation` "" when every rule held."""

    seed: int
    flaw: str
    symptoms_only: bool
    crc: int
    events: int
    acks: int
    sim_s: float
    violation: str

    @property
    def command(self) -> str:
        flaw = f" --flaw {self.flaw}" if self.flaw else ""
        symptoms = " --symptoms" if self.symptoms_only else ""
        return f".venv/bin/python -m millrace_sim.machines --seed {self.seed}{flaw}{symptoms}"

    def __str__(self) -> str:
        said = self.violation or "no violation"
        return f"seed {self.seed}: {said}\n  replay: {self.command}"


def simulate(seed: int, flaw: str = "", *, symptoms_only: bool = False) -> Outcome:
    world, violation = _run(seed, flaw, symptoms_only=symptoms_only)
    return Outcome(seed, flaw, symptoms_only, world.crc, world.events, world.acks, world.now, violation)


def _run(seed: int, flaw: str, *, trace: bool = False, symptoms_only: bool = False) -> tuple[World, str]:
    world = World(seed, Flaws(**{flaw: True}) if flaw else NO_FLAWS, symptoms_only=symptoms_only)
    if trace:
        world.log = []
    try:
        world.run()
    except Violation as violation:
        return world, str(violation)
    except Exception as broken:  # a machine's own assertion, or worse: the seed is what matters
        return world, f"{type(broken).__name__}: {broken}"
    return world, ""


def _simulate(task: tuple[int, str, bool]) -> Outcome:
    seed, flaw, symptoms_only = task
    return simulate(seed, flaw, symptoms_only=symptoms_only)


def sweep(
    seeds: Iterable[int], flaw: str = "", *, symptoms_only: bool = False, jobs: int = 1
) -> Iterator[Outcome]:
    """In the order of the seeds, whatever the number of processes."""
    tasks = [(seed, flaw, symptoms_only) for seed in seeds]
    if jobs == 1:
        yield from map(_simulate, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_simulate, tasks, chunksize=8)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="millrace_sim.machines", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed and print what happened")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--flaw", choices=FLAWS, default="", help="plant this flaw")
    parser.add_argument("--symptoms", action="store_true", help="only check what a client or a replica can notice")
    parser.add_argument("--tail", type=int, default=60, help="how many lines of a replay to print, 0: all")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _replay(options)
    return _sweep(options)


def _replay(options: argparse.Namespace) -> int:
    world, violation = _run(options.seed, options.flaw, trace=True, symptoms_only=options.symptoms)
    assert world.log is not None
    print(*world.log[-options.tail :], sep="\n")
    print(f"seed {options.seed}: {world.events} events, {world.acks} acks, {world.now:.3f} s, trace {world.crc:08x}")
    print(f"VIOLATION: {violation}" if violation else "no violation")
    return 1 if violation else 0


def _sweep(options: argparse.Namespace) -> int:
    started, failed, events, acks, count = time.monotonic(), 0, 0, 0, 0
    seeds = range(options.first, options.first + options.seeds)
    for outcome in sweep(seeds, options.flaw, symptoms_only=options.symptoms, jobs=options.jobs):
        count, events, acks = count + 1, events + outcome.events, acks + outcome.acks
        if outcome.violation:
            failed += 1
            print(outcome, flush=True)
    took_s = time.monotonic() - started
    print(f"{count} seeds, {failed} with a violation; {events} events, {acks} acks in {took_s:.1f} s")
    return 1 if failed else 0
