"""What a round costs on Spark, without its work: as `millrace bench pipeline` measures it, alone.

    python tests/perf/bench_rounds.py [--classic]

Over a Connect server, or on a driver of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile

from millrace.cli.bench_rounds import PROTOTYPE, costs, measure
from millrace.ops import config
from millrace.pipeline.driver import place_of
from millrace.pipeline.session import Session


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--classic", action="store_true")
    if parser.parse_args().classic:
        with tempfile.TemporaryDirectory(prefix="millrace-rounds-") as directory:
            place = place_of(config.parse("spark: {master: 'local[2]'}"), os.path.join(directory, "spark"))
            found = asyncio.run(costs(Session(place)))
    else:
        found = measure()
    print("| dispatchers | p50 ms | p90 ms | CPU ms per round | prototype's p50, CPU |\n|---:|---:|---:|---:|---:|")
    for one in found:
        print(f"| {one.dispatchers:,} | {one.p50_ms:.0f} | {one.p90_ms:.0f} | {one.cpu_ms:.0f} | "
              "{:.0f}, {:.0f} |".format(*PROTOTYPE[one.dispatchers]))
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
