"""A query over `format("s3-sqs")` as in the connector's documentation, in a separate process.

`python published_query.py QUEUE_URL CHECKPOINT OUTPUT CLASS_PATH once|on`. Sets only documented options; AWS clients
    take keys and endpoint from the environment.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(queue_url: str, checkpoint: str, output: str, class_path: str, how: str) -> None:
    """Copy what is announced into Parquet files, until there is nothing more or until it is killed."""
    builder = SparkSession.builder.master("local[2]").appName("published").config("spark.ui.enabled", "false")
    if class_path:
        builder = builder.config("spark.driver.extraClassPath", class_path)
    builder = builder.config("spark.sql.codegen.wholeStage", "false").config("spark.sql.shuffle.partitions", "1")
    spark = builder.getOrCreate()
    clicks = (
        spark.readStream.format("s3-sqs")
        .option("fileFormat", "json")
        .option("queueUrl", queue_url)
        .schema("id long, at timestamp")
        .load()
    )
    writer = clicks.writeStream.format("parquet").option("path", output).option("checkpointLocation", checkpoint)
    writer = writer.trigger(availableNow=True) if how == "once" else writer.trigger(processingTime="1 second")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
