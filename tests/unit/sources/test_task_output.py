"""Task outputs: serialized unchanged, and merged to the same result in any order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deltaworks.engine.fan_out import merge_outputs
from deltaworks.engine.writers import FileTarget
from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.events.task_findings import TaskFindings
from deltaworks.sources.records import ReadStatistics
from deltaworks.sources.task_isolation import TaskOutput, sort_by_task, sum_read_statistics
from deltaworks.tables.files import WrittenFile

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
