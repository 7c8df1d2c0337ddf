"""`deltaworks pipelines infer`: its proposal is YAML that a table can be declared with, and tells what is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from deltaworks.cli import pipelines
from deltaworks.specs.table import ColumnSpec
from tests.unit.rework.replay_stage import Stage, orders, shop

EVENTS = [
    {"name": "order", "time": 1, "level": 3, "params": {"Price": 4.5, "tag id": ["a"]}, "user": {"level": "x"}},
    {"name": "order", "time": 2, "level": "three", "params": {"Price": 5}, "odd.name": 1},
    {"name": "order", "time": 3, "level": 4, "at": "2026-01-31T00:00:00Z"},
    {"name": "refund", "time": 4},
]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(tmp_path)
    (stage.landing / "1.json").write_bytes("\n".join(map(json.dumps, EVENTS)).encode())
    (stage.landing / "2.json").write_bytes(b'{broken "')
    (stage.landing / "3.json").write_bytes(b"")
    monkeypatch.setattr(pipelines, "catalog", lambda: stage.catalog(shop(orders("long"))))
    return stage


def infer(*arguments: str) -> str:
    return CliRunner().invoke(pipelines.app, ["infer", "shop", *arguments], catch_exceptions=False).output


@pytest.mark.usefixtures("stage")
def test_columns_are_proposed_with_types_and_the_share_of_events_that_have_them() -> None:
    text = infer("--hints", "at TIMESTAMP")
    (table,) = YAML(typ="safe").load(text)["tables"]
    columns = [ColumnSpec.model_validate(column) for column in table["columns"]]
    assert [(column.name, column.path, column.type) for column in columns] == [
        ("level_long", "level", "long"),
        ("at", "at", "timestamp"),
        ("price", "params.Price", "double"),
        ("level", "user.level", "string"),
    ]
    lines = text.splitlines()
    assert lines[0] == "# 3 objects looked at, 2 values that are no events"
    assert '# no table takes 1 events called "refund"' in lines
    assert '    # not taken, "level": 1 values are text' in lines
    assert any(line.endswith("# 100.0 % of events, declared already") for line in lines)
    assert any("params.Price" in line and line.endswith("# 66.7 % of events") for line in lines)


@pytest.mark.usefixtures("stage")
def test_no_more_objects_are_looked_at_than_was_said() -> None:
    assert infer("--files", "1").startswith("# 1 objects looked at, 0 values")


@pytest.mark.usefixtures("stage")
def test_hints_that_cannot_be_read_are_refused() -> None:
    assert "no hint" in infer("--hints", "price")
