"""Notifications between two versions of a table, read only from its log, and the metadata of a merge's commit."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from deltaworks.errors import ContractError
from deltaworks.mutations.commits import engine_of, merge_metric
from deltaworks.mutations.notifications import all_notified_changes, notified_changes
from deltaworks.specs.table import TableSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import CommitInfo
from deltaworks.testing import append_rows, declare_table, present

KEY, DAY = "tables/engagement/notifications", dt.date(2026, 3, 1)
TOLD = TableSpec.model_validate(
    declare_table(
        "notifications",
        "org_id string",
        "engagement_date date",
        announces={"table": "activities"},
        partition_by=["org_id", "ingested_date"],
    )
)


def tell(lake: Lake, step: int, *rows: tuple[str, int | None, str, int], org_partition: bool = True) -> int:
    """One commit of notifications: (organisation, days after DAY, kind, batch). Its version."""
    schema = arrow_schema(TOLD.column_types())
    partition_by = ["org_id", "ingested_date"] if org_partition else []
    filled: list[dict[str, Any]] = [
        {
            "org_id": org,
            "engagement_date": None if day is None else DAY + dt.timedelta(days=day),
            "ingested_date": DAY,
            "change": "insert",
            "keys": ["k"],
            "batch": batch,
            "batch_kind": kind,
        }
        for org, day, kind, batch in rows
    ]
    return append_rows(lake, KEY, filled, schema=schema, number=step, partition_by=partition_by)


def opened(lake: Lake) -> DeltaTable:
    return present(lake.open(KEY))


def test_batches_organisations_and_dates_are_those_of_the_commits_in_between(lake: Lake) -> None:
    first = tell(lake, 1, ("a", 0, "stream", 1))
    tell(lake, 2, ("a", 3, "stream", 2), ("b", 1, "stream", 2))
    last = tell(lake, 3, ("b", None, "mutation", 1), ("b", 2, "mutation", 1))
    tell(lake, 4, ("c", 9, "stream", 3))

    found = notified_changes(lake, KEY, TOLD, after=first, up_to=last)

    assert found.batches == {"stream": {2}, "mutation": {1}}
    assert found.orgs == {"a", "b"}
    assert found.dates == {"engagement_date": {DAY + dt.timedelta(days=n) for n in (1, 2, 3)} | {None}}
    assert not notified_changes(lake, KEY, TOLD, after=last, up_to=last)
    ever = all_notified_changes(lake, KEY, TOLD, opened(lake))
    assert ever.batches == {"stream": {1, 2, 3}, "mutation": {1}}


def test_a_file_whose_statistics_name_no_batch_is_opened(lake: Lake) -> None:
    version = tell(lake, 1, ("a", 0, "stream", 1), ("b", 0, "mutation", 7), ("b", 1, "stream", 2), org_partition=False)

    found = notified_changes(lake, KEY, TOLD, after=-1, up_to=version)

    assert found.batches == {"stream": {1, 2}, "mutation": {7}}
    assert found.orgs is None


def test_dates_without_statistics_are_unbounded(lake: Lake) -> None:
    version = tell(lake, 1, ("a", None, "stream", 1))

    assert notified_changes(lake, KEY, TOLD, after=-1, up_to=version).dates == {"engagement_date": None}


def test_compacted_files_give_no_new_notifications(lake: Lake) -> None:
    first = tell(lake, 1, ("a", 0, "stream", 1))
    tell(lake, 2, ("a", 0, "stream", 2))
    opened(lake).optimize.compact()
    version = opened(lake).version()

    assert version == first + 2
    assert notified_changes(lake, KEY, TOLD, after=first, up_to=version).batches == {"stream": {2}}
    assert not notified_changes(lake, KEY, TOLD, after=first + 1, up_to=version)
    assert all_notified_changes(lake, KEY, TOLD, opened(lake)).batches == {"stream": {1, 2}}


def test_a_vacuumed_file_is_reported(lake: Lake, tmp_path: Path) -> None:
    version = tell(lake, 1, ("a", 0, "stream", 1), ("a", 0, "stream", 2))
    for file in (Path(lake.storage.prefix, KEY)).rglob("*.parquet"):
        file.unlink()

    with pytest.raises(ContractError, match="CHANGES_EXPIRED"):
        notified_changes(lake, KEY, TOLD, after=-1, up_to=version)


def test_a_commit_missing_from_the_log_is_reported(lake: Lake, tmp_path: Path) -> None:
    first = tell(lake, 1, ("a", 0, "stream", 1))
    version = tell(lake, 2, ("a", 0, "stream", 2))
    (Path(lake.storage.prefix, KEY) / "_delta_log" / f"{version:020d}.json").unlink()

    with pytest.raises(ContractError, match="CHANGES_EXPIRED"):
        notified_changes(lake, KEY, TOLD, after=first, up_to=version)


def test_removed_notifications_invalidate_earlier_positions(lake: Lake) -> None:
    first = tell(lake, 1, ("a", 0, "stream", 1))
    tell(lake, 2, ("b", 0, "stream", 2))
    opened(lake).delete("org_id = 'b'")

    with pytest.raises(ContractError, match="CHANGES_STARTED_OVER"):
        notified_changes(lake, KEY, TOLD, after=first, up_to=opened(lake).version())


def commit(engine: str, metrics: dict[str, Any]) -> CommitInfo:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return CommitInfo(1, "MERGE", at, {}, metrics, changes_rows=True, engine=engine)


@pytest.mark.parametrize(
    ("made", "engine"),
    [
        (commit("Apache-Spark/4.2.0 Delta-Lake/4.1.0", {"numTargetRowsUpdated": "12"}), "spark"),
        (commit("delta-rs:py-1.6.6", {"num_target_rows_updated": 12}), "delta_rs"),
    ],
)
def test_both_engines_report_the_same_metrics(made: CommitInfo, engine: str) -> None:
    assert merge_metric(made, "numTargetRowsUpdated") == 12
    assert merge_metric(made, "numTargetFilesAdded") == 0
    assert engine_of(made) == engine


def test_a_missing_commit_has_no_metrics() -> None:
    assert (merge_metric(None, "numTargetRowsUpdated"), engine_of(None)) == (0, "")
