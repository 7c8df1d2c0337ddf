"""Sizes and scratch folder of an experiment, and its statistics about files, without Spark."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError, ContractError
from deltaworks.specs.storage import StorageSpec
from deltaworks.testing import local_storage, write_files
from sandbox.experiments.engagement_rows import Workload, org_id
from sandbox.experiments.file_sizes import org_files
from sandbox.experiments.scratch_folder import scratch_folder
from tests.unit.sandbox.experiments.power_law import share_above


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 10},
        {"orgs": 0},
        {"days": 0},
        {"batches_per_day": 0},
        {"batches_per_round": 0},
        {"exponent": -1.0},
        {"update_share": 0.0},
        {"update_share": 1.5},
    ],
    ids=str,
)
def test_sizes_that_cannot_be_run_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="EXPERIMENT_SIZES_INVALID"):
        Workload(**wrong)  # type: ignore[arg-type]


def test_a_workload_says_what_a_batch_is() -> None:
    workload = Workload(rows=60_000, days=10, batches_per_day=3, update_share=0.1)

    assert workload.load_batches == 30
    assert workload.rows_per_batch == 2_000
    assert workload.requests == 240
    assert workload.day_of_batch(7) - workload.day_of_batch(0) == dt.timedelta(days=2)


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.4])
def test_shares_of_organisations_fall_by_the_power_law_and_come_to_all_rows(exponent: float) -> None:
    workload = Workload(orgs=100, exponent=exponent)
    shares = [share_above(workload, rank + 1) - share_above(workload, rank) for rank in range(100)]

    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares, reverse=True) or exponent == 0
    assert shares[0] / shares[-1] == pytest.approx(1 if exponent == 0 else 100**exponent, rel=0.5)


def test_percentiles_are_those_of_files_and_huge_organisations_are_told_apart() -> None:
    workload = Workload(orgs=200)
    sizes = {org_id(rank): [10 * (rank + 1)] for rank in range(200)} | {org_id(0): [1_000, 2_000, 3_000, 4_000]}

    found = org_files(sizes, workload)

    assert (found.huge.orgs, found.huge.files, found.huge.bytes) == (2, 5, 10_020)
    assert found.huge.percentiles == {10: 20, 50: 2_000, 90: 4_000, 100: 4_000}
    assert (found.others.orgs, found.others.percentiles[100]) == (198, 2_000)
    assert found.all.files == found.huge.files + found.others.files
    assert found.by_org[0] == (org_id(0), 4, 10_000)
    assert org_files({}, workload).all.percentiles == {10: 0, 50: 0, 90: 0, 100: 0}


def fail_in(storage: StorageSpec, root: Path) -> None:
    with scratch_folder(storage, "run"):
        write_files(root, {"run/t/.f.parquet.crc": "rows"})
        raise ZeroDivisionError


def test_it_is_removed_after_an_error_too_unless_it_is_to_be_kept(tmp_path: Path) -> None:
    storage = local_storage(tmp_path)

    with pytest.raises(ZeroDivisionError):
        fail_in(storage, tmp_path)
    assert list(tmp_path.iterdir()) == []

    with scratch_folder(storage, "run", keep=True):
        write_files(tmp_path, {"run/kept": "rows"})
    with pytest.raises(ContractError, match="EXPERIMENT_FOLDER_TAKEN"), scratch_folder(storage, "run"):
        pass
    assert (tmp_path / "run" / "kept").exists()
