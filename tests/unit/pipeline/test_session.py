"""Questions to a Spark that was started anew, hangs or is away, against a stand-in; with Spark itself: tests/spark."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.connect import SparkConnectException

from millrace import limits
from millrace.errors import InvalidExpression, Unreachable
from millrace.pipeline.session import Open, Place, Session


def dead() -> SparkConnectException:
    """As pyspark says it of a session that the server does not know."""
    return SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={})


class Spark:
    def __init__(self, *, alive: bool) -> None:
        self.alive = alive

    def analyse(self) -> str:
        if not self.alive:
            raise dead()
        return "bigint"


class FakeSession(Session):
    """Opens those that it is given, one after another. `greets`: whether Spark answers at all."""

    def __init__(self, *sparks: Spark) -> None:
        super().__init__(Place(remote="sc://nowhere;session_id=x"))
        self.sparks, self.dropped = list(sparks), list[Any]()
        self.greets = True

    def _open(self) -> Any:
        if not self.sparks:
            raise Unreachable("no Spark Connect server answers")
        return self.sparks.pop(0)

    def _forget(self) -> None:
        self.dropped.append(self._spark)
        super()._forget()

    def answers(self) -> bool:
        return self.greets

    def is_alive(self, spark: Any) -> bool:
        if not spark.alive:
            raise dead()
        return True


def kind(spark: Open) -> str:
    fake: Any = spark()
    return str(fake.analyse())


def test_P8_a_session_that_died_is_dropped_and_opened_again_once() -> None:
    former, present = Spark(alive=True), Spark(alive=True)
    session = FakeSession(former, present)
    assert session.ask(kind) == "bigint"
    former.alive = False                                     # Spark was started anew
    assert session.ask(kind) == "bigint"
    assert (session.dropped, session.opened_count) == ([former], 2)


def test_P8_a_spark_that_dies_again_and_again_does_not_answer() -> None:
    session = FakeSession(*(Spark(alive=False) for _ in range(3)))
    with pytest.raises(Unreachable, match="NO_ACTIVE_SESSION"):
        session.ask(kind)
    assert session.opened_count == 2, "once more, not for ever"


def test_P8_a_spark_that_is_gone_since_does_not_answer() -> None:
    session = FakeSession(Spark(alive=False))
    with pytest.raises(Unreachable, match="no Spark Connect server answers"):
        session.ask(kind)


def test_P8_a_spark_that_hangs_is_not_asked_and_keeps_its_session_for_those_who_wait_in_it() -> None:
    session = FakeSession(Spark(alive=True))
    session.ask(kind)
    session.greets = False
    with pytest.raises(Unreachable, match="no Spark Connect server answers"):
        session.ask(kind)
    session.greets = True
    assert session.ask(kind) == "bigint"
    assert (session.dropped, session.opened_count) == ([], 1)


@pytest.mark.parametrize("error", [AnalysisException("[DATATYPE_MISMATCH]"), InvalidExpression("filter"), KeyError(1)])
def test_an_error_about_the_question_costs_no_session(error: Exception) -> None:
    """Rounds of others run in it."""
    session, asked = FakeSession(Spark(alive=True)), list[int]()

    def question(spark: Open) -> None:
        spark()
        asked.append(1)
        raise error

    with pytest.raises(type(error)):
        session.ask(question)
    assert (session.dropped, asked) == ([], [1])


def test_P8_who_needs_no_spark_opens_none() -> None:
    session = FakeSession()
    assert session.ask(lambda spark: 7) == 7
    assert session.opened_count == 0


@pytest.fixture
def silent_port() -> Iterator[int]:
    """The kernel takes calls for a process that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_A8_people_are_told_the_address_and_nothing_that_a_session_is_told_beside_it() -> None:
    places = Place(remote="sc://h:15002/;token=geheim"), Place(remote="sc://h:1"), Place(master="local[2]")
    assert [place.name for place in places] == ["sc://h:15002", "sc://h:1", "local[2]"]


def test_C9_a_server_that_takes_calls_and_answers_none_does_not_answer(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SPARK_SILENT_S", 0.05)
    assert not Session(Place(remote=f"sc://127.0.0.1:{silent_port}")).answers()
