"""When the Java class archive is written, and how failures are handled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deltaworks.build import jars as making
from deltaworks.build.jars import ensure_java_archive
from deltaworks.specs.spark_conf import java_archive, java_archive_options
from deltaworks.testing import present, write_files

#: A Java that says of itself where it is and nothing else.
JAVA = """#!/bin/sh
echo "    java.home = $(dirname "$(dirname "$0")")" >&2
echo "    java.version = 17.0.1" >&2
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    java = tmp_path / "java" / "bin" / "java"
    write_files(tmp_path, {"java/bin/java": JAVA})
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    write_files(tmp_path, {"include/jars/target/jars/stamp.json": "jars of today"})
    return tmp_path


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The archives that a training session wrote; it writes a few bytes."""
    runs: list[Path] = []

    def train(archive: Path) -> str:
        runs.append(archive)
        archive.write_bytes(b"classes")
        return ""

    monkeypatch.setattr(making, "_write_archive", train)
    return runs


def _quiet(_line: str) -> None:
    pass


def test_an_archive_is_written_once_and_then_reused(project: Path, trainings: list[Path]) -> None:
    first = ensure_java_archive(progress=_quiet, root=project)
    again = ensure_java_archive(progress=_quiet, root=project)

    assert first == again == java_archive(project)
    assert first is not None
    assert first.read_bytes() == b"classes"
    assert len(trainings) == 1
    assert java_archive_options(project)


def test_other_jars_have_another_archive(project: Path, trainings: list[Path]) -> None:
    ensure_java_archive(progress=_quiet, root=project)
    (project / "include" / "jars" / "target" / "jars" / "stamp.json").write_text("jars of tomorrow")

    ensure_java_archive(progress=_quiet, root=project)

    assert len(trainings) == 2


def test_a_truncated_archive_is_written_again(project: Path, trainings: list[Path]) -> None:
    archive = present(ensure_java_archive(progress=_quiet, root=project))
    os.truncate(archive, 3)
    assert java_archive_options(project) == ""

    ensure_java_archive(progress=_quiet, root=project)

    assert len(trainings) == 2
    assert archive.read_bytes() == b"classes"


def test_a_failing_session_is_reported_and_leaves_drivers_without_an_archive(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(archive: Path) -> str:
        archive.write_bytes(b"half")
        return "no memory"

    monkeypatch.setattr(making, "_write_archive", fail)
    lines: list[str] = []

    assert ensure_java_archive(progress=lines.append, root=project) is None

    assert "no memory" in lines[-1]
    assert java_archive_options(project) == ""
    assert not list((project / "include" / "jars" / "target").glob(".classes-*"))


def test_without_java_no_archive_is_attempted(
    project: Path, trainings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(project / "nowhere"))

    assert ensure_java_archive(progress=_quiet, root=project) is None
    assert trainings == []
