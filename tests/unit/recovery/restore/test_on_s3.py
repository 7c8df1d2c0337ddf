"""Restores and repairs on S3 handle a bucket's commits, listings and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.objects import S3Objects
from deltaworks.recovery.repair.log_gap import check_pipeline, repair_log
from deltaworks.recovery.repair.lost_files import repair_files
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.table_plan import TableRestoreRequest
from deltaworks.recovery.restore.table_restore import TableRestore
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.log import state_at
from tests.moto_server import running_moto
from tests.unit.recovery.restore.source_harness import SourceHarness

ORDERS = paths.table("shop", "orders")


@dataclass
class S3Harness(SourceHarness):
    """The lake lies in a bucket, the landing folder on disk."""

    endpoint: str = ""

    @property
    def storage(self) -> StorageSpec:
        return StorageSpec(
            root="s3://lake/below",
            endpoint=self.endpoint,
            path_style=True,
            access_key="env:TEST_ACCESS_KEY",
            secret_key="env:TEST_SECRET_KEY",
        )


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Harness]:
    monkeypatch.setenv("TEST_ACCESS_KEY", "testing")
    monkeypatch.setenv("TEST_SECRET_KEY", "testing")
    made = S3Harness.at(tmp_path)
    assert isinstance(made, S3Harness)
    with running_moto() as made.endpoint:
        S3Objects(made.storage)._client.create_bucket(Bucket="lake")
        yield made


@pytest.mark.integration
def test_a_table_goes_back_and_is_mended_from_a_checkpoint_on(stage: S3Harness) -> None:
    processor = stage.land_all(0, 1, 2)
    table = stage.lake.open(ORDERS)
    assert table is not None
    table.create_checkpoint()
    stage.land_object(processor, 3)
    before = stage.contents()
    table = stage.lake.open(ORDERS)
    assert table is not None
    table.delete("_seq <= 2")

    request = TableRestoreRequest(point=RestorePoint(batch=3), max_rows=100)
    done = TableRestore(stage.catalog(), "shop", "orders").run(request)

    assert stage.contents() == before
    assert done.version == table.version() + 1

    stage.objects.delete(f"{ORDERS}/_delta_log/{table.version():020d}.json")
    assert [each.kind for each in check_pipeline(stage.catalog(), "shop")] == ["log_gap"]
    mended = repair_log(stage.catalog(), "shop", "orders", dry_run=False, max_rows=100)
    assert mended.filled == (table.version(),)
    assert stage.contents() == before

    name = next(iter(state_at(stage.lake, stage.objects, ORDERS).files))[0]
    stage.objects.delete(f"{ORDERS}/{name}")
    assert [each.kind for each in check_pipeline(stage.catalog(), "shop")] == ["files_damaged"]
    repair_files(stage.catalog(), "shop", "orders", dry_run=False, max_rows=100)
    assert stage.contents() == before
    assert check_pipeline(stage.catalog(), "shop") == []
