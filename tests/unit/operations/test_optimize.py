"""`deltaworks optimize` as a dry run: the plan with a reason for every table."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltaworks.cli import app, operations
from deltaworks.control import paths
from deltaworks.tables.lake import Lake
from deltaworks.testing import load_project
from tests.unit.maintenance.table_data import hundred_tables, make


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    catalog = load_project(tmp_path, hundred_tables())
    monkeypatch.setattr(operations, "catalog", lambda: catalog)
    monkeypatch.setenv("COLUMNS", "240")
    return Lake(catalog.environment.lake)


def test_every_table_is_listed_with_its_reason_and_nothing_is_rewritten(lake: Lake) -> None:
    key = make(lake, "shop", "t001", files=4, days=2)
    version = lake.open(key).version()  # type: ignore[union-attr]

    done = CliRunner().invoke(app, ["optimize", "shop", "--tables", "t001,t002"], catch_exceptions=False)

    assert "2 partitions to rewrite: 2026-01-01 (4 small files), 2026-01-02 (4 small files)" in done.output
    assert "it does not exist yet" in done.output
    assert "of 60 minutes. Nothing was changed." in done.output
    assert lake.open(paths.table("shop", "t001")).version() == version  # type: ignore[union-attr]
