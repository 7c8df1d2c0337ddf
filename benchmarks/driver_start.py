"""`driver_start`: a driver's start and first small job, with its Java classes from the archive and without it.

- `session`: until a session is there.
- `small_job`: until a Delta table of 200 rows is written, merged, optimized and read, session included; what a gold
  build or a mutation batch of a small pipeline costs at least.

Both sides are Python processes with a JVM each, and differ in the archive alone. `jvm_cpu_seconds` is what the JVM took
of the processors: on a busy machine that is the figure to compare.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Benchmark, Clock, Comparison, Figure, Options, Side, measure

_ROOT = Path(__file__).resolve().parents[1]
WITHOUT_ARCHIVE = "without"


def run(options: Options) -> list[Figure]:
    """Measure both comparisons."""
    both = comparisons("session", "small_job")
    return measure(BENCHMARK.name, both, repeats=options.repeats, progress=options.progress)


def comparisons(*metrics: str) -> list[Comparison]:
    """The comparisons of these names."""
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
    """One driver; prints what its JVM took."""
    import tempfile

    import psutil

    from deltaworks.specs import spark_conf
    from deltaworks.tables.spark.java_archive_training import exercise_tables, small_session

    if archive == WITHOUT_ARCHIVE:
        spark_conf.java_archive_options = lambda root: "-Xlog:disable"
    elif not spark_conf.java_archive_options(_ROOT):
        raise SystemExit("There is no archive of classes: run `make jars`.")
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
    summary="a driver's start and a small job, with its Java classes from the archive and without",
    run=run,
)

if __name__ == "__main__":
    main(*sys.argv[1:])
