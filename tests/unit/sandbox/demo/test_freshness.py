"""The age of an object in bronze and in gold, computed from the log, the ledger and the commits of gold."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.provenance import user_metadata
from deltaworks.sources.objects.file_event_log import file_events_key
from deltaworks.specs.project import load_catalog
from sandbox.demo.freshness import ObjectAge, compute_freshness, object_ages
from tests.unit.specs.conftest import ENVIRONMENT, PIPELINE, write_project

GOLD = """\
gold:
  tables:
    - {name: per_minute, sql: per_minute.sql, reads: [orders], partition_by: event_date, refresh_seconds: 30}
"""
Rows = list[dict[str, Any]]


def age(landed_after: float, bronze: float, gold: float | None) -> ObjectAge:
    landed_at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=landed_after)
    return ObjectAge(landed_at, bronze, gold)


def test_percentiles_are_of_the_objects_that_are_in_gold() -> None:
    freshness = compute_freshness("shop", [age(second, 10, 20 + second) for second in range(101)])

    assert freshness is not None
    assert (freshness.objects, freshness.bronze_p95_seconds) == (101, 10)
    assert (freshness.gold_p50_seconds, freshness.gold_p95_seconds, freshness.gold_p99_seconds) == (70, 115, 119)
    assert compute_freshness("shop", [age(0, 10, None)]) is None
    assert compute_freshness("shop", []) is None


def test_what_landed_while_streams_were_starting_can_be_left_out() -> None:
    ages = [age(0, 90, 200), age(119, 80, 100), age(120, 5, 30), age(130, 5, 30)]

    steady = compute_freshness("shop", ages, start_seconds=120)

    assert steady is not None
    assert (steady.objects, steady.bronze_p99_seconds, steady.gold_p99_seconds) == (2, 5, 30)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = write_project(
        tmp_path / "project",
        environment=ENVIRONMENT.replace("file:///lake", f"file://{tmp_path}/lake"),
        pipeline=PIPELINE.replace("max_bytes", "prefix: shop/\n  max_bytes") + GOLD,
    )
    (root / "include" / "pipelines" / "shop" / "per_minute.sql").write_text("SELECT event_date FROM orders")
    return root


def test_an_object_is_as_old_as_the_batch_and_the_build_that_took_it(project: Path, tmp_path: Path) -> None:
    catalog, now = load_catalog(root=project), utc_now()

    def write(key: str, rows: Rows, **metadata: Any) -> None:
        properties = CommitProperties(custom_metadata={"userMetadata": user_metadata(**metadata)}) if metadata else None
        table = pa.Table.from_pylist(rows)
        write_deltalake(f"{tmp_path}/lake/{key}", table, mode="append", commit_properties=properties)

    landed = {1: "shop/a", 2: "shop/b", 3: "other/c", 4: "shop/d", 5: "shop/e"}
    at = {seq: now - dt.timedelta(seconds=100 - 10 * seq) for seq in landed}
    write(file_events_key("landing"), [{"seq": seq, "key": key, "event_time": at[seq]} for seq, key in landed.items()])
    # Batch 1 has brought nothing for the table, so that what it took is there since batch 0.
    batches = [(0, 1, 2, 7), (1, 3, 4, None)]
    write(
        paths.pipeline_control("shop", "checkpoint_store"),
        [
            {
                "batch_id": batch,
                "completed_at": now - dt.timedelta(seconds=40 - 10 * batch),
                "source_metadata": json.dumps({"first_seq": first, "last_seq": last}),
            }
            for batch, first, last, _ in batches
        ],
    )
    write(
        paths.pipeline_control("shop", "batch_metadata_store"),
        [{"batch_id": batch, "table_name": "orders", "delta_version": v} for batch, *_, v in batches if v is not None],
    )
    assert object_ages(catalog, "shop") == [], "gold is not there yet"
    for read in (6, 7, 8):
        built = {"pipeline": "shop", "batch": read, "operation": "gold", "built_from": {"orders": read}}
        write(paths.table("shop", "per_minute"), [{"event_date": now.date()}], **built)

    ages = object_ages(catalog, "shop")

    assert [(one.landed_at, one.bronze_seconds) for one in ages] == [(at[1], 50.0), (at[2], 40.0), (at[4], 30.0)]
    in_gold = [one.gold_seconds for one in ages]
    assert all(seconds is not None for seconds in in_gold)
    assert in_gold[0] - in_gold[1] == pytest.approx(10, abs=0.01)  # type: ignore[operator]
    assert 90 <= in_gold[0] <= 150  # type: ignore[operator]
