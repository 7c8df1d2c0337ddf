"""A keyed table has the latest row of each key after any change or crash, and is in SQL, listings and maintenance."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake.schema import VariantType

from deltaworks.control import paths
from deltaworks.engine.keyed import keyed_catchup, merge
from deltaworks.engine.keyed.keyed_catchup import KeyedTableCatchUp
from deltaworks.engine.keyed.merge import KeyedMerge
from deltaworks.errors import ConfigError, ContractError, FencedError
from deltaworks.maintenance.layout import optimized_tables, read_layout
from deltaworks.maintenance.orphans import remove_orphans
from deltaworks.maintenance.table_health.catalog_tables import all_tables, declared_tables
from deltaworks.maintenance.vacuum import _select_tables
from deltaworks.recovery.repair.log_gap import check_pipeline
from deltaworks.recovery.restore.dependents import reject_mutable
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.query import connect
from deltaworks.tables.variant import delta_schema, encode_json
from deltaworks.testing import catalog_of
from tests.unit.engine.keyed.keyed_harness import HISTORY, LATEST, KeyedHarness, declared, tick


@pytest.fixture
def harness(tmp_path: Path) -> KeyedHarness:
    return KeyedHarness(tmp_path)


def test_the_newest_row_of_a_key_is_kept_with_all_columns(harness: KeyedHarness) -> None:
    tags = [{"name": "é", "size": 1}, None]
    harness.append([tick("a", 1), tick("b", 1, price=Decimal("1.5"), tags=tags), tick("a", 2, price=Decimal("2.0001"))])
    harness.follow()

    assert harness.latest() == harness.expected()
    assert [(row["symbol"], row["version"], row["price"], row["tags"]) for row in harness.latest()] == [
        ("a", 2, Decimal("2.0001"), None),
        ("b", 1, Decimal("1.5000"), tags),
    ]


def test_undeclared_fields_are_followed(harness: KeyedHarness) -> None:
    mapping = declared().model_dump(mode="json", exclude_unset=True)
    mapping["tables"][0] |= {"evolve": "rescue", "keep_rest": "variant"}
    harness.append([tick("a", 1), tick("b", 1)])
    harness.follow()
    harness.spec = PipelineSpec.model_validate(mapping)
    add_columns = delta_schema(arrow_schema({"_rest": "variant"})).fields
    harness.history().alter.add_columns(add_columns)
    tables = harness.tables()
    for version in (2, 3):
        rest = {name: encode_json(f'{{"color": "{name}", "n": {version}}}') for name in "ab"}
        harness.append([tick("a", version, _rest=rest["a"]), tick("b", version, _rest=rest["b"]), tick("c", version)])
        harness.follow(tables)

        assert harness.latest() == harness.expected()
        assert [row["_rest"] for row in harness.latest()] == [rest["a"], rest["b"], None]
    assert [field.type for field in harness.latest_table().schema().fields if field.name == "_rest"] == [VariantType()]


def test_a_late_row_that_is_older_changes_nothing(harness: KeyedHarness) -> None:
    tables = harness.tables()
    harness.append([tick("a", 5)])
    harness.follow(tables)
    harness.append([tick("a", 3), tick("b", 1)])
    followed = harness.follow(tables)

    assert followed is not None
    assert (followed.mode, followed.rows) == ("newer", 1)
    assert [(row["symbol"], row["version"]) for row in harness.latest()] == [("a", 5), ("b", 1)]
    assert harness.latest() == harness.expected()


def test_of_equally_new_rows_the_last_to_arrive_is_kept(harness: KeyedHarness) -> None:
    tables = harness.tables()
    harness.append([tick("a", 1, op="first"), tick("a", 1, op="second")])
    harness.follow(tables)
    assert [row["op"] for row in harness.latest()] == ["second"]

    harness.append([tick("a", 1, op="third")])
    harness.follow(tables)
    assert [row["op"] for row in harness.latest()] == ["third"]


def test_null_is_the_oldest_and_a_row_without_a_key_stays_in_the_history(harness: KeyedHarness) -> None:
    harness.append([tick("a", 1), tick("a", None), tick(None, 9), tick("b", None), tick("c", 1, day=None)])
    harness.follow()
    harness.append([tick("a", None), tick("b", -5)])
    harness.follow()

    assert [(row["symbol"], row["version"]) for row in harness.latest()] == [("a", 1), ("b", -5)]
    assert harness.latest() == harness.expected()


def test_a_key_is_deleted_by_its_newest_row_and_not_restored_by_an_older_one(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path, declared(deleted_when={"op": ["d", "drop"]}))
    tables = harness.tables()
    harness.append([tick("a", 1), tick("b", 1)])
    harness.append([tick("a", 3, op="d"), tick("b", 2, op="u")])
    harness.follow(tables)
    harness.append([tick("a", 2)])
    harness.follow(tables)

    assert [(row["symbol"], row["_deleted"]) for row in harness.latest()] == [("a", True), ("b", False)]
    assert harness.latest() == harness.expected()

    harness.append([tick("a", 4)])
    harness.follow(tables)
    assert [(row["symbol"], row["_deleted"]) for row in harness.latest()] == [("a", False), ("b", False)]


def test_nothing_is_committed_where_nothing_has_changed(harness: KeyedHarness) -> None:
    tables = harness.tables()
    harness.append([tick("a", 1)])
    harness.follow(tables)
    version = harness.latest_table().version()

    assert harness.follow(tables) is None
    harness.history().optimize.compact()
    assert harness.follow(tables) is None
    assert harness.latest_table().version() == version
    # A new owner fences its predecessor, and merges nothing.
    assert harness.follow() is None
    assert harness.latest_table().version() == version + 1


def test_a_history_without_changes_of_rows_does_not_outgrow_its_log(
    harness: KeyedHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_catchup, "COMMITS_WITHOUT_ROWS", 3)
    tables = harness.tables()
    harness.append([tick("a", 1)])
    harness.follow(tables)
    for _ in range(3):
        harness.append([])
    followed = harness.follow(tables)

    assert followed is not None
    assert followed.rows == 0
    assert harness.follow(harness.tables()) is None


@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_batches_and_replays_do_not_matter(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    rows = [tick(f"s{draw.randrange(30)}", draw.randrange(5), op=str(number)) for number in range(120)]
    whole = KeyedHarness(tmp_path / "whole")
    whole.append(rows)
    whole.follow()

    numbered = [{**row, "_seq": 0, "_position": position} for position, row in enumerate(rows)]
    batches = [numbered[start : start + 20] for start in range(0, len(numbered), 20)]
    draw.shuffle(batches)
    parts = KeyedHarness(tmp_path / "parts")
    for number, batch in enumerate(batches):
        parts.append(batch)
        parts.append(batch, batch=number)
        if draw.random() < 0.5:
            parts.follow()
    parts.follow()

    ours = [{**row, "_batch_id": 0} for row in parts.latest()]
    assert ours == whole.latest() == whole.expected()


def test_rows_removed_from_the_history_are_removed_from_the_keyed_table(harness: KeyedHarness) -> None:
    harness.append([tick("a", 1, op="x"), tick("a", 2, op="y"), tick("b", 1, op="y"), tick("c", 1, op="x")])
    tables = harness.tables()
    harness.follow(tables)
    harness.history().delete("op = 'y'")
    followed = harness.follow(tables)

    assert [(row["symbol"], row["version"]) for row in harness.latest()] == [("a", 1), ("c", 1)]
    assert harness.latest() == harness.expected()
    assert followed is not None
    assert followed.mode in ("exact", "rebuilt")


def test_a_restored_history_restores_the_keyed_table(harness: KeyedHarness) -> None:
    tables = harness.tables()
    for version in range(4):
        harness.append([tick("a", version), tick(f"s{version}", 0)])
        harness.follow(tables)
    harness.history().restore(2)
    harness.follow(tables)

    assert harness.latest() == harness.expected()
    assert {row["symbol"] for row in harness.latest()} == {"a", "s0", "s1"}


def test_rows_changed_by_mutations_are_looked_up_and_deleted_ones_ignored(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path, declared(mutable=True, by=["org_id", "symbol"]))
    tables = harness.tables()
    harness.append([tick("a", 1), tick("b", 7), tick("c", 1), tick("c", 2), tick("z", 1), tick("y", 1)])
    harness.append([tick(f"other{number}", 1) for number in range(50)])
    harness.follow(tables)
    history = harness.history()
    for values, where in (
        ({"symbol": "'b'"}, "symbol = 'a'"),
        ({"_deleted": "true"}, "symbol = 'c' AND version = 2 OR symbol = 'z'"),
        ({"symbol": "'x'"}, "symbol = 'y'"),
    ):
        history.update(updates={**values, "_mutation": "1"}, predicate=where)
    followed = harness.follow(tables)

    shown = [(row["symbol"], row["version"]) for row in harness.latest() if not row["symbol"].startswith("other")]
    assert shown == [("b", 7), ("c", 1), ("x", 1)]
    assert harness.latest() == harness.expected()
    assert followed is not None
    assert followed.mode == "exact"


def test_a_table_without_its_position_is_rebuilt(harness: KeyedHarness) -> None:
    tables = harness.tables()
    harness.append([tick("a", 1)])
    harness.follow(tables)
    for version in range(2, 5):
        harness.append([tick("a", version)])
    log = harness.root / paths.table("market", HISTORY) / "_delta_log"
    history = harness.history()
    history.create_checkpoint()
    (log / f"{history.version() - 1:020d}.json").unlink()
    followed = harness.follow()

    assert followed is not None
    assert (followed.mode, "no longer in the log" in followed.reason) == ("rebuilt", True)
    assert harness.latest() == harness.expected()


def test_a_file_removed_by_vacuum_causes_a_rebuild(harness: KeyedHarness) -> None:
    tables = harness.tables()
    harness.append([tick(f"s{number}", 1) for number in range(100)])
    harness.append([tick("b", 1)])
    harness.follow(tables)
    history = harness.history()
    history.delete("symbol = 'b'")
    for path in history.vacuum(0, dry_run=False, enforce_retention_duration=False):
        assert not (harness.root / paths.table("market", HISTORY) / path).exists()
    followed = harness.follow(tables)

    assert followed is not None
    assert followed.mode == "rebuilt"
    assert harness.latest() == harness.expected()


def test_a_table_changed_by_another_writer_is_rebuilt_by_the_next_owner(harness: KeyedHarness) -> None:
    harness.append([tick("a", 1)])
    harness.follow()
    harness.append([tick("a", 2), tick("b", 1)])
    harness.follow()
    harness.latest_table().delete("symbol = 'a'")
    followed = harness.follow()

    assert followed is not None
    assert followed.mode == "rebuilt"
    assert harness.latest() == harness.expected()
    assert harness.follow() is None


@pytest.mark.parametrize(
    "change", [{"by": ["symbol"]}, {"newest_by": ["price", "version"]}, {"deleted_when": {"op": "d"}}]
)
def test_another_declaration_is_built_from_the_history(tmp_path: Path, change: dict[str, Any]) -> None:
    harness = KeyedHarness(tmp_path)
    day = dt.date(2026, 1, 2)
    harness.append([tick("a", 1, price=Decimal(3)), tick("a", 2, price=Decimal(2)), tick("a", 3, day=day, op="d")])
    harness.follow()
    harness.spec = declared(**change)
    harness.follow()

    assert harness.latest() == harness.expected()


def test_columns_that_are_declared_later_are_added(harness: KeyedHarness) -> None:
    harness.append([tick("a", 1)])
    harness.follow()
    mapping = harness.spec.model_dump(mode="json", exclude_unset=True)
    mapping["tables"][0]["columns"].append({"name": "venue", "path": "venue", "type": "string"})
    harness.spec = type(harness.spec).model_validate(mapping)
    harness.history().alter.add_columns(stage_fields("venue"))
    harness.append([tick("b", 1, venue="X")])
    harness.follow()

    assert [(row["symbol"], row["venue"]) for row in harness.latest()] == [("a", None), ("b", "X")]


def stage_fields(name: str) -> list[Any]:
    from deltalake import Field
    from deltalake.schema import PrimitiveType

    return [Field(name, PrimitiveType("string"))]


def test_a_different_partitioning_is_rejected(harness: KeyedHarness) -> None:
    harness.append([tick("a", 1)])
    harness.follow()
    harness.spec = declared(partition_by=["event_date"], **{"table": LATEST}).model_copy()
    mapping = harness.spec.model_dump(mode="json", exclude_unset=True)
    mapping["tables"][0]["keyed"]["partition_by"] = ["day"]
    harness.spec = type(harness.spec).model_validate(mapping)

    with pytest.raises(ContractError, match="TABLE_PARTITIONING_DIFFERS"):
        harness.follow()


def test_a_partitioned_keyed_table_is_merged_within_its_partitions(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    mapping = harness.spec.model_dump(mode="json", exclude_unset=True)
    mapping["tables"][0]["keyed"]["partition_by"] = ["day"]
    harness.spec = type(harness.spec).model_validate(mapping)
    tables = harness.tables()
    days = [dt.date(2026, 1, number) for number in (1, 2, 3)]
    harness.append([tick("a", 1, day=day) for day in days])
    harness.follow(tables)
    before = set(harness.latest_table().file_uris())
    harness.append([tick("a", 2, day=days[1]), tick("b", 1, day=days[1])])
    harness.follow(tables)

    assert harness.latest() == harness.expected()
    assert len(before & set(harness.latest_table().file_uris())) == 2


def test_an_empty_string_is_no_key_of_a_partitioned_table(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    mapping = harness.spec.model_dump(mode="json", exclude_unset=True)
    mapping["tables"][0]["keyed"] |= {"by": ["symbol"], "partition_by": ["symbol"]}
    harness.spec = type(harness.spec).model_validate(mapping)
    tables = harness.tables()
    for version in range(2):
        harness.append([tick("", version), tick("a/b='", version)])
        harness.follow(tables)

    assert [(row["symbol"], row["version"]) for row in harness.latest()] == [("a/b='", 1)]


def test_a_former_owner_merges_nothing(harness: KeyedHarness) -> None:
    former = harness.tables()
    harness.append([tick("a", 1)])
    harness.follow(former)
    harness.append([tick("a", 2)])
    harness.follow(harness.tables())
    harness.append([tick("a", 3)])

    with pytest.raises(FencedError):
        harness.follow(former)
    assert [row["version"] for row in harness.latest()] == [2]


@pytest.mark.parametrize("how", ["newer", "exact", "rebuilt"])
def test_a_crash_around_a_merge_is_completed_by_the_next_process(
    harness: KeyedHarness, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.append([tick(f"s{number}", 1) for number in range(30)])
    if how != "rebuilt":
        harness.follow()
    harness.append([tick("a", 1), tick("s3", 5)])
    if how == "exact":
        harness.history().delete("symbol = 's4'")

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for method in ("merge", "_merge_by_delta_rs"):
        with monkeypatch.context() as patched:
            patched.setattr(KeyedMerge, method, dies)
            patched.setattr(KeyedTableCatchUp, "_replace", dies)
            with pytest.raises(KeyboardInterrupt):
                harness.follow()
    followed = harness.follow()

    assert followed is not None
    assert followed.mode == how
    assert harness.latest() == harness.expected()


@pytest.mark.parametrize("how", ["newer", "exact", "rebuilt"])
def test_more_rows_than_fit_in_memory_are_merged_in_parts(
    harness: KeyedHarness, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "BUFFERED_BYTES", 2_000)
    monkeypatch.setattr(merge, "BUFFERED_BYTES", 2_000)
    monkeypatch.setattr(merge, "KEYS_PER_PASS", 7)
    monkeypatch.setattr(merge, "MAX_LISTED_VALUES", 3)
    draw = random.Random(7)
    # Files as small as these are mostly overhead, of which a delete leaves little.
    monkeypatch.setattr(keyed_catchup, "_table_bytes", lambda table: 1 << 40)

    def some() -> list[dict[str, Any]]:
        return [tick(f"s{draw.randrange(60)}", draw.randrange(9), op=str(draw.randrange(9))) for _ in range(40)]

    for _ in range(4):
        harness.append(some())
    if how != "rebuilt":
        harness.follow()
    for _ in range(3):
        harness.append(some())
    if how == "exact":
        harness.history().delete("op = '4'")
    followed = harness.follow()

    assert followed is not None
    assert (followed.mode, followed.merges > 1) == (how, True)
    assert harness.latest() == harness.expected()


@pytest.fixture
def deleting(tmp_path: Path) -> KeyedHarness:
    made = KeyedHarness(tmp_path, declared(deleted_when={"op": "d"}))
    made.append([tick("a", 1), tick("b", 1)])
    made.append([tick("a", 2, op="d")])
    made.follow()
    return made


@pytest.fixture
def catalog(deleting: KeyedHarness) -> Catalog:
    return catalog_of(deleting.root, deleting.spec, lake=deleting.lake.storage)


def test_sql_shows_it_without_deleted_keys(catalog: Catalog) -> None:
    connection, names = connect(catalog)

    assert f"market.{LATEST}" in names
    assert connection.sql(f"SELECT symbol FROM market.{LATEST}").fetchall() == [("b",)]


def test_it_is_listed_with_its_health(deleting: KeyedHarness, catalog: Catalog) -> None:
    (table,) = (table for table in all_tables(deleting.lake, catalog) if table.name == LATEST)

    assert (table.kind, table.error) == ("keyed", "")
    assert table.health is not None
    assert table.health.rows == 2
    assert len({table.key for table in declared_tables(catalog)}) == len(declared_tables(catalog))


def test_maintenance_takes_its_write_turn(deleting: KeyedHarness, catalog: Catalog) -> None:
    optimized = optimized_tables(deleting.spec)[LATEST]

    assert optimized.needs_write_turn
    assert read_layout(deleting.lake, "market", optimized).has_mutable_rows
    assert LATEST in _select_tables(deleting.spec, None)
    assert LATEST in {result.target for result in remove_orphans(catalog, "market", dry_run=True)}


def test_it_is_not_restored_separately(deleting: KeyedHarness) -> None:
    with pytest.raises(ConfigError, match="Keyed, gold and live tables follow"):
        reject_mutable(deleting.spec, LATEST)


def test_a_damaged_one_is_rebuilt(deleting: KeyedHarness, catalog: Catalog) -> None:
    folder = deleting.root / paths.table("market", LATEST)
    next(folder.glob("*.parquet")).unlink()
    (damage,) = check_pipeline(catalog, "market", table=LATEST)

    assert "which rebuilds it from 'ticks'" in damage.repair
    shutil.move(folder, folder.with_name("aside"))
    deleting.follow()
    assert deleting.latest() == deleting.expected()
