"""`partitioning_s3`: the benchmark `partitioning` on an S3 server, where opening a file takes a request.

On local disk opening a file costs almost nothing, which favours a layout of many small files.
"""

from __future__ import annotations

from benchmarks import partitioning
from benchmarks.harness import Benchmark, Options, Result, TinySize

WORKLOAD = partitioning.WORKLOAD


def run(options: Options) -> list[Result]:
    """Measures the layouts on s3proxy."""
    from benchmarks import storages

    with storages.object_store() as bucket:
        return partitioning.measure_layouts(options, bucket.storage("layouts"), WORKLOAD, name=BENCHMARK.name)


BENCHMARK = Benchmark(
    name="partitioning_s3",
    summary="the benchmark partitioning on an S3 server",
    run=run,
    tiny=TinySize(constants={"WORKLOAD": partitioning.TINY_WORKLOAD}),
)
