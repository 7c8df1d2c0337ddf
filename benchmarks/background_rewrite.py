"""A process that repeatedly Z-orders closed days of a table: `python -m benchmarks.background_rewrite URI`.

Prints `began` before its first command. When its standard input is closed, it prints the number of completed commands.
"""

from __future__ import annotations

import sys
import threading

from benchmarks import sides

#: The day that is being written; earlier days are closed.
OPEN_DAY = "2026-01-03"


def main() -> int:
    over = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=await_end, daemon=True).start()
    spark, commands = sides.session(), 0
    print("began", flush=True)
    while not over.is_set():
        command = f"OPTIMIZE delta.`{sys.argv[1]}` WHERE event_date < DATE'{OPEN_DAY}' ZORDER BY (player)"
        spark.sql(command).collect()
        commands += 1
    print(commands, flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
