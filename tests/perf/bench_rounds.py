"""What a round costs on Spark, without its work: 10, 100 and 1,000 dispatchers in two tasks, over a Connect server.

    python tests/perf/bench_rounds.py [--rounds 40] [--compiler quick|full] [--classic]

Prints a table: milliseconds per round (p50, p90) and CPU milliseconds per round of everything that takes part: the
server, its Python workers, and this process as the capture would be. Each size is warmed first. Then the idle cost.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parents[1]))

from millrace.core.delivery.rounds import Rounds
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey
from millrace.model.rounds import TaskPlan, Work
from millrace.model.spans import Dispatcher
from millrace.model.writes import WritePlan
from millrace.ops import config
from millrace.pipeline.driver import place_of
from millrace.pipeline.rounds import Returned, Runner
from millrace.pipeline.session import Place, Session
from support_spark import TESTS, SparkServer, children_of, cpu_s

SIZES = (10, 100, 1_000)
WARM = 15
TOPIC = UUID(int=7)


def work(span: int, number: int) -> Work:
    target = TopicPartition(TOPIC, span % 16)
    plan = WritePlan(PositionKey("bench", TOPIC, span), 1, number, span, 1, Point(number, 0), Point(number + 1, 0), 0,
                     tuple(TopicPartition(TOPIC, n) for n in range(8)), target)
    return Work(Dispatcher(span, 1), plan, backlog_bytes=1_000)


async def one_round(runner: Runner, rounds: Rounds, size: int) -> float:
    """Packed, planned, run and read, as a manager does it."""
    began = time.perf_counter()
    (job,) = rounds.start(began, dict.fromkeys(range(size), 1_000))
    plans = [TaskPlan("bench", job.number, "support_rounds:Idle", b"", (),
                      tuple(work(span, job.number) for span in task)) for task in job.tasks]
    ending = await runner.run(plans)
    assert isinstance(ending, Returned), ending
    assert len(ending.results) == size
    rounds.returned(job.number)
    return (time.perf_counter() - began) * 1000


async def measure(runner: Runner, count: int) -> None:
    def processes() -> list[int]:
        return [os.getpid(), *children_of(os.getpid())]

    print("| dispatchers | p50 ms | p90 ms | CPU ms per round |\n|---:|---:|---:|---:|")
    for size in SIZES:
        rounds = Rounds(cores=2)
        for _ in range(WARM):
            await one_round(runner, rounds, size)
        before = cpu_s(processes())
        times = sorted([await one_round(runner, rounds, size) for _ in range(count)])
        cpu_ms = (cpu_s(processes()) - before) * 1000 / count
        print(f"| {size:,} | {times[count // 2]:.0f} | {times[count * 9 // 10]:.0f} | {cpu_ms:.0f} |", flush=True)
    before, began = cpu_s(processes()), time.monotonic()
    await asyncio.sleep(8)
    print(f"idle: {(cpu_s(processes()) - before) / (time.monotonic() - began):.2%} of a core; "
          f"load average {os.getloadavg()[0]:.1f}")


async def run(session: Session, count: int) -> None:
    runner = Runner(session)
    try:
        await measure(runner, count)
    finally:
        await runner.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--compiler", choices=("quick", "full"), default="quick")
    parser.add_argument("--classic", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-rounds-") as work_dir:
        if options.classic:
            text = f"spark: {{master: 'local[2]', conf: [spark.executorEnv.PYTHONPATH={TESTS}]}}"
            place = place_of(config.parse(text), os.path.join(work_dir, "spark"))
            asyncio.run(run(Session(place), options.rounds))
            return
        server = SparkServer(Path(work_dir) / "server", compiler=options.compiler).start()
        try:
            asyncio.run(run(Session(Place(remote=server.remote)), options.rounds))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
