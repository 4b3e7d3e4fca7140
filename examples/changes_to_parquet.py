"""Every change of a table into Parquet files, each change once: a Spark job that may be killed and started again.

    python examples/changes_to_parquet.py --brokers 127.0.0.1:9092 --source shop --table public.orders --to /tmp/orders

Spark keeps the position in `<to>/checkpoint`. A batch that was under way when the job died is run again with the same
rows, and overwrites its own directory: so nothing is lost and nothing is there twice. `--now` ends the job when it has
caught up; without it the job runs until it is stopped. `--rows` prints the table as the files tell it.

The cluster's secret is read from `.millrace/secret`, where `millrace up` makes it; in another directory, give its path
in MILLRACE_SECRET_FILE.
"""

from __future__ import annotations

import argparse
import os
import sys

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from millrace.pipeline import register

NEWEST = ("_generation", "_commit_version", "_seq")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", required=True, help="host:port,…")
    parser.add_argument("--source", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--to", required=True, help="a directory")
    parser.add_argument("--limit", default="1000", help="log records in one batch")
    parser.add_argument("--now", action="store_true", help="end when all there is now has been written")
    parser.add_argument("--rows", metavar="KEY", help="print the table by this key, instead")
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)     # workers need millrace, too
    spark = SparkSession.builder.appName(f"changes of {options.table}").getOrCreate()
    if options.rows:
        table_of(spark.read.parquet(f"{options.to}/changes"), options.rows).show(truncate=False)
        return
    register(spark)
    changes = (
        spark.readStream.format("millrace")
        .option("kafka.bootstrap.servers", options.brokers)
        .option("source", options.source)
        .option("table", options.table)
        .option("maxOffsetsPerTrigger", options.limit)
        .option("onTruncate", "row")
        .load()
    )

    def save(rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(f"{options.to}/changes/batch={batch}")

    writing = changes.writeStream.foreachBatch(save).option("checkpointLocation", f"{options.to}/checkpoint")
    if options.now:
        writing = writing.trigger(availableNow=True)
    writing.start().awaitTermination()


def table_of(changes: DataFrame, key: str) -> DataFrame:
    """The newest row of each key that was not deleted."""
    newest_first = Window.partitionBy(key).orderBy(*(f.col(name).desc() for name in NEWEST))
    ranked = changes.where("_change_type != 'update_preimage'").withColumn("rank", f.row_number().over(newest_first))
    return ranked.where("rank = 1 and _change_type != 'delete'").drop("rank")


if __name__ == "__main__":
    main()
