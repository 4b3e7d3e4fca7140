"""What jobs begin and end with, without a question to the server: over Connect every schema in words and every frame
whose columns nobody knows is a call of its own before the job's.

In: a session. Out: `numbers`, one row in each partition, kept with its columns; types of results as values. Promise:
frames of one session at most are kept, and a session that is gone is let go with the next one's first frame.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

KEPT_MAX = 64                      # sizes of jobs: there are as many as cores, and a few more


class _Kept(NamedTuple):
    spark: SparkSession
    by_count: dict[int, DataFrame]


_kept: _Kept | None = None


def numbers(spark: SparkSession, count: int) -> DataFrame:
    """Partition n has the row n. Threads that come together may make the same one twice."""
    global _kept
    kept = _kept
    if kept is None or kept.spark is not spark or len(kept.by_count) > KEPT_MAX:
        kept = _kept = _Kept(spark, {})
    found = kept.by_count.get(count)
    if found is None:
        found = spark.range(0, count, numPartitions=count)
        found.columns                                    # noqa: B018 - asked here, once
        kept.by_count[count] = found
    return found


@cache
def result_type() -> StructType:
    """As pipeline.task.RESULTS."""
    from pyspark.sql.types import BinaryType, LongType, StructField, StructType

    return StructType([StructField("span", LongType()), StructField("result", BinaryType())])


@cache
def points_type() -> StructType:
    """As pipeline.asked_task.POINTS."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    return StructType([StructField("offset", BinaryType()), StructField("row", BinaryType())])


@cache
def answer_type() -> StructType:
    """As pipeline.errands.ANSWERS."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    return StructType([StructField("answer", BinaryType())])
