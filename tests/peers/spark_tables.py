"""A job of Spark's on Debezium's messages: a stream of Kafka topics to files, then the latest row of each key.

    python spark_tables.py <plan.json>

plan: {"bootstrap", "class_path", "directory", "tables": [{"topic", "columns": DDL, "schema": whether the messages have
a schema block, "key": [column…], "kept": [column…] whose unavailable values stand in an earlier message,
"select": [expression…], "rows": file to write, a JSON object per line}]}
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

UNAVAILABLE = "__debezium_unavailable_value"
PER_BATCH = 200


def main(plan: dict[str, Any]) -> None:
    spark = (SparkSession.builder.master("local[2]").config("spark.driver.extraClassPath", plan["class_path"])
             .config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
             .config("spark.sql.session.timeZone", "UTC").config("spark.driver.memory", "1g").getOrCreate())
    directory = plan["directory"]
    stream = (spark.readStream.format("kafka").option("kafka.bootstrap.servers", plan["bootstrap"])
              .option("subscribe", ",".join(table["topic"] for table in plan["tables"]))
              .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", PER_BATCH).load())
    query = (stream.writeStream.format("parquet").option("path", f"{directory}/messages")
             .option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start())
    query.awaitTermination()
    messages = spark.read.parquet(f"{directory}/messages").cache()
    print(spark.version, len(query.recentProgress), messages.count())
    for table in plan["tables"]:
        latest = latest_rows(messages.where(F.col("topic") == table["topic"]), table).selectExpr(*table["select"])
        with open(table["rows"], "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row.asDict()) + "\n" for row in latest.collect())
    spark.stop()


def latest_rows(messages: DataFrame, table: dict[str, Any]) -> DataFrame:
    row = f"STRUCT<{table['columns']}>"
    envelope = f"before {row}, after {row}, op STRING"
    shape = f"payload STRUCT<{envelope}>" if table["schema"] else envelope
    parsed = messages.where("value IS NOT NULL").select(
        "offset", F.from_json(F.col("value").cast("string"), shape, {"mode": "FAILFAST"}).alias("it"))
    changes = parsed.select("offset", "it.payload.*" if table["schema"] else "it.*")
    truncated = changes.where("op = 't'").agg(F.max("offset")).collect()[0][0]
    changes = changes.where(F.col("offset") > (-1 if truncated is None else truncated))
    keys = [F.coalesce(f"after.{name}", f"before.{name}").alias(name) for name in table["key"]]
    keyed = changes.select("offset", "op", "after", *keys)
    window = Window.partitionBy(*table["key"]).orderBy("offset")
    for column in table["kept"]:
        known = F.when(F.col(f"after.{column}") != UNAVAILABLE, F.col(f"after.{column}"))
        keyed = keyed.withColumn("after", F.col("after").withField(
            column, F.last(known, ignorenulls=True).over(window.rowsBetween(Window.unboundedPreceding, 0))))
    newest = keyed.withColumn("place", F.row_number().over(
        Window.partitionBy(*table["key"]).orderBy(F.col("offset").desc())))
    return newest.where("place = 1 AND op <> 'd'").select("after.*")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as given:
        main(json.load(given))
