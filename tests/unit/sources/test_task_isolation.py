"""Payloads that crash tasks are isolated and skipped only after enough crashes; outputs of tasks merge in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaworks.control.objects import LocalObjects
from deltaworks.engine.fan_out import merge_outputs
from deltaworks.engine.writers import FileTarget
from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.events.chunks import END_OF_CHUNK, Payload
from deltaworks.events.reasons import ReasonCode
from deltaworks.events.task_findings import TaskFindings
from deltaworks.sources.objects.payloads import FileReference
from deltaworks.sources.records import ReadStatistics
from deltaworks.sources.task_isolation import (
    RecordWindows,
    TaskOutput,
    isolate_records,
    open_isolated,
    read_objects_isolated,
    read_records_isolated,
    sort_by_task,
    sum_read_statistics,
)
from deltaworks.sources.worker_crashes import CrashIsolation, crash_cause
from deltaworks.tables.files import WrittenFile
from deltaworks.testing import local_storage
from tests.examples import examples

CRASH = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
_RUNS = iter(range(1_000_000))


def isolation(root: Path, *, most_deaths: int = 2, folder: str | None = None) -> CrashIsolation:
    """The isolation of a batch of its own, or of one that had a run before."""
    return CrashIsolation(
        objects=LocalObjects(root),
        storage=local_storage(root),
        folder=folder or f"deaths/{next(_RUNS)}",
        max_crashes=most_deaths,
        payload_timeout_seconds=60,
    )


@dataclass
class Worker:
    """Stands for a Python worker: dies on payloads of these numbers, each while it is open or when it is dealt with.

    `rarely` are payloads it dies on once, as where an executor is lost meanwhile.
    """

    evil: frozenset[int]
    rarely: set[int] = field(default_factory=set)
    deaths: Counter[int] = field(default_factory=Counter)

    def work(self, payloads: Iterable[Payload]) -> tuple[list[int], dict[int, str]]:
        """The numbers of the payloads that were read, and what is said of those that were not."""
        read: list[int] = []
        refused: dict[int, str] = {}
        pending: list[int] = []
        for payload in payloads:
            if payload is END_OF_CHUNK:
                # Odd ones kill where they are converted, even ones where they are opened.
                self._die_on(seq for seq in pending if seq % 2)
                pending.clear()
            elif payload.problem is not None:
                assert payload.problem.code is ReasonCode.OBJECT_UNREADABLE
                refused[payload.seq] = payload.problem.detail
            else:
                self._die_on([] if payload.seq % 2 else [payload.seq])
                pending.append(payload.seq)
                read.append(payload.seq)
        self._die_on(pending)
        return read, refused

    def _die_on(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            if seq in self.evil or seq in self.rarely:
                self.rarely.discard(seq)
                self.deaths[seq] += 1
                raise RuntimeError(CRASH)


def run_of(worker: Worker, batch: CrashIsolation) -> Callable[[Sequence[Any]], TaskOutput]:
    """A job over references; its output says what was read, and refused, as objects of findings."""

    def run(references: Sequence[Any]) -> TaskOutput:
        opened = open_isolated(
            references,
            lambda reference: Payload(reference.seq, reference.key, b"{}"),
            marker=batch.marker,
            skip_reasons=batch.skip_reasons(),
        )
        read, refused = worker.work(opened)
        facts = TaskFindings(objects_missing=[str(seq) for seq in read], objects_rejected=Counter(map(str, refused)))
        return TaskOutput(findings=facts)

    return run


NUMBERS = st.frozensets(st.integers(0, 30), max_size=6)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shares=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    evil=NUMBERS,
    rarely=NUMBERS,
    most_deaths=st.integers(2, 3),
)
def test_all_payloads_but_crashing_ones_are_read_once_and_in_order(
    tmp_path: Path, shares: list[int], evil: frozenset[int], rarely: frozenset[int], most_deaths: int
) -> None:
    numbers = iter(range(100))
    references = [[FileReference(seq, f"k{seq}", "") for seq in islice(numbers, size)] for size in shares]
    every = [reference.seq for share in references for reference in share]
    worker, batch = Worker(evil, set(rarely - evil)), isolation(tmp_path, most_deaths=most_deaths)

    outputs = read_objects_isolated(references, run_of(worker, batch), batch)

    read = [int(seq) for output in outputs for seq in output.findings.objects_missing]
    refused = Counter(int(seq) for output in outputs for seq in output.findings.objects_rejected)
    assert read == [seq for seq in every if seq not in evil]
    assert refused == Counter(seq for seq in every if seq in evil)
    assert [output.task for output in outputs] == list(range(len(outputs)))
    assert all(worker.deaths[seq] == most_deaths for seq in refused)
    batch.clear()
    assert batch.objects.list(batch.folder) == []


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(1, 9_000), evil=st.frozensets(st.integers(0, 9_000), max_size=3), most=st.integers(1, 2))
def test_crashing_records_are_isolated_within_a_few_passes(
    tmp_path: Path, count: int, evil: frozenset[int], most: int
) -> None:
    worker, batch = Worker(evil), isolation(tmp_path, most_deaths=most)
    passes: list[int] = []

    def run(windows: RecordWindows, blamed: dict[int, str]) -> tuple[list[int], dict[int, str]]:
        passes.append(1)
        payloads = (Payload(seq, f"k{seq}", b"{}") for seq in range(count))
        return worker.work(isolate_records(payloads, windows, marker=batch.marker, skip_reasons=blamed))

    read, refused = read_records_isolated(run, batch)

    hit = {seq for seq in evil if seq < count}
    assert read == [seq for seq in range(count) if seq not in hit]
    assert set(refused) == hit
    assert len(passes) <= 1 + len(hit) * (2 + most)


def test_crashes_recorded_by_an_earlier_run_count(tmp_path: Path) -> None:
    first, references = isolation(tmp_path), [FileReference(seq, f"k{seq}", "") for seq in (1, 2, 3)]
    first.start()
    first.marker.write({"seq": 2})
    first.record_crash("a crash")
    first.marker.write({"seq": 2})  # the driver dies with it

    again = isolation(tmp_path, folder=first.folder)
    (one, two, three) = read_objects_isolated([references], run_of(Worker(frozenset({2})), again), again)

    assert [one.findings.objects_missing, three.findings.objects_missing] == [["1"], ["3"]]
    assert two.findings.objects_rejected == {"2": 1}
    assert again.skip_reasons() == {2: "2 of 2 tasks reading it crashed: the driver died as well"}


def test_other_errors_are_raised_and_blame_no_payload(tmp_path: Path) -> None:
    batch = isolation(tmp_path)

    def run(references: Sequence[Any]) -> TaskOutput:
        batch.marker.write({"seq": 1})
        raise OSError("the lake is away")

    with pytest.raises(OSError, match="away"):
        read_objects_isolated([[FileReference(1, "k", "")]], run, batch)
    assert batch.crashes == {}


def test_a_crash_without_an_open_payload_is_raised(tmp_path: Path) -> None:
    def run(references: Sequence[Any]) -> TaskOutput:
        raise RuntimeError(CRASH)

    with pytest.raises(RuntimeError, match="crashed"):
        read_objects_isolated([[FileReference(1, "k", "")]], run, isolation(tmp_path))


@pytest.mark.parametrize(
    ("text", "died"),
    [
        (CRASH, True),
        ("ExecutorLostFailure (executor 3 exited caused by one of the running tasks)", True),
        ("deltaworks.sources.worker_crashes.TaskFailed: ArrowInvalid", True),
        (f"deltaworks.errors.TransientError: [STORAGE_UNREACHABLE] it failed\n{CRASH}", False),
        ("OSError: When initiating multiple part upload: AWS Error SLOW_DOWN", False),
        ("java.net.ConnectException: refused", False),
    ],
)
def test_a_crash_is_distinguished_from_other_failures(text: str, died: bool) -> None:
    assert (crash_cause(RuntimeError(text)) is not None) == died


def broken_workers(batch: CrashIsolation) -> CrashIsolation:
    """The isolation of a batch whose workers die on everything, the canary too."""

    def die() -> None:
        raise RuntimeError(CRASH)

    batch.probe = die
    return batch


def canary_counted(batch: CrashIsolation) -> list[int]:
    """Notes each canary that is read, which no worker dies on."""
    canaries: list[int] = []
    batch.probe = lambda: canaries.append(1)
    return canaries


@pytest.mark.parametrize("most_deaths", [1, 2, 3])
def test_workers_that_crash_on_everything_blame_no_payload(tmp_path: Path, most_deaths: int) -> None:
    batch = broken_workers(isolation(tmp_path, most_deaths=most_deaths))
    references = [FileReference(seq, f"k{seq}", "") for seq in range(50)]
    worker = Worker(frozenset(range(50)))

    with pytest.raises(ConfigError) as ended:
        read_objects_isolated([references], run_of(worker, batch), batch)

    assert (ended.value.condition, ended.value.retryable) == ("WORKERS_CRASH", False)
    assert sum(worker.deaths.values()) == most_deaths
    assert batch.objects.list(batch.folder) == []


def test_workers_that_crash_on_all_records_blame_no_record(tmp_path: Path) -> None:
    batch = broken_workers(isolation(tmp_path))

    def run(windows: RecordWindows, blamed: dict[int, str]) -> tuple[list[int], dict[int, str]]:
        payloads = (Payload(seq, f"k{seq}", b"{}") for seq in range(500))
        opened = isolate_records(payloads, windows, marker=batch.marker, skip_reasons=blamed)
        return Worker(frozenset(range(500))).work(opened)

    with pytest.raises(ConfigError, match="WORKERS_CRASH"):
        read_records_isolated(run, batch)
    assert batch.objects.list(batch.folder) == []


def test_after_the_workers_are_repaired_no_payload_is_blamed(tmp_path: Path) -> None:
    batch, references = broken_workers(isolation(tmp_path)), [FileReference(1, "k", "")]
    with pytest.raises(ConfigError):
        read_objects_isolated([references], run_of(Worker(frozenset({1})), batch), batch)

    again = isolation(tmp_path, folder=batch.folder)
    (output,) = read_objects_isolated([references], run_of(Worker(frozenset()), again), again)

    assert output.findings.objects_missing == ["1"]


def test_crashing_objects_alone_never_end_the_stream(tmp_path: Path) -> None:
    batch = isolation(tmp_path)
    canaries = canary_counted(batch)
    references = [FileReference(seq, f"k{seq}", "") for seq in range(8)]

    outputs = read_objects_isolated([references], run_of(Worker(frozenset(range(8))), batch), batch)

    assert sum(len(output.findings.objects_rejected) for output in outputs) == 8
    assert len(canaries) == 8


def test_a_successfully_read_neighbour_replaces_the_probe(tmp_path: Path) -> None:
    batch = broken_workers(isolation(tmp_path))
    references = [FileReference(seq, f"k{seq}", "") for seq in range(5)]

    outputs = read_objects_isolated([references], run_of(Worker(frozenset({1, 3})), batch), batch)

    refused = {seq for output in outputs for seq in output.findings.objects_rejected}
    assert refused == {"1", "3"}


def test_a_probe_that_fails_otherwise_is_raised(tmp_path: Path) -> None:
    batch = isolation(tmp_path)

    def fail() -> None:
        raise OSError("the cluster is away")

    batch.probe = fail

    with pytest.raises(OSError, match="away"):
        read_objects_isolated([[FileReference(1, "k", "")]], run_of(Worker(frozenset({1})), batch), batch)


NAMES = st.text(min_size=1, max_size=8)
COUNTS = st.integers(0, 1 << 40)
FILES = st.builds(
    WrittenFile,
    path=NAMES,
    size=COUNTS,
    rows=COUNTS,
    partition=st.dictionaries(NAMES, st.none() | NAMES, max_size=2),
    stats=st.text(max_size=20),
)
FAILURES = st.builds(
    lambda kind, message, retryable: kind("OBJECT_FORBIDDEN", message, hint="h", retryable=retryable),
    st.sampled_from([ConfigError, ContractError, TransientError, DeltaworksError]),
    st.text(max_size=20),
    st.booleans(),
)
FINDINGS = st.builds(
    TaskFindings,
    rule_warnings=st.dictionaries(NAMES, st.integers(1, 99), max_size=2).map(Counter),
    new_fields=st.dictionaries(
        NAMES,
        st.dictionaries(st.tuples(NAMES, NAMES), st.sets(NAMES, min_size=1, max_size=2), min_size=1, max_size=2),
        max_size=2,
    ),
    objects_rejected=st.dictionaries(NAMES, st.integers(1, 99), max_size=2).map(Counter),
    objects_missing=st.lists(NAMES, max_size=10),
    failure=st.none() | FAILURES,
)
TIMES = st.tuples(COUNTS, COUNTS).map(sorted)
READ = st.just(ReadStatistics()) | st.builds(
    lambda records, size, times: ReadStatistics(records, size, *times), st.integers(1, 99), COUNTS, TIMES
)
OUTPUTS = st.builds(
    TaskOutput,
    files=st.dictionaries(NAMES, st.lists(FILES, min_size=1, max_size=3).map(tuple), max_size=3),
    findings=FINDINGS,
    first_ids=st.dictionaries(NAMES, st.binary(max_size=64), max_size=2),
    read_statistics=READ,
    read_ranges=st.lists(st.lists(st.integers() | NAMES, max_size=3), max_size=3).map(tuple),
)
#: Any number of tasks, each with a number of its own.
PASSES = st.lists(OUTPUTS, max_size=5).map(
    lambda outputs: [replace(output, task=number) for number, output in enumerate(outputs)]
)
TARGET = FileTarget(None, {}, {})


def comparable(findings: TaskFindings) -> dict[str, Any]:
    """Findings as values that compare: no two errors are equal."""
    record = findings.as_record()
    return record | {"new_fields": sorted(record["new_fields"])}


@given(OUTPUTS, st.integers(0, 1 << 20))
def test_an_output_is_serialized_unchanged(output: TaskOutput, task: int) -> None:
    sent = replace(output, task=task)

    arrived = TaskOutput.decode(sent.encode())

    assert comparable(arrived.findings) == comparable(sent.findings)
    assert type(arrived.findings.failure) is type(sent.findings.failure)
    assert replace(arrived, findings=TaskFindings()) == replace(sent, findings=TaskFindings())


@given(PASSES, st.randoms(use_true_random=False))
def test_outputs_merge_to_the_same_result_in_any_order(outputs: list[TaskOutput], order: Any) -> None:
    # Hashes that are none would be compared between tasks; `test_duplicates` holds flags against a model.
    in_order = [replace(output, first_ids={}) for output in outputs]
    shuffled = list(in_order)
    order.shuffle(shuffled)

    expected, merged = merge_outputs(in_order, TARGET, {}), merge_outputs(shuffled, TARGET, {})

    assert merged.files == expected.files
    assert comparable(merged.findings) == comparable(expected.findings)
    assert sum_read_statistics(shuffled) == sum_read_statistics(in_order)
    assert sort_by_task(shuffled) == in_order


@given(PASSES)
def test_the_merged_output_has_every_file_once_in_task_order(outputs: list[TaskOutput]) -> None:
    merged = merge_outputs([replace(output, first_ids={}) for output in outputs], TARGET, {})

    tables = {table for output in outputs for table in output.files}
    assert merged.files == {
        table: [file for output in outputs for file in output.files.get(table, ())] for table in tables
    }
    assert merged.findings.rule_warnings == sum((output.findings.rule_warnings for output in outputs), Counter())


@given(st.lists(READ, max_size=5))
def test_read_statistics_are_added(facts: list[ReadStatistics]) -> None:
    total = sum_read_statistics(TaskOutput(read_statistics=read) for read in facts)

    assert total.records == sum(read.records for read in facts)
    assert total.bytes == sum(read.bytes for read in facts)
    assert total.oldest_us == min((read.oldest_us for read in facts if read.oldest_us is not None), default=None)
    assert total.latest_us == max((read.latest_us for read in facts if read.latest_us is not None), default=None)
