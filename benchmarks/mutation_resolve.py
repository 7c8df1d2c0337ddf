"""`mutation_resolve`: resolving the final id of every id, for increasing numbers of requests and chain lengths, with a
hub.

Deltaworks: `resolve`, from a Parquet file of requests to all validity intervals. It is compared with:

- `connected_components` of NetworkX in another process, which ignores time.
- The same resolution with a simple join that follows one rename per round. A chain of 4,096 takes long this way, so
  only the first rounds run, and the time of the others is extrapolated (`rounds_run` of `rounds`).
- Deltaworks with a smaller input. `per_doubling` is the factor by which the time grows if the number of requests, or
  the longest chain, doubles.

Peak memory is the resident memory of NetworkX's process. For the JVM it is the sum of the peaks of its heap pools,
which do not occur at the same time; the heap is limited to two gigabytes.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Run, Side, TinySize, measure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SIZES = (10_000, 100_000, 1_000_000, 3_000_000)
_CHAINS = (2, 64, 4_096)
_USUAL_CHAIN, _REQUESTS_OF_CHAINS = 64, 100_000
_HUB = 100_000
_ROUNDS = 64


@dataclass(frozen=True, slots=True)
class _Sides:
    """All sides by input size: Deltaworks, and the implementations it is compared with."""

    ours: dict[tuple[int, int], Side]
    networkx: dict[int, Side]
    one_hop: dict[int, Side]


def run(options: Options) -> list[Result]:
    """Measures input sizes up to `options.requests`."""
    from benchmarks import sides

    spark = sides.session()
    try:
        sizes = [size for size in _SIZES if size <= options.requests]
        resolved = _sides(spark, sizes, options)
        comparisons = _against_peers(sizes, resolved)
        growth = _growth(sizes, resolved)
        named = [*comparisons, *(comparison for comparison, _ in growth)]
        results = measure(BENCHMARK.name, named, repeats=min(options.repeats, 3), progress=options.progress)
        doublings = {comparison.metric: count for comparison, count in growth}
        return [_with_growth(result, doublings) for result in results]
    finally:
        spark.stop()


def _sides(spark: SparkSession, sizes: list[int], options: Options) -> _Sides:
    from benchmarks.mutation_requests import requests_file

    def made(requests: int, longest: int, hub: int) -> Path:
        options.progress(f"mutation_resolve: {requests:,} requests, longest chain {longest:,}, hub of {hub:,}")
        return requests_file(spark, requests=requests, longest=longest, hub=hub)

    by_size = {size: made(size, _USUAL_CHAIN, min(_HUB, size // 10)) for size in sizes}
    by_chain = {longest: made(_REQUESTS_OF_CHAINS, longest, 0) for longest in _CHAINS}
    ours = {(size, _USUAL_CHAIN): _ours(spark, f"resolve_{size}", path) for size, path in by_size.items()}
    ours |= {(0, longest): _ours(spark, f"resolve_chain_{longest}", path) for longest, path in by_chain.items()}
    return _Sides(
        ours=ours,
        networkx={size: Side(f"networkx_{size}", _networkx(path)) for size, path in by_size.items()},
        one_hop={
            longest: Side(f"one_hop_a_round_chain_{longest}", _one_hop(spark, path, longest))
            for longest, path in by_chain.items()
        },
    )


def _against_peers(sizes: list[int], resolved: _Sides) -> list[Comparison]:
    return [
        *(
            Comparison(
                metric=f"resolve_vs_networkx_{size}_requests",
                ours=resolved.ours[size, _USUAL_CHAIN],
                other=resolved.networkx[size],
                sizes={"requests": size, "longest_chain": _USUAL_CHAIN, "hub": min(_HUB, size // 10)},
            )
            for size in sizes
        ),
        *(
            Comparison(
                metric=f"resolve_vs_one_hop_a_round_chain_{longest}",
                ours=resolved.ours[0, longest],
                other=resolved.one_hop[longest],
                sizes={"requests": _REQUESTS_OF_CHAINS, "longest_chain": longest},
            )
            for longest in _CHAINS
        ),
    ]


def _growth(sizes: list[int], resolved: _Sides) -> list[tuple[Comparison, float]]:
    """Returns the comparisons of each size with the next smaller one, with the number of doublings between them."""
    grown = [
        (f"resolve_growth_{less}_to_{more}_requests", (more, _USUAL_CHAIN), (less, _USUAL_CHAIN), more / less)
        for less, more in pairwise(sizes)
    ]
    grown += [
        (f"resolve_growth_chain_{less}_to_{more}", (0, more), (0, less), more / less)
        for less, more in pairwise(_CHAINS)
    ]
    return [
        (
            Comparison(metric=metric, ours=resolved.ours[more], other=resolved.ours[less], sizes={"times": times}),
            math.log2(times),
        )
        for metric, more, less, times in grown
    ]


def _with_growth(result: Result, doublings: dict[str, float]) -> Result:
    if result.metric not in doublings:
        return result
    per_doubling = round(result.ratio ** (1 / doublings[result.metric]), 3)
    return replace(result, ours_parts={**result.ours_parts, "per_doubling": per_doubling})


def _ours(spark: SparkSession, name: str, path: Path) -> Side:
    from deltaworks.mutations.entities import resolve

    return Side(name, _resolve_all_intervals(spark, path, resolve))


def _resolve_all_intervals(spark: SparkSession, path: Path, resolved: Callable[[DataFrame], DataFrame]) -> Run:
    from deltaworks.mutations.requests import resolve_settings

    def side(clock: Clock) -> None:
        _reset_peak(spark)
        requests = spark.read.parquet(str(path)).count()
        with clock, resolve_settings(spark, request_count=requests):
            resolved(spark.read.parquet(str(path))).write.format("noop").mode("overwrite").save()
        clock.record(peak_mb=_peak_mb(spark))

    return side


def _one_hop(spark: SparkSession, path: Path, longest: int) -> Run:
    """Resolves the same requests, following one rename of each id per round."""
    from deltaworks.mutations.entities import Trace, build_intervals
    from deltaworks.mutations.interval_diff import follow_pointers, local_checkpoint, moves
    from deltaworks.mutations.requests import last_updates, timeline

    rounds = longest - 1
    bound = min(rounds, _ROUNDS)
    in_rounds: list[float] = []

    def resolved(requests: DataFrame) -> DataFrame:
        happened = local_checkpoint(timeline(requests))
        updates = last_updates(happened)
        first = local_checkpoint(moves(happened, updates))
        started = time.perf_counter()
        settled, moving = first.where("next_time IS NULL"), first.where("next_time IS NOT NULL")
        for _ in range(bound):
            if not moving.count():
                raise RuntimeError("the longest chain is shorter than generated")
            jumped = local_checkpoint(follow_pointers(moving, first))
            settled = settled.unionByName(jumped.where("next_time IS NULL"))
            moving = jumped.where("next_time IS NOT NULL")
        in_rounds.append(time.perf_counter() - started)
        return build_intervals(Trace(happened, updates, settled))

    def side(clock: Clock) -> None:
        _resolve_all_intervals(spark, path, resolved)(clock)
        clock.seconds += in_rounds.pop() * (rounds - bound) / bound
        clock.record(rounds=rounds, rounds_run=bound)

    return side


def _networkx(path: Path) -> Run:
    def side(clock: Clock) -> None:
        command = [sys.executable, "-m", "benchmarks.networkx_components", str(path)]
        measured = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        clock.seconds = measured["seconds"]
        clock.record(peak_mb=measured["peak_mb"])

    return side


def _heap_pools(spark: SparkSession) -> list[object]:
    jvm = spark.sparkContext._jvm
    pools = jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()  # type: ignore[union-attr]
    return [pool for pool in pools if pool.getType().name() == "HEAP"]


def _reset_peak(spark: SparkSession) -> None:
    spark.sparkContext._jvm.java.lang.System.gc()  # type: ignore[union-attr]
    for pool in _heap_pools(spark):
        pool.resetPeakUsage()  # type: ignore[attr-defined]


def _peak_mb(spark: SparkSession) -> float:
    return sum(pool.getPeakUsage().getUsed() for pool in _heap_pools(spark)) / (1 << 20)  # type: ignore[attr-defined]


BENCHMARK = Benchmark(
    name="mutation_resolve",
    summary="resolving up to 3 million requests with chains and a hub, against NetworkX and one rename per round",
    run=run,
    tiny=TinySize(constants={"_SIZES": (100, 1_000), "_CHAINS": (2, 8), "_REQUESTS_OF_CHAINS": 1_000, "_ROUNDS": 3}),
)
