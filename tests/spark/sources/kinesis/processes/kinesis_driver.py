"""A separate driver for tests that kill it: writes the rows of every action of every batch, one file each.

Arguments, as JSON: format, options, checkpoint, folder, master, available_now, actions, and pause_at, the batch after
whose first action it waits for a file `go` or to be killed.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from kinesis_faulty import FaultyDataSource
from pyspark.sql import DataFrame, SparkSession


def main(given: dict[str, Any]) -> int:
    """Run the query until it ends, or forever."""
    folder = Path(given["folder"])
    builder = SparkSession.builder.master(given["master"]).config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(FaultyDataSource)

    def note(frame: DataFrame, batch: int) -> None:
        for action in range(given.get("actions", 1)):
            table = frame.toArrow()
            rows = sorted((row["shardId"], row["ordinal"], row["data"].hex()) for row in table.to_pylist())
            digest = hashlib.md5(json.dumps(rows).encode()).hexdigest()
            told = {"batch": batch, "action": action, "rows": rows, "md5": digest}
            part = folder / f".{uuid.uuid4().hex}"
            part.write_text(json.dumps(told))
            part.rename(folder / f"{time.time_ns()}-{batch}-{action}.json")
            if batch == given.get("pause_at"):
                (folder / "paused").touch()
                while not (folder / "go").exists():
                    time.sleep(0.05)

    reader = spark.readStream.format(given["format"]).options(**given["options"]).load()
    writer = reader.writeStream.foreachBatch(note).option("checkpointLocation", given["checkpoint"])
    if given.get("available_now", True):
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
