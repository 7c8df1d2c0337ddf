"""Spark's checkpoint loses files or is deleted; the product's own records identify completed batches."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.specs.catalog import PROJECT_ROOT
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.injection import Fault
from tests.faults.harness.oracle import Verdict
from tests.faults.harness.timings import engine_seconds, recovery_seconds

Tell = Callable[..., Verdict]
MakeStage = Callable[..., FaultProject]


def checkpoint(stage: FaultProject) -> Path:
    return Path(stage.storage.prefix) / paths.checkpoint(PIPELINE, 1, 1)


def delete_commit(stage: FaultProject, batch: int) -> None:
    """Deletes Spark's commit file, as if the driver had ended before it was written."""
    folder = checkpoint(stage) / "commits"
    for name in (f"{batch}", f".{batch}.crc"):
        (folder / name).unlink(missing_ok=True)


def repair(stage: FaultProject) -> None:
    """Runs the repair that the error message recommends."""
    command = [sys.executable, "-m", "deltaworks.cli", "checkpoint", "repair", PIPELINE, "--no-dry-run"]
    environment = {**os.environ, **stage.environment(), "PYTHONPATH": str(PROJECT_ROOT / "include")}
    subprocess.run(command, check=True, env=environment)


def landed(stage: FaultProject, batches: int) -> FaultProject:
    stage.land(files=batches)
    with Driver(stage) as driver:
        driver.run_to_end()
    return stage


def test_a_batch_replayed_because_its_commit_file_is_gone_adds_no_row(make_stage: MakeStage, tell: Tell) -> None:
    stage = landed(make_stage(tables=4), 3)
    before = tell("2 before", stage).commits
    delete_commit(stage, 2)
    with Driver(stage) as successor:
        successor.run_to_end()
        replayed = [point for _, _, point in successor.points() if point == "begun"]

    verdict = tell("2 commits/N deleted", stage, recovery=engine_seconds(successor))
    assert replayed
    assert verdict.is_exact
    # A takeover adds one commit per table, and nothing else was written.
    assert verdict.commits == before + 5


def test_without_our_records_a_replayed_batch_doubles(make_stage: MakeStage, tell: Tell) -> None:
    stage = landed(make_stage(tables=4), 3)
    delete_commit(stage, 2)
    off = ["ledger", "prepared", "transactions"]
    with Driver(stage, off=off) as successor:
        successor.run_to_end()

    verdict = tell("2 commits/N deleted", stage, off=", ".join(off))
    assert verdict.doubled


def lose_checkpoint_in_a_torn_batch(stage: FaultProject) -> Driver:
    """Lands two batches, interrupts the third, deletes the checkpoint, and lands more files."""
    stage.land(files=3)
    with Driver(stage, faults=[Fault(point="committed:.*", nth=2 * (stage.tables + 1) + 3)]) as broken:
        broken.wait()
    shutil.rmtree(checkpoint(stage))
    stage.land(files=3)
    # The backlog becomes one large batch; under an old batch's number it would count as already landed.
    stage.declare(source={"max_files_per_batch": 100})
    return broken


def test_a_lost_checkpoint_goes_on_after_the_ledgers_last_batch(make_stage: MakeStage, tell: Tell) -> None:
    stage = make_stage(tables=4)
    broken = lose_checkpoint_in_a_torn_batch(stage)
    with Driver(stage) as successor:
        successor.run_to_end()

    verdict = tell("9 checkpoint lost", stage, recovery=recovery_seconds(broken, successor))
    assert verdict.is_exact


def test_without_the_ledgers_offsets_a_lost_checkpoint_loses_what_came_since(make_stage: MakeStage, tell: Tell) -> None:
    stage = make_stage(tables=4)
    broken = lose_checkpoint_in_a_torn_batch(stage)
    with Driver(stage, off=["ledger_offsets"]) as successor:
        successor.wait()

    verdict = tell("9 checkpoint lost", stage, off="ledger_offsets", recovery=recovery_seconds(broken, successor))
    assert verdict.lost


@pytest.mark.parametrize(
    ("name", "kept", "off"),
    [
        *((name, kept, []) for name in ("offsets", "commits") for kept in (0.0, 0.5)),
        *((name, 0.5, ["checkpoint_check"]) for name in ("offsets", "commits")),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name_and_repaired(
    make_stage: MakeStage, tell: Tell, name: str, kept: float, off: list[str]
) -> None:
    stage = landed(make_stage(tables=4), 2)
    damaged = checkpoint(stage) / name / "1"
    content = damaged.read_bytes()
    damaged.write_bytes(content[: int(len(content) * kept)])
    damaged.with_name(".1.crc").unlink(missing_ok=True)
    stage.land()
    with Driver(stage, off=off) as refused:
        code = refused.wait()
        condition, told = refused.final_error()
    repair(stage)
    with Driver(stage) as successor:
        successor.run_to_end()

    note = f"it ended with {code} {condition}, then it was repaired"
    fault = f"3 {name}/N {'torn' if kept else 'empty'}"
    verdict = tell(fault, stage, off=", ".join(off), recovery=engine_seconds(successor), note=note)
    assert (condition == "CHECKPOINT_DAMAGED" and f"{name}/1" in told) == (not off)
    assert code != 0
    assert verdict.is_exact


def set_back(stage: FaultProject, batch: int) -> None:
    """Restores the checkpoint from before the batch, like a backup."""
    for name in ("offsets", "commits"):
        for file in (f"{batch}", f".{batch}.crc"):
            (checkpoint(stage) / name / file).unlink(missing_ok=True)


@pytest.mark.parametrize("off", [[], ["ledger_offsets"]], ids=["protected", "without"])
def test_a_checkpoint_that_was_set_back_is_given_up(make_stage: MakeStage, tell: Tell, off: list[str]) -> None:
    stage = landed(make_stage(tables=4), 3)
    set_back(stage, 2)
    stage.land(files=3)
    # Spark plans the batch again, with more files than have landed under its number.
    stage.declare(source={"max_files_per_batch": 100})
    with Driver(stage, off=off) as surprised:
        code = surprised.wait()
        condition, _ = surprised.final_error()
    with Driver(stage, off=off) as successor:
        successor.run_to_end()

    note = f"it ended with {code} {condition}"
    recovery = None if off else engine_seconds(successor)
    verdict = tell("3 checkpoint set back", stage, off=", ".join(off), recovery=recovery, note=note)
    assert (condition == "CHECKPOINT_SUPERSEDED") == (not off)
    assert verdict.is_exact == (not off)
    assert bool(verdict.lost) == bool(off)


@pytest.mark.parametrize("off", [[], ["ledger_check"]], ids=["protected", "without"])
def test_a_lost_ledger_is_refused_and_made_anew_from_the_prepared_batches(
    make_stage: MakeStage, tell: Tell, off: list[str]
) -> None:
    stage = landed(make_stage(tables=4), 3)
    for name in ("checkpoint_store", "batch_metadata_store"):
        shutil.rmtree(Path(stage.storage.prefix) / paths.pipeline_control(PIPELINE, name))
    shutil.rmtree(checkpoint(stage))
    stage.land(files=3)
    stage.declare(source={"max_files_per_batch": 100})
    with Driver(stage, off=off) as refused:
        code = refused.wait()
        condition, _ = refused.final_error()
    if not off:
        repair(stage)
        with Driver(stage) as successor:
            successor.run_to_end()

    note = f"it ended with {code} {condition}"
    verdict = tell("3 ledger and checkpoint lost", stage, off=", ".join(off), note=note)
    assert (condition == "LEDGER_BEHIND") == (not off)
    assert bool(verdict.lost) == bool(off)
    assert off or verdict.is_exact
