"""Swapping a table's content: readers see the old or the new one, and a copy is never the only one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ContractError, TransientError
from deltaworks.tables.commit import Step
from deltaworks.tables.files_commit import FilesCommit
from deltaworks.tables.lake import Lake, remove_folder
from deltaworks.tables.log import TableState, state_at
from deltaworks.tables.table_swap import reasons_against_swap, swap_content, verify_swap
from deltaworks.testing import local_lake, present

TABLE, SHADOW = "tables/shop/daily", "control/pipelines/shop/gold_shadows/daily/000001"
OLD = [{"day": "a", "n": 1}, {"day": "b", "n": 2}]
NEW = [{"day": "b", "n": 20, "kind": "x"}, {"day": "c", "n": 30, "kind": "y"}, {"day": "c", "n": 31, "kind": "x"}]
COMMIT = FilesCommit(step=Step("shop/gold_refresh/daily", 1), user_metadata="{}", operation="WRITE")
Rows = list[dict[str, Any]]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = local_lake(tmp_path / "lake")
    write(made, TABLE, OLD, by="day")
    write(made, SHADOW, NEW, by="kind")
    return made


def write(lake: Lake, key: str, rows: Rows, *, by: str, properties: Mapping[str, str] | None = None) -> None:
    data = pa.Table.from_pylist(rows)
    made = user_metadata(pipeline="shop", batch=0, operation="rebuild_gold")
    table = lake.ensure(key, data.schema, user_metadata=made, partition_by=[by], properties=properties)
    lake.append(table, key, data, step=Step("shop/build", len(rows)), user_metadata=made)


def opened(lake: Lake, key: str = TABLE) -> DeltaTable:
    return present(lake.open(key))


def content(lake: Lake, version: int | None = None) -> Rows:
    table = opened(lake)
    if version is not None:
        table.load_as_version(version)
    found: Rows = table.to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["day"], row["n"]))


def shadow(lake: Lake, objects: ObjectStore) -> TableState:
    return state_at(lake, objects, SHADOW)


def swap(lake: Lake, objects: ObjectStore, **options: Any) -> int:
    return swap_content(lake, objects, TABLE, shadow(lake, objects), commit=COMMIT, **options).version


def test_every_version_is_the_old_table_or_the_new_one_and_the_table_stays_the_same_one(
    lake: Lake, objects: ObjectStore
) -> None:
    before = opened(lake)

    version = swap(lake, objects)

    after = opened(lake)
    assert [content(lake, each) for each in range(1, version + 1)] == [OLD, NEW]
    assert after.metadata().partition_columns == ["kind"]
    assert after.metadata().id == before.metadata().id
    assert after.metadata().configuration == before.metadata().configuration
    assert version == before.version() + 1


def test_a_repeated_swap_is_committed_once(lake: Lake, objects: ObjectStore) -> None:
    first = swap_content(lake, objects, TABLE, shadow(lake, objects), commit=COMMIT)
    again = swap_content(lake, objects, TABLE, shadow(lake, objects), commit=COMMIT)

    assert (first.newly_committed, again.newly_committed, again.version) == (True, False, first.version)


def test_a_swap_interrupted_before_its_commit_changes_nothing(lake: Lake, objects: ObjectStore) -> None:
    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swap(lake, objects, before_commit=killed)
    assert content(lake) == OLD

    swap(lake, objects)

    assert content(lake) == NEW


def test_before_commit_sees_a_commit_that_the_swap_would_undo(lake: Lake, objects: ObjectStore) -> None:
    seen: list[int] = []

    def build_in_between() -> None:
        seen.append(opened(lake).version())
        if len(seen) == 1:
            write(lake, TABLE, [{"day": "z", "n": 9}] * 3, by="day")

    swap(lake, objects, before_commit=build_in_between)

    assert seen == [1, 2], "whoever may refuse the swap was asked again, with the other commit there"
    assert content(lake) == NEW


def test_every_swap_increments_the_version_that_fences_writers(lake: Lake, objects: ObjectStore) -> None:
    for ordinal in (1, 2):
        commit = replace(
            COMMIT, step=Step("shop/gold_refresh/daily", ordinal), fenced_app_ids=("shop/gold_build/daily",)
        )
        swap_content(lake, objects, TABLE, shadow(lake, objects), commit=commit)

    table = opened(lake)
    assert table.transaction_version("shop/gold_build/daily") == 2
    assert table.transaction_version("shop/gold_refresh/daily") == 2


def test_an_incomplete_copy_is_never_committed(lake: Lake, objects: ObjectStore) -> None:
    damaged = next(Path(lake.storage.prefix, SHADOW).glob("kind=x/*.parquet"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-10])

    with pytest.raises(TransientError, match="SWAP_COPY_DAMAGED"):
        swap(lake, objects)
    assert content(lake) == OLD

    damaged.write_bytes(whole)
    swap(lake, objects)
    assert content(lake) == NEW


def test_damaged_copies_are_repaired_before_the_source_is_removed(lake: Lake, objects: ObjectStore) -> None:
    version = swap(lake, objects)
    lost = next(Path(lake.storage.prefix, TABLE).glob("kind=y/*.parquet"))
    lost.unlink()

    verify_swap(lake, objects, TABLE, shadow(lake, objects), version=version)
    remove_folder(lake.storage, SHADOW)

    assert content(lake) == NEW
    assert not Path(lake.storage.prefix, SHADOW).exists()


def test_without_verification_the_only_complete_copy_may_be_removed(lake: Lake, objects: ObjectStore) -> None:
    swap(lake, objects)
    next(Path(lake.storage.prefix, TABLE).glob("kind=y/*.parquet")).unlink()

    remove_folder(lake.storage, SHADOW)

    with pytest.raises(OSError, match="kind=y"):
        content(lake)


def test_a_table_that_fails_verification_keeps_its_source(lake: Lake, objects: ObjectStore) -> None:
    version = swap(lake, objects)
    lake.ensure(SHADOW, pa.schema([]), user_metadata="{}").delete("kind = 'x'")

    with pytest.raises(ContractError, match="SWAP_UNVERIFIED"):
        verify_swap(lake, objects, TABLE, shadow(lake, objects), version=version)


def test_tables_with_unsupported_features_are_rejected(lake: Lake, objects: ObjectStore) -> None:
    write(lake, "tables/shop/checked", OLD, by="day")
    opened(lake, "tables/shop/checked").alter.add_constraint({"positive": "n > 0"})
    write(lake, "tables/shop/kept", OLD, by="day", properties={"delta.appendOnly": "true"})

    assert reasons_against_swap(lake, objects, TABLE) == []
    assert reasons_against_swap(lake, objects, "tables/shop/checked") == ["the constraint delta.constraints.positive"]
    assert reasons_against_swap(lake, objects, "tables/shop/kept") == ["delta.appendOnly"]
    assert reasons_against_swap(lake, objects, "tables/shop/none") == ["no table yet"]
