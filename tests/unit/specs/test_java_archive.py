"""When a driver uses the archive of Java classes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deltaworks.specs.spark_conf import java_archive, java_archive_manifest, java_archive_options


def _archive(root: Path, *, size: int, recorded: object) -> Path:
    archive = java_archive(root)
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"x" * size)
    java_archive_manifest(root).write_text(json.dumps(recorded))
    return archive


def test_a_complete_archive_is_mapped_and_silently_ignored_on_a_mismatch(tmp_path: Path) -> None:
    archive = _archive(tmp_path, size=10, recorded={"bytes": 10})

    options = java_archive_options(tmp_path).split()

    assert f"-XX:SharedArchiveFile={archive}" in options
    assert "-Xlog:cds*=off" in options


def test_without_an_archive_there_are_no_jvm_options(tmp_path: Path) -> None:
    assert java_archive_options(tmp_path) == ""


@pytest.mark.parametrize("recorded", [{"bytes": 11}, {}, [], "text", {"bytes": None}])
def test_a_truncated_class_archive_is_not_used(tmp_path: Path, recorded: object) -> None:
    _archive(tmp_path, size=10, recorded=recorded)

    assert java_archive_options(tmp_path) == ""


def test_a_linked_checkout_uses_the_archive_of_the_folder_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    archive = _archive(tmp_path / "real", size=10, recorded={"bytes": 10})
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "include").symlink_to(tmp_path / "real" / "include")

    assert f"-XX:SharedArchiveFile={archive} " in java_archive_options(tmp_path / "linked")
