"""A streaming query in its own process that appends event files to a Delta table.

Arguments, as JSON: input folder; table and checkpoint addresses; `app_id` of its transactions ("" for none, null for
Delta's own sink); `kill_at`, the batch after whose append the process is killed; `hold_at`, the batch after whose
append it waits for a file `go` in `folder`. Its last line is the condition it ended with.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

from deltaworks.control.job import as_deltaworks_error
from deltaworks.specs.environment import EnvironmentSpec, SparkSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from deltaworks.tables.spark_session import build_session
from sandbox.servers.object_store import lake_storage

ROOT = "s3://deltaworks-lake"
READY, ENDED = "READY", "ENDED"


def sink(files: DataFrame, given: dict[str, Any]) -> DataStreamWriter:
    """Returns the query's `foreachBatch` function."""
    writer = files.writeStream.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True)
    if given["app_id"] is None:
        return writer.format("delta").option("path", given["table"])

    def land(batch: DataFrame, batch_id: int) -> None:
        append = batch.write.format("delta").mode("append")
        if given["app_id"]:
            append = append.option("txnAppId", given["app_id"]).option("txnVersion", batch_id)
        append.save(given["table"])
        if given.get("kill_at") == batch_id:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        if given.get("hold_at") == batch_id:
            folder = Path(given["folder"])
            (folder / "held").touch()
            while not (folder / "go").exists():
                time.sleep(0.05)

    return writer.foreachBatch(land)


def main(given: dict[str, Any]) -> None:
    """Reads the available data, then ends."""
    here = StorageSpec(root="file:///unused")
    # It lives for seconds: compiling well costs more than it brings.
    small = SparkSpec(shuffle_partitions=1, java_options="-XX:TieredStopAtLevel=1")
    environment = EnvironmentSpec(
        environment="tests", lake=lake_storage(ROOT), landing=here, messaging=AwsSpec(), spark=small
    )
    spark = build_session(environment, app_name="appending", master="local[1]")
    print(READY, flush=True)
    sys.stdin.readline()
    files = spark.readStream.schema("writer string, number long").option("maxFilesPerTrigger", 1).json(given["input"])
    try:
        sink(files, given).start().awaitTermination()
    except Exception as error:
        print(ENDED, as_deltaworks_error(error).condition, flush=True)
    else:
        print(ENDED, "well", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
