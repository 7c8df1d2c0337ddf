"""Pending gold builds are found, and inputs of gold compacted between builds, without a JVM."""

from __future__ import annotations

import datetime as dt
from itertools import count
from pathlib import Path

import pytest
from deltalake import CommitProperties

from deltaworks.control import paths
from deltaworks.control.locks.write_turn import TurnRecord
from deltaworks.control.objects import LocalObjects
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConfigError
from deltaworks.gold import refresh_loop
from deltaworks.gold.pinned_inputs import BUILT_FROM, FINGERPRINT, pin_inputs
from deltaworks.gold.refresh import pending_gold
from deltaworks.gold.refresh_loop import compact_inputs, compactable_inputs
from deltaworks.gold.table_build import plan_job
from deltaworks.operations.base import OperationContext, imported_look
from deltaworks.operations.registry import get_operation
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.testing import local_lake, present, write_files
from tests.unit.maintenance.table_data import DAILY, DAILY_SQL, FIRST, ORDERS, SHOP, append, compacted, make, project

ORDERS_KEY, DAILY_KEY = paths.table("shop", "orders"), paths.table("shop", "daily")
#: A pipeline that reads the shop's gold.
BOARD = (
    SHOP.replace("pipeline: shop", "pipeline: board")
    + ORDERS
    + "gold: {tables: [{name: weekly, sql: weekly.sql, reads: [shop.daily], partition_by: event_date}]}\n"
)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return project(tmp_path, sql=DAILY_SQL, shop=SHOP + ORDERS + DAILY)


@pytest.fixture
def lake(catalog: Catalog) -> Lake:
    return Lake(catalog.environment.lake)


def pending(catalog: Catalog) -> tuple[int, str]:
    (result,) = pending_gold(catalog, "shop")
    assert (result.table, result.skipped, result.version) == ("daily", True, None)
    return result.spark_work_count, result.reason


def built(catalog: Catalog, lake: Lake, pipeline: str = "shop") -> None:
    """Records that a gold table was built from the current inputs."""
    spec = catalog.pipeline(pipeline)
    (table,) = spec.gold.tables
    key, pinned = paths.table(pipeline, table.name), pin_inputs(lake, spec, table.reads)
    job = plan_job(catalog, spec, lake, table, pinned, key=key)
    origin = {BUILT_FROM: job.built_from, FINGERPRINT: job.fingerprint}
    made = user_metadata(pipeline=pipeline, batch="", operation="rebuild_gold", **origin)
    opened = lake.open(key)
    if opened is None:
        make(lake, pipeline, table.name, files=1, days=1)
        opened = lake.open(key)
    assert opened is not None
    opened.create_write_transaction(
        [],
        mode="append",
        schema=opened.schema(),
        partition_by=opened.metadata().partition_columns,
        commit_properties=CommitProperties(custom_metadata={"userMetadata": made}),
    )


def test_there_is_work_before_the_first_build_and_after_new_rows_and_none_in_between(
    catalog: Catalog, lake: Lake
) -> None:
    noted = LocalObjects(Path(catalog.environment.lake.prefix))
    assert pending(catalog) == (0, "none of its inputs exists yet")
    make(lake, "shop", "orders", files=2, days=2)
    assert pending(catalog) == (1, "it does not exist yet")
    assert noted.get(paths.gold_state("shop", "daily")) is None

    built(catalog, lake)
    assert pending(catalog)[0] == 0
    assert noted.get(paths.gold_state("shop", "daily")) is not None
    compacted(lake, ORDERS_KEY, "night")
    assert pending(catalog)[0] == 0, "the same rows in other files"

    append(lake, ORDERS_KEY, 1, days=[1])
    assert pending(catalog)[0] == 1


def test_requested_builds_are_work_without_changes(catalog: Catalog, lake: Lake) -> None:
    make(lake, "shop", "orders", files=1, days=1)
    built(catalog, lake)

    assert pending(catalog)[0] == 0
    assert pending_gold(catalog, "shop", full=True)[0].spark_work_count == 1
    with pytest.raises(ConfigError, match="GOLD_TABLE_UNKNOWN"):
        pending_gold(catalog, "shop", tables=["nothing"])


def test_gold_of_another_pipeline_is_an_input_after_its_first_build(tmp_path: Path) -> None:
    write_files(tmp_path, {"project/include/pipelines/board/weekly.sql": "SELECT event_date FROM shop__daily"})
    catalog = project(tmp_path, sql=DAILY_SQL, shop=SHOP + ORDERS + DAILY, board=BOARD)
    lake, board = Lake(catalog.environment.lake), catalog.pipeline("board")

    def work() -> tuple[int, str]:
        (result,) = pending_gold(catalog, "board")
        return result.spark_work_count, result.reason

    assert work() == (0, "input shop.daily is not built yet")
    make(lake, "shop", "orders", files=1, days=2)
    built(catalog, lake)
    assert work() == (1, "it does not exist yet")
    built(catalog, lake, "board")
    assert work() == (0, "its inputs have not changed")

    append(lake, DAILY_KEY, 1, days=[1])

    assert work()[0] == 1
    pinned = pin_inputs(lake, board, ["shop.daily"])
    job = plan_job(catalog, board, lake, board.gold.tables[0], pinned, key=paths.table("board", "weekly"))
    assert job.plan.output_dates == {FIRST + dt.timedelta(days=1)}
    assert job.built_from.keys() == {"shop.daily"}


def test_a_scheduled_build_has_work_if_its_tables_or_gold_that_reads_them_or_a_reference_changed(
    tmp_path: Path,
) -> None:
    write_files(tmp_path, {"project/include/pipelines/board/weekly.sql": "SELECT event_date FROM shop__daily"})
    catalog = project(tmp_path, sql=DAILY_SQL, shop=SHOP + ORDERS + DAILY, board=BOARD)
    lake = Lake(catalog.environment.lake)

    def work(pipeline: str) -> tuple[int, str]:
        operation = get_operation("rebuild_gold")
        context = OperationContext(operation=operation, catalog=catalog, subject=pipeline)
        look = imported_look(operation.look)(context, operation.options_model()())
        return look.work, look.reason

    assert work("shop") == work("board") == (0, "nothing to build")
    make(lake, "shop", "orders", files=1, days=2)
    assert work("shop") == (1, "daily to build")
    built(catalog, lake)
    assert work("shop") == (1, "board.weekly of another pipeline to build")
    assert work("board") == (1, "weekly to build")
    built(catalog, lake, "board")
    assert work("shop") == work("board") == (0, "nothing to build")


FILES = 6


@pytest.fixture
def spec(tmp_path: Path) -> PipelineSpec:
    return project(tmp_path, sql=DAILY_SQL, shop=SHOP + ORDERS + DAILY).pipeline("shop")


@pytest.fixture
def eager_lake(tmp_path: Path, spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(refresh_loop, "MIN_FILES", FILES)
    return local_lake(tmp_path / "lake")


def rows(eager_lake: Lake, key: str) -> list[str]:
    table = present(eager_lake.rows(key))
    return sorted(map(str, table.to_pylist()))


def files(eager_lake: Lake, key: str) -> int:
    return len(present(eager_lake.open(key)).file_uris())


def merge(eager_lake: Lake, spec: PipelineSpec, **options: object) -> int:
    return compact_inputs(eager_lake, spec, spec.gold.tables, **options)


def test_partitions_with_many_small_files_become_one_file(eager_lake: Lake, spec: PipelineSpec) -> None:
    key = make(eager_lake, "shop", "orders", files=FILES, days=2)
    before = rows(eager_lake, key)

    assert merge(eager_lake, spec) == 2
    assert (rows(eager_lake, key), files(eager_lake, key)) == (before, 2)
    assert merge(eager_lake, spec) == 0, "there is nothing more to merge"
    newest = next(commit_history(eager_lake, key, newest=eager_lake.open(key).version()))  # type: ignore[union-attr]
    assert newest.metadata["operation"] == "optimize", "so that nobody takes it for a change"


def test_a_partition_with_few_files_is_not_compacted(eager_lake: Lake, spec: PipelineSpec) -> None:
    key = make(eager_lake, "shop", "orders", files=FILES - 1, days=1)

    assert merge(eager_lake, spec) == 0
    assert files(eager_lake, key) == FILES - 1


def test_the_oldest_files_are_compacted_first(
    eager_lake: Lake, spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make(eager_lake, "shop", "orders", files=FILES, days=1)
    opened = present(eager_lake.open(key))
    before = rows(eager_lake, key)
    sizes = opened.get_add_actions(flatten=True)["size_bytes"].to_pylist()
    monkeypatch.setattr(refresh_loop, "MAX_MERGE_BYTES", 3 * max(sizes))

    assert merge(eager_lake, spec) == 1
    assert (rows(eager_lake, key), files(eager_lake, key)) == (before, FILES - 2)


@pytest.mark.parametrize("state", ["requested", "granted"])
def test_a_table_with_a_requested_write_turn_is_not_compacted(eager_lake: Lake, spec: PipelineSpec, state: str) -> None:
    key = make(eager_lake, "shop", "orders", files=FILES, days=1)
    turn = TurnRecord(
        table="orders", turn="t", reason="reprocess", state=state, by="job", run="r", renewal=1, ttl_seconds=60,
        max_turn_seconds=600, requested_at="2026-03-01T00:00:00Z",
    )  # fmt: skip
    eager_lake.objects.put(paths.turn_request("shop", "orders"), turn.encode())

    assert merge(eager_lake, spec) == 0
    assert files(eager_lake, key) == FILES


def test_without_the_lease_nothing_is_committed(eager_lake: Lake, spec: PipelineSpec) -> None:
    key, looks = make(eager_lake, "shop", "orders", files=FILES, days=1), iter([True, False, False])

    assert merge(eager_lake, spec, should_continue=lambda: next(looks)) == 0
    assert files(eager_lake, key) == FILES


def test_concurrent_appends_do_not_conflict(eager_lake: Lake, spec: PipelineSpec) -> None:
    key, looks = make(eager_lake, "shop", "orders", files=FILES, days=1), count()

    def land() -> bool:
        if next(looks) == 1:  # the first check is at the start, the second before the commit
            append(eager_lake, key, 1)
        return True

    assert merge(eager_lake, spec, should_continue=land) == 1
    assert files(eager_lake, key) == 2, "what was merged, and what has landed behind it"


def test_mutable_tables_are_not_compacted() -> None:
    spec = load_catalog(skip_invalid=True).pipeline("engagement")
    mutable = {table.name for table in spec.tables if table.mutable is not None}

    assert mutable & {name for table in spec.gold.tables for name in table.reads}
    assert not mutable & {*compactable_inputs(spec, spec.gold.tables)}
