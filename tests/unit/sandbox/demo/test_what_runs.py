"""The demo runs only pipelines that receive events, so that an idle one does not count as tested."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.project import pipeline_files
from generator.games import deliveries
from generator.truth import TruthCounter
from sandbox.demo.demo_options import ALL_PIPELINES, demo_settings, parse_pipelines
from sandbox.demo.run import find_edits


def test_without_a_file_of_real_events_the_edits_pipeline_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    edits = find_edits(tmp_path / "checkout", None)

    assert edits is None
    assert demo_settings(edits).data_settings.pipelines == ("engagement", "games", "mobile")


def test_a_file_or_the_first_of_a_folder_is_replayed(tmp_path: Path) -> None:
    for name in ("b.json", "a.json.gz", "notes.txt"):
        (tmp_path / name).touch()

    assert find_edits(tmp_path, tmp_path / "b.json") == tmp_path / "b.json"
    assert find_edits(tmp_path, tmp_path) == tmp_path / "a.json.gz"
    assert demo_settings(tmp_path / "b.json").data_settings.pipelines == ("edits", "engagement", "games", "mobile")


def test_engagement_can_be_left_out(tmp_path: Path) -> None:
    assert demo_settings(None, activities=0).data_settings.pipelines == ("games", "mobile")


@pytest.mark.parametrize(
    ("text", "pipelines"),
    [
        ("", ("edits", "engagement", "games", "mobile")),
        ("revenue", ("games", "revenue")),
        ("cdn_logs", ("cdn_logs",)),
        ("video_qos", ("cdn_logs", "video_qos")),
        ("stocks, games", ("filings", "games", "stocks")),
        ("video_qos,cdn_logs,stocks,filings", ("cdn_logs", "filings", "stocks", "video_qos")),
    ],
)
def test_pipelines_are_run_when_they_are_named_with_those_they_read(text: str, pipelines: tuple[str, ...]) -> None:
    assert parse_pipelines(text) == pipelines
    if text:
        assert demo_settings(None, pipelines=parse_pipelines(text)).data_settings.pipelines == pipelines


def test_every_shipped_pipeline_has_its_place_in_the_demo(tmp_path: Path) -> None:
    shipped = tuple(sorted(pipeline_files(PROJECT_ROOT)))

    assert tuple(sorted(ALL_PIPELINES)) == shipped
    assert demo_settings(tmp_path, pipelines=ALL_PIPELINES).data_settings.pipelines == shipped


def test_generated_events_are_those_of_the_last_days() -> None:
    settings = demo_settings(None, pipelines=ALL_PIPELINES, until=date(2026, 3, 11))

    assert settings.games is not None
    assert settings.engagement is not None
    assert settings.viewers is not None
    assert settings.market is not None
    # A day remains for what devices send again; days of play are complete.
    assert (settings.games.start_date, settings.games.days) == (date(2026, 3, 1), 9)
    assert settings.engagement.start_date == date(2026, 3, 1)
    assert settings.viewers.start == datetime(2026, 3, 9, 23, 30, tzinfo=UTC)
    assert settings.market.last == date(2026, 3, 10)
    assert demo_settings(None, until=date(2026, 3, 11)) == demo_settings(None, until=date(2026, 3, 11))


def test_no_event_of_a_demo_is_later_than_its_date() -> None:
    settings = demo_settings(None, until=date(2026, 3, 11), game_events=3_000).games
    assert settings is not None
    counter = TruthCounter(settings)

    for _ in deliveries(settings, counter):
        pass

    dates = {hour.date() for hour, _ in counter.truth().delivered_per_hour}
    assert min(dates) == date(2026, 3, 1)
    assert max(dates) < date(2026, 3, 11)


def test_a_pipeline_that_the_demo_has_no_events_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'stocks'"):
        parse_pipelines("stock")
