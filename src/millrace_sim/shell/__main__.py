"""Runs seeds of the shell world. A failing seed prints the command that replays it.

    python -m millrace_sim.shell --seed 7 --verbose
    python -m millrace_sim.shell --seeds 1000 --first 0 --jobs 2
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from functools import partial

from millrace_sim.shell.plants import PLANTS
from millrace_sim.shell.seeds import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m millrace_sim.shell", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--seeds", type=int, default=60, help="how many")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--duration", type=float, default=30.0, help="simulated seconds of faults")
    parser.add_argument("--plant", default="", choices=["", *PLANTS], help="plant a known flaw")
    parser.add_argument("--verbose", action="store_true", help="print every event")
    options = parser.parse_args()
    work = partial(run_seed, duration_s=options.duration, plant=options.plant, verbose=options.verbose)
    if options.seed is not None:
        return _tell([work(options.seed)])
    seeds = range(options.first, options.first + options.seeds)
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        return _tell(pool.imap(work, seeds))


def _tell(outcomes: object) -> int:
    failed = []
    for seed, line, failure in outcomes:  # type: ignore[attr-defined]
        print(line, flush=True)
        if failure:
            failed.append(seed)
            print(failure, flush=True)
    if failed:
        print(f"{len(failed)} failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
