"""Quarantine replays are killed at every point, and paused while another runs: each row lands once or stays open."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import pipeline_spec
from tests.unit.recovery.replay_harness import ReplayHarness, orders

POINTS = ["files_written", "prepared", "committed:events", "committed:orders", "committed:quarantine_replays"]
ROWS = 200
Places = Counter[tuple[int, int]]


def spec(level: str) -> PipelineSpec:
    return pipeline_spec({"name": "events", "catch_all": True}, orders(level))


def replay(stage: ReplayHarness, point: str = "-", off: str = "") -> subprocess.Popen[bytes]:
    root, declared = str(stage.landing.parent), spec("string").model_dump_json()
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.harness.replay_entry", root, declared, point, off],
        cwd=PROJECT_ROOT,
        env={"PYTHONPATH": f"{PROJECT_ROOT / 'include'}:{PROJECT_ROOT}", "PATH": ""},
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def stage(tmp_path: Path) -> ReplayHarness:
    """An object of whose rows nine in ten are in quarantine."""
    stage = ReplayHarness(tmp_path)
    lines: list[dict[str, Any]] = [
        {"name": "order", "time": 1_700_000_000, "level": number if number % 10 == 0 else f"level {number}"}
        for number in range(ROWS)
    ]
    stage.ingest(spec("int"), "".join(map(json.dumps, lines)).encode())
    return stage


def judged(stage: ReplayHarness) -> tuple[int, int]:
    """Returns the lost and the surplus rows. Each position must be in both tables once, or hold a number, which no text
    column accepts.
    """
    owed: Places = Counter((1, position) for position in range(ROWS))
    lost = doubled = 0
    for table in ("events", "orders"):
        seen = stage.places(table)
        lost += (owed - seen).total()
        doubled += (seen - owed).total()
    return lost, doubled


@pytest.mark.parametrize(("point", "off"), [*((point, "") for point in POINTS), ("committed:events", "prepared+steps")])
def test_a_replay_killed_anywhere_is_completed_by_the_next(
    stage: ReplayHarness, print_result: Callable[..., None], point: str, off: str
) -> None:
    killed = replay(stage, point, off)
    assert killed.wait(60) == -9, killed.communicate()[1].decode()[-2000:]
    again = replay(stage, off=off)
    assert again.wait(60) == 0, again.communicate()[1].decode()[-2000:]

    lost, doubled = judged(stage)
    without = f"WITHOUT {off}" if off else "protected"
    print_result(f"replay killed at {point}", without, f"rows {ROWS}", f"lost {lost}", f"doubled {doubled}")
    assert (lost, doubled) == (0, 0) if not off else lost + doubled > 0
    assert off or not stage.open_places()


@pytest.mark.parametrize(
    ("point", "off"), [*((point, "") for point in POINTS[:4]), ("files_written", "prepared+steps")]
)
def test_a_replay_that_was_paused_while_another_ran_adds_nothing_when_it_wakes_up(
    stage: ReplayHarness, print_result: Callable[..., None], point: str, off: str
) -> None:
    paused = replay(stage, f"stop:{point}", off)
    assert os.WIFSTOPPED(os.waitpid(paused.pid, os.WUNTRACED)[1])
    other = replay(stage, off=off)
    assert other.wait(60) == 0, other.communicate()[1].decode()[-2000:]
    paused.send_signal(signal.SIGCONT)
    assert paused.wait(60) == 0, paused.communicate()[1].decode()[-2000:]

    lost, doubled = judged(stage)
    without = f"WITHOUT {off}" if off else "protected"
    print_result(f"replay paused at {point}", without, f"rows {ROWS}", f"lost {lost}", f"doubled {doubled}")
    assert (lost, doubled) == (0, 0) if not off else lost + doubled > 0
    assert off or not stage.open_places()
