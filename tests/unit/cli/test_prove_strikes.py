"""Who is hurt, how often, and that nobody stays paused."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice

import pytest

from millrace.cli.exits import CommandFailed
from millrace.cli.prove_strikes import HOWS, KINDS, Kind, Strikes, Stroke, Times, deck, told, workers_of
from millrace.ops.processes import children_of
from millrace.ops.real import process_stat
from support_cluster import wait_for

QUICK = Times(between_s=(0.0, 0.01), pause_s=(0.05, 0.1), wait_s=0.4)


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def state_of(pid: int) -> str:
    stat = process_stat(pid)
    return stat.state if stat is not None else "gone"


@pytest.mark.parametrize("seed", range(5))
def test_A5_every_kind_comes_as_often_as_the_others_killed_and_paused(seed: int) -> None:
    strokes = list(islice(deck(random.Random(seed)), 6 * len(KINDS)))
    assert Counter(strokes) == {Stroke(kind, how): 3 for kind in KINDS for how in ("kill", "pause")}
    assert {stroke.kind for stroke in strokes[:len(KINDS)]} == set(KINDS), "each once before any comes again"
    assert Counter(stroke.how for stroke in strokes[:len(KINDS)]) == {how: len(KINDS) // 2 for how in HOWS}
    assert strokes != list(islice(deck(random.Random(seed + 1)), len(strokes)))


def test_A5_who_is_killed_is_dead_and_who_was_paused_runs_again() -> None:
    with sleeper() as first, sleeper() as second:
        alive = {first.pid: first, second.pid: second}

        def victims(kind: Kind) -> list[int]:
            return [first.pid] if kind in KINDS[:4] else [second.pid]

        said: list[str] = []
        with Strikes(victims, 1, QUICK, said.append) as strikes:
            wait_for(lambda: all(process.poll() == -signal.SIGKILL for process in alive.values()), "both are dead")
            wait_for(lambda: sum(strikes.missed.values()) > 0, "nobody of a kind is there")
        struck = len([text for text in said if "kill" in text or "pause" in text])
        assert strikes.count.total() in (struck, struck - 1), "a pause that was cut short does not count"
        assert sum(hows["kill"] for hows in strikes.by_kind().values()) == 2


def test_A5_nobody_stays_paused_when_the_strikes_are_over() -> None:
    seed = next(seed for seed in range(100) if next(deck(random.Random(seed))).how == "pause")
    with sleeper() as process:
        with Strikes(lambda _: [process.pid], seed, QUICK._replace(pause_s=(60.0, 60.0)), lambda _: None) as strikes:
            wait_for(lambda: state_of(process.pid) == "T", "paused")
        assert strikes.count.total() == 0, "it was cut short"
        assert state_of(process.pid) != "T"


def test_A5_strikes_go_on_until_every_kind_was_struck() -> None:
    with ExitStack() as stack:
        pool = [stack.enter_context(sleeper()) for _ in range(2 * len(KINDS))]

        def victims(_: Kind) -> list[int]:
            return [process.pid for process in pool if process.poll() is None]

        with Strikes(victims, 1, QUICK, lambda _: None) as strikes:
            strikes.wait_for(1, 30.0)
            assert all(sum(hows.values()) >= 1 for hows in strikes.by_kind().values())
            began = time.monotonic()
            strikes.wait_for(1_000, 0.1)
            assert time.monotonic() - began < 30.0, "nobody waits for ever"


def test_A5_who_was_not_met_is_looked_for_behind_the_next_one() -> None:
    asked: list[Kind] = []

    def victims(kind: Kind) -> list[int]:
        asked.append(kind)
        return []

    with Strikes(victims, 1, QUICK._replace(wait_s=0.0), lambda _: None) as strikes:
        wait_for(lambda: len(asked) >= 6, "some were looked for")
    first, second, third = (stroke.kind for stroke in islice(deck(random.Random(1)), 3))
    assert strikes.missed.total() >= 6
    assert asked[:2] == [first, second]
    assert set(asked[2:6]) >= {first, second, third}


def test_A5_a_cluster_that_does_not_answer_has_no_victims_for_now() -> None:
    def nobody(kind: Kind) -> list[int]:
        raise CommandFailed(f"no {kind} answers")

    with Strikes(nobody, 1, QUICK, lambda _: None) as strikes:
        wait_for(lambda: sum(strikes.missed.values()) > 1, "two kinds were not found")
    assert strikes.count.total() == 0


def test_A5_an_error_of_ours_ends_the_run() -> None:
    with pytest.raises(ZeroDivisionError), Strikes(lambda _: [1 // 0], 1, QUICK, lambda _: None) as strikes:
        wait_for(lambda: not strikes._thread.is_alive(), "the strikes end")


def test_A5_workers_are_the_children_of_sparks_children() -> None:
    with sleeper() as child:
        assert child.pid in children_of(os.getpid())
        assert workers_of(os.getpid()) == children_of(os.getpid()), "without grandchildren: the children"
    assert children_of(child.pid) == []


def test_A5_counts_are_told_in_one_line() -> None:
    assert told({"broker": {"kill": 2, "pause": 1}, "spark": {"kill": 0, "pause": 3}}) == "broker 2 + 1, spark 0 + 3"
