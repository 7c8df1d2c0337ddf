"""Delta logs on local disk: drivers exclude each other, and a killed driver leaves no half-written commit."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.log_store.proof import Writer, run_writers, started_writers
from tests.integration.log_store.writer import LOCAL_LINES, LOCAL_LOG

COMMITS = 120


def race(work: Path, *, protected: bool) -> Counter[int]:
    """Returns how many of two drivers were told that they made each commit."""
    drivers = [
        Writer(kind="local", name=name, commits=COMMITS, protected=protected) for name in ("driver-1", "driver-2")
    ]
    _, outcomes = run_writers(drivers, work=work, seconds=120)
    assert set(outcomes.values()) <= {"ok", "taken"}
    return Counter(int(identity.rpartition("-")[2]) for identity, told in outcomes.items() if told == "ok")


@pytest.mark.integration
def test_exactly_one_of_two_drivers_makes_each_commit(tmp_path: Path) -> None:
    makers = race(tmp_path, protected=True)

    assert makers == Counter(range(COMMITS))


def test_a_killed_driver_leaves_only_whole_commits(tmp_path: Path) -> None:
    writer = Writer(kind="local", name="driver", commits=100_000)
    with started_writers([writer], work=tmp_path, seconds=60) as (process,):
        log = tmp_path / LOCAL_LOG
        while len(list(log.glob("*.json"))) < 20:
            assert process.poll() is None
            time.sleep(0.01)
    commits = sorted(log.glob("*.json"))

    assert len(commits) >= 20
    assert {commit.read_text().count("\n") for commit in commits} == {LOCAL_LINES}


@pytest.mark.integration
def test_deltas_own_log_store_lets_both_drivers_make_the_same_commit(tmp_path: Path) -> None:
    makers = race(tmp_path, protected=False)

    assert 2 in makers.values()
