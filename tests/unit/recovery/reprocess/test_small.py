"""A small reprocess runs without Spark, exactly once; a larger one continues with Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.registry import get_operation
from deltaworks.operations.reprocess import ReprocessOptions, ReprocessRemainder, reprocess
from deltaworks.recovery.reprocess.plan import ReprocessRequest
from deltaworks.recovery.reprocess.replace_directly import MAX_DIRECT_BYTES
from deltaworks.recovery.reprocess.run import Reprocess
from deltaworks.recovery.reprocess.selection import Selection
from tests.crashes import Crash, crash_at
from tests.unit.recovery.restore.source_harness import ALL, SourceHarness

UNSAID = ("spec_fingerprint", "arrived_at")
BATCHES = (0, 1, 2, 3)


POINTS = [
    "committed:clicks",
    *(
        pytest.param(point, marks=pytest.mark.integration)
        for point in ("planned", "staged", "committed:quarantine", "committed")
    ),
]


def no_session() -> SparkSession:
    raise AssertionError("Spark was asked for")


@pytest.fixture
def stage(tmp_path: Path) -> SourceHarness:
    """Three objects landed as three batches; one event of each is in quarantine, since its level is no number."""
    made = SourceHarness.at(tmp_path)
    made.land_all(*BATCHES)
    return made


def contents(stage: SourceHarness) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, but what the stage's batches do not say in quarantine."""
    found = {}
    for name in ALL:
        rows = stage.lake.rows(paths.table("shop", name))
        assert rows is not None
        shown = [{column: row[column] for column in row if column not in UNSAID} for row in rows.to_pylist()]
        found[name] = sorted(shown, key=lambda row: (row["_seq"], row["_position"]))
    return found


def again(stage: SourceHarness, fault: Callable[[str], None] = lambda point: None, **options: Any) -> Any:
    request = ReprocessRequest(**({"selection": Selection(from_start=True)} | options))
    return Reprocess(no_session, stage.catalog(), "shop", fault=fault).run("r1", request)


def test_reading_again_without_a_change_changes_no_row_and_opens_no_session(stage: SourceHarness) -> None:
    before = contents(stage)

    result = again(stage)

    assert contents(stage) == before
    assert {table.table: (table.rows_out, table.rows_in) for table in result.tables} == {
        "clicks": (6, 6),
        "orders": (6, 6),
        "logins": (6, 6),
        "quarantine": (3, 3),
    }


@pytest.mark.parametrize("point", POINTS)
def test_one_that_was_broken_off_is_finished_exactly_once(stage: SourceHarness, point: str) -> None:
    before = contents(stage)
    with pytest.raises(Crash):
        again(stage, crash_at(point))

    again(stage)

    assert contents(stage) == before


def test_only_the_selected_objects_are_replaced(stage: SourceHarness) -> None:
    before = contents(stage)

    result = again(stage, selection=Selection(files=("f2.json",)))

    assert contents(stage) == before
    assert [table.rows_out for table in result.tables] == [2, 2, 2, 1]


def report_of(stage: SourceHarness, **options: Any) -> Report:
    context = OperationContext(operation=get_operation("reprocess"), catalog=stage.catalog(), subject="shop", echo=str)
    return reprocess(context, ReprocessOptions(from_start=True, id="r1", spark=False, dry_run=False, **options))


def test_a_job_that_may_not_use_spark_does_what_is_small_and_says_that_nothing_is_left(stage: SourceHarness) -> None:
    before = contents(stage)

    (result,) = report_of(stage).results

    assert contents(stage) == before
    assert result.spark_work_count == 0  # type: ignore[attr-defined]


def test_what_is_too_large_is_left_to_spark_under_the_same_id(
    stage: SourceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(stage)
    monkeypatch.setitem(Reprocess.__init__.__kwdefaults__, "direct_bytes", 10)

    assert report_of(stage).results == [ReprocessRemainder(id="r1")]
    assert contents(stage) == before

    monkeypatch.setitem(Reprocess.__init__.__kwdefaults__, "direct_bytes", MAX_DIRECT_BYTES)
    assert again(stage).objects == len(BATCHES) - 1
    assert contents(stage) == before
