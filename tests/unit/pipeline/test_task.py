"""The shell of a task: claims, deadlines, failures as values, movers kept from round to round."""

from __future__ import annotations

import asyncio
import os
import sys
import types
from collections.abc import Collection, Iterator
from uuid import UUID

import pyarrow as pa
import pytest

from millrace.errors import Malformed, NewerFormat, Unreachable
from millrace.limits import BREAKER_FAILED_MIN, TASK_CONCURRENT_MAX
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey
from millrace.model.rounds import VERSION, TaskPlan, Work, WorkResult, decode_result, decode_task_plan, encode, unknown
from millrace.model.spans import Dispatcher
from millrace.model.writes import NextSequence, WritePlan, WriteResult
from millrace.pipeline import task

TOPIC = UUID(int=1)


def work(span: int, *, deadline_s: float = 5.0) -> Work:
    target = TopicPartition(TOPIC, 0)
    plan = WritePlan(PositionKey("f", TOPIC, span), 7, 3, 1, 7, Point(5, 0), Point(9, 0), 0, (target,), target,
                     sequences=(NextSequence(TOPIC, 0, 4),))
    return Work(Dispatcher(span, 7), plan, deadline_s=deadline_s)


def plan(*works: Work, setup: bytes = b"") -> TaskPlan:
    return TaskPlan("f", 3, "tests_mover:Probe", setup, (), works)


class Probe:
    """`setup` names what goes wrong."""

    made = 0

    def __init__(self, setup: bytes) -> None:
        type(self).made += 1
        self.setup = setup
        self.running = self.most = self.moved = 0
        self.closed = False

    async def claim(self, plan: TaskPlan) -> Collection[int]:
        if self.setup == b"no claims":
            raise Unreachable("nobody answers")
        return [n for n, one in enumerate(plan.works) if one.dispatcher.span != 13]

    async def move(self, plan: TaskPlan, work: Work) -> WorkResult:
        self.moved += 1
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if self.setup == b"no writes" or (self.setup == b"one write" and work.dispatcher.span > 20):
            raise Unreachable("nobody answers")
        if work.dispatcher.span == 1:
            raise ValueError("bad row")
        if work.dispatcher.span == 2:
            await asyncio.Event().wait()
        if work.dispatcher.span == 3:
            raise TimeoutError("the sink's own")
        return WorkResult(work.dispatcher, WriteResult(3, "done", work.plan.to, rows=4))

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[task.Worker]:
    module = types.ModuleType("tests_mover")
    module.Probe = Probe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tests_mover", module)
    Probe.made = 0
    made = task.Worker()
    yield made
    made.close()


def test_P2_each_failure_stays_with_its_dispatcher(worker: task.Worker) -> None:
    results = worker.run(plan(work(0), work(1), work(2, deadline_s=0.05), work(3), work(4)))
    assert [one.dispatcher.span for one in results] == [0, 1, 2, 3, 4]
    assert [one.result.outcome for one in results] == ["done", "unknown", "unknown", "unknown", "done"]
    assert [one.result.error for one in results] == [
        "", "ValueError: bad row", "not done within 0.05 s", "TimeoutError: the sink's own", ""]


def test_P5_what_is_not_claimed_is_not_touched(worker: task.Worker) -> None:
    done, left = worker.run(plan(work(0), work(13)))
    assert (done.result.outcome, done.unclaimed) == ("done", False)
    assert (left.result.outcome, left.unclaimed, left.result.to) == ("unknown", True, Point(5, 0))


def test_P5_a_claim_that_failed_makes_all_unknown(worker: task.Worker) -> None:
    results = worker.run(plan(work(0), work(4), setup=b"no claims"))
    assert [(one.result.outcome, one.unclaimed) for one in results] == [("unknown", False)] * 2
    assert "nobody answers" in results[0].result.error


def test_movers_are_kept_per_setup_and_closed_with_the_worker(worker: task.Worker) -> None:
    for setup in (b"a", b"a", b"b", b"a"):
        worker.run(plan(work(0), setup=setup))
    assert Probe.made == 2


def test_memory_of_a_worker_is_bounded(worker: task.Worker) -> None:
    worker.run(plan(*(work(span) for span in range(20, 120))))
    (mover,) = worker._movers.values()
    assert isinstance(mover, Probe)
    assert mover.most == TASK_CONCURRENT_MAX


def test_V12_where_the_sink_takes_nothing_of_the_first_works_the_others_are_not_tried(worker: task.Worker) -> None:
    works = [work(span) for span in range(20, 120)]
    results = worker.run(plan(*works, setup=b"no writes"))
    (mover,) = worker._movers.values()
    assert isinstance(mover, Probe)
    tried, left = results[:mover.moved], results[mover.moved:]
    assert BREAKER_FAILED_MIN <= len(tried) < 2 * TASK_CONCURRENT_MAX
    assert all(one.result.outcome == "unknown" and not one.untried for one in tried)
    assert all(one.untried and not one.unclaimed for one in left)
    assert {(one.result.outcome, one.result.to, one.result.sequences) for one in left} == {
        ("partial", Point(5, 0), works[0].plan.sequences)}, "nothing was sent: numbers go on as before"
    assert works[0].plan.sequences


def test_P2_one_that_delivers_makes_all_others_worth_it(worker: task.Worker) -> None:
    results = worker.run(plan(*(work(span) for span in range(20, 120)), setup=b"one write"))
    assert not any(one.untried for one in results)
    assert [one.result.outcome for one in results] == ["done", *["unknown"] * 99]


def test_a_job_runs_each_plan_in_its_own_task(worker: task.Worker) -> None:
    run = task.of([plan(work(0)), plan(work(4), work(5))])
    (rows,) = list(run([pa.record_batch({"id": pa.array([1], pa.int64())})]))
    assert rows.schema == task.RESULTS
    assert rows.column("span").to_pylist() == [4, 5]
    assert decode_result(rows.column("result")[1].as_py()).result.rows == 4


def test_plans_and_results_survive_their_bytes() -> None:
    one = plan(work(1), work(2))
    assert decode_task_plan(encode(one)) == one
    result = unknown(work(1), "why", unclaimed=True, took_ms=3)
    assert decode_result(encode(result)) == result


def test_L19_a_newer_round_is_refused() -> None:
    for bad, error in ((b"", Malformed), (bytes([VERSION + 1]), NewerFormat), (bytes([VERSION]) + b"x", Malformed)):
        with pytest.raises(error):
            decode_task_plan(bad)
        with pytest.raises(error):
            decode_result(bad)


def test_a_forked_worker_does_not_use_its_parents_loop(worker: task.Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_kept", worker)
    assert task.worker() is worker
    monkeypatch.setattr(worker, "pid", os.getpid() + 1)
    fresh = task.worker()
    assert fresh is not worker
    fresh.close()
