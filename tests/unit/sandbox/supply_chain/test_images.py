"""Images pinned by digest: where references are found, what a lock requires, and that no digest is invented."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError, TransientError
from deltaworks.testing import write_files
from sandbox.supply_chain.images import check_images, image_references, main, read_images, record_images

ROOT = Path(__file__).resolve().parents[4]
AIRFLOW, POSTGRES = "sha256:" + "a" * 64, "sha256:" + "b" * 64
DOCKERFILE = "FROM apache/airflow:3.3.2-python3.11 AS environment\nFROM environment AS jars\nFROM environment\n"
COMPOSE = """services:
  postgres:
    image: postgres:16
  airflow:
    image: ${DELTAWORKS_IMAGE:-deltaworks:0.1.0}
"""
REGISTRY = f"""#!/bin/sh
for word; do tag=$word; done
case "$tag" in
apache/airflow:*) echo {AIRFLOW} ;;
postgres:16) echo {POSTGRES} ;;
*) echo "no such image: $tag" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "docker").mkdir()
    write_files(tmp_path, {"Dockerfile": DOCKERFILE, "docker-compose.yaml": COMPOSE})
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path))
    answer_as_registry(tmp_path, monkeypatch, REGISTRY)
    return tmp_path


def answer_as_registry(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "bin" / "docker"
    write_files(folder, {"bin/docker": script})
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_references_are_those_to_images_of_others(project: Path) -> None:
    assert [(reference.file, reference.tag) for reference in image_references(project)] == [
        ("Dockerfile", "apache/airflow:3.3.2-python3.11"),
        ("docker-compose.yaml", "postgres:16"),
    ]


def test_without_a_lock_tags_do_and_that_is_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_images(project) is False
    assert main(["--check"]) == 0
    assert "there is no docker/images.lock yet" in capsys.readouterr().out


def test_recorded_digests_stand_behind_their_tags_and_hold(project: Path) -> None:
    assert main([]) == 0

    assert read_images(project) == {"apache/airflow:3.3.2-python3.11": AIRFLOW, "postgres:16": POSTGRES}
    assert (project / "Dockerfile").read_text() == DOCKERFILE.replace("3.11 AS", f"3.11@{AIRFLOW} AS")
    assert (project / "docker-compose.yaml").read_text() == COMPOSE.replace("postgres:16", f"postgres:16@{POSTGRES}")
    assert check_images(project) is True
    assert record_images(project) == read_images(project)


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("docker-compose.yaml", f"@{POSTGRES}", ""),
        ("docker-compose.yaml", POSTGRES, AIRFLOW),
        ("docker-compose.yaml", "postgres:16", "postgres:17"),
        ("Dockerfile", f"@{AIRFLOW}", ""),
    ],
)
def test_a_reference_without_its_digest_is_refused_once_there_is_a_lock(
    project: Path, file: str, before: str, after: str
) -> None:
    record_images(project)
    (project / file).write_text((project / file).read_text().replace(before, after))

    with pytest.raises(ConfigError, match=f"{file}:") as raised:
        check_images(project)

    assert raised.value.condition == "IMAGE_NOT_LOCKED"


@pytest.mark.parametrize("answer", ["exit 1", "echo latest", "echo sha256:abc"])
def test_a_registry_that_gives_no_digest_leaves_everything_as_it_was(
    project: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    answer_as_registry(project, monkeypatch, f"#!/bin/sh\n{answer}\n")

    with pytest.raises(TransientError) as raised:
        record_images(project)

    assert raised.value.condition == "IMAGE_NOT_RESOLVED"
    assert read_images(project) is None
    assert (project / "Dockerfile").read_text() == DOCKERFILE


def test_a_broken_lock_is_refused(project: Path) -> None:
    (project / "docker" / "images.lock").write_text("postgres:16\n")

    with pytest.raises(ConfigError, match="IMAGE_NOT_LOCKED"):
        read_images(project)


def test_the_project_holds_its_own_lock() -> None:
    assert check_images(ROOT) is (ROOT / "docker" / "images.lock").is_file()
