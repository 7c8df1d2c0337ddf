"""Lost replies make delta-rs commit twice, and guarded commits prevent it. Needs s3proxy, but no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.servers.fault_proxy import Action, Fault, FaultProxy, running_fault_proxy
from sandbox.servers.object_store import ObjectStoreAddress
from tests.integration.log_store.proof import COMMIT_FILES, Writer, lake_server, run_appends


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStoreAddress]:
    with lake_server(tmp_path / "lake") as address:
        yield address


@pytest.fixture
def proxy(store: ObjectStoreAddress) -> Iterator[FaultProxy]:
    lost = Fault(action=Action.LOSE_REPLY, method="PUT", path=COMMIT_FILES, every=3)
    with running_fault_proxy(store.endpoint, faults=[lost]) as running:
        yield running


def test_guarded_commits_are_neither_lost_nor_doubled_when_replies_are_lost(
    store: ObjectStoreAddress, proxy: FaultProxy, tmp_path: Path
) -> None:
    writers = [Writer(kind="guarded", name=f"delta-rs-{n}", commits=15, endpoint=proxy.endpoint) for n in (1, 2)]

    verdict = run_appends(writers, work=tmp_path, seconds=100)

    print(verdict, sum(incident.is_lost_reply for incident in proxy.incidents))
    assert sum(incident.is_lost_reply for incident in proxy.incidents) >= 5
    assert verdict.acknowledged == 30
    assert not verdict.failed
    assert not verdict.lost
    assert not verdict.doubled


def test_plain_delta_rs_appends_are_doubled_by_lost_replies(
    store: ObjectStoreAddress, proxy: FaultProxy, tmp_path: Path
) -> None:
    verdict = run_appends(
        [Writer(kind="plain", name="delta-rs", commits=15, endpoint=proxy.endpoint)],
        work=tmp_path,
        seconds=100,
    )

    print(verdict)
    assert verdict.doubled, "delta-rs no longer doubles: the guarded commit could be simplified"
