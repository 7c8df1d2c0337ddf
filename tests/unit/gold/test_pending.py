"""Pending gold builds are found without a JVM."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from deltalake import CommitProperties

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConfigError
from deltaworks.gold.input_views import BUILT_FROM, FINGERPRINT, pin_inputs
from deltaworks.gold.refresh import pending_gold
from deltaworks.gold.table_build import plan_job
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
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
    (tmp_path / "project" / "include" / "pipelines" / "board").mkdir(parents=True)
    (tmp_path / "project" / "include" / "pipelines" / "board" / "weekly.sql").write_text(
        "SELECT event_date FROM shop__daily"
    )
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
