"""The demo runs only pipelines that receive events, so that an idle one does not count as tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from sandbox.demo.demo_options import demo_settings, parse_pipelines
from sandbox.demo.run import find_edits


def test_without_a_file_of_real_events_the_edits_pipeline_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    edits = find_edits(tmp_path / "checkout", None)

    assert edits is None
    assert demo_settings(edits).data_settings.pipelines == ("engagement", "games")


def test_a_file_or_the_first_of_a_folder_is_replayed(tmp_path: Path) -> None:
    for name in ("b.json", "a.json.gz", "notes.txt"):
        (tmp_path / name).touch()

    assert find_edits(tmp_path, tmp_path / "b.json") == tmp_path / "b.json"
    assert find_edits(tmp_path, tmp_path) == tmp_path / "a.json.gz"
    assert demo_settings(tmp_path / "b.json").data_settings.pipelines == ("edits", "engagement", "games")


def test_engagement_can_be_left_out(tmp_path: Path) -> None:
    assert demo_settings(None, activities=0).data_settings.pipelines == ("games",)


@pytest.mark.parametrize(
    ("text", "pipelines"),
    [
        ("", ("edits", "engagement", "games")),
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


def test_a_pipeline_that_the_demo_has_no_events_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'stocks'"):
        parse_pipelines("stock")
