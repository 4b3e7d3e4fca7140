"""Jobs that died by one event are blamed together, and once."""

from __future__ import annotations

import random

from millrace.core.delivery.losses import Losses


def test_P2_jobs_in_flight_when_spark_went_are_blamed_together() -> None:
    losses = Losses()
    for number in (1, 2, 3):
        losses.began(number)
    assert losses.ended(2, session_lost=True) == ()
    assert losses.ended(1, session_lost=False) == (), "it came back in time; the third has not told yet"
    losses.began(4)                                    # on the next Spark
    assert losses.ended(3, session_lost=True) == (2, 3)
    assert losses.ended(4, session_lost=False) == ()


def test_P2_a_job_alone_is_blamed_at_once() -> None:
    losses = Losses()
    losses.began(1)
    assert losses.ended(1, session_lost=True) == (1,)


def test_P2_every_job_that_died_is_blamed_exactly_once() -> None:
    rng = random.Random(5)
    losses, running, died, blamed = Losses(), set[int](), set[int](), list[int]()
    for number in range(2_000):
        losses.began(number)
        running.add(number)
        while running and (len(running) > 6 or rng.random() < 0.5 or number == 1_999):
            ended = rng.choice(sorted(running))
            running.remove(ended)
            lost = rng.random() < 0.3
            died |= {ended} if lost else set()
            blamed += losses.ended(ended, session_lost=lost)
    assert sorted(blamed) == sorted(died)
