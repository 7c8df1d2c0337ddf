"""Hostile connections next to honest clients, as `make hostile` runs them, with all bounds and without."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deltaworks.specs.catalog import PROJECT_ROOT


def hostile(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.hostile", *arguments]
    run = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False, timeout=900)
    return run.returncode, run.stdout + run.stderr


@pytest.mark.timeout(900)
def test_honest_clients_do_not_notice_a_thousand_hostile_connections() -> None:
    # A thousand connections at once at the start weigh five times as much in two minutes as in ten.
    code, printed = hostile("--minutes", "2", "--most-times", "4")
    assert code == 0, printed


@pytest.mark.timeout(900)
def test_without_bounds_they_do() -> None:
    off = "head_bytes,headers,framing_factor,requests_ahead,growth_factor,gzip_members,rest_seconds"
    code, printed = hostile("--minutes", "0.5", "--off", off)
    assert code == 1, printed
    assert "MISS" in printed
