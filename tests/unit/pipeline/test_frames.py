"""Frames that jobs begin with are asked for once."""

from __future__ import annotations

from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema

from millrace.pipeline import frames
from millrace.pipeline.asked_task import POINTS
from millrace.pipeline.task import RESULTS


class Spark:
    """Counts what would be a call to the server."""

    def __init__(self) -> None:
        self.calls = 0

    def range(self, start: int, end: int, *, numPartitions: int) -> Any:
        assert (start, end) == (0, numPartitions)
        return Frame(self)


class Frame:
    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    @property
    def columns(self) -> list[str]:
        self._spark.calls += 1
        return ["id"]


def test_P7_a_frame_is_asked_about_once_for_each_size_and_session() -> None:
    first, second = Spark(), Spark()
    one: Any = first
    made = [frames.numbers(one, count) for count in (1, 2, 1, 2)]
    assert (made[0], made[1]) == (made[2], made[3])
    assert first.calls == 2
    other: Any = second
    frames.numbers(other, 1)
    assert second.calls == 1
    assert frames.numbers(one, 1) is not made[0], "a session that is gone is let go"


def test_P7_results_are_typed_without_a_question() -> None:
    assert to_arrow_schema(frames.result_type()) == RESULTS
    assert to_arrow_schema(frames.points_type()) == POINTS
