"""The states of shadow tables, and the dry run of a refresh."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltaworks.cli import app, operations
from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.control.provenance import user_metadata
from deltaworks.gold import refresh as module
from deltaworks.gold.input_views import BuiltFrom
from deltaworks.gold.refresh import find_shadows, is_behind, plan_refresh, remove_shadow, shadow_state
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.commit import commit_step
from deltaworks.tables.lake import Lake
from deltaworks.tables.steps import gold_refresh_step
from tests.unit.maintenance.table_data import DAILY, DAILY_SQL, ORDERS, SHOP, make, project


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return project(tmp_path, shop=SHOP + ORDERS + DAILY, sql=DAILY_SQL)


@pytest.fixture
def lake(catalog: Catalog) -> Lake:
    made = Lake(catalog.environment.lake)
    make(made, "shop", "orders", files=1, days=1)
    make(made, "shop", "daily", files=2, days=1)
    return made


def build_shadow(lake: Lake, ordinal: int) -> str:
    """Creates a shadow with a row and its recorded inputs."""
    key = paths.gold_shadow("shop", "daily", ordinal)
    make(lake, "shop", "made", files=1, days=1)
    source = Path(lake.storage.prefix, paths.table("shop", "made"))
    Path(lake.storage.prefix, key).parent.mkdir(parents=True, exist_ok=True)
    source.rename(Path(lake.storage.prefix, key))
    table = lake.open(key)
    assert table is not None
    made = user_metadata(pipeline="shop", batch="", operation="rebuild_gold", built_from={"orders": 7}, fingerprint="f")
    commit_step(table, [], step=gold_refresh_step("shop", "built", 1), user_metadata=made)
    return key


def swap(lake: Lake, ordinal: int) -> None:
    """Commits the transaction of a swap to the gold table."""
    table = lake.open(paths.table("shop", "daily"))
    assert table is not None
    commit_step(table, [], step=gold_refresh_step("shop", "daily", ordinal), user_metadata="{}")


def test_the_table_log_shows_which_shadow_was_swapped_in(lake: Lake) -> None:
    assert not find_shadows(lake, "shop", "daily").is_in_progress
    key = build_shadow(lake, 1)

    begun = find_shadows(lake, "shop", "daily")
    assert (begun.is_in_progress, begun.next_key, begun.swapped_key, begun.orphaned_keys) == (True, key, None, [])

    swap(lake, 1)

    swapped = find_shadows(lake, "shop", "daily")
    assert (swapped.is_in_progress, swapped.swapped_key) == (False, key)
    assert swapped.next_key == paths.gold_shadow("shop", "daily", 2)


def test_shadows_of_a_recreated_table_are_orphaned(lake: Lake) -> None:
    old = build_shadow(lake, 5)

    assert find_shadows(lake, "shop", "daily").orphaned_keys == [old]


def test_a_shadow_is_deleted_log_first(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, objects = build_shadow(lake, 1), LocalObjects(tmp_path / "lake")
    swap(lake, 1)
    folder = Path(lake.storage.prefix, key)
    assert shadow_state(lake, objects, key) is not None
    remove = module.remove_folder

    def killed_after_the_first(storage: object, prefix: str) -> None:
        remove(storage, prefix)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "remove_folder", killed_after_the_first)
    with pytest.raises(KeyboardInterrupt):
        remove_shadow(lake, key)
    assert list(folder.rglob("*.parquet"))
    assert shadow_state(lake, objects, key) is None
    assert find_shadows(lake, "shop", "daily").swapped_key == key, "it is found again"

    monkeypatch.undo()
    remove_shadow(lake, key)

    assert not folder.exists()
    assert find_shadows(lake, "shop", "daily").swapped_key is None


def test_a_dry_run_describes_the_refresh_and_changes_nothing(
    lake: Lake, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "catalog", lambda: catalog)
    monkeypatch.setenv("COLUMNS", "240")

    def said() -> str:
        return CliRunner().invoke(app, ["gold", "refresh", "shop", "daily"], catch_exceptions=False).output

    assert "would be built, checked and swapped in" in said()
    (found,) = plan_refresh(catalog, "shop")
    assert (found.dry_run, found.rows_before, found.swapped, found.shadow) == (True, 20, False, "")
    assert found.built_from == {"orders": 1}

    key = build_shadow(lake, 1)
    assert "continues with the shadow of {'orders': 7}" in said()
    assert plan_refresh(catalog, "shop")[0].shadow == key

    swap(lake, 1)
    assert "already swapped in" in said()

    table = lake.open(paths.table("shop", "daily"))
    assert table is not None
    version = table.version()
    table.alter.set_table_properties({"delta.appendOnly": "true"})
    assert "cannot: delta.appendOnly" in said()
    assert table.version() == version + 1


def test_a_shadow_is_behind_if_any_input_is_newer() -> None:
    shadow = BuiltFrom({"a": 3, "b": 5}, "f")

    assert not is_behind(shadow, BuiltFrom({"a": 3, "b": 5}, "f"))
    assert not is_behind(shadow, BuiltFrom({"a": 2, "b": 5}, "f"))
    assert is_behind(shadow, BuiltFrom({"a": 4, "b": 1}, "f"))
    assert is_behind(BuiltFrom({"a": 3}, "f"), BuiltFrom({"a": 3, "b": 0}, "f")), "an input that has come to be"
    assert not is_behind(shadow, BuiltFrom({"a": 9}, "other")), "another definition is about to be replaced"
    assert not is_behind(shadow, BuiltFrom({}, "", "it was restored"))
