"""Mutation batches are created once and numbered without gaps."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.mutation import (
    APPLIED,
    SUPERSEDED,
    MutationBatch,
    MutationBatches,
    MutationCompletion,
    TableMutation,
    VersionRange,
)
from deltaworks.errors import ContractError


def batch(number: int, *, up_to: int = 3, organisation: str | None = None) -> MutationBatch:
    return MutationBatch(
        pipeline="crm",
        number=number,
        generation=1,
        requests=VersionRange(table="requests", table_id="t", after=-1, up_to=up_to),
        tables=(VersionRange(table="activities", table_id="u", after=2, up_to=7),),
        run="manual",
        at="2026-01-01T00:00:00.000+00:00",
        spec_fingerprint="f",
        code_version="1",
        organisation=organisation,
    )


def end(number: int, *, day: int = 1, outcome: str = APPLIED) -> MutationCompletion:
    done = TableMutation(table="activities", rows=number, files_removed=1, files_added=1, version=9, pause_seconds=0.5)
    at = f"2026-01-{day:02d}T00:00:00.000+00:00"
    return MutationCompletion(pipeline="crm", number=number, generation=1, outcome=outcome, at=at, tables=(done,))


@pytest.fixture
def batches(tmp_path: Path) -> MutationBatches:
    return PipelineHome(LocalObjects(tmp_path), "crm").mutations


def test_the_first_to_create_a_batch_decides_its_ranges(batches: MutationBatches) -> None:
    assert batches.get_or_create(batch(1, up_to=3)) == batch(1, up_to=3)
    assert batches.get_or_create(batch(1, up_to=9)) == batch(1, up_to=3)
    assert batches.numbers() == (1, 0)
    batches.complete(end(1))
    batches.complete(end(1).replace(outcome=SUPERSEDED))
    assert batches.numbers() == (1, 1)
    assert batches.completion(1) == end(1)
    assert (end(1).rows, end(1).pause_seconds) == (1, 0.5)


def test_the_next_batch_begins_after_the_last_full_one(batches: MutationBatches) -> None:
    assert batches.last_full_batch() is None
    for number, organisation, outcome in ((1, None, APPLIED), (2, "acme", APPLIED), (3, None, SUPERSEDED)):
        batches.get_or_create(batch(number, organisation=organisation))
        batches.complete(end(number, outcome=outcome))
    assert batches.last_full_batch() == batch(1)


def test_batches_of_a_time_are_found_although_the_oldest_records_were_deleted(
    batches: MutationBatches, tmp_path: Path
) -> None:
    for number in range(1, 9):
        batches.complete(end(number, day=number))
    found = [batches.newest_ended_before(f"2026-01-{day:02d}T12:00:00.000+00:00") for day in (1, 5, 8, 20)]
    assert found == [1, 5, 8, 8]
    assert batches.newest_ended_before("2025-12-31T00:00:00.000+00:00") == 0
    for number in (1, 2):
        (tmp_path / paths.mutation_completion("crm", number)).unlink()
    assert batches.newest_ended_before("2026-01-05T12:00:00.000+00:00") == 5


def test_records_of_old_batches_are_removed_and_the_newest_stay(batches: MutationBatches) -> None:
    for number in range(1, 6):
        batches.get_or_create(batch(number))
        batches.complete(end(number, day=number))
    batches.get_or_create(batch(6))

    assert batches.delete_old_records(keep=2) == 6
    assert [batches.batch(number) is not None for number in range(1, 7)] == [False] * 3 + [True] * 3
    assert batches.numbers() == (6, 5)
    assert batches.delete_old_records(keep=2) == 0


@pytest.mark.parametrize("data", [b"{", b'{"format": 2}', b'{"format": 1}'])
def test_a_damaged_or_foreign_record_is_rejected(batches: MutationBatches, tmp_path: Path, data: bytes) -> None:
    for key in (paths.mutation_batch("crm", 1), paths.mutation_completion("crm", 1)):
        LocalObjects(tmp_path).put(key, data)
    for read in (batches.batch, batches.completion):
        with pytest.raises(ContractError, match="MUTATION_BATCH_UNREADABLE"):
            read(1)
