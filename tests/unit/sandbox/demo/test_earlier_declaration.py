"""The project of the demo, whose declaration first lacks a table and a column."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.project import load_catalog
from deltaworks.specs.project_folder import PROJECT_ROOT
from sandbox.demo.earlier_declaration import (
    CHANGED_TABLE,
    NEW_COLUMN,
    NEW_TABLE,
    PIPELINE,
    EarlierDeclaration,
)


def _declared(folder: Path) -> tuple[bool, bool]:
    """Returns whether the table and the column are declared."""
    tables = {table.name: table for table in load_catalog(root=folder, only=[PIPELINE]).pipeline(PIPELINE).tables}
    return NEW_TABLE in tables, NEW_COLUMN in {column.name for column in tables[CHANGED_TABLE].columns}


def test_the_earlier_declaration_is_valid_and_becomes_the_shipped_one(tmp_path: Path) -> None:
    earlier = EarlierDeclaration(PROJECT_ROOT, tmp_path / ".deltaworks" / "project")
    earlier.create()
    assert _declared(earlier.folder) == (False, False)
    earlier.complete()
    earlier.complete()
    assert _declared(earlier.folder) == (True, True)
    assert (earlier.folder / "include" / "pipelines").resolve() == PROJECT_ROOT / "include" / "pipelines"
    assert (earlier.folder / "dags").resolve() == PROJECT_ROOT / "dags"


def test_an_earlier_project_is_replaced(tmp_path: Path) -> None:
    earlier = EarlierDeclaration(PROJECT_ROOT, tmp_path / ".deltaworks" / "project")
    earlier.complete()
    assert not earlier.folder.exists()
    for _ in range(2):
        earlier.create()
        assert _declared(earlier.folder) == (False, False)
        earlier.complete()
    assert (PROJECT_ROOT / "include" / "pipelines" / PIPELINE / "pipeline.yaml").is_file()


def test_a_declaration_without_the_table_is_an_error(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    folder = checkout / "include" / "pipelines" / PIPELINE
    folder.mkdir(parents=True)
    (folder / "pipeline.yaml").write_text("pipeline: games\ntables:\n  - name: other\n")
    with pytest.raises(ConfigError, match="DEMO_DECLARATION_CHANGED"):
        EarlierDeclaration(checkout, tmp_path / "project").create()
