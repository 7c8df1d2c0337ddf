"""The watchdog ends a process whose launcher was killed; without it the process survives. Uses real processes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deltaworks.control.parent_watchdog import ORPHANED_EXIT_CODE, ProcessParent, find_orphan, process_ancestry
from tests.waiting import eventually

CHILD = """
import sys, time
if sys.argv[1] == "guarded":
    from deltaworks.control.parent_watchdog import start_parent_watchdog
    start_parent_watchdog(poll_seconds=0.1)
print("ready", flush=True)
time.sleep(3600)
"""
MIDDLE = """
import subprocess, sys
child = subprocess.Popen([sys.executable, *sys.argv[1:]])
print(child.pid, flush=True)
sys.exit(child.wait())
"""
Tree = Callable[..., list[psutil.Process]]


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    """Starts launcher -> (middle ->) child; returns the processes, launcher first, and kills remaining ones
    afterwards."""
    started: list[psutil.Process] = []
    launchers: list[subprocess.Popen[str]] = []

    def start(mode: str, *, levels: int = 1) -> list[psutil.Process]:
        middle, child = tmp_path / "middle.py", tmp_path / "child.py"
        middle.write_text(MIDDLE)
        child.write_text(CHILD)
        import deltaworks

        library = str(Path(deltaworks.__file__).parents[1])
        launcher = subprocess.Popen(
            [sys.executable, *[str(middle)] * levels, str(child), mode],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": library},
        )
        assert launcher.stdout is not None
        processes = [psutil.Process(launcher.pid)]
        for _ in range(levels):
            line = launcher.stdout.readline()
            while not line.strip().isdigit():
                line = launcher.stdout.readline()
            processes.append(psutil.Process(int(line)))
        while launcher.stdout.readline().strip() != "ready":
            pass
        started.extend(processes)
        launchers.append(launcher)
        return processes

    yield start
    for process in started:
        if process.is_running():
            process.kill()
    for launcher in launchers:
        launcher.communicate()


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def stays_alive(process: psutil.Process, seconds: float) -> bool:
    """Whether a process is alive for several watchdog intervals."""
    time.sleep(seconds)
    return not has_ended(process)


def test_a_watched_process_ends_when_its_launcher_is_killed(tree: Tree) -> None:
    launcher, child = tree("guarded")
    assert stays_alive(child, 0.5)

    launcher.send_signal(signal.SIGKILL)

    eventually(lambda: has_ended(child), "the child ends")


def test_an_unwatched_process_outlives_its_launcher(tree: Tree) -> None:
    launcher, child = tree("unguarded")

    launcher.send_signal(signal.SIGKILL)

    eventually(lambda: has_ended(launcher), "the launcher ends")
    assert stays_alive(child, 1.0)


def test_a_watched_process_ends_when_its_grandparent_is_killed(tree: Tree) -> None:
    launcher, middle, child = tree("guarded", levels=2)

    launcher.send_signal(signal.SIGKILL)

    eventually(lambda: has_ended(child) and has_ended(middle), "both end")
    assert not stays_alive(child, 0.2)


def test_the_chain_begins_with_this_process() -> None:
    chain = process_ancestry()

    assert chain[0] == ProcessParent(os.getpid(), os.getppid())
    assert all(below.parent == above.pid for below, above in itertools.pairwise(chain))
    assert find_orphan(chain) is None


def test_a_changed_parent_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = ProcessParent(os.getpid(), 999_999_999)

    assert find_orphan((changed,)) == changed


def test_orphans_have_a_distinct_exit_code() -> None:
    code = "from deltaworks.control.parent_watchdog import exit_immediately; exit_immediately()"
    import deltaworks

    env = {**os.environ, "PYTHONPATH": str(Path(deltaworks.__file__).parents[1])}

    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == ORPHANED_EXIT_CODE
