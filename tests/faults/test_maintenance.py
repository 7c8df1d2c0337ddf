"""Fault 11: a stream, OPTIMIZE, VACUUM, DELETE with RESTORE, and two concurrent MERGEs on S3: nothing is lost or stuck.

Files that no batch names, written by drivers that died, are removed, and never a needed one.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.maintenance import orphans
from deltaworks.maintenance.orphans import OrphanResult, remove_orphans
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.injection import Fault
from tests.faults.harness.maintenance_load import APPEND_TABLES, MaintenanceLoad, Outcome
from tests.faults.harness.oracle import Verdict

MakeStage = Callable[..., FaultProject]
#: Limit for the retries of an operation and for pauses of the stream.
BOUND_SECONDS = 400.0
STREAM_SECONDS = 120.0


def kept_at_work(make_stage: MakeStage, print_result: Callable[..., None], *, minutes: float, off: str = "") -> Outcome:
    """Runs all roles together for a few minutes."""
    stage = make_stage(tables=APPEND_TABLES, storage="s3")
    outcome = MaintenanceLoad(stage, off=(off,) if off else ()).run(minutes)
    retried = {
        f"{role} {condition} {count}"
        for role, tally in outcome.operations.items()
        for condition, count in tally.retried.items()
    }
    done = {f"{role} {tally.done}" for role, tally in outcome.operations.items()}
    print_result(
        "11 stream, OPTIMIZE, VACUUM, DELETE and RESTORE, two MERGEs",
        f"WITHOUT {off}" if off else "protected",
        f"ids {stage.ids}",
        str(outcome),
        f"done: {', '.join(sorted(done))}",
        f"retried: {', '.join(sorted(retried)) or '-'}",
        *(error for tally in outcome.operations.values() for error in tally.errors),
    )
    return outcome


def test_everything_at_once_loses_nothing_and_every_operation_is_done(
    make_stage: MakeStage, print_result: Callable[..., None]
) -> None:
    outcome = kept_at_work(make_stage, print_result, minutes=2.5)

    assert outcome.is_exact, outcome.wrong
    assert outcome.missing == []
    assert outcome.longest_pause < STREAM_SECONDS
    assert max(tally.longest for tally in outcome.operations.values()) < BOUND_SECONDS
    merges = [tally for role, tally in outcome.operations.items() if role.endswith("mutate")]
    assert all("DELTA_CONFLICT" not in tally.retried for tally in merges)
    # Only one merge is admitted at a time, so a retried merge met a conflict.
    assert sum(tally.counts["attempts"] for tally in merges) == sum(tally.counts["merges"] for tally in merges)


def test_a_reader_that_nobody_asks_loses_its_files(make_stage: MakeStage, print_result: Callable[..., None]) -> None:
    outcome = kept_at_work(make_stage, print_result, minutes=4, off="holds")

    assert outcome.operations["read"].failed > 0
    assert "not found" in " ".join(outcome.operations["read"].errors).lower()


def test_without_the_write_turn_merges_meet_the_stream(
    make_stage: MakeStage, print_result: Callable[..., None]
) -> None:
    outcome = kept_at_work(make_stage, print_result, minutes=1, off="turn")

    merges = [tally for role, tally in outcome.operations.items() if role.endswith("mutate")]
    attempts = sum(tally.counts["attempts"] - tally.counts["merges"] for tally in merges)
    assert attempts > 0 or any(tally.retried["DELTA_CONFLICT"] or tally.failed for tally in merges)


TABLES = 6
WEEKS = 40 * 86_400
Tell = Callable[..., Verdict]


def die(stage: FaultProject, point: str) -> None:
    """Starts a driver that is killed at this point of its own batch."""
    stage.land()
    with Driver(stage, faults=[Fault(point=point, after="begun")]) as driver:
        assert driver.wait() != 0, driver.tail()


def finish(stage: FaultProject) -> None:
    with Driver(stage) as driver:
        driver.run_to_end()


def project(stage: FaultProject) -> Catalog:
    return load_catalog("local", root=stage.root)


def data_files(stage: FaultProject) -> set[Path]:
    root = Path(stage.storage.prefix) / paths.table(PIPELINE, "")
    return {path for path in root.rglob("*.parquet") if "_delta_log" not in path.parts}


def live_files(stage: FaultProject) -> dict[Path, str]:
    """Returns every file of the newest version of every table, with its checksum."""
    found = {}
    for name in ("events", "quarantine", *stage.kinds):
        table = stage.lake.open(paths.table(PIPELINE, name))
        for uri in table.file_uris() if table is not None else ():
            path = Path(uri.removeprefix("file://"))
            found[path] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def age(stage: FaultProject) -> None:
    then = time.time() - WEEKS
    for path in data_files(stage):
        os.utime(path, (then, then))


def removed(results: list[OrphanResult]) -> int:
    return sum(result.files for result in results if result.target != "prepared batches")


def test_files_of_drivers_that_died_go_and_live_files_are_the_same_to_the_bit(
    make_stage: MakeStage, tell: Tell
) -> None:
    stage = make_stage(tables=TABLES)
    stage.land(files=2)
    for _ in range(2):
        die(stage, "files_written")
    finish(stage)
    age(stage)
    before, lying = live_files(stage), data_files(stage)
    dead = lying - set(before)
    assert dead

    listed = remove_orphans(project(stage), PIPELINE)
    assert data_files(stage) == lying
    done = remove_orphans(project(stage), PIPELINE, dry_run=False)

    verdict = tell("17 orphans removed", stage, note=f"{len(dead)} orphans, {len(before)} live files")
    assert removed(listed) == removed(done) == len(dead)
    assert data_files(stage) == set(before)
    assert live_files(stage) == before
    assert verdict.is_exact


@pytest.mark.parametrize("protected", [True, False])
def test_files_of_a_batch_that_is_yet_to_be_committed_stay(
    make_stage: MakeStage, print_result: Callable[..., None], monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    stage = make_stage(tables=TABLES)
    stage.land()
    finish(stage)
    die(stage, "prepared")
    age(stage)
    torn = data_files(stage) - set(live_files(stage))
    assert torn
    if not protected:
        monkeypatch.setattr(orphans, "uncommitted_files", lambda *_: {})

    done = remove_orphans(project(stage), PIPELINE, dry_run=False)

    print_result(
        "17 torn batch", "protected" if protected else "WITHOUT held files", f"{removed(done)} of {len(torn)} removed"
    )
    if not protected:
        assert removed(done) == len(torn)
        return
    assert removed(done) == 0
    finish(stage)
    assert torn <= set(live_files(stage))
