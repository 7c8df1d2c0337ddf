"""The Java class archive in a real driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deltaworks.specs.catalog import project_root
from deltaworks.specs.spark_conf import java_archive, java_archive_manifest, java_archive_options
from tests.processes import run_process

pytestmark = pytest.mark.integration

#: Starts a driver and prints what its JVM has mapped of archives.
DRIVER = """
import psutil
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from deltaworks.tables.spark_session import build_session
here = StorageSpec(root="file:///deltaworks-tests")
environment = EnvironmentSpec(environment="tests", lake=here, landing=here, messaging=AwsSpec())
spark = build_session(environment, app_name="archive", master="local[1]")
assert spark.range(3).count() == 3
java = next(p for p in psutil.Process().children(recursive=True) if p.name() == "java")
print("MAPPED", sorted({m.path for m in java.memory_maps() if m.path.endswith(".jsa")}))
spark.stop()
"""


def _start(root: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DELTAWORKS_PROJECT": str(root)}
    return run_process([sys.executable, "-c", DRIVER], env=environment, timeout=240)


def test_a_driver_uses_the_class_archive_of_make_jars() -> None:
    if not java_archive_options(project_root()):
        pytest.skip("no archive of classes in this checkout: `make jars` makes it")

    done = _start(project_root())

    assert done.returncode == 0, done.stderr
    assert str(java_archive(project_root())) in done.stdout


def test_a_driver_silently_ignores_an_archive_of_another_class_path(tmp_path: Path) -> None:
    if not java_archive_options(project_root()):
        pytest.skip("no archive of classes in this checkout: `make jars` makes it")
    target = tmp_path / "include" / "jars" / "target"
    shutil.copytree(project_root() / "include" / "spark", tmp_path / "include" / "spark")
    shutil.copytree(project_root() / "include" / "jars" / "target" / "jars", target / "jars")
    for path in (java_archive(project_root()), java_archive_manifest(project_root())):
        os.link(path, target / path.name)
    assert java_archive_options(tmp_path)

    done = _start(tmp_path)

    assert done.returncode == 0, done.stderr
    assert "MAPPED" in done.stdout
    assert str(target) not in done.stdout
    assert "shared archive" not in done.stdout + done.stderr
