"""Changes of a Delta table while a stream reads it: rewritten, replaced, log or files deleted. Fault 15."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from deltaworks.control import job, paths
from deltaworks.control.job import as_deltaworks_error
from deltaworks.errors import DeltaworksError
from deltaworks.recovery.start_over import start_over
from deltaworks.sources import delta
from deltaworks.sources.delta import DeltaSource
from tests.faults.records.conftest import Tell
from tests.spark.conftest import Project
from tests.spark.sources.delta_harness import address, numbers, reading, run, sell

NOBODY_LOOKS = "spark.sql.files.ignoreMissingFiles"


@pytest.fixture
def project(make_project: Callable[..., Project], spark: SparkSession) -> Project:
    """A project whose stream has read the first two rows."""
    made = reading(make_project)
    sell(made, 1, 2)
    run(spark, made)
    return made


@pytest.fixture
def careless(spark: SparkSession) -> Iterator[Callable[[], None]]:
    """Makes Spark ignore missing files."""
    yield partial(spark.conf.set, NOBODY_LOOKS, "true")
    spark.conf.unset(NOBODY_LOOKS)


def with_option(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Adds a reader option that the product never sets."""
    monkeypatch.setattr(DeltaSource, "_start_options", lambda *_: {name: value})


def folder(project: Project) -> Path:
    return Path(project.catalog.environment.lake.prefix) / paths.table("writer", "sales")


def refusal(spark: SparkSession, project: Project) -> DeltaworksError:
    with pytest.raises(Exception) as stopped:  # noqa: PT011 - what it means to a launcher is looked at
        run(spark, project)
    return as_deltaworks_error(stopped.value)


@pytest.mark.parametrize("protected", [True, False])
def test_15_a_table_that_is_overwritten(
    spark: SparkSession, project: Project, monkeypatch: pytest.MonkeyPatch, report_records_fault: Tell, protected: bool
) -> None:
    spark.read.format("delta").load(address(project)).write.format("delta").mode("overwrite").save(address(project))
    if not protected:
        with_option(monkeypatch, "ignoreChanges", "true")
        run(spark, project)
        assert report_records_fault("15 overwritten", numbers(project), [1, 2], off="the refusal") == (0, 2)
        return

    told = refusal(spark, project)

    assert (told.condition, told.retryable) == ("DELTA_SOURCE_REWRITTEN", False)
    assert "at version 2" in told.message
    assert report_records_fault("15 overwritten", numbers(project), [1, 2], note=told.condition) == (0, 0)


@pytest.mark.parametrize("protected", [True, False])
def test_15_a_table_that_is_deleted_and_made_anew(
    spark: SparkSession, project: Project, monkeypatch: pytest.MonkeyPatch, report_records_fault: Tell, protected: bool
) -> None:
    shutil.rmtree(folder(project))
    assert refusal(spark, project).condition == "DELTA_SOURCE_MISSING"
    sell(project, 3)
    sell(project, 4)
    if not protected:
        monkeypatch.setattr(job, "delta_error", lambda _: None)

    told = refusal(spark, project)

    report_records_fault(
        "15 made anew", numbers(project), [1, 2], off="" if protected else "its name", note=told.condition
    )
    assert numbers(project) == [1, 2]
    if protected:
        assert (told.condition, told.retryable) == ("DELTA_SOURCE_REPLACED", False)
        start_over(project.catalog, "reader", dry_run=False, max_rows=2)
        run(spark, project)
        assert numbers(project) == [3, 4]
    else:
        assert told.retryable, "a launcher would start it again and again"


@pytest.mark.parametrize("protected", [True, False])
def test_15_a_log_that_expired_before_it_was_read(
    spark: SparkSession, project: Project, monkeypatch: pytest.MonkeyPatch, report_records_fault: Tell, protected: bool
) -> None:
    for number in range(3, 9):
        sell(project, number)
    DeltaTable(str(folder(project))).create_checkpoint()
    for commit in sorted((folder(project) / "_delta_log").glob("0*.json"))[:6]:
        commit.unlink()
    if not protected:
        monkeypatch.setattr(delta, "check_versions", lambda *_, **__: None)
        monkeypatch.setattr(job, "delta_error", lambda _: None)

    told = refusal(spark, project)

    if not protected:
        report_records_fault("15 log expired", numbers(project), [1, 2], off="its name", note=told.condition)
        assert told.retryable, "a launcher would start it again and again"
        return
    assert (told.condition, told.retryable) == ("SOURCE_EXPIRED", False)
    assert "versions 2 to 5 are no longer in its log" in told.message
    assert numbers(project) == [1, 2]
    start_over(project.catalog, "reader", dry_run=False, max_rows=2)
    run(spark, project)
    assert report_records_fault("15 log expired", numbers(project), range(1, 9), note="after start-over") == (0, 0)


def test_15_a_log_that_expires_while_the_stream_runs_is_named_too(
    spark: SparkSession, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    sell(project, 3)
    sell(project, 4)
    DeltaTable(str(folder(project))).create_checkpoint()
    (folder(project) / "_delta_log" / f"{2:020}.json").unlink()
    monkeypatch.setattr(delta, "check_versions", lambda *_, **__: None)

    told = refusal(spark, project)

    assert (told.condition, told.retryable) == ("SOURCE_EXPIRED", False)
    assert "next version, 2." in told.message


@pytest.mark.parametrize("protected", [True, False])
def test_15_files_that_were_vacuumed_before_they_were_read(
    spark: SparkSession, project: Project, report_records_fault: Tell, careless: Callable[[], None], protected: bool
) -> None:
    sell(project, 3)
    sell(project, 4)
    table = DeltaTable(str(folder(project)))
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    if not protected:
        careless()
        run(spark, project)
        lost, _ = report_records_fault("15 vacuumed", numbers(project), range(1, 5), off="the look at files")
        assert lost == 2
        return

    told = refusal(spark, project)

    assert (told.condition, told.retryable) == ("SOURCE_EXPIRED", False)
    assert ".parquet" in told.message
    start_over(project.catalog, "reader", dry_run=False, max_rows=2)
    run(spark, project)
    assert report_records_fault("15 vacuumed", numbers(project), range(1, 5), note="after start-over") == (0, 0)
