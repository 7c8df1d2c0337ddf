"""`partitioning_s3`: what `partitioning` measures, on an S3 server: there each file that is opened is a request.

Tables are kept in buckets. On local disk a file costs next to nothing, so that a layout of many small ones looks better
than it is.
"""

from __future__ import annotations

from benchmarks import partitioning
from benchmarks.harness import Benchmark, Figure, Options


def run(options: Options) -> list[Figure]:
    """Measure the layouts on s3proxy."""
    from benchmarks import storages

    with storages.object_store() as bucket:
        return partitioning.measure_layouts(options, bucket.storage("layouts"), name=BENCHMARK.name)


BENCHMARK = Benchmark(
    name="partitioning_s3",
    summary="what partitioning measures, on an S3 server",
    run=run,
)
