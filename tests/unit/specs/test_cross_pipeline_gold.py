"""Gold that reads gold of other pipelines: the table must exist, and pipelines form no cycle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.project import load_catalog
from tests.unit.specs.conftest import PIPELINE


def declare(root: Path, name: str, *reads: str, affects: str = "{days: [0]}", partition_by: str = "event_date") -> None:
    """A pipeline whose one gold table, `daily`, reads these."""
    folder = root / "include" / "pipelines" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "daily.sql").write_text(f"SELECT {partition_by} FROM {reads[0].replace('.', '__')}")
    table = (
        f"name: daily, sql: daily.sql, reads: [{', '.join(reads)}], partition_by: {partition_by}, affects: {affects}"
    )
    gold = f"gold:\n  tables: [{{{table}}}]\n"
    (folder / "pipeline.yaml").write_text(PIPELINE.replace("pipeline: shop", f"pipeline: {name}") + gold)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    root = make_project()
    declare(root, "shop", "orders")
    return root


def rejection_of(root: Path) -> str:
    with pytest.raises(ConfigError) as rejection:
        load_catalog("local", root=root)
    return str(rejection.value)


def test_a_table_of_another_pipeline_is_read_by_its_full_name(root: Path) -> None:
    declare(root, "board", "shop.daily", "orders")

    gold = load_catalog("local", root=root).pipeline("board").gold

    assert gold.cross_pipeline_inputs == (("shop", "daily"),)


@pytest.mark.parametrize(
    ("read", "messages"),
    [
        ("shpo.daily", "there is no pipeline 'shpo'; did you mean 'shop'?"),
        ("shop.dayly", "the pipeline 'shop' has no gold table of that name; did you mean 'daily'?"),
        ("shop.orders", "the pipeline 'shop' has no gold table of that name"),
        ("board.daily", "omit the name of the pipeline itself: write daily"),
        ("lake.shop.daily", "write the name of a table, or pipeline.table for a gold table of another pipeline"),
    ],
)
def test_unknown_names_are_rejected_with_line_and_closest_name(root: Path, read: str, messages: str) -> None:
    declare(root, "board", read)

    rejection = rejection_of(root)

    assert messages in rejection
    assert "board/pipeline.yaml:" in rejection
    assert "gold.tables" in rejection


def test_tables_that_change_by_value_share_the_column_of_their_values(root: Path) -> None:
    declare(root, "board", "shop.daily", affects="same", partition_by="country")

    assert "requires that it is partitioned by 'country' too" in rejection_of(root)


def test_cycles_of_pipelines_are_rejected_across_tables(root: Path) -> None:
    declare(root, "board", "shop.daily")
    declare(root, "report", "board.daily")
    declare(root, "shop", "report.daily")

    rejection = rejection_of(root)

    assert "gold of board reads gold of shop reads gold of report reads gold of board" in rejection


def test_a_pipeline_that_others_read_can_be_deselected(root: Path) -> None:
    declare(root, "board", "shop.daily")

    assert list(load_catalog("local", root=root, only=["board"]).pipelines) == ["board"]
