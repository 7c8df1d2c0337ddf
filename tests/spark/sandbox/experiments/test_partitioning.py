"""The partition experiment end to end with little data: equal rows in all variants, metrics by name, no leftovers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.partitioning import to_results
from deltaworks.errors import ContractError
from deltaworks.testing import local_storage, write_files
from sandbox.experiments.engagement_rows import Workload, batch_rows, rename_requests
from sandbox.experiments.partitioning import run_partitioning
from sandbox.experiments.partitioning_chart import write_chart
from sandbox.experiments.schemes import BY_DATE, BY_ORG, BY_ORG_VECTORS, SchemeTable
from tests.unit.sandbox.experiments.power_law import share_above

WORKLOAD = Workload(rows=200, orgs=4, days=1, batches_per_day=1, batches_per_round=1, update_share=0.5)
READS = ("week_of_huge_org",)


@pytest.mark.integration
def test_both_sides_hold_the_same_rows_and_the_figures_have_their_names(spark: SparkSession, tmp_path: Path) -> None:
    result = run_partitioning(
        spark, local_storage(tmp_path), WORKLOAD, prefix="run", repeats=1, reads=READS, warm_up=False
    )

    # Loads, then runs one batch; a difference between variants ends the run.
    assert result.rows == WORKLOAD.rows_per_batch * 2
    assert [side.scheme for side in result.results] == [BY_DATE, BY_ORG]
    assert {figure.metric: figure.ratio > 0 for figure in to_results(result, name="partitioning")} == {
        "read": True,
        "update": True,
        "insert": True,
    }
    by_date, by_org = result.result_of(BY_DATE), result.result_of(BY_ORG)
    assert by_date.parts["optimize"] < by_org.parts["optimize"] < by_org.median("insert")
    assert by_org.files.all.files < by_date.files.all.files
    assert [org for org, _, _ in by_org.files.by_org] == [f"org-{rank:06d}" for rank in range(4)]
    assert list(tmp_path.iterdir()) == []
    assert "by_org_zordered" in write_chart(result, tmp_path / "chart.html").read_text()


@pytest.mark.integration
def test_a_third_side_with_deletion_vectors_holds_the_same_rows_under_every_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    workload = Workload(rows=2_000, orgs=10, days=4, batches_per_day=1, batches_per_round=2, update_share=0.3)
    storage = local_storage(tmp_path)

    result = run_partitioning(spark, storage, workload, prefix="run", repeats=1, deletion_vectors=True, keep=True)

    assert result.rows == workload.rows_per_batch * 8
    assert [side.scheme for side in result.results] == [BY_DATE, BY_ORG, BY_ORG_VECTORS]
    assert list(tmp_path.joinpath("run", BY_ORG_VECTORS.name).glob("*.bin"))
    assert not list(tmp_path.joinpath("run", BY_ORG.name).rglob("*.bin"))


def test_a_run_takes_no_folder_that_holds_something_and_leaves_it_alone(spark: SparkSession, tmp_path: Path) -> None:
    kept = tmp_path / "run" / "mine.txt"
    write_files(tmp_path, {"run/mine.txt": "mine"})

    with pytest.raises(ContractError, match="EXPERIMENT_FOLDER_TAKEN"):
        run_partitioning(spark, local_storage(tmp_path), WORKLOAD, prefix="run")

    assert kept.read_text() == "mine"


@pytest.mark.integration
def test_a_side_that_lost_a_row_ends_the_run_and_the_folder_goes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = SchemeTable.update

    def losing(self: SchemeTable, requests: object, mutation: int) -> None:
        update(self, requests, mutation)  # type: ignore[arg-type]
        if self.scheme is BY_ORG:
            spark.sql(f"DELETE FROM delta.`{self.uri}` WHERE org_id = 'org-000000'").collect()

    monkeypatch.setattr(SchemeTable, "update", losing)

    with pytest.raises(ContractError, match="EXPERIMENT_RESULTS_DIFFER"):
        run_partitioning(spark, local_storage(tmp_path), WORKLOAD, prefix="run", reads=READS)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_rows_follow_from_their_number_and_the_seed_alone(spark: SparkSession) -> None:
    workload = Workload(rows=20_000, orgs=50, days=4, batches_per_day=1)
    rows = batch_rows(spark, workload, 1).collect()

    assert batch_rows(spark, workload, 1).repartition(3).exceptAll(batch_rows(spark, workload, 1)).count() == 0
    assert len({row["engagement_id"] for row in rows}) == workload.rows_per_batch
    by_org = {f"org-{rank:06d}": 0 for rank in range(50)}
    for row in rows:
        by_org[row["org_id"]] += 1
    # The largest share matches the power law within random deviation.
    assert by_org["org-000000"] / len(rows) == pytest.approx(share_above(workload, 1), abs=0.03)
    assert by_org["org-000000"] > 5 * by_org["org-000010"] > 0
    requests = {(row["org_id"], row["id"]) for row in rename_requests(spark, workload, 1, 4).collect()}
    everything = {
        (row["org_id"], row["contact_id"])
        for batch in range(4)
        for row in batch_rows(spark, workload, batch).select("org_id", "contact_id").distinct().collect()
    }
    assert requests
    assert requests <= everything
