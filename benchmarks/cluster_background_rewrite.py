"""A maintenance job that repeatedly Z-orders a table on a cluster: `python -m benchmarks.cluster_background_rewrite URI
ROWS`.

Prints `began` before its first command. When its standard input is closed, it prints the number of completed commands.
"""

from __future__ import annotations

import sys
import threading

from deltaworks.specs.project import load_catalog
from deltaworks.tables.spark_session import build_session


def main() -> int:
    uri, rows = sys.argv[1], int(sys.argv[2])
    over = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=await_end, daemon=True).start()
    environment = load_catalog().environment
    share = environment.shares.of("maintenance")
    spark, commands = build_session(environment, app_name="benchmark.optimize", share=share), 0
    frame = spark.range(0, rows, 1, 8).selectExpr(
        "pmod(xxhash64(id), 1000000) AS player", "hex(xxhash64(id, 3)) AS item"
    )
    frame.write.format("delta").mode("overwrite").save(uri)
    print("began", flush=True)
    while not over.is_set():
        spark.sql(f"OPTIMIZE delta.`{uri}` ZORDER BY (player)").collect()
        commands += 1
    print(commands, flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
