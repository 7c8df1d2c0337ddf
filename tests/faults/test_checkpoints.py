"""Spark's checkpoint loses files, or is lost: batches are known from our own records."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from deltaworks.control import paths
from tests.faults.harness.driver import Driver
from tests.faults.harness.injection import Fault
from tests.faults.harness.judging import engine_seconds, recovery_seconds
from tests.faults.harness.oracle import Verdict
from tests.faults.harness.stage import PIPELINE, Stage

Tell = Callable[..., Verdict]
MakeStage = Callable[..., Stage]


def checkpoint(stage: Stage) -> Path:
    return Path(stage.storage.prefix) / paths.checkpoint(PIPELINE, 1, 1)


def delete_commit(stage: Stage, batch: int) -> None:
    """As if the driver had ended before Spark wrote that the batch is done."""
    folder = checkpoint(stage) / "commits"
    for name in (f"{batch}", f".{batch}.crc"):
        (folder / name).unlink(missing_ok=True)


def landed(stage: Stage, batches: int) -> Stage:
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
    # A takeover is one commit a table, and nothing else was written.
    assert verdict.commits == before + 5


def test_without_our_records_a_replayed_batch_doubles(make_stage: MakeStage, tell: Tell) -> None:
    stage = landed(make_stage(tables=4), 3)
    delete_commit(stage, 2)
    off = ["ledger", "prepared", "transactions"]
    with Driver(stage, off=off) as successor:
        successor.run_to_end()

    verdict = tell("2 commits/N deleted", stage, off=", ".join(off))
    assert verdict.doubled


def lose_checkpoint_in_a_torn_batch(stage: Stage) -> Driver:
    """Two batches landed, the third broken off, then the checkpoint gone; meanwhile more has arrived."""
    stage.land(files=3)
    with Driver(stage, faults=[Fault(point="committed:.*", nth=2 * (stage.tables + 1) + 3)]) as broken:
        broken.wait()
    shutil.rmtree(checkpoint(stage))
    stage.land(files=3)
    # What has gathered makes one large batch: under the number of an old one it would be taken for done.
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
