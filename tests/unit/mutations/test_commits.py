"""The metadata of a merge's commit is equal for both engines."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from deltaworks.mutations.commits import engine_of, merge_metric
from deltaworks.tables.log import CommitInfo


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
