"""Sessions: opened when needed, opened again, and never waited for when Spark is not there."""

from __future__ import annotations

import time

import pytest

from millrace.errors import Unreachable
from millrace.limits import SPARK_IDLE_S
from millrace.pipeline.server import own_session
from millrace.pipeline.session import Place, Session
from support_ports import free_ports
from support_spark import TOKEN, SparkServer

pytestmark = pytest.mark.timeout(400)      # a JVM starts, perhaps on a busy machine


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_P8_no_server_is_said_at_once() -> None:
    session = Session(Place(remote=f"sc://127.0.0.1:{free_ports(1)[0]}"))
    began = time.monotonic()
    with pytest.raises(Unreachable, match="no Spark Connect server"):
        session.spark()
    assert time.monotonic() - began < 5.0
    session.close()


def test_a_session_is_opened_once_and_again_when_it_was_dropped(spark_server: SparkServer) -> None:
    session = Session(Place(remote=spark_server.remote))
    first = session.spark()
    assert session.spark() is first
    assert session.is_alive(first)
    session.drop(first)
    second = session.spark()
    assert second is not first
    session.drop(first)                       # another thread noticed the same death, late
    assert session.spark() is second
    assert session.opened_count == 2
    session.close()


def test_a_session_of_ones_own_is_not_kept_longer_than_the_server_keeps_it(spark_server: SparkServer) -> None:
    clock = Clock()
    own = Session(Place(remote=own_session(spark_server.port, TOKEN)), clock=clock)
    shared = Session(Place(remote=spark_server.remote), clock=clock)
    before = own.spark(), shared.spark()
    clock.now = SPARK_IDLE_S + 1
    assert own.spark() is not before[0]
    assert shared.spark() is before[1]
    own.close()
    shared.close()


def test_who_closes_a_shared_session_does_not_end_it_for_the_others(spark_server: SparkServer) -> None:
    mine, theirs = Session(Place(remote=spark_server.remote)), Session(Place(remote=spark_server.remote))
    mine.spark()
    spark = theirs.spark()
    mine.close()
    assert spark.range(3).count() == 3
    theirs.close()
