"""`deltaworks quarantine`: counts, rows and replays as an operator meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from deltaworks.cli import app, operations
from deltaworks.errors import ConfigError
from deltaworks.specs.pipeline import PipelineSpec
from tests.unit.rework.replay_stage import Stage, orders, shop


def spec(level: str) -> PipelineSpec:
    return shop(orders(level))


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(tmp_path)
    lines = [{"name": "order", "time": 1_700_000_000, "level": level} for level in ("one", "two", [3], 4)]
    stage.ingest(spec("int"), *(json.dumps(line).encode() for line in lines), b"{bad")
    monkeypatch.setattr(operations, "catalog", lambda: stage.catalog(spec("string")))
    monkeypatch.setenv("COLUMNS", "200")
    return stage


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["quarantine", *arguments], catch_exceptions=False)


def test_open_rows_are_counted_by_reason_and_event(stage: Stage) -> None:
    output = run("list", "shop").output

    (line,) = [line for line in output.splitlines() if "type_mismatch" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        "2023-11-14",
        "type_mismatch",
        "order",
        spec("int").fingerprint(),
        "3",
    ]
    assert "No open rows" in run("list", "shop", "--event", "login").output


def test_a_row_is_shown_with_its_reasons_and_its_raw_value(stage: Stage) -> None:
    output = run("show", "shop", "--reason", "malformed").output

    assert "k5 (seq 5, event 0)" in output
    assert "malformed" in output
    assert '"{bad"' in output
    assert "k1" not in output


def test_a_replay_is_a_dry_run_unless_it_is_to_be_applied(stage: Stage) -> None:
    dry = run("replay", "shop", "--reason", "type_mismatch").output
    assert "3 open rows selected: 2 would land, 1 still do not fit, 0 cannot be read again" in dry
    assert "--no-dry-run" in dry
    assert len(stage.places("orders")) == 1

    output = run("replay", "shop", "--no-dry-run").output

    assert "4 open rows selected: 2 landed, 2 still do not fit" in output
    assert "rows to tables: orders 2" in output
    assert len(stage.places("orders")) == 3


@pytest.mark.parametrize(
    ("option", "value", "condition"),
    [("--reason", "malformd", "QUARANTINE_REASON_UNKNOWN"), ("--from-date", "yesterday", "DATE_INVALID")],
)
def test_a_condition_that_can_never_hold_is_told(stage: Stage, option: str, value: str, condition: str) -> None:
    with pytest.raises(ConfigError, match=condition):
        run("list", "shop", option, value)
