"""Where chunks run: by what became of trials and chunks, never waiting for a Spark that is away."""

from __future__ import annotations

import pytest

from millrace.core.sources.copies import ChunkId
from millrace.core.sources.copy_hosts import PROCESS, SPARK, CopyHosts, chunks_on_spark_max
from millrace.limits import COPY_SPARK_AGAIN_S, COPY_SPARK_FRESH_S, COPY_TRIAL_WAIT_S

ONE, TWO = ChunkId(1, 0), ChunkId(1, 1)


def ready(now: float = 0.0) -> CopyHosts:
    hosts = CopyHosts()
    hosts.trial_began(now)
    assert hosts.trial_ended(now)
    return hosts


@pytest.mark.parametrize(("cores", "places"), [(1, 1), (2, 1), (3, 1), (4, 2), (64, 32)])
def test_S4_chunks_get_half_of_the_cores_and_one_at_least(cores: int, places: int) -> None:
    assert chunks_on_spark_max(cores) == places


def test_S4_chunks_go_to_spark_once_a_trial_is_back() -> None:
    hosts = CopyHosts()
    assert hosts.wants_trial(0.0)
    assert hosts.host_of(ONE, free=1) == PROCESS
    hosts.trial_began(0.0)
    assert not hosts.wants_trial(100.0), "one at a time"
    assert hosts.host_of(ONE, free=1) == PROCESS
    assert hosts.trial_ended(0.5), "that they go there now is news"
    assert hosts.host_of(ONE, free=1) == SPARK
    assert not hosts.trial_ended(0.6), "that they still do is none"


def test_S4_a_chunk_waits_a_moment_for_the_first_trial_and_no_longer() -> None:
    hosts = CopyHosts()
    assert hosts.wait_s(0.0) == 0.0
    hosts.trial_began(10.0)
    assert hosts.wait_s(10.5) == COPY_TRIAL_WAIT_S - 0.5
    assert hosts.wait_s(10.0 + COPY_TRIAL_WAIT_S + 1) == 0.0


def test_P8_while_spark_is_away_nobody_waits_and_it_is_tried_again_later() -> None:
    hosts = ready()
    assert hosts.lost(5.0, "gone")
    assert not hosts.lost(6.0, "gone"), "said once"
    assert hosts.host_of(ONE, free=1) == PROCESS
    assert not hosts.wants_trial(6.0 + COPY_SPARK_AGAIN_S - 0.1)
    now = 6.0 + COPY_SPARK_AGAIN_S
    assert hosts.wants_trial(now)
    hosts.trial_began(now)
    assert hosts.wait_s(now) == 0.0
    assert not hosts.trial_ended(now + 1, "gone")
    assert not hosts.wants_trial(now + 1)
    later = now + 1 + COPY_SPARK_AGAIN_S
    hosts.trial_began(later)
    assert hosts.trial_ended(later)
    assert hosts.host_of(ONE, free=1) == SPARK
    assert hosts.why == ""


def test_P8_a_spark_not_heard_of_for_a_while_is_tried_before_it_gets_a_chunk() -> None:
    hosts = ready(0.0)
    assert not hosts.wants_trial(COPY_SPARK_FRESH_S - 1)
    hosts.came_back(ONE, COPY_SPARK_FRESH_S - 1)
    assert not hosts.wants_trial(COPY_SPARK_FRESH_S + 1), "a chunk that came back is a trial, too"
    now = 2 * COPY_SPARK_FRESH_S
    assert hosts.wants_trial(now)
    hosts.trial_began(now)
    assert hosts.host_of(ONE, free=1) == PROCESS
    assert hosts.wait_s(now) == COPY_TRIAL_WAIT_S


def test_S4_a_chunk_without_a_place_runs_here() -> None:
    assert ready().host_of(ONE, free=0) == PROCESS


def test_S4_what_came_to_nothing_on_spark_is_tried_here_next_and_others_go_on_there() -> None:
    hosts = ready()
    hosts.failed(ONE)
    assert (hosts.host_of(ONE, free=1), hosts.host_of(TWO, free=1)) == (PROCESS, SPARK)
    hosts.done_here(ONE)
    assert hosts.host_of(ONE, free=1) == SPARK


def test_a_trial_broken_off_says_nothing_about_spark() -> None:
    hosts = CopyHosts()
    hosts.trial_began(0.0)
    hosts.trial_broken_off()
    assert hosts.wants_trial(0.0)
