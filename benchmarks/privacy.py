"""`privacy`: the cost of removing personal data in a task that lands the telemetry of a game.

Both implementations parse the same generated objects with the pipeline `games` and write the files of its tables.
Deltaworks redacts as the pipeline declares: it tokenizes players and devices, searches every text for emails and phone
numbers, and writes vault frames. The baseline reads the pipeline without its `privacy` section.

- `parser_with_vs_without`: seconds with `privacy`, against seconds without it. The target is at least 0.85 of the
  baseline's events per second.
"""

from __future__ import annotations

import gzip
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure

if TYPE_CHECKING:
    from deltaworks.events.chunks import Payload
    from deltaworks.specs.pipeline import PipelineSpec
    from deltaworks.specs.storage import StorageSpec

#: Approximate number of events per player in the three generated days.
_EVENTS_PER_PLAYER = 60


def run(options: Options) -> list[Result]:
    """Measures the comparison."""
    from benchmarks import storages
    from deltaworks.specs.catalog import PROJECT_ROOT
    from deltaworks.specs.project import load_catalog

    stripped = load_catalog("local", root=PROJECT_ROOT).pipeline("games").model_copy(deep=True)
    if stripped.privacy is None:
        raise RuntimeError("games declares no personal data")
    # Stores keys in a folder next to the benchmark's lake, as for a lake on local disk.
    stripped.privacy.bind_service(None)
    plain = stripped.model_copy(update={"privacy": None})
    payloads = _payloads(options.events)
    with storages.local_disk().new_root() as storage:
        comparison = Comparison(
            metric="parser_with_vs_without",
            ours=Side("stripped", partial(_land, storage, stripped, payloads)),
            other=Side("as_sent", partial(_land, storage, plain, payloads)),
            sizes={"objects": len(payloads), "bytes": sum(len(payload.data or b"") for payload in payloads)},
        )
        return measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)


def _payloads(events: int) -> list[Payload]:
    from deltaworks.events.chunks import Payload
    from generator.games import deliveries
    from generator.settings import GamesSettings
    from generator.truth import TruthCounter

    settings = GamesSettings(seed=7, players=max(50, events // _EVENTS_PER_PLAYER), days=3)
    sent = deliveries(settings, TruthCounter(settings))
    return [Payload(number, delivery.key, gzip.decompress(delivery.body)) for number, delivery in enumerate(sent, 1)]


def _land(storage: StorageSpec, spec: PipelineSpec, payloads: list[Payload], clock: Clock) -> None:
    """Runs a task's work on all events, without Spark."""
    from deltaworks.engine.fan_out import partition_columns, write_payloads
    from deltaworks.engine.writers import FileTarget
    from deltaworks.events.chunks import BatchMetadata
    from deltaworks.events.parse import ParserInputs

    folders = {name: f"{time.time_ns()}/{name}" for name in partition_columns(spec)}
    target = FileTarget.of(storage, folders, partition_by=partition_columns(spec))
    stamp = BatchMetadata(0, 1_767_225_600_000_000, spec.fingerprint())
    inputs = ParserInputs.pin(spec, storage, seal_for_batch="g000000-000000000000")
    cpu = time.process_time()
    with clock:
        output = write_payloads(payloads, spec, stamp, target, inputs=inputs)
    cpu = time.process_time() - cpu
    if output.findings.failure is not None:
        raise output.findings.failure
    events = output.findings.events
    if spec.privacy is not None and not output.findings.privacy["tokens"]:
        raise RuntimeError("the task tokenized nothing")
    clock.record(events=events, cpu_microseconds_per_event=cpu * 1e6 / events)


BENCHMARK = Benchmark(
    name="privacy",
    summary="landing game events with personal data removed, against landing them unchanged",
    run=run,
    tiny=TinySize(),
)
