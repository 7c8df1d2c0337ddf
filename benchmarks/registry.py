"""All benchmarks. A new one is a module of this package with a `BENCHMARK`, and its line here."""

from __future__ import annotations

from benchmarks import (
    archive,
    bucket_growth,
    cli,
    cluster,
    demo,
    fan_out,
    file_sizes,
    freshness,
    groups,
    growth,
    health_scan,
    ingest_beside_optimize,
    kafka,
    keyed_merge,
    kinesis,
    layout,
    mutation_apply,
    mutation_resolve,
    night,
    partitioning,
    prices,
    read_changes,
    relay,
    single_table,
    small_upkeep,
    trigger,
    vacuum,
)
from benchmarks.harness import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    module.BENCHMARK.name: module.BENCHMARK
    for module in (
        single_table,
        fan_out,
        growth,
        archive,
        bucket_growth,
        file_sizes,
        trigger,
        prices,
        kafka,
        kinesis,
        keyed_merge,
        mutation_resolve,
        mutation_apply,
        partitioning,
        read_changes,
        relay,
        layout,
        night,
        small_upkeep,
        vacuum,
        ingest_beside_optimize,
        health_scan,
        freshness,
        groups,
        cli,
        demo,
        cluster,
    )
}
