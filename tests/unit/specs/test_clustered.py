"""`cluster_by` replaces partitions and Z-order, and needs the Spark writer."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.specs.table import TableSpec


def table(**given: Any) -> TableSpec:
    return TableSpec(**{"name": "events", "catch_all": True, "writer": "spark", "cluster_by": ["event_name"], **given})


def test_a_clustered_table_has_no_partitions_unless_they_are_declared() -> None:
    assert table().partition_by == ()
    assert table(cluster_by=[]).partition_by == ("event_date",)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"partition_by": ["event_date"]}, "cluster_by replaces partition_by and zorder_by"),
        ({"zorder_by": ["event_name"]}, "cluster_by replaces partition_by and zorder_by"),
        ({"writer": "fan_out"}, "cluster_by needs writer: spark"),
        ({"cluster_by": ["evnt"]}, "'evnt' is not a column of this table"),
        ({"cluster_by": ["event_name", "event_id", "event_time", "_seq", "_batch_id"]}, "at most 4 items"),
    ],
    ids=str,
)
def test_conflicting_keys_are_rejected(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        table(**given)
