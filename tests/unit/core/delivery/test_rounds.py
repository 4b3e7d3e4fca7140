"""Packing of dispatchers into jobs, and the search for the one that kills its job [P2]."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.delivery.rounds import WORK_COST_BYTES, Job, Kind, Rounds, pack
from millrace.limits import (
    ROUND_ALONE_MAX,
    ROUND_GATHER_S,
    ROUND_HEAVY_BYTES,
    ROUND_JOBS_MAX,
    ROUND_LONG_MAX_S,
    ROUND_LONG_S,
)

MIB = 1 << 20


def backlog(*spans: int, size: int = 100) -> dict[int, int]:
    return dict.fromkeys(spans, size)


def one(jobs: list[Job]) -> Job:
    assert len(jobs) == 1
    return jobs[0]


@given(st.dictionaries(st.integers(0, 10_000), st.integers(0, 64 * MIB), max_size=60), st.integers(1, 8))
def test_P2_packing_uses_at_most_the_cores_and_spreads_the_backlog(sizes: dict[int, int], cores: int) -> None:
    tasks = pack(sizes, cores)
    assert len(tasks) == min(cores, len(sizes))
    assert sorted(span for task in tasks for span in task) == sorted(sizes)
    loads = [sum(sizes[span] + WORK_COST_BYTES for span in task) for task in tasks]
    if loads:
        largest = max(sizes.values()) + WORK_COST_BYTES
        assert max(loads) - min(loads) <= largest, "moving one dispatcher would even it out"


def test_P2_a_dispatcher_is_in_at_most_one_job() -> None:
    rounds = Rounds(2)
    job = one(rounds.start(0.0, backlog(1, 2, 3)))
    assert job.kind is Kind.SHARED
    assert len(job.tasks) == 2
    assert rounds.start(0.0, backlog(1, 2, 3)) == []
    assert rounds.start(5.0, backlog(1, 2, 3)) == []
    rounds.returned(job.number, now=0.0)
    assert one(rounds.start(5.0, backlog(1, 2, 3))).spans == {1, 2, 3}


def test_P7_those_who_come_late_wait_for_the_shared_job_but_not_long() -> None:
    rounds = Rounds(2)
    rounds.start(10.0, backlog(1))
    assert rounds.start(10.5, backlog(1, 2)) == []
    assert rounds.look_again_at() == 10.0 + ROUND_LONG_S
    assert one(rounds.start(10.0 + ROUND_LONG_S, backlog(1, 2))).spans == {2}
    assert rounds.look_again_at() is None
    assert rounds.start(99.0, backlog(1, 2, 3)) == [], "two shared jobs are enough"


def test_P7_where_every_job_takes_long_a_second_one_waits_longer() -> None:
    rounds = Rounds(2)
    for began, took_s, wait_s in ((10.0, 3.0, 6.0), (100.0, 60.0, ROUND_LONG_MAX_S), (200.0, 0.1, ROUND_LONG_S)):
        rounds.returned(one(rounds.start(began, backlog(1))).number, now=began + took_s)
        last = one(rounds.start(began + took_s, backlog(1)))
        again_at = began + took_s + wait_s
        assert rounds.look_again_at() == pytest.approx(again_at)
        assert rounds.start(again_at - 0.01, backlog(1, 2)) == []
        late = one(rounds.start(again_at + 0.01, backlog(1, 2)))
        assert late.spans == {2}
        for job in (last, late):
            rounds.returned(job.number, now=again_at + 0.01)


def test_P7_under_load_rows_gather_before_the_next_shared_job() -> None:
    rounds = Rounds(2)
    light = one(rounds.start(10.0, backlog(1)))
    rounds.returned(light.number, now=0.0, read_bytes=ROUND_HEAVY_BYTES - 1)
    heavy = one(rounds.start(10.1, backlog(1)))
    rounds.returned(heavy.number, now=0.0, read_bytes=ROUND_HEAVY_BYTES)
    assert rounds.start(10.2, backlog(1, 2)) == []
    assert rounds.look_again_at() == 10.1 + ROUND_GATHER_S
    last = one(rounds.start(10.1 + ROUND_GATHER_S, backlog(1, 2)))
    rounds.returned(last.number, now=0.0, read_bytes=0)
    assert one(rounds.start(10.2 + ROUND_GATHER_S, backlog(1))).spans == {1}, "nothing to wait for"


def test_P2_one_that_fails_runs_alone_until_it_runs_well() -> None:
    rounds = Rounds(2)
    job = one(rounds.start(0.0, backlog(1, 2, 3)))
    rounds.returned(job.number, now=0.0, failed={2})
    shared, alone = rounds.start(1.0, backlog(1, 2, 3))
    assert (shared.kind, shared.spans) == (Kind.SHARED, {1, 3})
    assert (alone.kind, alone.tasks) == (Kind.ALONE, ((2,),))
    rounds.returned(shared.number, now=0.0)
    rounds.returned(alone.number, now=0.0, failed={2})
    _, alone = rounds.start(2.0, backlog(1, 2, 3))
    assert alone.spans == {2}
    rounds.returned(alone.number, now=0.0)
    assert rounds.alone == frozenset()


def test_P2_those_that_fail_take_turns_and_leave_room() -> None:
    rounds = Rounds(2)
    many = backlog(*range(10))
    rounds.returned(one(rounds.start(0.0, many)).number, now=0.0, failed=range(10))
    jobs = rounds.start(0.0, many)
    assert len(jobs) == ROUND_ALONE_MAX
    for job in jobs:
        rounds.returned(job.number, now=0.0, failed=job.spans)
    again = rounds.start(0.0, many)
    assert not {*again[0].spans, *again[1].spans} & {span for job in jobs for span in job.spans}


def test_P2_a_lost_task_makes_suspects_of_its_own_dispatchers_only() -> None:
    rounds = Rounds(2)
    job = one(rounds.start(0.0, backlog(1, 2, 3, 4)))
    dead = job.tasks[0]
    rounds.returned(job.number, now=0.0, lost=dead)
    assert sorted(map(sorted, rounds.suspects)) == [[span] for span in sorted(dead)]
    shared, suspects = rounds.start(0.0, backlog(1, 2, 3, 4))
    assert shared.spans == frozenset(job.tasks[1])
    assert suspects.kind is Kind.SUSPECTS


def test_P8_a_job_that_did_not_start_blames_nobody() -> None:
    rounds = Rounds(2)
    job = one(rounds.start(0.0, backlog(1, 2, 3)))
    rounds.not_started(job.number)
    assert one(rounds.start(0.0, backlog(1, 2, 3))).kind is Kind.SHARED


def test_a_dispatcher_that_leaves_is_forgotten() -> None:
    rounds = Rounds(2)
    rounds.lost(one(rounds.start(0.0, backlog(1, 2, 3))).number)
    for span in (1, 2, 3):
        rounds.forget(span)
    assert rounds.suspects == ()


@given(st.integers(1, 200), st.integers(0, 10_000), st.booleans())
def test_P2_halving_finds_the_culprit_whatever_it_takes_along(count: int, seed: int, kills_all: bool) -> None:
    """The culprit kills its job, or all of Spark; the others must get through and must not end up alone for good."""
    chance = random.Random(seed)
    culprit = chance.randrange(count)
    rounds = Rounds(2)
    deaths, running, now, spans = 0, {}, 0.0, backlog(*range(count))
    while deaths < 30 and rounds.suspects != (frozenset({culprit}),):
        now += 1.0
        for job in rounds.start(now, spans):
            running[job.number] = job
        assert len(running) <= ROUND_JOBS_MAX
        number = chance.choice(sorted(running))
        if culprit in running[number].spans:
            deaths += 1
            dead = sorted(running) if kills_all else [number]
            rounds.lost(*dead)
            for one_ in dead:
                del running[one_]
        else:
            rounds.returned(number, now=0.0)
            del running[number]
    assert rounds.suspects == (frozenset({culprit}),)
    assert deaths <= 2 * count.bit_length() + 2
    assert rounds.alone == frozenset()
