"""A declared table that does not exist yet comes with what creates it."""

from __future__ import annotations

import datetime as dt

import pytest

from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.schedules import SCHEDULES_VARIABLE
from deltaworks.tables.query import how_a_table_is_created
from deltaworks.testing import declare_table, pipeline_spec

NOW = dt.datetime(2026, 3, 1, 12, 3, tzinfo=dt.UTC)


def shop(schedule: str | None = "*/15 * * * *", **gold: object) -> PipelineSpec:
    table = {"name": "daily", "sql": "gold/daily.sql", "reads": ["orders"], "partition_by": "event_date"} | gold
    return pipeline_spec(
        declare_table("orders", "level int"),
        gold={"schedule": schedule, "tables": [table]},
        views=[{"name": "recent", "sql": "SELECT 1", "reads": ["daily"]}],
    )


def test_a_table_that_does_not_exist_yet_names_its_next_build_or_command(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "`deltaworks gold build shop --tables daily` builds it now."

    assert how_a_table_is_created(shop(), "daily", now=NOW) == (
        f"shop__gold builds it at 2026-03-01 12:15 UTC; {command}"
    )
    assert how_a_table_is_created(shop(None), "daily", now=NOW) == command
    assert "The stream builds it within 15 s" in how_a_table_is_created(shop(refresh_seconds=15), "daily", now=NOW)
    assert "view of daily" in how_a_table_is_created(shop(), "recent", now=NOW)
    assert "Start the stream" in how_a_table_is_created(shop(), "orders", now=NOW)
    monkeypatch.setenv(SCHEDULES_VARIABLE, "off")
    assert how_a_table_is_created(shop(), "daily", now=NOW) == command
