"""The work of one task: from payloads to files, by table and partition, and the probe a healthy worker can read."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control.objects import open_objects
from deltaworks.engine.fan_out import fan_out, partition_columns, probe_payload, write_payloads
from deltaworks.engine.writers import FileTarget, TableWriters
from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.sources.base import split_balanced, useful_task_count
from deltaworks.sources.task_isolation import TaskOutput
from deltaworks.sources.worker_crashes import CrashIsolation
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.files import WrittenFile
from deltaworks.testing import local_storage, pipeline_spec

STAMP = BatchMetadata(batch_id=7, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
DAY = 86_400


def payloads() -> list[Payload]:
    def line(number: int) -> str:
        name = ["order", "login"][number % 7 == 0]
        amount = "much" if number % 11 == 0 else number
        return json.dumps({"name": name, "time": number * DAY // 10, "device": "d", "params": {"amount": amount}})

    return [Payload(seq, f"k{seq}", "".join(map(line, range(seq * 40, seq * 40 + 40))).encode()) for seq in (1, 2, 3)]


def files_of(output: TaskOutput) -> list[tuple[str, WrittenFile]]:
    return [(table, file) for table, files in output.files.items() for file in files]


def target(root: Path, spec: PipelineSpec) -> FileTarget:
    by_table = partition_columns(spec)
    return FileTarget(None, {name: str(root / name) for name in by_table}, by_table)


@pytest.mark.parametrize("flush_bytes", [1, 1 << 30])
def test_files_hold_the_rows_of_their_table_and_partition(
    make_spec: Callable[..., PipelineSpec], tmp_path: Path, flush_bytes: int
) -> None:
    spec = make_spec()

    output = write_payloads(payloads(), spec, STAMP, target(tmp_path, spec), flush_bytes=flush_bytes)

    found: dict[str, Counter[str]] = defaultdict(Counter)
    for table, file in files_of(output):
        rows = pq.read_table(tmp_path / table / file.path, partitioning=None)
        assert rows.num_rows == file.rows == json.loads(file.stats)["numRecords"]
        assert (tmp_path / table / file.path).stat().st_size == file.size
        assert not set(file.partition) & set(rows.schema.names)
        partition = {name: dt.date.fromisoformat(value or "") for name, value in file.partition.items()}
        for row in rows.to_pylist():
            found[table][_shown(row | partition)] += 1
    wanted: dict[str, Counter[str]] = defaultdict(Counter)
    for table, parsed in Parser(spec).parse(payloads(), STAMP):
        wanted[table].update(_shown(row) for row in parsed.to_pylist())
    assert found == wanted
    assert set(found) == {"events", "orders", "quarantine"}


def test_a_task_writes_one_file_for_each_table_and_partition(
    make_spec: Callable[..., PipelineSpec], tmp_path: Path
) -> None:
    spec = make_spec()

    output = write_payloads(payloads(), spec, STAMP, target(tmp_path, spec))

    counted = Counter((table, str(file.partition)) for table, file in files_of(output))
    assert set(counted.values()) == {1}
    assert len(counted) > 10


def test_a_task_without_events_writes_nothing(make_spec: Callable[..., PipelineSpec], tmp_path: Path) -> None:
    spec = make_spec()

    assert write_payloads([Payload(1, "k", b"[]")], spec, STAMP, target(tmp_path, spec)) == TaskOutput()
    assert not list(tmp_path.rglob("*"))


def _shown(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 8))
def test_balancing_keeps_the_order_and_loses_nothing(sizes: list[int], tasks: int) -> None:
    shares = split_balanced(list(range(len(sizes))), sizes, tasks)

    assert [reference for share in shares for reference in share] == list(range(len(sizes)))
    assert len(shares) <= tasks
    assert all(shares)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(1, 8))
def test_no_task_exceeds_its_share_by_more_than_one_object(sizes: list[int], tasks: int) -> None:
    shares = split_balanced(sizes, sizes, tasks)

    part = sum(sizes) / min(tasks, len(sizes))
    assert all(sum(share) <= part + max(sizes) for share in shares)


@pytest.mark.parametrize(
    ("sizes", "tasks"),
    [([10], 1), ([500_000] * 4, 1), ([3_000_000, 3_000_000], 2), ([1_000] * 40, 2), ([10_000_000] * 9, 8), ([], 1)],
    ids=["little", "a few seconds of events", "much", "many to open", "more than there may be", "nothing"],
)
def test_small_batches_are_read_by_one_task(sizes: list[int], tasks: int) -> None:
    assert useful_task_count(sizes, 8) == tasks


@pytest.mark.parametrize("hot_share", [0.0, 0.9])
def test_buffered_bytes_stay_within_their_limit_with_a_hundred_tables_and_one_hot(
    tmp_path: Path, hot_share: float
) -> None:
    names = [f"t{number}" for number in range(100)]
    where = FileTarget(None, {name: str(tmp_path / name) for name in names}, dict.fromkeys(names, ()))
    rows = pa.table({"a": pa.array(range(1_000), pa.int64())})
    writers = TableWriters(where, flush_bytes=200 * rows.nbytes, file_bytes=100 * rows.nbytes)
    most = 0
    turns = random.Random(1)

    added: Counter[str] = Counter()
    for _ in range(3_000):
        name = "t0" if turns.random() < hot_share else turns.choice(names)
        writers.add(name, rows)
        added[name] += rows.num_rows
        most = max(most, writers.buffered_bytes)
    writers.flush()

    written: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for table, file in writers.files:
        written[table] += file.rows
        files[table] += 1
    assert written == added
    assert most < 200 * rows.nbytes
    assert writers.buffered_bytes == 0
    if hot_share:
        # The hot table rolls; the others are left to grow to one file, or few.
        assert files["t0"] >= 20
        assert max(files[name] for name in names[1:]) <= 4


def test_a_table_rolls_its_files_at_the_size_declared(tmp_path: Path) -> None:
    rows = pa.table({"a": pa.array(range(1_000), pa.int64())})
    where = FileTarget(None, {"t": str(tmp_path / "t")}, {"t": ()})
    writers = TableWriters(where, flush_bytes=1 << 30, file_bytes=3 * rows.nbytes)

    for _ in range(7):
        writers.add("t", rows)
    writers.flush()

    assert [file.rows for _, file in writers.files] == [3_000, 3_000, 1_000]


def test_small_tables_keep_their_buffers_when_a_hot_one_fills_the_memory(tmp_path: Path) -> None:
    names = ["hot", *(f"t{number}" for number in range(20))]
    where = FileTarget(None, {name: str(tmp_path / name) for name in names}, dict.fromkeys(names, ()))
    rows = pa.table({"a": pa.array(range(1_000), pa.int64())})
    writers = TableWriters(where, flush_bytes=100 * rows.nbytes, file_bytes=1 << 40)

    for number in range(600):
        writers.add("hot" if number % 10 else names[1 + number // 10 % 20], rows)
    writers.flush()

    files = Counter(table for table, _ in writers.files)
    assert files["hot"] > 5
    assert {files[name] for name in names[1:]} == {1}


@pytest.mark.parametrize("kind", [ConfigError, ContractError, TransientError])
def test_a_tasks_error_reaches_the_driver_with_its_type(
    make_spec: Callable[..., PipelineSpec], tmp_path: Path, kind: type[DeltaworksError]
) -> None:
    error = kind("OBJECT_FORBIDDEN", "s3://b/k may not be read.", hint="Grant it.")

    def opened() -> Iterator[Payload]:
        yield payloads()[0]
        raise error

    output = write_payloads(opened(), make_spec(), STAMP, target(tmp_path, make_spec()))

    failure = TaskOutput.decode(output.encode()).findings.failure
    assert type(failure) is kind
    assert failure.as_record() == error.as_record()


class _Failing:
    """A slice whose tasks fail: first with a cause, then because an attempt came before."""

    metadata: Mapping[str, Any] = {}

    def __init__(self, first: str) -> None:
        self._first = first

    def read(self, *_: Any, **__: Any) -> list[TaskOutput]:
        raise RuntimeError(f"org.apache.spark.SparkException: {self._first}")

    def read_isolated(self, *_: Any, **__: Any) -> list[TaskOutput]:
        raise RuntimeError("deltaworks.sources.worker_crashes.TaskFailed: earlier_attempt_crashed")


@pytest.mark.parametrize(
    ("first", "named"),
    [
        ("deltaworks.sources.worker_crashes.TaskFailed: JSONDecodeError", "JSONDecodeError"),
        ("Python worker exited unexpectedly", "the Python worker crashed"),
    ],
)
def test_task_crashes_without_a_payload_to_blame_end_the_batch_with_the_first_cause(
    make_spec: Callable[..., PipelineSpec], tmp_path: Path, first: str, named: str
) -> None:
    storage = local_storage(tmp_path)
    isolation = CrashIsolation(
        objects=open_objects(storage), storage=storage, folder="deaths", max_crashes=2, payload_timeout_seconds=1.0
    )

    with pytest.raises(TransientError, match=named) as caught:
        fan_out(
            Any,
            _Failing(first),
            spec=make_spec(),
            stamp=STAMP,
            target=target(tmp_path, make_spec()),
            isolation=isolation,
        )

    assert caught.value.condition == "TASKS_CRASH"


_OBJECTS = {"kind": "s3_sqs", "relay": "landing", "bucket": "b"}
_KAFKA = {"kind": "kafka", "bootstrap_servers": "b:9092", "topics": ["t"]}
_DELTA = {"kind": "delta", "uri": "s3://b/t"}
_NAMED = {"header": False, "columns": ["name", "time"], "delimiter": ";"}
SOURCES: dict[str, dict[str, Any]] = {
    "json": _OBJECTS,
    "csv": _OBJECTS | {"format": "csv"},
    "csv without a header": _OBJECTS | {"format": "csv", "csv": _NAMED},
    "tsv": _OBJECTS | {"format": "tsv"},
    "tsv with declared columns": _KAFKA | {"format": "tsv", "tsv": {"columns": ["name", "time"]}},
    "text": _OBJECTS | {"format": "text", "pattern": "(?P<name>.+)(?P<time>)"},
    "parquet": _OBJECTS | {"format": "parquet"},
    "avro": _OBJECTS | {"format": "avro"},
    "records": _KAFKA,
    "rows of a table": _DELTA,
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_probe_contains_one_event_in_the_sources_format(source: dict[str, Any]) -> None:
    spec = pipeline_spec(
        {"name": "events", "catch_all": True}, source=source, event={"name": {"path": "name"}, "time": {"path": "time"}}
    )
    payload = Payload(0, "canary", probe_payload(spec.source))

    parts = list(Parser(spec).parse([payload], BatchMetadata(0, 0, "")))

    rows = [(row["_position"], row["reasons"][0]["code"]) for _, part in parts for row in part.to_pylist()]
    # The fields of some formats are declared, and an event has only those.
    assert rows in ([(0, "unknown_event")], [(0, "type_mismatch")], [(0, "missing_required")])
