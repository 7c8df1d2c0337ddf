"""Runs that only count: they succeed with nothing to do, and a plan has a reason for every table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from deltaworks.cli import app, operations
from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.errors import ConfigError
from deltaworks.operations import maintenance
from deltaworks.operations.base import OperationContext
from deltaworks.operations.job import run_operation
from deltaworks.operations.options import option_fields
from deltaworks.operations.registry import OPERATIONS, get_operation
from deltaworks.tables.lake import Lake
from deltaworks.testing import load_project
from tests.unit.engine.hold_harness import Harness
from tests.unit.maintenance.table_data import hundred_tables, make

#: What each operation needs besides a table, with values that match nothing.
VALUES: dict[str, dict[str, Any]] = {"reprocess": {"files": ("nothing/*",), "spark": False}}
#: Operations that refuse a pipeline without the section they work on, or an id that is not there.
UNAVAILABLE = {"mutate_tables", "purge_deleted", "replay_feed", "restore"}
COUNTING = sorted(
    name
    for name, declared in OPERATIONS.items()
    if declared.scope == "pipeline" and "dry_run" in declared.options_model().model_fields and name not in UNAVAILABLE
)


def count(stage: Harness, name: str, **values: Any) -> int:
    declared = OPERATIONS[name]
    required = {field.name: "orders" for field in option_fields(declared.options_model()) if field.required}
    values = {**required, **VALUES.get(name, {}), **values}
    return run_operation(declared, stage.catalog(), "shop", values, echo=lambda text: None).exit_code


@pytest.mark.parametrize("name", COUNTING)
def test_a_count_of_nothing_succeeds(stage: Harness, name: str) -> None:
    processor = stage.processor()
    stage.land(processor, 0)
    PipelineHome(stage.objects, "shop").specs.record_start(stage.catalog().pipeline("shop"), owner_epoch=1)

    assert count(stage, name) == 0


def test_a_count_without_a_selected_object_does_not_continue_with_spark(stage: Harness) -> None:
    values = {"files": ("nothing/*",)}

    report = run_operation(OPERATIONS["reprocess"], stage.catalog(), "shop", values, echo=lambda text: None)

    assert sum(result.spark_work_count for result in report.results) == 0


@pytest.mark.parametrize("name", [name for name in COUNTING if name not in ("recover_log", "recover_files")])
def test_a_count_succeeds_before_the_first_start(stage: Harness, name: str) -> None:
    assert count(stage, name) == 0


@pytest.mark.parametrize(
    "values",
    [
        {"batches": "7-9"},
        {"files": ("a.json",)},
        {"events": "2020-01-01"},
        {"arrived": "2020-01-01T00:00..2020-01-01T01:00"},
        {"from_start": True, "files": ()},
    ],
)
def test_each_empty_selection_of_a_reprocess_counts_nothing(stage: Harness, values: dict[str, Any]) -> None:
    PipelineHome(stage.objects, "shop").specs.record_start(stage.catalog().pipeline("shop"), owner_epoch=1)

    assert count(stage, "reprocess", **({"files": ()} | values)) == 0


def test_a_reprocess_that_would_change_something_still_refuses_an_empty_selection(stage: Harness) -> None:
    PipelineHome(stage.objects, "shop").specs.record_start(stage.catalog().pipeline("shop"), owner_epoch=1)

    with pytest.raises(ConfigError, match="REPROCESS_EMPTY"):
        count(stage, "reprocess", dry_run=False)


@pytest.fixture
def stage(tmp_path: Path) -> Harness:
    return Harness.at(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["optimize", "shop", *arguments])


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    catalog = load_project(tmp_path, f"{hundred_tables()}maintenance: {{zorder_from_bytes: 4KiB}}\n")
    monkeypatch.setattr(operations, "catalog", lambda: catalog)
    monkeypatch.setenv("COLUMNS", "240")
    return Lake(catalog.environment.lake)


def test_every_table_is_listed_with_its_reason_and_nothing_is_rewritten(lake: Lake) -> None:
    key = make(lake, "shop", "t001", files=4, days=2)
    version = lake.open(key).version()  # type: ignore[union-attr]

    done = run("--tables", "t001,t002")

    assert "2 partitions to rewrite: 2026-01-01 (4 small files), 2026-01-02 (4 small files)" in done.output
    assert "it does not exist yet" in done.output
    assert "of 60 minutes. Nothing was changed." in done.output
    assert lake.open(paths.table("shop", "t001")).version() == version  # type: ignore[union-attr]


def test_a_plan_counts_the_partitions_of_each_action(lake: Lake) -> None:
    for name, files in (("t001", 2), ("t002", 6), ("t003", 6)):
        make(lake, "shop", name, files=files, days=2)
    context = OperationContext(
        operation=get_operation("optimize_tables"), catalog=operations.catalog(), subject="shop", echo=lambda _: None
    )

    report = maintenance.optimize(context, maintenance.OptimizeOptions(tables=("t000", "t001", "t002", "t003")))

    counts = ("partitions", "zorder", "compact", "compact_small", "spark_work_count", "deferred")
    planned = {each.table: each for each in report.results if isinstance(each, maintenance.PlannedTable)}
    assert {name: tuple(getattr(each, count) for count in counts) for name, each in planned.items()} == {
        "t000": (0, 0, 0, 0, 0, 0),
        "t001": (0, 0, 0, 0, 0, 0),
        "t002": (2, 2, 0, 0, 2, 0),
        "t003": (2, 0, 0, 2, 2, 0),
    }
    assert planned["t002"].order.startswith("would order 2 partitions, the largest ")
    assert planned["t001"].order.startswith("largest closed date ")
    assert planned["t001"].order.endswith("; orders from 4.0 KiB")
    assert planned["t003"].order == "", "it declares no order"


def test_a_forced_partition_is_planned_and_nothing_is_rewritten(lake: Lake) -> None:
    key = make(lake, "shop", "t001", files=1, days=2)

    done = run("--tables", "t001", "--partition", "event_date=2026-01-02", "--force")

    assert "1 partition to rewrite: 2026-01-02 (forced)" in done.output
    assert "Nothing was changed." in done.output
    assert lake.open(key).version() == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tables", "t001", "--force"), "belong together"),
        (("--tables", "t001", "--partition", "event_date=2026-01-01"), "belong together"),
        (("--partition", "event_date=2026-01-01", "--force"), "exactly one table"),
        (("--tables", "t001,t002", "--partition", "event_date=2026-01-01", "--force"), "exactly one table"),
        (("--tables", "t001", "--partition", "event_date=2025-01-01", "--force"), "no partition event_date=2025-01-01"),
        (("--tables", "t002", "--partition", "event_date=2026-01-01", "--force"), "has no partition"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_forced_partition_needs_both_options_and_one_table(
    lake: Lake, arguments: tuple[str, ...], message: str
) -> None:
    make(lake, "shop", "t001", files=1, days=2)

    error = run(*arguments).exception

    assert isinstance(error, ConfigError)
    assert error.condition == "OPTIMIZE_PARTITION_INVALID"
    assert message in error.message
    assert error.hint
