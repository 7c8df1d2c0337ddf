"""`deltaworks experiment partitioning`: the options it passes on, and how it prints a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import deltaworks.tables.spark.session
import sandbox.experiments.partitioning as experiment
from deltaworks.cli import app
from deltaworks.specs.storage import StorageSpec
from sandbox.experiments.engagement_rows import Workload, org_id
from sandbox.experiments.file_sizes import org_files
from sandbox.experiments.partitioning import PartitioningResult, SchemeResult
from sandbox.experiments.schemes import BY_DATE, BY_ORG, Scheme


class Session:
    """Stands for a Spark session that nothing is asked of."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


def side(scheme: Scheme, workload: Workload, factor: float, files: int) -> SchemeResult:
    return SchemeResult(
        scheme=scheme,
        load_seconds=10 * factor,
        seconds={name: (factor, 2 * factor, 9 * factor) for name in experiment.PUBLISHED},
        parts={"append": factor, "optimize": 0.5 * factor},
        files=org_files({org_id(rank): [1_000] * files for rank in range(workload.orgs)}, workload),
    )


def test_it_measures_what_it_is_told_to_and_prints_ratios_beside_the_published_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, asked = Session(), {}

    def measured(spark: Any, storage: StorageSpec, workload: Workload, **options: Any) -> PartitioningResult:
        asked.update(options, spark=spark, root=storage.root, workload=workload)
        sides = (side(BY_DATE, workload, 1.0, 7), side(BY_ORG, workload, 0.5, 2))
        return PartitioningResult(workload=workload, results=sides, rows=1_234)

    monkeypatch.setattr(deltaworks.tables.spark.session, "build_session", lambda *_, **__: session)
    monkeypatch.setattr(experiment, "run_partitioning", measured)
    monkeypatch.setenv("COLUMNS", "200")
    chart = tmp_path / "charts" / "page.html"
    words = [
        "--rows",
        "9000",
        "--orgs",
        "3",
        "--days",
        "3",
        "--repeats",
        "5",
        "--seed",
        "8",
        "--file-mib",
        "4",
        "--keep",
    ]

    done = CliRunner().invoke(
        app, ["experiment", "partitioning", *words, "--folder", str(tmp_path), "--chart", str(chart)]
    )

    assert done.exit_code == 0, done.output
    assert asked["workload"] == Workload(rows=9_000, orgs=3, days=3, seed=8)
    assert (asked["repeats"], asked["max_file_bytes"], asked["keep"], asked["deletion_vectors"]) == (
        5,
        4 << 20,
        True,
        False,
    )
    assert asked["root"] == f"file://{tmp_path}"
    assert asked["prefix"].startswith("experiments/partitioning-")
    assert session.stopped
    lines = [line.split() for line in done.output.replace("│", " ").replace("┃", " ").splitlines()]
    assert ["read", "2.00", "s", "1.00", "s", "0.500", "0.667", "reached"] in lines
    assert ["update", "2.00", "s", "1.00", "s", "0.500", "0.250", "missed"] in lines
    assert ["insert", "2.00", "s", "1.00", "s", "0.500", "1.100", "reached"] in lines
    assert "1,234 rows" in done.output
    assert f"{tmp_path}/experiments/partitioning-" in done.output
    assert "Files of each organisation" in chart.read_text()


def test_sizes_that_cannot_be_run_are_refused_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        deltaworks.tables.spark.session, "build_session", lambda *_, **__: pytest.fail("Spark was started")
    )

    done = CliRunner().invoke(app, ["experiment", "partitioning", "--rows", "10"])

    assert done.exit_code != 0
    assert "EXPERIMENT_SIZES_INVALID" in str(done.exception)
