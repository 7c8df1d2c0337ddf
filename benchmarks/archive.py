"""`archive`: the cost of archiving raw Kafka records in the task that lands them.

Both implementations read the same Kafka records in the form in which Spark passes them to a task, parse them and write
the files of their table. Deltaworks also archives the raw records in the same pass; the baseline does not. Parts are
CPU microseconds, table bytes and archive bytes per event.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure

if TYPE_CHECKING:
    import pyarrow as pa

    from deltaworks.specs.pipeline import PipelineSpec
    from deltaworks.specs.storage import StorageSpec

_RECORDS_PER_BATCH = 10_000
_TOPIC = "activities"
_COLUMNS = {
    "org_id": "string",
    "engagement_id": "string",
    "contact_id": "string",
    "activity_type": "string",
    "template_id": "string",
    "channel": "string",
    "duration_seconds": "int",
}


def run(options: Options) -> list[Result]:
    """Compares landing with and without the archive."""
    from benchmarks import storages

    batches = list(_batches(options.events))
    payload_bytes = sum(batch.column("value").nbytes for batch in batches)
    with storages.local_disk().new_root() as storage:
        ours = partial(_land, storage, _spec(archive=True), batches)
        other = partial(_land, storage, _spec(archive=False), batches)
        comparison = Comparison(
            metric="archive_vs_none",
            ours=Side("with_archive", ours),
            other=Side("without", other),
            sizes={"events": options.events, "tables": 1, "payload_bytes": payload_bytes},
        )
        return measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)


def _spec(*, archive: bool) -> PipelineSpec:
    from deltaworks.specs.pipeline import PipelineSpec

    declared: dict[str, Any] = {
        "pipeline": "bench",
        "description": "activities",
        "owner": "benchmarks",
        "source": {"kind": "kafka", "bootstrap_servers": "nowhere:1", "topics": [_TOPIC], "compression": "none"},
        "event": {"name": {"path": "kind"}, "time": {"path": "at", "unit": "iso8601"}, "id": "event_id"},
        "tables": [
            {
                "name": "activities",
                "when": {"kind": "activity"},
                "columns": [{"name": name, "path": name, "type": kind} for name, kind in _COLUMNS.items()],
            }
        ],
    }
    return PipelineSpec.model_validate(declared | ({"archive": {"retain_days": 30}} if archive else {}))


def _batches(events: int) -> Iterator[pa.RecordBatch]:
    """Yields record batches as Spark's Kafka connector returns them: activities of 1,000 organisations."""
    import pyarrow as pa

    drawn, at_us = random.Random(7), 1_767_225_600_000_000
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    for first in range(0, events, _RECORDS_PER_BATCH):
        count = min(_RECORDS_PER_BATCH, events - first)
        values = [_event(drawn, first + number) for number in range(count)]
        yield pa.RecordBatch.from_pydict(
            {
                "topic": pa.array([_TOPIC] * count, pa.string()),
                "partition": pa.array([0] * count, pa.int32()),
                "offset": pa.array(range(first, first + count), pa.int64()),
                "timestamp": pa.array([at_us + first + n for n in range(count)], pa.int64()).cast(
                    pa.timestamp("us", tz="UTC")
                ),
                "value": pa.array([json.dumps(value).encode() for value in values], pa.binary()),
                "key": pa.array([value["org_id"].encode() for value in values], pa.binary()),
                "headers": pa.nulls(count, pa.list_(header)),
            }
        )


def _event(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "kind": "activity",
        "event_id": f"{rng.getrandbits(96):024x}",
        "at": f"2026-01-01T{number % 24:02}:{number % 60:02}:00.{number % 1000:03}Z",
        "org_id": f"org-{rng.randrange(1_000):05}",
        "engagement_id": f"{rng.getrandbits(64):016x}",
        "contact_id": f"contact-{rng.randrange(100_000):07}",
        "activity_type": rng.choice(["email_open", "email_click", "call", "meeting", "form"]),
        "template_id": f"template-{rng.randrange(200)}",
        "channel": rng.choice(["email", "phone", "web"]),
        "duration_seconds": rng.randrange(3_600),
    }


def _land(storage: StorageSpec, spec: PipelineSpec, batches: list[pa.RecordBatch], clock: Clock) -> None:
    """Runs a task's work on all records, without Spark."""
    from deltaworks.engine.fan_out import ArchiveWriter, partition_columns, write_payloads
    from deltaworks.engine.writers import FileTarget
    from deltaworks.events.chunks import BatchMetadata
    from deltaworks.sources.kafka.offsets import kafka_archive_columns
    from deltaworks.sources.kafka.source import KafkaReader
    from deltaworks.specs.record_sources import KafkaSourceSpec

    if not isinstance(spec.source, KafkaSourceSpec):
        raise TypeError(spec.source.kind)
    folders = {name: f"{time.time_ns()}/{name}" for name in partition_columns(spec)}
    target = FileTarget.of(storage, folders, partition_by=partition_columns(spec))
    stamp = BatchMetadata(0, 1_767_225_600_000_000, spec.fingerprint())
    reader = KafkaReader.for_source(spec.source, with_fields=False)
    archiver = ArchiveWriter(target, stamp, partial(kafka_archive_columns, spec.source.topics))
    cpu = time.process_time()
    with clock:
        read = batches if spec.archive is None else archiver.archive(batches)
        output = write_payloads((record.payload for record in reader(read)), spec, stamp, target)
        archived = {} if spec.archive is None else archiver.files()
    events = sum(batch.num_rows for batch in batches)
    landed = sum(file.rows for file in output.files["activities"])
    if landed != events or (archived and sum(file.rows for file in archived["archive"]) != events):
        raise RuntimeError(f"{landed} of {events} events landed, archived: {archived}")
    clock.record(
        cpu_microseconds_per_event=(time.process_time() - cpu) * 1e6 / events,
        table_bytes_per_event=sum(file.size for file in output.files["activities"]) / events,
        archive_bytes_per_event=sum(file.size for files in archived.values() for file in files) / events,
    )


BENCHMARK = Benchmark(
    name="archive",
    summary="landing Kafka records with an archive of the raw records, against landing them without one",
    run=run,
    tiny=TinySize(),
)
