"""Drivers die with written files that no batch names: maintenance removes these files and never a needed one."""

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
from tests.faults.harness.oracle import Verdict

TABLES = 6
WEEKS = 40 * 86_400
Tell = Callable[..., Verdict]
MakeStage = Callable[..., FaultProject]


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
