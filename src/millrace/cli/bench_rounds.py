"""What a round costs on Spark without its work: dispatchers that move nothing, in two tasks, for `bench pipeline`.

In: a session with Spark. Out: milliseconds of a round, and CPU milliseconds of all that takes part: Spark, its Python
workers, and this process as a capture would be. Each size is warmed first. What was measured of a prototype when the
form of rounds was chosen stands beside it: a round must not cost more.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from millrace.cli.bench_site import cpu_s
from millrace.cli.exits import TIMED_OUT, CommandFailed
from millrace.core.delivery.rounds import Rounds
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey
from millrace.model.rounds import TaskPlan, Work, WorkResult
from millrace.model.spans import Dispatcher
from millrace.model.writes import WritePlan, WriteResult
from millrace.pipeline import server
from millrace.pipeline.rounds import Returned, Runner
from millrace.pipeline.session import Place, Session

WARM_FIRST, WARM, COUNT, TASKS = 60, 15, 40, 2
START_S = 180.0                    # a JVM on a busy machine
TOPIC = UUID(int=7)
MOVER = "millrace.cli.bench_rounds:Idle"
PROTOTYPE = {10: (119.0, 140.0), 100: (126.0, 131.0), 1_000: (151.0, 169.0)}   # p50 and CPU milliseconds of a round


@dataclass(frozen=True, slots=True)
class RoundCost:
    dispatchers: int
    p50_ms: float
    p90_ms: float
    cpu_ms: float

    @property
    def is_met(self) -> bool:
        p50_ms, cpu_ms = PROTOTYPE[self.dispatchers]
        return self.p50_ms <= p50_ms and self.cpu_ms <= cpu_ms


class Idle:
    """A mover that moves nothing."""

    def __init__(self, setup: bytes) -> None:
        pass

    async def claim(self, plan: TaskPlan) -> Collection[int]:
        return range(len(plan.works))

    async def move(self, plan: TaskPlan, work: Work) -> WorkResult:
        return WorkResult(work.dispatcher, WriteResult(work.plan.round, "done", work.plan.to))

    async def close(self) -> None:
        pass


def measure() -> list[RoundCost]:
    """On a Connect server of its own, as `millrace up` would start it."""
    with tempfile.TemporaryDirectory(prefix="millrace-rounds-") as directory, _spark(directory) as place:
        return asyncio.run(costs(Session(place)))


async def costs(session: Session, count: int = COUNT) -> list[RoundCost]:
    runner = Runner(session)
    try:
        for _ in range(WARM_FIRST):                      # whatever is measured first would pay for the compiler
            await _round(runner, Rounds(TASKS), min(PROTOTYPE))
        return [await _cost(runner, dispatchers, count) for dispatchers in PROTOTYPE]
    finally:
        await runner.close()


async def _cost(runner: Runner, dispatchers: int, count: int) -> RoundCost:
    rounds = Rounds(TASKS)
    for _ in range(WARM):
        await _round(runner, rounds, dispatchers)
    before = cpu_s(os.getpid())
    times = sorted([await _round(runner, rounds, dispatchers) for _ in range(count)])
    used_ms = (cpu_s(os.getpid()) - before) * 1000 / count
    return RoundCost(dispatchers, times[count // 2], times[count * 9 // 10], used_ms)


async def _round(runner: Runner, rounds: Rounds, dispatchers: int) -> float:
    """Packed, planned, run and read, as a manager does it."""
    began = time.perf_counter()
    (job,) = rounds.start(began, dict.fromkeys(range(dispatchers), 1_000))
    plans = [TaskPlan("bench", job.number, MOVER, b"", (), tuple(_work(span, job.number) for span in task))
             for task in job.tasks]
    ending = await runner.run(plans)
    assert isinstance(ending, Returned), ending
    assert len(ending.results) == dispatchers
    rounds.returned(job.number, now=time.perf_counter())
    return (time.perf_counter() - began) * 1000


def _work(span: int, number: int) -> Work:
    plan = WritePlan(PositionKey("bench", TOPIC, span), 1, number, span, 1, Point(number, 0), Point(number + 1, 0), 0,
                     tuple(TopicPartition(TOPIC, n) for n in range(8)), TopicPartition(TOPIC, span % 16))
    return Work(Dispatcher(span, 1), plan, backlog_bytes=1_000)


@contextmanager
def _spark(directory: str) -> Iterator[Place]:
    port, token = server.free_port(17_000), secrets.token_hex(32)
    plan = server.ServerPlan(dir=directory, port=port, master=f"local[{TASKS},2]", token=token,
                             log_path=os.path.join(directory, "spark.log"))
    process = server.start(plan, stderr_path=os.path.join(directory, "stderr"))
    try:
        _wait(process, port)
        yield Place(remote=server.remote(port, token))
    finally:
        process.terminate()
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while not server.answers(server.HOST, port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise CommandFailed(f"no Spark Connect server at port {port} after {START_S:g} s", TIMED_OUT)
        time.sleep(0.1)
