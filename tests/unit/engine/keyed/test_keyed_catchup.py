"""A keyed table has the newest row of each key, whatever becomes of its history and of those who merge it."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.engine.keyed import keyed_catchup, latest_by_key, latest_rows
from deltaworks.engine.keyed.keyed_catchup import KeyedTableCatchUp
from deltaworks.engine.keyed.merge import KeyedMerge
from deltaworks.errors import ContractError, FencedError
from tests.unit.engine.keyed.keyed_stage import HISTORY, LATEST, KeyedStage, declared, tick


@pytest.fixture
def stage(tmp_path: Path) -> KeyedStage:
    return KeyedStage(tmp_path)


def test_the_newest_row_of_a_key_is_kept_whole(stage: KeyedStage) -> None:
    tags = [{"name": "é", "size": 1}, None]
    stage.append([tick("a", 1), tick("b", 1, price=Decimal("1.5"), tags=tags), tick("a", 2, price=Decimal("2.0001"))])
    stage.follow()

    assert stage.latest() == stage.owed()
    assert [(row["symbol"], row["version"], row["price"], row["tags"]) for row in stage.latest()] == [
        ("a", 2, Decimal("2.0001"), None),
        ("b", 1, Decimal("1.5000"), tags),
    ]


def test_a_late_row_that_is_older_changes_nothing(stage: KeyedStage) -> None:
    tables = stage.tables()
    stage.append([tick("a", 5)])
    stage.follow(tables)
    stage.append([tick("a", 3), tick("b", 1)])
    followed = stage.follow(tables)

    assert followed is not None
    assert (followed.mode, followed.rows) == ("newer", 1)
    assert [(row["symbol"], row["version"]) for row in stage.latest()] == [("a", 5), ("b", 1)]
    assert stage.latest() == stage.owed()


def test_of_rows_that_are_as_new_the_one_that_arrived_last_is_kept(stage: KeyedStage) -> None:
    tables = stage.tables()
    stage.append([tick("a", 1, op="first"), tick("a", 1, op="second")])
    stage.follow(tables)
    assert [row["op"] for row in stage.latest()] == ["second"]

    stage.append([tick("a", 1, op="third")])
    stage.follow(tables)
    assert [row["op"] for row in stage.latest()] == ["third"]


def test_null_is_the_oldest_and_a_row_without_a_key_stays_in_the_history(stage: KeyedStage) -> None:
    stage.append([tick("a", 1), tick("a", None), tick(None, 9), tick("b", None), tick("c", 1, day=None)])
    stage.follow()
    stage.append([tick("a", None), tick("b", -5)])
    stage.follow()

    assert [(row["symbol"], row["version"]) for row in stage.latest()] == [("a", 1), ("b", -5)]
    assert stage.latest() == stage.owed()


def test_a_key_is_deleted_by_its_newest_row_and_no_older_one_brings_it_back(tmp_path: Path) -> None:
    stage = KeyedStage(tmp_path, declared(deleted_when={"op": ["d", "drop"]}))
    tables = stage.tables()
    stage.append([tick("a", 1), tick("b", 1)])
    stage.append([tick("a", 3, op="d"), tick("b", 2, op="u")])
    stage.follow(tables)
    stage.append([tick("a", 2)])
    stage.follow(tables)

    assert [(row["symbol"], row["_deleted"]) for row in stage.latest()] == [("a", True), ("b", False)]
    assert stage.latest() == stage.owed()

    stage.append([tick("a", 4)])
    stage.follow(tables)
    assert [(row["symbol"], row["_deleted"]) for row in stage.latest()] == [("a", False), ("b", False)]


def test_nothing_is_committed_where_nothing_has_changed(stage: KeyedStage) -> None:
    tables = stage.tables()
    stage.append([tick("a", 1)])
    stage.follow(tables)
    version = stage.latest_table().version()

    assert stage.follow(tables) is None
    stage.history().optimize.compact()
    assert stage.follow(tables) is None
    assert stage.latest_table().version() == version
    # A new owner fences its predecessor, and merges nothing.
    assert stage.follow() is None
    assert stage.latest_table().version() == version + 1


def test_a_history_without_changes_of_rows_does_not_outgrow_its_log(
    stage: KeyedStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_catchup, "COMMITS_WITHOUT_ROWS", 3)
    tables = stage.tables()
    stage.append([tick("a", 1)])
    stage.follow(tables)
    for _ in range(3):
        stage.append([])
    followed = stage.follow(tables)

    assert followed is not None
    assert followed.rows == 0
    assert stage.follow(stage.tables()) is None


@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_batches_and_replays_do_not_matter(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    rows = [tick(f"s{draw.randrange(30)}", draw.randrange(5), op=str(number)) for number in range(120)]
    whole = KeyedStage(tmp_path / "whole")
    whole.append(rows)
    whole.follow()

    numbered = [{**row, "_seq": 0, "_position": position} for position, row in enumerate(rows)]
    batches = [numbered[start : start + 20] for start in range(0, len(numbered), 20)]
    draw.shuffle(batches)
    parts = KeyedStage(tmp_path / "parts")
    for number, batch in enumerate(batches):
        parts.append(batch)
        parts.append(batch, batch=number)
        if draw.random() < 0.5:
            parts.follow()
    parts.follow()

    ours = [{**row, "_batch_id": 0} for row in parts.latest()]
    assert ours == whole.latest() == whole.owed()


def test_rows_that_leave_the_history_leave_the_keyed_table(stage: KeyedStage) -> None:
    stage.append([tick("a", 1, op="x"), tick("a", 2, op="y"), tick("b", 1, op="y"), tick("c", 1, op="x")])
    tables = stage.tables()
    stage.follow(tables)
    stage.history().delete("op = 'y'")
    followed = stage.follow(tables)

    assert [(row["symbol"], row["version"]) for row in stage.latest()] == [("a", 1), ("c", 1)]
    assert stage.latest() == stage.owed()
    assert followed is not None
    assert followed.mode in ("exact", "rebuilt")


def test_a_history_that_goes_back_takes_the_keyed_table_along(stage: KeyedStage) -> None:
    tables = stage.tables()
    for version in range(4):
        stage.append([tick("a", version), tick(f"s{version}", 0)])
        stage.follow(tables)
    stage.history().restore(2)
    stage.follow(tables)

    assert stage.latest() == stage.owed()
    assert {row["symbol"] for row in stage.latest()} == {"a", "s0", "s1"}


def test_values_that_mutations_change_are_looked_up_and_deleted_rows_do_not_count(tmp_path: Path) -> None:
    stage = KeyedStage(tmp_path, declared(mutable=True, by=["org_id", "symbol"]))
    tables = stage.tables()
    stage.append([tick("a", 1), tick("b", 7), tick("c", 1), tick("c", 2), tick("z", 1), tick("y", 1)])
    stage.append([tick(f"other{number}", 1) for number in range(50)])
    stage.follow(tables)
    history = stage.history()
    for values, where in (
        ({"symbol": "'b'"}, "symbol = 'a'"),
        ({"_deleted": "true"}, "symbol = 'c' AND version = 2 OR symbol = 'z'"),
        ({"symbol": "'x'"}, "symbol = 'y'"),
    ):
        history.update(updates={**values, "_mutation": "1"}, predicate=where)
    followed = stage.follow(tables)

    shown = [(row["symbol"], row["version"]) for row in stage.latest() if not row["symbol"].startswith("other")]
    assert shown == [("b", 7), ("c", 1), ("x", 1)]
    assert stage.latest() == stage.owed()
    assert followed is not None
    assert followed.mode == "exact"


def test_a_table_whose_position_is_gone_is_built_anew(stage: KeyedStage) -> None:
    tables = stage.tables()
    stage.append([tick("a", 1)])
    stage.follow(tables)
    for version in range(2, 5):
        stage.append([tick("a", version)])
    log = stage.root / paths.table("market", HISTORY) / "_delta_log"
    history = stage.history()
    history.create_checkpoint()
    (log / f"{history.version() - 1:020d}.json").unlink()
    followed = stage.follow()

    assert followed is not None
    assert (followed.mode, "no longer in the log" in followed.reason) == ("rebuilt", True)
    assert stage.latest() == stage.owed()


def test_a_file_that_vacuum_has_removed_makes_a_rebuild(stage: KeyedStage) -> None:
    tables = stage.tables()
    stage.append([tick(f"s{number}", 1) for number in range(100)])
    stage.append([tick("b", 1)])
    stage.follow(tables)
    history = stage.history()
    history.delete("symbol = 'b'")
    for path in history.vacuum(0, dry_run=False, enforce_retention_duration=False):
        assert not (stage.root / paths.table("market", HISTORY) / path).exists()
    followed = stage.follow(tables)

    assert followed is not None
    assert followed.mode == "rebuilt"
    assert stage.latest() == stage.owed()


def test_what_somebody_else_has_made_of_the_rows_is_built_anew_by_the_next_owner(stage: KeyedStage) -> None:
    stage.append([tick("a", 1)])
    stage.follow()
    stage.append([tick("a", 2), tick("b", 1)])
    stage.follow()
    stage.latest_table().delete("symbol = 'a'")
    followed = stage.follow()

    assert followed is not None
    assert followed.mode == "rebuilt"
    assert stage.latest() == stage.owed()
    assert stage.follow() is None


@pytest.mark.parametrize(
    "change", [{"by": ["symbol"]}, {"newest_by": ["price", "version"]}, {"deleted_when": {"op": "d"}}]
)
def test_another_declaration_is_built_from_the_history(tmp_path: Path, change: dict[str, Any]) -> None:
    stage = KeyedStage(tmp_path)
    day = dt.date(2026, 1, 2)
    stage.append([tick("a", 1, price=Decimal(3)), tick("a", 2, price=Decimal(2)), tick("a", 3, day=day, op="d")])
    stage.follow()
    stage.spec = declared(**change)
    stage.follow()

    assert stage.latest() == stage.owed()


def test_columns_that_are_declared_later_are_added(stage: KeyedStage) -> None:
    stage.append([tick("a", 1)])
    stage.follow()
    mapping = stage.spec.model_dump(mode="json", exclude_unset=True)
    mapping["tables"][0]["columns"].append({"name": "venue", "path": "venue", "type": "string"})
    stage.spec = type(stage.spec).model_validate(mapping)
    stage.history().alter.add_columns(stage_fields("venue"))
    stage.append([tick("b", 1, venue="X")])
    stage.follow()

    assert [(row["symbol"], row["venue"]) for row in stage.latest()] == [("a", None), ("b", "X")]


def stage_fields(name: str) -> list[Any]:
    from deltalake import Field
    from deltalake.schema import PrimitiveType

    return [Field(name, PrimitiveType("string"))]


def test_another_partitioning_is_refused(stage: KeyedStage) -> None:
    stage.append([tick("a", 1)])
    stage.follow()
    stage.spec = declared(partition_by=["event_date"], **{"table": LATEST}).model_copy()
    mapping = stage.spec.model_dump(mode="json", exclude_unset=True)
    mapping["tables"][0]["keyed"]["partition_by"] = ["day"]
    stage.spec = type(stage.spec).model_validate(mapping)

    with pytest.raises(ContractError, match="TABLE_PARTITIONING_DIFFERS"):
        stage.follow()


def test_a_partitioned_keyed_table_is_merged_within_its_partitions(tmp_path: Path) -> None:
    stage = KeyedStage(tmp_path)
    mapping = stage.spec.model_dump(mode="json", exclude_unset=True)
    mapping["tables"][0]["keyed"]["partition_by"] = ["day"]
    stage.spec = type(stage.spec).model_validate(mapping)
    tables = stage.tables()
    days = [dt.date(2026, 1, number) for number in (1, 2, 3)]
    stage.append([tick("a", 1, day=day) for day in days])
    stage.follow(tables)
    before = set(stage.latest_table().file_uris())
    stage.append([tick("a", 2, day=days[1]), tick("b", 1, day=days[1])])
    stage.follow(tables)

    assert stage.latest() == stage.owed()
    assert len(before & set(stage.latest_table().file_uris())) == 2


def test_an_empty_text_is_no_key_where_it_is_a_partition(tmp_path: Path) -> None:
    stage = KeyedStage(tmp_path)
    mapping = stage.spec.model_dump(mode="json", exclude_unset=True)
    mapping["tables"][0]["keyed"] |= {"by": ["symbol"], "partition_by": ["symbol"]}
    stage.spec = type(stage.spec).model_validate(mapping)
    tables = stage.tables()
    for version in range(2):
        stage.append([tick("", version), tick("a/b='", version)])
        stage.follow(tables)

    assert [(row["symbol"], row["version"]) for row in stage.latest()] == [("a/b='", 1)]


def test_a_former_owner_merges_nothing(stage: KeyedStage) -> None:
    former = stage.tables()
    stage.append([tick("a", 1)])
    stage.follow(former)
    stage.append([tick("a", 2)])
    stage.follow(stage.tables())
    stage.append([tick("a", 3)])

    with pytest.raises(FencedError):
        stage.follow(former)
    assert [row["version"] for row in stage.latest()] == [2]


@pytest.mark.parametrize("how", ["newer", "exact", "rebuilt"])
def test_a_process_that_dies_around_a_merge_leaves_it_to_the_next(
    stage: KeyedStage, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.append([tick(f"s{number}", 1) for number in range(30)])
    if how != "rebuilt":
        stage.follow()
    stage.append([tick("a", 1), tick("s3", 5)])
    if how == "exact":
        stage.history().delete("symbol = 's4'")

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for method in ("merge", "_merge_by_delta_rs"):
        with monkeypatch.context() as patched:
            patched.setattr(KeyedMerge, method, dies)
            patched.setattr(KeyedTableCatchUp, "_replace", dies)
            with pytest.raises(KeyboardInterrupt):
                stage.follow()
    followed = stage.follow()

    assert followed is not None
    assert followed.mode == how
    assert stage.latest() == stage.owed()


@pytest.mark.parametrize("how", ["newer", "exact", "rebuilt"])
def test_more_than_is_held_in_memory_is_merged_in_parts(
    stage: KeyedStage, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest_rows, "BUFFERED_BYTES", 2_000)
    monkeypatch.setattr(latest_by_key, "BUFFERED_BYTES", 2_000)
    monkeypatch.setattr(latest_by_key, "KEYS_PER_PASS", 7)
    monkeypatch.setattr(latest_by_key, "MAX_LISTED_VALUES", 3)
    draw = random.Random(7)
    # Files as small as these are mostly overhead, of which a delete leaves little.
    monkeypatch.setattr(keyed_catchup, "_table_bytes", lambda table: 1 << 40)

    def some() -> list[dict[str, Any]]:
        return [tick(f"s{draw.randrange(60)}", draw.randrange(9), op=str(draw.randrange(9))) for _ in range(40)]

    for _ in range(4):
        stage.append(some())
    if how != "rebuilt":
        stage.follow()
    for _ in range(3):
        stage.append(some())
    if how == "exact":
        stage.history().delete("op = '4'")
    followed = stage.follow()

    assert followed is not None
    assert (followed.mode, followed.merges > 1) == (how, True)
    assert stage.latest() == stage.owed()
