"""`requests`: the number of requests and seconds of a batch on a bucket with network latency.

Deltaworks lands two thousand events of the games pipeline in 31 tables, as a stream does, through a proxy that delays
each request by `_DELAY_SECONDS`. The baseline is the same code with the defaults of Arrow and delta-rs: a small file is
a multipart upload of three requests, a table's transactions are read from all commits since its checkpoint, and after
each commit the log is listed to find expired commits.

- `batch_seconds`: the mean duration of ten batches.
- `batch_requests`: the mean number of requests per batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, derive_result, measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.games_files import GamesFiles
    from benchmarks.harness import Run
    from benchmarks.storages import BenchmarkStorage
    from sandbox.servers.fault_proxy import FaultProxy

_BATCHES = 10
_EVENTS = 2_000
_DELAY_SECONDS = 0.01


def run(options: Options) -> list[Result]:
    """Measures both implementations."""
    from benchmarks import sides, storages
    from benchmarks.games_files import games_files
    from sandbox.servers.fault_proxy import Action, Fault, running_fault_proxy

    files = games_files(_EVENTS, progress=options.progress)
    with storages.object_store() as bucket:
        spark = sides.session(bucket.storage("session"))
        away = [Fault(action=Action.DELAY, delay_seconds=_DELAY_SECONDS)]
        with running_fault_proxy(os.environ["DELTAWORKS_LAKE_ENDPOINT"], faults=away) as proxy:
            comparison = Comparison(
                metric="batch_seconds",
                ours=Side("few_requests", _landing(spark, files, bucket, proxy)),
                other=Side("as_libraries_do", _with_library_defaults(_landing(spark, files, bucket, proxy))),
                sizes=files.sizes() | {"batches": _BATCHES, "delay_seconds": _DELAY_SECONDS},
            )
            (seconds,) = measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)
            spark.stop()
    requests = seconds.ours_parts["requests"], seconds.other_parts["requests"]
    return [seconds, derive_result(seconds, metric="batch_requests", sides=requests, unit="requests")]


def _landing(spark: SparkSession, files: GamesFiles, bucket: BenchmarkStorage, proxy: FaultProxy) -> Run:
    from benchmarks import sides

    spec, source = sides.games_spec(), sides.make_slice(files)

    def run(clock: Clock) -> None:
        with patch.dict(os.environ, {"DELTAWORKS_LAKE_ENDPOINT": proxy.endpoint}), bucket.new_root() as storage:
            processor, _ = sides.open_processor(spark, spec, files, storage)
            proxy.incidents.clear()
            with clock:
                for batch in range(_BATCHES):
                    processor.process(source, batch)
        clock.seconds /= _BATCHES
        clock.record(requests=len(proxy.incidents) / _BATCHES)

    return run


def _with_library_defaults(landing: Run) -> Run:
    def run(clock: Clock) -> None:
        with _defaults_of_libraries():
            landing(clock)

    return run


@contextmanager
def _defaults_of_libraries() -> Iterator[None]:
    """Restores the defaults of Arrow and delta-rs while the block runs."""
    from deltalake import PostCommitHookProperties

    from deltaworks.specs.storage import StorageSpec
    from deltaworks.tables import commit

    plain = StorageSpec.arrow_options

    def arrow_options(self: StorageSpec) -> dict[str, Any]:
        return plain(self) | {"allow_delayed_open": False}

    with (
        patch.object(StorageSpec, "arrow_options", arrow_options),
        patch.object(commit, "transaction_version", lambda table, app_id: table.transaction_version(app_id)),
        patch.object(commit, "post_commit_properties", lambda table: PostCommitHookProperties(create_checkpoint=True)),
    ):
        yield


BENCHMARK = Benchmark(
    name="requests",
    summary="requests and seconds of a batch on a bucket with latency, against the defaults of Arrow and delta-rs",
    run=run,
    tiny=TinySize(constants={"_BATCHES": 2, "_EVENTS": 500}),
)
