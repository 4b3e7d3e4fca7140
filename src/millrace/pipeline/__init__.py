"""Row work on Spark: the Connect server, sessions, rounds, and the public data source."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as RemoteSession


def register(spark: SparkSession | RemoteSession) -> None:
    """Makes `format("millrace")` known to this session. Executors and a Connect server must have millrace installed."""
    from millrace.pipeline.datasource import MillraceDataSource  # here: PySpark is half a second to import

    spark.dataSource.register(MillraceDataSource)
