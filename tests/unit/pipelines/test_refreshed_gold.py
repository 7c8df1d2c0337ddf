"""Streams of the shipped pipelines only refresh gold whose changes stay near an event's own time."""

from __future__ import annotations

import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.gold import AffectsSpec, GoldTableSpec
from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec

FOLDER = PROJECT_ROOT / "include" / "pipelines"
PIPELINES = {path.parent.name: load_spec(PipelineSpec, path) for path in sorted(FOLDER.glob("*/pipeline.yaml"))}
#: Of the game's model, which is trained by the week and predicts for Sundays.
OF_A_MODEL = {"player_days", "player_features", "player_scores"}


def is_near(table: GoldTableSpec) -> bool:
    """Whether a change of a date or an hour of any input changes nothing beyond it."""
    return isinstance(table.affects, AffectsSpec) and (table.affects.days, table.affects.hours) in (
        ((0,), ()),
        ((0,), (0,)),
    )


def test_the_game_builds_all_of_its_gold_that_is_near_beside_the_stream() -> None:
    games = PIPELINES["games"]
    near = {table.name for table in games.gold.tables if is_near(table)} - OF_A_MODEL

    assert {table.name for table in games.gold.stream_refreshed_tables} == near
    assert {"events_per_hour", "daily_active_users", "bookings_per_hour", "bookings_per_country"} == near
    assert all((table.refresh_seconds or 90) <= 30 for table in games.gold.stream_refreshed_tables), (
        "a third of what is promised"
    )


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_no_stream_builds_what_takes_in_a_history(pipeline: str) -> None:
    for table in PIPELINES[pipeline].gold.stream_refreshed_tables:
        assert is_near(table), f"{table.name} is left to the schedule"


def test_what_streams_do_not_build_has_a_schedule() -> None:
    for name, pipeline in PIPELINES.items():
        left = [table.name for table in pipeline.gold.tables if table.refresh_seconds is None]
        assert (
            not left or pipeline.gold.schedule or pipeline.gold.cross_pipeline_inputs or pipeline.maintenance.schedule
        ), name
    assert PIPELINES["games"].gold.schedule
    assert [table.name for table in PIPELINES["engagement"].gold.stream_refreshed_tables] == []
