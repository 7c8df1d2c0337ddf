"""A relay as the process of a pod: it waits while it is stopped, and its heartbeat file shows that it is alive."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.objects import open_objects
from deltaworks.specs.storage import StorageSpec
from deltaworks.testing import local_storage
from tests.unit.specs.conftest import ENVIRONMENT, write_project
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[5]
#: A relay that lists a folder: it needs no queue.
RELAY = "relay: landing\nbuckets: [landing]\nlisting: {}\nlease_ttl_seconds: 3\n"
#: Everything can be read, and nothing written but below one folder: what a container with a read-only root has.
READ_ONLY = """\
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -o remount,bind,ro /
if touch /a-file "$HOME/a-file" 2> /dev/null; then echo "the root can be written"; exit 1; fi
export TMPDIR="$1"
cd "$1"
shift
exec "$@"
"""

Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def lake(tmp_path: Path) -> StorageSpec:
    return local_storage(tmp_path / "lake")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts a relay's process as its manifest does; ends those that are left."""
    started: list[subprocess.Popen[str]] = []
    text = ENVIRONMENT.replace("file:///lake", f"file://{tmp_path}/lake")
    write_project(tmp_path, environment=text.replace("file:///landing", f"file://{tmp_path}/landing"), relay=RELAY)
    for name in ("lake", "landing"):
        (tmp_path / name).mkdir()
    (tmp_path / "landing" / "one.json").write_text("{}")

    def start(heartbeat_file: Path, *, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                *(*before, sys.executable, "-m", "deltaworks.sources.objects.relay", "--relay", "landing"),
                *("--heartbeat-file", str(heartbeat_file), "--wait-while-stopped", "--early-failure-wait-seconds", "0"),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT / "include"), "DELTAWORKS_PROJECT": str(tmp_path)},
            cwd="/tmp",
            text=True,
            stdout=(tmp_path / "output").open("w"),
            stderr=subprocess.STDOUT,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def flag_of(lake: StorageSpec) -> StopFlag:
    return StopFlag(open_objects(lake), paths.stop_request(paths.relay_control("landing")))


def is_running(lake: StorageSpec) -> bool:
    return open_objects(lake).get(paths.heartbeat(paths.relay_control("landing"))) is not None


def test_it_touches_its_heartbeat_file_repeatedly_and_ends_cleanly(launch: Launch, tmp_path: Path) -> None:
    heartbeat_file = tmp_path / "beat"
    process = launch(heartbeat_file)
    eventually(heartbeat_file.exists, "it works")
    before = heartbeat_file.stat().st_mtime_ns
    eventually(lambda: heartbeat_file.stat().st_mtime_ns > before, "it works on")

    process.send_signal(signal.SIGTERM)

    assert process.wait(timeout=40) == 0


def test_it_waits_and_stays_alive_during_a_stop_and_then_runs(
    launch: Launch, tmp_path: Path, lake: StorageSpec
) -> None:
    heartbeat_file = tmp_path / "beat"
    flag_of(lake).set(by="ada", reason="a look at the bucket")
    process = launch(heartbeat_file)
    eventually(heartbeat_file.exists, "it waits")
    before = heartbeat_file.stat().st_mtime_ns
    eventually(lambda: heartbeat_file.stat().st_mtime_ns > before, "it still waits")
    assert process.poll() is None
    assert not is_running(lake)

    flag_of(lake).clear()

    eventually(lambda: is_running(lake), "it works")


def test_it_ends_while_it_waits(launch: Launch, tmp_path: Path, lake: StorageSpec) -> None:
    flag_of(lake).set(by="ada", reason="a look")
    process = launch(tmp_path / "beat")
    eventually((tmp_path / "beat").exists, "it waits")

    process.send_signal(signal.SIGTERM)

    assert process.wait(timeout=40) == 0
    assert not is_running(lake)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mount namespaces need root")
def test_it_needs_only_one_writable_folder(launch: Launch, tmp_path: Path, lake: StorageSpec) -> None:
    """The folder stands for /tmp; the lake, which is storage elsewhere, is in it."""
    process = launch(tmp_path / "beat", before=("unshare", "--mount", "bash", "-c", READ_ONLY, "bash", str(tmp_path)))

    eventually(lambda: process.poll() is not None or is_running(lake), "it works or has ended")

    assert process.poll() is None, (tmp_path / "output").read_text()
    eventually((tmp_path / "beat").exists, "it works")
