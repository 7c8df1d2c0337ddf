"""Every registered benchmark runs with its tiny size, prints valid figures, and ends the processes it has started."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.registry import BENCHMARKS
from tests.shared_data import SHARED_DATA

ROOT = Path(__file__).resolve().parents[2]
#: A benchmark that starts the stack takes some minutes on a busy machine.
SECONDS = 900
KEYS = {"benchmark", "metric", "ours", "other", "unit", "ratio", "sizes", "cores", "versions"}
#: A variable of the benchmark's process, by which its children are found after it has ended.
RUN_VARIABLE = "DELTAWORKS_BENCHMARK_RUN"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a benchmark's process. The stack's data is in a temporary folder, so that `demo` and
    `freshness` do not delete the lake of this checkout.
    """
    monkeypatch.setenv("DELTAWORKS_SHARED_DATA", str(SHARED_DATA))
    return os.environ | {
        "DELTAWORKS_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT / "include"),
        RUN_VARIABLE: str(tmp_path),
        "TZ": "UTC",
    }


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_tiny_run_prints_its_figures(name: str, environment: dict[str, str]) -> None:
    if (reason := BENCHMARKS[name].unavailable()) is not None:
        pytest.skip(reason)

    command = [sys.executable, "-m", "benchmarks", "--only", name, "--tiny"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            printed, progress = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            _, progress = process.communicate()
            pytest.fail(f"{name} ran for more than {SECONDS} s:\n{progress[-4000:]}")

    assert process.returncode == 0, progress[-4000:]
    figures = [json.loads(line) for line in printed.splitlines()]
    assert figures, progress[-4000:]
    for figure in figures:
        assert set(figure) >= KEYS
        assert figure["benchmark"] == name
        assert all(math.isfinite(figure[key]) for key in ("ours", "other", "ratio")), figure
        assert figure["cores"] >= 1
        assert all(math.isfinite(size) for size in figure["sizes"].values()), figure
    metrics = [figure["metric"] for figure in figures]
    assert len(set(metrics)) == len(metrics)
    left = list(_left_processes(environment[RUN_VARIABLE]))
    assert not left, f"{name} left processes: {left}"


def _left_processes(run: str) -> Iterator[str]:
    """Ends the processes that a benchmark left, after they had a moment to end by themselves, and yields them."""
    mine = [process for process in psutil.process_iter() if _is_of(process, run)]
    _, left = psutil.wait_procs(mine, timeout=20)
    for process in left:
        try:
            yield " ".join(process.cmdline())[:200]
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _is_of(process: psutil.Process, run: str) -> bool:
    try:
        return process.environ().get(RUN_VARIABLE) == run
    except psutil.Error:
        return False
