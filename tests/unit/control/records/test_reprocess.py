"""Records of a reprocess are created once."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.reprocess import (
    ReprocessCompletion,
    ReprocessPlan,
    ReprocessRecords,
    StagedFiles,
    StagedTable,
    new_reprocess_id,
    reprocess_id_for_run,
)
from deltaworks.errors import ConfigError, ContractError
from tests.records import record_of

PLAN = record_of(
    ReprocessPlan,
    pipeline="shop",
    id="r1",
    mode="in_place",
    tables=("orders",),
    selection={"from_start": True},
    through_batch=7,
    ranges=((1, 4), (6, 8)),
)
FILES = StagedFiles(
    tables=(StagedTable(table="orders", rows=3, files=("a.parquet",), ranges=((1, 4),)),),
    missing=("k",),
    unmatched_events=1,
    still_quarantined=2,
)


@pytest.fixture
def records(tmp_path: Path) -> ReprocessRecords:
    return ReprocessRecords(LocalObjects(tmp_path), "shop", "r1")


def test_there_is_nothing_before_it_is_created(records: ReprocessRecords) -> None:
    assert (records.plan(), records.files(), records.completion()) == (None, None, None)


def test_the_first_record_wins(records: ReprocessRecords) -> None:
    assert records.get_or_create_plan(PLAN) == PLAN
    assert records.get_or_create_plan(PLAN.replace(objects=1)) == PLAN
    assert records.get_or_create_files(FILES) == FILES
    assert records.get_or_create_files(FILES.replace(missing=())) == FILES
    records.record_completion([{"table": "orders"}])
    records.record_completion([{"table": "other"}])

    assert (records.plan(), records.files(), records.completion()) == (
        PLAN,
        FILES,
        ReprocessCompletion(tables=({"table": "orders"},)),
    )


@pytest.mark.parametrize("text", ["{", '{"format": 2}', '{"format": 1, "colour": 1}', "[]"])
def test_a_record_of_another_kind_is_rejected(records: ReprocessRecords, tmp_path: Path, text: str) -> None:
    path = tmp_path / paths.reprocess("shop", "r1.json")
    path.parent.mkdir(parents=True)
    path.write_text(text)

    with pytest.raises(ContractError, match="REPROCESS_RECORD_UNREADABLE"):
        records.plan()


@pytest.mark.parametrize("name", ["", "A", "a/b", "a" * 41, "../x", "lease.json"])
def test_an_id_is_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="REPROCESS_ID_INVALID"):
        ReprocessRecords(LocalObjects(tmp_path), "shop", name)


def test_every_try_of_an_airflow_run_has_the_same_id(tmp_path: Path) -> None:
    first = reprocess_id_for_run("manual__2026-01-01T00:00:00+00:00")

    assert first == reprocess_id_for_run("manual__2026-01-01T00:00:00+00:00")
    assert first != reprocess_id_for_run("manual__2026-01-01T00:00:01+00:00")
    for name in (first, new_reprocess_id()):
        assert ReprocessRecords(LocalObjects(tmp_path), "shop", name).id == name
