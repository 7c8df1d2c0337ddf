"""`partitioning`: an engagement table partitioned by organisation and Z-ordered by date, against one partitioned by
organisation and date.

Runs the experiment `deltaworks experiment partitioning`, whose documentation describes both layouts. `read`, `update`
and `insert` are the seconds of one round; `insert` includes the OPTIMIZE of the new layout. `--events` is the number of
rows loaded first.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Options, Result, TinySize
from benchmarks.versions import cores, versions
from sandbox.experiments.partitioning import PartitioningResult

if TYPE_CHECKING:
    from deltaworks.specs.storage import StorageSpec


#: Sizes that differ from the experiment's.
WORKLOAD: Mapping[str, Any] = {}
TINY_WORKLOAD = {"orgs": 3, "days": 2, "batches_per_round": 1}


def run(options: Options) -> list[Result]:
    """Measures the layouts on local disk."""
    from benchmarks.games_files import bench_folder
    from deltaworks.specs.storage import StorageSpec

    return measure_layouts(options, StorageSpec(root=f"file://{bench_folder()}"), WORKLOAD, name=BENCHMARK.name)


def measure_layouts(options: Options, storage: StorageSpec, workload: Mapping[str, Any], *, name: str) -> list[Result]:
    """Measures the layouts in a new folder of the storage and returns the results of benchmark `name`."""
    from benchmarks import sides
    from sandbox.experiments.engagement_rows import Workload
    from sandbox.experiments.partitioning import run_partitioning

    spark = sides.session(storage)
    result = run_partitioning(
        spark,
        storage,
        Workload(rows=options.events, **workload),
        prefix=f"partitioning-{uuid.uuid4().hex[:12]}",
        repeats=options.repeats,
        progress=lambda line: options.progress(f"{name}: {line}"),
    )
    spark.stop()
    return to_results(result, name=name)


def to_results(result: PartitioningResult, *, name: str) -> list[Result]:
    """Converts the experiment's outcome to results, with the new layout as ours."""
    from sandbox.experiments.partitioning import PUBLISHED
    from sandbox.experiments.schemes import BY_DATE, BY_ORG

    ours, other = result.result_of(BY_ORG), result.result_of(BY_DATE)
    workload = result.workload
    sizes: Mapping[str, int | float] = {
        "events": workload.rows,
        "tables": 1,
        "orgs": workload.orgs,
        "exponent": workload.exponent,
        "days": workload.days,
        "rows_per_batch": workload.rows_per_batch,
        "batches_per_round": workload.batches_per_round,
        "requests": workload.requests,
        "files_ours": ours.files.all.files,
        "files_other": other.files.all.files,
    }
    return [
        Result(
            benchmark=name,
            metric=operation,
            ours=round(ours.median(operation), 4),
            other=round(other.median(operation), 4),
            unit="seconds",
            ratio=round(result.ratio(operation), 3),
            ours_name=ours.scheme.name,
            other_name=other.scheme.name,
            ours_all=tuple(round(seconds, 4) for seconds in ours.seconds[operation]),
            other_all=tuple(round(seconds, 4) for seconds in other.seconds[operation]),
            ours_parts={part: round(seconds, 4) for part, seconds in ours.parts.items()},
            other_parts={part: round(seconds, 4) for part, seconds in other.parts.items()},
            sizes={**sizes, "published": published},
            cores=cores(),
            versions=versions(),
        )
        for operation, published in PUBLISHED.items()
    ]


BENCHMARK = Benchmark(
    name="partitioning",
    summary="partitioning by organisation with Z-order by date, against partitioning by organisation and date",
    run=run,
    tiny=TinySize(constants={"WORKLOAD": TINY_WORKLOAD}),
)
