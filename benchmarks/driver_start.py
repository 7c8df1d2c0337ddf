"""`driver_start`: the time to start a driver and to run its first small job, with and without the Java class archive.

- `session`: until the Spark session has started.
- `small_job`: until a Delta table of 200 rows is written, merged, optimized and read, including the session's start.
  This is the minimum cost of a gold build or a mutation batch of a small pipeline.

Both implementations are Python processes with one JVM and differ only in the archive. `jvm_cpu_seconds` is the CPU time
of the JVM; compare this value on a busy machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure

_ROOT = Path(__file__).resolve().parents[1]
WITHOUT_ARCHIVE = "without"


def run(options: Options) -> list[Result]:
    """Measures both comparisons."""
    both = comparisons("session", "small_job")
    return measure(BENCHMARK.name, both, repeats=options.repeats, progress=options.progress)


def comparisons(*metrics: str) -> list[Comparison]:
    """Returns the comparisons for these metrics."""
    return [
        Comparison(
            metric=metric, ours=_side("archive", metric), other=_side(WITHOUT_ARCHIVE, metric), sizes={"rows": 200}
        )
        for metric in metrics
    ]


def _side(name: str, metric: str) -> Side:
    environment = os.environ | {
        "PYTHONPATH": f"{_ROOT / 'include'}{os.pathsep}{_ROOT}",
        "DELTAWORKS_PROJECT": str(_ROOT),
    }
    command = [sys.executable, "-m", "benchmarks.driver_start", name, metric]

    def start(clock: Clock) -> None:
        with clock:
            done = subprocess.run(command, env=environment, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
        clock.record(**json.loads(done.stdout.splitlines()[-1]))

    return Side(f"{name}_{metric}", start)


def main(archive: str, metric: str) -> None:
    """Starts one driver and prints the CPU seconds of its JVM."""
    import tempfile

    import psutil

    from deltaworks.build.java_archive_training import exercise_tables, small_session
    from deltaworks.specs import spark_conf

    if archive == WITHOUT_ARCHIVE:
        spark_conf.java_archive_options = lambda root: "-Xlog:disable"
    elif not spark_conf.java_archive_options(_ROOT):
        raise SystemExit("The Java class archive does not exist. Run `make jars`.")
    with tempfile.TemporaryDirectory() as folder:
        options = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m"
        spark = small_session(Path(folder), java_options=options)
        if metric == "small_job":
            exercise_tables(spark, Path(folder))
        java = [process for process in psutil.Process().children(recursive=True) if process.name() == "java"]
        used = sum(sum(process.cpu_times()[:2]) for process in java)
        print(json.dumps({"jvm_cpu_seconds": round(used, 2)}))
        spark.stop()


BENCHMARK = Benchmark(
    name="driver_start",
    summary="starting a driver and running a small job, with and without the Java class archive",
    run=run,
    tiny=TinySize(),
)

if __name__ == "__main__":
    main(*sys.argv[1:])
