"""Commits and checkpoint files of concurrent drivers: each exists once, on S3 and on local disk.

Commits of delta-rs whose replies are lost have their twins in tests/unit/tables/test_commit.py, with and without the
guard.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.servers.fault_proxy import Action, Fault, FaultProxy, running_fault_proxy
from sandbox.servers.object_store import ObjectStoreAddress
from tests.integration.log_store.proof import (
    COMMIT_FILES,
    Writer,
    lake_server,
    run_appends,
    run_writers,
    started_writers,
)
from tests.integration.log_store.writer import LOCAL_LINES, LOCAL_LOG, STREAM_CHECKPOINT

BATCHES = 150


def race(work: Path, *, protected: bool) -> tuple[Counter[int], Counter[str]]:
    """Returns how many of two drivers created each batch's file, and the errors of the other one."""
    drivers = [
        Writer(kind="checkpoint", name=name, commits=BATCHES, protected=protected) for name in ("driver-1", "driver-2")
    ]
    with lake_server(work / "lake"):
        _, outcomes = run_writers(drivers, work=work, seconds=120)
    creators = Counter(int(identity.rpartition("-")[2]) for identity, told in outcomes.items() if told == "ok")
    return creators, Counter(told.split(":")[0] for told in outcomes.values() if told != "ok")


@pytest.mark.integration
def test_exactly_one_of_two_drivers_creates_each_file_though_both_write_the_same_bytes(tmp_path: Path) -> None:
    creators, refusals = race(tmp_path, protected=True)

    print(refusals)
    assert creators == Counter(range(BATCHES))
    assert set(refusals) <= {"taken", "Py4JJavaError"}


@pytest.mark.integration
def test_a_lost_reply_to_a_checkpoint_file_is_a_success(tmp_path: Path) -> None:
    lost = Fault(action=Action.LOSE_REPLY, method="PUT", path=r"/commits/\d+$", every=3)
    with (
        lake_server(tmp_path / "lake") as store,
        running_fault_proxy(store.endpoint, faults=[lost]) as proxy,
    ):
        driver = Writer(kind="checkpoint", name="driver", commits=12, endpoint=proxy.endpoint)
        _, outcomes = run_writers([driver], work=tmp_path, seconds=60)

    assert sum(incident.is_lost_reply for incident in proxy.incidents) >= 4
    assert set(outcomes.values()) == {"ok"}


@pytest.mark.integration
def test_a_stream_goes_on_from_its_checkpoint_on_s3_and_on_local_disk(tmp_path: Path) -> None:
    with lake_server(tmp_path / "lake"):
        _, outcomes = run_writers([Writer(kind="stream", name="stream", commits=3)], work=tmp_path, seconds=60)

    assert set(outcomes.values()) == {"ok"}
    for checkpoint in (tmp_path / "lake" / "deltaworks-lake" / STREAM_CHECKPOINT, tmp_path / STREAM_CHECKPOINT):
        for log in ("offsets", "commits"):
            assert {path.name for path in (checkpoint / log).iterdir() if path.name.isdigit()} == {"0", "1", "2"}


@pytest.mark.integration
def test_sparks_own_file_manager_lets_both_drivers_create_the_same_file(tmp_path: Path) -> None:
    creators, _ = race(tmp_path, protected=False)

    assert any(count == 2 for count in creators.values())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStoreAddress]:
    with lake_server(tmp_path / "lake") as address:
        yield address


@pytest.fixture
def proxy(store: ObjectStoreAddress) -> Iterator[FaultProxy]:
    lost = Fault(action=Action.LOSE_REPLY, method="PUT", path=COMMIT_FILES, every=3)
    with running_fault_proxy(store.endpoint, faults=[lost]) as running:
        yield running


@pytest.mark.integration
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


@pytest.mark.integration
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


COMMITS = 120


def race_of_commits(work: Path, *, protected: bool) -> Counter[int]:
    """Returns how many of two drivers were told that they made each commit."""
    drivers = [
        Writer(kind="local", name=name, commits=COMMITS, protected=protected) for name in ("driver-1", "driver-2")
    ]
    _, outcomes = run_writers(drivers, work=work, seconds=120)
    assert set(outcomes.values()) <= {"ok", "taken"}
    return Counter(int(identity.rpartition("-")[2]) for identity, told in outcomes.items() if told == "ok")


@pytest.mark.integration
def test_exactly_one_of_two_drivers_makes_each_commit(tmp_path: Path) -> None:
    makers = race_of_commits(tmp_path, protected=True)

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
    makers = race_of_commits(tmp_path, protected=False)

    assert 2 in makers.values()
