"""The breaker of a sink: when it trips, who probes, what closes it [V12]."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.core.delivery.breaker import FLAWS, Breaker, Heard, Pace, State, Trial

WHY = "the time for sending is over: not_enough_replicas: 1 in sync, 2 needed"
MANY = range(limits.BREAKER_FAILED_MIN)


def fail(breaker: Breaker, now: float, *spans: int, here: int = 100) -> None:
    breaker.heard(now, Heard(dict.fromkeys(spans, WHY)), here=here, jitter=0.5)


def opened(now: float = 10.0, pace: Pace | None = None) -> Breaker:
    breaker = Breaker(pace)
    fail(breaker, now, *MANY)
    assert breaker.state is State.OPEN
    return breaker


def test_V12_many_that_fail_without_a_success_trip_it() -> None:
    breaker = Breaker()
    fail(breaker, 1.0, *MANY[1:])
    assert not breaker.is_open
    fail(breaker, 2.0, 0)
    assert (breaker.is_open, breaker.trips, breaker.why, breaker.opened_at) == (True, 1, WHY, 2.0)
    assert breaker.failed == frozenset(MANY)


def test_V12_all_of_a_small_changefeed_trip_it_but_not_by_one_accident() -> None:
    breaker = Breaker()
    fail(breaker, 1.0, 1, here=1)
    assert not breaker.is_open
    fail(breaker, 5.0, 1, here=1)
    assert breaker.is_open


def test_V12_a_success_between_is_no_outage() -> None:
    breaker = Breaker()
    fail(breaker, 1.0, *MANY[1:])
    breaker.heard(1.5, Heard({}, (50,)), here=100, jitter=0.5)
    fail(breaker, 2.0, 0)
    breaker.heard(3.0, Heard(dict.fromkeys(MANY, WHY), (51,)), here=100, jitter=0.5)
    assert not breaker.is_open


def test_V12_a_few_bad_topics_among_many_that_ran_trip_nothing() -> None:
    breaker = Breaker()
    breaker.heard(1.0, Heard({}, range(100)), here=100, jitter=0.5)
    fail(breaker, 2.0, *MANY)
    assert not breaker.is_open
    fail(breaker, 1.1 + limits.BREAKER_WINDOW_S, *MANY)
    assert breaker.is_open, "the others are too long ago to say anything"


def test_V12_failures_that_lie_far_apart_are_no_outage() -> None:
    breaker = Breaker()
    for n in range(20):
        fail(breaker, n * limits.BREAKER_WINDOW_S * 1.1, n)
    assert not breaker.is_open


def test_V12_another_one_probes_each_time_who_was_not_stopped_first_and_waits_grow() -> None:
    breaker, now, spans, waits = opened(), 10.0, [], []
    for _ in range(10):
        assert breaker.probe(breaker.next_at() - 0.01, range(10)) is None
        waits.append(breaker.next_at() - now)
        now = breaker.next_at()
        span = breaker.probe(now, range(10))
        assert span is not None
        assert breaker.probe(now + 99.0, range(10)) is None, "one at a time"
        spans.append(span)
        now += 1.0
        fail(breaker, now, span)
    assert sorted(spans) == list(range(10))
    assert set(spans[:2]) == {8, 9}
    assert waits[:3] == [0.75, 1.5, 3.0]
    assert max(waits) <= limits.BREAKER_PROBE_MAX_S


@pytest.mark.parametrize("said", [Heard({}, (), (8,)), None])
def test_V12_a_probe_that_says_nothing_of_the_sink_is_followed_by_another(said: Heard | None) -> None:
    breaker = opened()
    now = breaker.next_at()
    assert breaker.probe(now, (8, 9)) == 8
    if said is None:
        breaker.given_up(now, 1.0)
    else:
        breaker.heard(now, said, here=100, jitter=1.0)
    assert breaker.next_at() == now + 1.0, "nor does the wait grow"
    assert breaker.probe(now + 1.0, (8, 9)) == 9
    breaker.heard(now + 2.0, Heard({}, (9,)), here=100, jitter=0.5)
    assert (breaker.state, breaker.failed) == (State.CLOSED, frozenset())


def test_V12_whatever_is_delivered_closes_it() -> None:
    breaker = opened()
    breaker.heard(10.1, Heard({}, (77,)), here=100, jitter=0.5)
    assert not breaker.is_open


def test_V12_probes_of_changefeeds_into_one_sink_are_a_second_apart() -> None:
    pace = Pace()
    one, other = opened(10.0, pace), opened(10.0, pace)
    at = one.next_at()
    assert one.probe(at, (1,)) == 1
    assert other.probe(at, (1,)) is None
    assert other.next_at() == at + limits.BREAKER_APART_S
    assert other.probe(other.next_at(), (1,)) == 1


def test_V12_in_a_task_that_fails_by_the_sink_those_that_have_not_begun_are_not_tried() -> None:
    trial = Trial()
    for _ in MANY:
        assert not trial.is_hopeless
        trial.ended(failed=True)
    assert trial.is_hopeless
    trial.ended(failed=False)
    assert not trial.is_hopeless, "one that was late shows that the sink is there"
    for _ in MANY:
        trial.ended(failed=True)
    assert not trial.is_hopeless


def play(seed: int, flaws: frozenset[str] = frozenset()) -> None:
    """A sink with an outage and some bad tables, under a breaker; AssertionError: a promise is broken."""
    rng = random.Random(seed)
    here, bad = rng.randrange(12, 60), set(rng.sample(range(60), 2))
    down, up = (20.0, 20.0 + rng.uniform(5.0, 60.0)) if rng.random() < 0.7 else (1e9, 1e9)
    breaker, now, under_way, probes = Breaker(flaws=flaws), 0.0, list[tuple[float, list[int]]](), list[float]()
    while now < 120.0:
        now += 0.1
        for end, spans in [one for one in under_way if one[0] <= now]:
            under_way.remove((end, spans))
            well = [] if down <= now < up else [span for span in spans if span not in bad]
            failed = {span: WHY for span in spans if span not in well}
            breaker.heard(now, Heard(failed, well), here=here, jitter=rng.random())
        busy = {span for _, spans in under_way for span in spans}
        ready = [span for span in range(here) if span not in busy]
        if not breaker.is_open:
            shared = [span for span in ready if span not in bad]
            if shared and not any(len(spans) > 1 for _, spans in under_way):
                under_way.append((now + rng.uniform(0.2, 4.0), shared))
            under_way += [(now + rng.uniform(0.2, 4.0), [span]) for span in ready if span in bad]
        elif (span := breaker.probe(now, ready)) is not None:
            assert breaker.probing == span
            probes.append(now)
            assert not any(spans == [breaker.probing] for _, spans in under_way)
            running = [spans for _, spans in under_way if len(spans) == 1 and spans[0] not in bad]
            assert not running, "two probes at once"
            under_way.append((now + rng.uniform(0.2, 4.0), [span]))
        assert not breaker.is_open or now >= down, "one bad table stops the others"
        assert breaker.is_open or not down + 40.0 < now < up, "an outage is not noticed"
        assert not breaker.is_open or now < up + 40.0, "it never closes"
    assert all(b - a >= limits.BREAKER_APART_S - 1e-9 for a, b in pairwise(probes))


@given(st.integers(0, 10**9))
def test_V12_the_promises_hold_whatever_comes(seed: int) -> None:
    play(seed)


@pytest.mark.parametrize("flaw", FLAWS)
def test_the_checker_finds_planted_flaws(flaw: str) -> None:
    def broken(seed: int) -> bool:
        try:
            play(seed, frozenset((flaw,)))
        except AssertionError:
            return True
        return False

    assert any(map(broken, range(20)))
