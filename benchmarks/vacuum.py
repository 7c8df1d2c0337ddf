"""`vacuum`: the nightly VACUUM of small tables without Spark, against Spark's command.

The lake has 31 tables with five files each, which a compaction replaced ten days ago. Each implementation is a process,
as the nightly run starts it, so the start of a JVM counts. Both delete the same files from copies of the same lake.
Results include the CPU seconds of the process and its children, and the number of deleted files.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure
from benchmarks.scratch_folders import copy_template, scratch_folder

if TYPE_CHECKING:
    from deltaworks.tables.lake import Lake

_TABLES, _FILES, _ROWS = 31, 5, 1_000
_AGE_SECONDS = 10 * 86_400
_RETENTION_HOURS = 168


def run(options: Options) -> list[Result]:
    """Creates a lake once and gives each repetition a copy."""
    with _template(options) as template:
        comparison = Comparison(
            metric="vacuum_in_process_vs_spark",
            ours=Side("vacuum_in_process", _Vacuum("ours", template)),
            other=Side("vacuum_by_spark", _Vacuum("spark", template)),
            sizes={"tables": _TABLES, "files": _TABLES * _FILES},
        )
        return measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)


@contextmanager
def _template(options: Options) -> Iterator[Path]:
    with scratch_folder("vacuum") as root:
        options.progress(f"vacuum: {_TABLES} tables of {_FILES} replaced files each")
        for number in range(_TABLES):
            _replace(root / _key(number))
        yield root


def _key(number: int) -> str:
    return f"tables/bench/events_{number:02d}"


def _replace(folder: Path) -> None:
    """Writes a table, compacts its files into one, and sets all times to the past."""
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    for _ in range(_FILES):
        write_deltalake(str(folder), pa.table({"player": pa.array(range(_ROWS))}), mode="append")
    table = DeltaTable(str(folder))
    table.optimize.compact()
    then = time.time() - _AGE_SECONDS
    newest = folder / "_delta_log" / f"{table.version():020d}.json"
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    for action in actions:
        if "remove" in action:
            action["remove"]["deletionTimestamp"] = int(then * 1000)
    newest.write_text("".join(json.dumps(action) + "\n" for action in actions))
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


@dataclass(frozen=True, slots=True)
class _Vacuum:
    """One vacuum run as a process."""

    engine: str
    template: Path

    def __call__(self, clock: Clock) -> None:
        with copy_template(self.template) as root:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            with clock:
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.vacuum", self.engine, str(root)],
                    check=True,
                    capture_output=True,
                    text=True,
                )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        files = int(done.stdout.splitlines()[-1])
        if files != _TABLES * _FILES:
            raise RuntimeError(f"{self.engine} deleted {files} files")
        cpu = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
        clock.record(cpu_seconds=cpu, files=files)


def main(how: str, root: str) -> int:
    """Runs one implementation; the last line printed is the number of deleted files."""
    from deltaworks.specs.storage import StorageSpec
    from deltaworks.tables.lake import Lake

    lake = Lake(StorageSpec(root=f"file://{root}"))
    print(_by_spark(lake) if how == "spark" else _in_process(lake))
    return 0


def _in_process(lake: Lake) -> int:
    from deltaworks.control.clock import utc_now
    from deltaworks.control.objects import open_objects
    from deltaworks.maintenance.vacuum_files import vacuum_files

    objects = open_objects(lake.storage)
    return sum(
        vacuum_files(
            lake,
            objects,
            _key(number),
            hours=_RETENTION_HOURS,
            full=True,
            dry_run=False,
            now=utc_now(),
            user_metadata="{}",
        )[0]
        for number in range(_TABLES)
    )


def _by_spark(lake: Lake) -> int:
    from benchmarks import sides
    from deltaworks.maintenance.vacuum import vacuum_with_spark

    spark = sides.session()
    files = 0
    for number in range(_TABLES):
        files += vacuum_with_spark(
            spark, lake, _key(number), hours=_RETENTION_HOURS, full=True, dry_run=False, version=0, metadata="{}"
        )[0]
    gateway = spark.sparkContext._gateway
    spark.stop()
    # Waits for the JVM, so that its CPU time counts as a child of this process.
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()
        process.wait()
    return files


BENCHMARK = Benchmark(
    name="vacuum",
    summary="the nightly VACUUM of small tables without Spark, against Spark's command: seconds and CPU seconds",
    run=run,
    tiny=TinySize(),
)

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
