"""A run that only counts succeeds if there is nothing to do, whether the pipeline has rows, is new or never started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltaworks.control.home import PipelineHome
from deltaworks.errors import ConfigError
from deltaworks.operations.job import run_operation
from deltaworks.operations.options import option_fields
from deltaworks.operations.registry import OPERATIONS
from tests.unit.engine.hold_harness import Harness

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
