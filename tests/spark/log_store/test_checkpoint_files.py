"""Spark's checkpoint files on S3: of two drivers on one checkpoint exactly one creates each file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sandbox.servers.fault_proxy import Action, Fault, running_fault_proxy
from tests.integration.log_store.proof import Writer, lake_server, run_writers
from tests.integration.log_store.writer import STREAM_CHECKPOINT

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
