"""What the demo runs: only what gets events, so that nothing else can look as if it had run."""

from __future__ import annotations

from pathlib import Path

from sandbox.demo.fresh import demo_settings
from sandbox.demo.run import find_edits


def test_without_a_file_of_real_events_the_edits_pipeline_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    edits = find_edits(tmp_path / "checkout", None)

    assert edits is None
    assert demo_settings(edits).what.pipelines == ("engagement", "games")


def test_a_file_or_the_first_of_a_folder_is_replayed(tmp_path: Path) -> None:
    for name in ("b.json", "a.json.gz", "notes.txt"):
        (tmp_path / name).touch()

    assert find_edits(tmp_path, tmp_path / "b.json") == tmp_path / "b.json"
    assert find_edits(tmp_path, tmp_path) == tmp_path / "a.json.gz"
    assert demo_settings(tmp_path / "b.json").what.pipelines == ("edits", "engagement", "games")


def test_engagement_can_be_left_out(tmp_path: Path) -> None:
    assert demo_settings(None, activities=0).what.pipelines == ("games",)
