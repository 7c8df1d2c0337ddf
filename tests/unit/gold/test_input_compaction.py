"""Inputs of gold are compacted between builds of a stream: no row changes, and no writer conflicts."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.locks.write_turn import TurnRecord
from deltaworks.gold import refresh_loop
from deltaworks.gold.refresh_loop import compact_inputs, compactable_inputs
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.testing import local_lake
from tests.unit.maintenance.table_data import DAILY, DAILY_SQL, ORDERS, SHOP, append, make, project

FILES = 6


@pytest.fixture
def spec(tmp_path: Path) -> PipelineSpec:
    return project(tmp_path, sql=DAILY_SQL, shop=SHOP + ORDERS + DAILY).pipeline("shop")


@pytest.fixture
def lake(tmp_path: Path, spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(refresh_loop, "MIN_FILES", FILES)
    return local_lake(tmp_path / "lake")


def rows(lake: Lake, key: str) -> list[str]:
    table = lake.rows(key)
    assert table is not None
    return sorted(map(str, table.to_pylist()))


def files(lake: Lake, key: str) -> int:
    opened = lake.open(key)
    assert opened is not None
    return len(opened.file_uris())


def merge(lake: Lake, spec: PipelineSpec, **options: object) -> int:
    return compact_inputs(lake, spec, spec.gold.tables, **options)


def test_partitions_with_many_small_files_become_one_file(lake: Lake, spec: PipelineSpec) -> None:
    key = make(lake, "shop", "orders", files=FILES, days=2)
    before = rows(lake, key)

    assert merge(lake, spec) == 2
    assert (rows(lake, key), files(lake, key)) == (before, 2)
    assert merge(lake, spec) == 0, "there is nothing more to merge"
    newest = next(commit_history(lake, key, newest=lake.open(key).version()))  # type: ignore[union-attr]
    assert newest.metadata["operation"] == "optimize", "so that nobody takes it for a change"


def test_a_partition_with_few_files_is_not_compacted(lake: Lake, spec: PipelineSpec) -> None:
    key = make(lake, "shop", "orders", files=FILES - 1, days=1)

    assert merge(lake, spec) == 0
    assert files(lake, key) == FILES - 1


def test_the_oldest_files_are_compacted_first(lake: Lake, spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    key = make(lake, "shop", "orders", files=FILES, days=1)
    opened = lake.open(key)
    assert opened is not None
    before = rows(lake, key)
    sizes = opened.get_add_actions(flatten=True)["size_bytes"].to_pylist()
    monkeypatch.setattr(refresh_loop, "MAX_MERGE_BYTES", 3 * max(sizes))

    assert merge(lake, spec) == 1
    assert (rows(lake, key), files(lake, key)) == (before, FILES - 2)


@pytest.mark.parametrize("state", ["requested", "granted"])
def test_a_table_with_a_requested_write_turn_is_not_compacted(lake: Lake, spec: PipelineSpec, state: str) -> None:
    key = make(lake, "shop", "orders", files=FILES, days=1)
    turn = TurnRecord(
        table="orders", turn="t", reason="reprocess", state=state, by="job", run="r", renewal=1, ttl_seconds=60,
        max_turn_seconds=600, requested_at="2026-03-01T00:00:00Z",
    )  # fmt: skip
    lake.objects.put(paths.turn_request("shop", "orders"), turn.encode())

    assert merge(lake, spec) == 0
    assert files(lake, key) == FILES


def test_without_the_lease_nothing_is_committed(lake: Lake, spec: PipelineSpec) -> None:
    key, looks = make(lake, "shop", "orders", files=FILES, days=1), iter([True, False, False])

    assert merge(lake, spec, should_continue=lambda: next(looks)) == 0
    assert files(lake, key) == FILES


def test_concurrent_appends_do_not_conflict(lake: Lake, spec: PipelineSpec) -> None:
    key, looks = make(lake, "shop", "orders", files=FILES, days=1), count()

    def land() -> bool:
        if next(looks) == 1:  # the first check is at the start, the second before the commit
            append(lake, key, 1)
        return True

    assert merge(lake, spec, should_continue=land) == 1
    assert files(lake, key) == 2, "what was merged, and what has landed behind it"


def test_mutable_tables_are_not_compacted() -> None:
    spec = load_catalog(skip_invalid=True).pipeline("engagement")
    mutable = {table.name for table in spec.tables if table.mutable is not None}

    assert mutable & {name for table in spec.gold.tables for name in table.reads}
    assert not mutable & {*compactable_inputs(spec, spec.gold.tables)}
