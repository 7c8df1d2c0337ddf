"""What a build would find to do, seen without a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import CommitProperties

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConfigError
from deltaworks.gold.inputs import BUILT_FROM, FINGERPRINT, pin_inputs
from deltaworks.gold.pending import pending_gold
from deltaworks.gold.table_build import plan_job
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from tests.unit.maintenance.made_tables import DAILY, DAILY_SQL, ORDERS, SHOP, append, compacted, make, project

ORDERS_KEY, DAILY_KEY = paths.table("shop", "orders"), paths.table("shop", "daily")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return project(tmp_path, sql=DAILY_SQL, shop=SHOP + ORDERS + DAILY)


@pytest.fixture
def lake(catalog: Catalog) -> Lake:
    return Lake(catalog.environment.lake)


def pending(catalog: Catalog) -> tuple[int, str]:
    (result,) = pending_gold(catalog, "shop")
    assert (result.table, result.skipped, result.version) == ("daily", True, None)
    return result.for_spark, result.reason


def built(catalog: Catalog, lake: Lake) -> None:
    """Let the gold table say that it was built from what is there now."""
    spec = catalog.pipeline("shop")
    (table,) = spec.gold.tables
    pinned = pin_inputs(lake, spec, table.reads)
    job = plan_job(catalog, spec, lake, table, pinned, key=DAILY_KEY)
    origin = {BUILT_FROM: job.built_from, FINGERPRINT: job.fingerprint}
    made = user_metadata(pipeline="shop", batch="", operation="rebuild_gold", **origin)
    opened = lake.open(DAILY_KEY)
    if opened is None:
        make(lake, "shop", "daily", files=1, days=1)
        opened = lake.open(DAILY_KEY)
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


def test_what_is_asked_for_is_work_whatever_changed(catalog: Catalog, lake: Lake) -> None:
    make(lake, "shop", "orders", files=1, days=1)
    built(catalog, lake)

    assert pending(catalog)[0] == 0
    assert pending_gold(catalog, "shop", full=True)[0].for_spark == 1
    with pytest.raises(ConfigError, match="GOLD_TABLE_UNKNOWN"):
        pending_gold(catalog, "shop", tables=["nothing"])
