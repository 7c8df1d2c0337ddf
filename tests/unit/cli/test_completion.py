"""Shell completion of commands and declared names, also for invalid specs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deltaworks.cli.context import pipeline_names, stream_names
from tests.processes import run_process

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two pipelines, one of them invalid, and a relay."""
    for name, text in (("shop", "pipeline: shop"), ("broken", "\t: [")):
        folder = tmp_path / "include" / "pipelines" / name
        folder.mkdir(parents=True)
        (folder / "pipeline.yaml").write_text(text)
    (tmp_path / "include" / "pipelines" / "notes").mkdir()
    (tmp_path / "include" / "relays").mkdir()
    (tmp_path / "include" / "relays" / "bucket.yaml").write_text("relay: bucket")
    monkeypatch.setattr("deltaworks.cli.context._root", lambda: tmp_path)
    return tmp_path


def test_pipelines_are_completed_by_their_folders(project: Path) -> None:
    assert pipeline_names("") == ["broken", "shop"]
    assert pipeline_names("sh") == ["shop"]


def test_stream_arguments_complete_relays_too(project: Path) -> None:
    assert stream_names("b") == ["broken", "bucket"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("tab", {"tables"}),
        ("quarantine ", {"list", "show", "replay"}),
        ("batches ", {"games", "edits", "engagement"}),
        ("quarantine list ga", {"games"}),
        ("start la", {"landing"}),
        ("restore g", {"games"}),
    ],
)
def test_bash_completion_lists_candidates(typed: str, expected: set[str]) -> None:
    words = f"deltaworks {typed}"
    answer = run_process(
        [sys.executable, "-m", "deltaworks.cli"],
        env=os.environ
        | {
            "_DELTAWORKS_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
            "PYTHONPATH": str(ROOT / "include"),
        },
        timeout=120,
    )

    assert expected <= set(answer.stdout.split())


def test_the_script_of_the_checkout_runs_from_any_folder_and_by_a_link(tmp_path: Path) -> None:
    link = tmp_path / "deltaworks"
    link.symlink_to(ROOT / "deltaworks")

    answer = subprocess.run([link, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert answer.returncode == 0, answer.stderr
    assert "quarantine" in answer.stdout


def test_the_script_explains_how_to_create_the_environment(tmp_path: Path) -> None:
    script = Path(shutil.copy(ROOT / "deltaworks", tmp_path))

    answer = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=60, check=False)

    assert (answer.returncode, answer.stdout) == (1, "")
    assert f'make -C "{tmp_path}" env' in answer.stderr
