"""Airflow reads DAG files again when a declaration has changed, and leaves them alone otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.airflow.declarations_bundle import DeclarationsBundle

EARLIER_SECONDS = 1_000_000


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("dags/streams.py", "dags/notes.txt", "include/pipelines/shop/pipeline.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one")
        os.utime(path, (EARLIER_SECONDS, EARLIER_SECONDS))
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path))
    return tmp_path


def edit(project: Path) -> None:
    (project / "include/pipelines/shop/pipeline.yaml").write_text("other")


def add(project: Path) -> None:
    path = project / "include/pipelines/store/gold/sums.sql"
    path.parent.mkdir(parents=True)
    path.write_text("SELECT 1")


def remove(project: Path) -> None:
    (project / "include/pipelines/shop/pipeline.yaml").unlink()


@pytest.mark.parametrize("change", [edit, add, remove])
def test_dag_files_are_changed_once_after_a_declaration_is(project: Path, change: Callable[[Path], None]) -> None:
    bundle = DeclarationsBundle(name="dags-folder", path=str(project / "dags"))
    dag = project / "dags" / "streams.py"

    bundle.refresh()
    assert dag.stat().st_mtime == EARLIER_SECONDS
    change(project)
    bundle.refresh()
    assert dag.stat().st_mtime > EARLIER_SECONDS
    assert (project / "dags" / "notes.txt").stat().st_mtime == EARLIER_SECONDS
    os.utime(dag, (EARLIER_SECONDS, EARLIER_SECONDS))
    bundle.refresh()
    assert dag.stat().st_mtime == EARLIER_SECONDS


def test_dag_files_that_cannot_be_changed_are_reported(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = DeclarationsBundle(name="dags-folder", path=str(project / "dags"))
    edit(project)

    def refuse(_path: Path) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "touch", refuse)
    bundle.refresh()
    assert "streams.py follows the changed declarations only after the parsing interval" in caplog.text
