"""A lake that the former release wrote continues under this one: nothing is lost, duplicated or started over."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.engine.runner import IngestRun
from deltaworks.mutations.apply import MutationRun
from deltaworks.recovery.reprocess.run import Reprocess
from deltaworks.recovery.restore.table_restore import TableRestore
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake
from tests.integration.former_release import declared
from tests.spark.conftest import spark

pytestmark = [pytest.mark.integration]
__all__ = ["spark"]
FORMER = "9d51f774de6d333b9945d367c7d1fb2d0472a345"
WRITE_STATE = Path(declared.__file__).with_name("write_state.py")


def _former_code(folder: Path) -> Path:
    """The library of the former release, with the jars of this one: they have not changed."""
    done = subprocess.run(
        ["git", "archive", "--format=tar", FORMER, "include"], cwd=PROJECT_ROOT, capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"the history of this checkout does not go back to {FORMER[:7]}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    jars = folder / "include" / "jars"
    jars.rename(folder / "former_jars")
    jars.symlink_to(PROJECT_ROOT / "include" / "jars")
    return folder / "include"


@dataclass(frozen=True)
class Stage:
    """The project whose state the former code wrote."""

    spark: SparkSession
    root: Path
    catalog: Catalog

    @property
    def lake(self) -> Lake:
        return Lake(self.catalog.environment.lake)

    def relay(self) -> None:
        environment = self.catalog.environment
        spec = self.catalog.relay("landing")
        Relay(spec, lake=environment.lake, queue=None, landing=environment.landing, until_drained=True).run()

    def stream(self, pipeline: str) -> None:
        IngestRun(self.spark, self.catalog, pipeline, available_now=True).run()

    def rows(self, pipeline: str, table: str) -> list[dict[str, Any]]:
        rows = self.lake.rows(paths.table(pipeline, table))
        return [] if rows is None else rows.to_pylist()

    def ids(self, pipeline: str) -> dict[str, Counter[str]]:
        return {name: Counter(row["event_id"] for row in self.rows(pipeline, name)) for name in ("orders", "logins")}

    def quarantined(self, pipeline: str) -> Counter[tuple[str, int]]:
        return Counter((row["object_key"], row["_position"]) for row in self.rows(pipeline, "quarantine"))

    def batches(self, pipeline: str) -> list[int]:
        """The complete batches, by the ledger."""
        rows = self.lake.rows(paths.pipeline_control(pipeline, "checkpoint_store"))
        assert rows is not None
        return sorted(row["batch_id"] for row in rows.to_pylist())

    def check(self, pipeline: str, *, waves: int, batches: int) -> None:
        """All waves landed, every event once, in consecutive batches of the first generation."""
        everything = range(1, waves + 1)
        assert self.ids(pipeline) == declared.expected_ids(everything)
        assert self.quarantined(pipeline) == declared.expected_quarantine(everything)
        assert self.batches(pipeline) == list(range(batches))
        assert PipelineHome.open(self.catalog.environment.lake, pipeline).generations.current() == 1


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Three waves landed by the former code, work of each kind interrupted, and a fourth wave that waits."""
    root = tmp_path_factory.mktemp("former")
    code = _former_code(tmp_path_factory.mktemp("code"))
    declared.write_project(root)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DELTAWORKS_")}
    done = subprocess.run(
        [sys.executable, str(WRITE_STATE), str(root)],
        env=environment | {"PYTHONPATH": str(code)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    # Only now, so that no two JVMs run side by side.
    stage = Stage(request.getfixturevalue("spark"), root, load_catalog("local", root=root))
    declared.land(root, 4)
    stage.relay()
    return stage


def test_a_batch_that_was_interrupted_between_its_commits_is_completed_and_the_stream_continues(stage: Stage) -> None:
    assert stage.ids("torn")["orders"] == declared.expected_ids((1, 2, 3))["orders"], "the batch is in one table"
    assert stage.ids("torn")["logins"] == declared.expected_ids((1, 2))["logins"], "and in no other"

    stage.stream("torn")

    stage.check("torn", waves=4, batches=4)


def test_a_rollback_that_was_planned_is_finished_by_its_record(stage: Stage) -> None:
    done = TableRestore(stage.catalog, "rolled", "orders").run()
    assert done.resumed
    assert stage.ids("rolled")["orders"] == declared.expected_ids((1, 2))["orders"], "what landed since came back"

    stage.stream("rolled")

    stage.check("rolled", waves=4, batches=3)


def test_a_reprocess_that_had_read_everything_is_committed(stage: Stage) -> None:
    done = Reprocess(lambda: stage.spark, stage.catalog, "reread").run("again")
    assert done.objects == 2
    assert stage.ids("reread") == declared.expected_ids((1, 2))

    stage.stream("reread")

    stage.check("reread", waves=4, batches=3)


def test_a_mutation_batch_that_was_fixed_is_applied_and_the_next_follows(stage: Stage) -> None:
    first = MutationRun(stage.spark, stage.catalog, "crm", lease_wait_seconds=60).run()
    assert [end.number for end in first.completed] == [2]
    assert first.batches == []

    stage.stream("crm")
    second = MutationRun(stage.spark, stage.catalog, "crm", lease_wait_seconds=60).run()

    assert [end.number for end in second.batches] == [3]
    contacts = {row["event_id"]: row["contact_id"] for row in stage.rows("crm", "activities")}
    assert contacts == declared.expected_contacts(range(1, 5))
    assert len(stage.rows("crm", "activities")) == len(contacts)
