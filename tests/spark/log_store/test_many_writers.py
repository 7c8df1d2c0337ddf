"""Two Spark drivers and a delta-rs writer on one table of an S3 server: the short test of the log store."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.servers.fault_proxy import Action, Fault, running_fault_proxy
from tests.integration.log_store.proof import COMMIT_FILES, Writer, lake_server, run_appends

pytestmark = pytest.mark.integration


def test_two_drivers_and_a_delta_rs_writer_lose_and_double_nothing_though_replies_are_lost(tmp_path: Path) -> None:
    with (
        lake_server(tmp_path / "lake") as store,
        running_fault_proxy(
            store.endpoint,
            faults=[Fault(action=Action.LOSE_REPLY, method="PUT", path=COMMIT_FILES, probability=0.2)],
            seed=7,
        ) as proxy,
    ):
        writers = [
            Writer(kind="spark", name="driver-1", commits=20, endpoint=proxy.endpoint),
            Writer(kind="spark", name="driver-2", commits=20, endpoint=proxy.endpoint),
            Writer(kind="guarded", name="delta-rs", commits=20, endpoint=proxy.endpoint),
        ]

        verdict = run_appends(writers, work=tmp_path, seconds=120)

    unseen = [incident for incident in proxy.incidents if incident.is_lost_reply]
    print(f"{verdict}; {len(unseen)} commits landed whose reply was lost")
    assert not verdict.failed
    assert verdict.acknowledged == 60
    assert not verdict.lost
    assert not verdict.doubled
    assert len(unseen) > 5
