"""The commands `experiment` and `generate`: their options, and what they print and write."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import deltaworks.tables.spark_session
import sandbox.experiments.partitioning as experiment
from deltaworks.cli import app
from deltaworks.errors import ConfigError
from deltaworks.specs.storage import StorageSpec
from sandbox.experiments.engagement_rows import Workload, org_id
from sandbox.experiments.file_sizes import org_files
from sandbox.experiments.partitioning import PartitioningResult, SchemeResult
from sandbox.experiments.schemes import BY_DATE, BY_ORG, Scheme
from tests.commands import output_of


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

    monkeypatch.setattr(deltaworks.tables.spark_session, "build_session", lambda *_, **__: session)
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
        deltaworks.tables.spark_session, "build_session", lambda *_, **__: pytest.fail("Spark was started")
    )

    done = CliRunner().invoke(app, ["experiment", "partitioning", "--rows", "10"])

    assert done.exit_code != 0
    assert "EXPERIMENT_SIZES_INVALID" in str(done.exception)


generate = partial(output_of, "generate")


def objects(folder: Path, pipeline: str) -> dict[str, bytes]:
    paths = sorted((folder / pipeline).rglob("*.gz"))
    return {str(path.relative_to(folder)): gzip.decompress(path.read_bytes()) for path in paths}


def test_viewers_are_written_as_both_pipelines_get_them(tmp_path: Path) -> None:
    options = ("viewers", "--views", "12", "--minutes", "5", "--start", "2025-06-01T10:00", "--directory")
    said = generate(*options, str(tmp_path / "a"))
    generate(*options, str(tmp_path / "b"))

    answers = json.loads((tmp_path / "a" / "truth.json").read_text())
    players, logs = objects(tmp_path / "a", "video_qos"), objects(tmp_path / "a", "cdn_logs")
    assert "12 views" in said
    assert (answers["views"], answers["objects"]["cdn_logs"]) == (12, len(logs))
    assert all(b"#Fields: date time" in log for log in logs.values())
    assert b'"received_at":"2025-06-01T10:0' in b"".join(players.values())
    assert {row[0][:16] for row in answers["qos_minute"]} <= {f"2025-06-01T10:0{minute}" for minute in range(5)}
    assert players == objects(tmp_path / "b", "video_qos")


def test_a_market_is_written_as_both_pipelines_get_it(tmp_path: Path) -> None:
    generate("market", "--first", "2024-05-01", "--last", "2024-06-28", "--directory", str(tmp_path))

    answers = json.loads((tmp_path / "truth.json").read_text())
    prices, filings = objects(tmp_path, "stocks"), objects(tmp_path, "filings")
    assert (len(prices), len(filings)) == (answers["objects"]["stocks"], answers["objects"]["filings"])
    assert {row[1] for row in answers["pe_daily"]} == {"DWAA", "DWBB", "DWCC", "DWDD"}
    assert min(row[0] for row in answers["pe_daily"]) == "2024-05-01"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("viewers",), "Say where the events go"),
        (("market", "--land", "--directory", "out"), "Say where the events go"),
        (("viewers", "--start", "yesterday", "--directory", "out"), "'yesterday' is no date and no time"),
        (("market", "--last", "2024-13-01", "--directory", "out"), "'2024-13-01' is no date and no time"),
    ],
)
def test_options_that_say_nothing_are_refused(options: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        generate(*options)
