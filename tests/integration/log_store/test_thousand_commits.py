"""Four Spark drivers and a delta-rs writer on one table of an S3 server, at least a thousand acknowledged commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.servers.fault_proxy import Action, Fault, running_fault_proxy
from tests.integration.log_store.proof import COMMIT_FILES, Writer, lake_server, run_appends

pytestmark = pytest.mark.timeout(2400)

SECONDS = 1500


def five_writers(
    *, endpoint: str | None = None, commits: int, delta_rs_commits: int, protected: bool = True
) -> list[Writer]:
    drivers = [
        Writer(kind="spark", name=f"driver-{n}", commits=commits, endpoint=endpoint, protected=protected)
        for n in range(1, 5)
    ]
    return [*drivers, Writer(kind="guarded", name="delta-rs", commits=delta_rs_commits, endpoint=endpoint)]


def test_a_thousand_commits_of_five_writers_are_all_there_once(tmp_path: Path) -> None:
    with lake_server(tmp_path / "lake"):
        writers = five_writers(commits=150, delta_rs_commits=440)

        verdict = run_appends(writers, work=tmp_path, seconds=SECONDS)

    print(verdict)
    assert verdict.acknowledged >= 1000
    assert not verdict.lost
    assert not verdict.doubled


def test_a_thousand_commits_are_all_there_once_though_replies_are_lost(tmp_path: Path) -> None:
    lost = Fault(action=Action.LOSE_REPLY, method="PUT", path=COMMIT_FILES, probability=0.1)
    with (
        lake_server(tmp_path / "lake") as store,
        running_fault_proxy(store.endpoint, faults=[lost], seed=11) as proxy,
    ):
        writers = five_writers(endpoint=proxy.endpoint, commits=150, delta_rs_commits=440)

        verdict = run_appends(writers, work=tmp_path, seconds=SECONDS)

    unseen = sum(incident.is_lost_reply for incident in proxy.incidents)
    print(f"{verdict}; {unseen} commits landed whose reply was lost")
    assert verdict.acknowledged >= 1000
    assert unseen >= 50
    assert not verdict.lost
    assert not verdict.doubled


def test_deltas_own_log_store_loses_acknowledged_commits(tmp_path: Path) -> None:
    with lake_server(tmp_path / "lake"):
        writers = five_writers(commits=15, delta_rs_commits=15, protected=False)

        verdict = run_appends(writers, work=tmp_path, seconds=SECONDS)

    print(verdict)
    assert verdict.lost
