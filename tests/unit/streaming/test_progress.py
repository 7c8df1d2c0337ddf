"""Progress is written out of band, and never stands in the way of a batch."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.specs.storage import StorageSpec
from deltaworks.streaming.batches import BatchReport
from deltaworks.streaming.progress import ProgressLog
from deltaworks.tables import commit
from deltaworks.tables.lake import Lake


def report(batch_id: int) -> BatchReport:
    return BatchReport(
        batch_id=batch_id,
        rows=100,
        quarantined=1,
        files_read=2,
        bytes_read=3,
        files_written=4,
        tables=5,
        resumed=False,
        prepare_seconds=1.0,
        commit_seconds=0.5,
        complete_seconds=0.5,
    )


def test_every_batch_has_a_row_once_the_log_is_closed(tmp_path: Path) -> None:
    storage = StorageSpec(root=f"file://{tmp_path}")
    log = ProgressLog(storage, "shop", owner_epoch=3, flush_seconds=0.05)
    log.start()
    log.add(report(0))
    time.sleep(0.3)
    log.add(report(1))

    log.close()

    written = Lake(storage).rows(paths.pipeline_control("shop", "progress"))
    assert written is not None
    found = sorted(written.to_pylist(), key=lambda row: row["batch_id"])
    assert [(row["batch_id"], row["rows"], row["owner_epoch"], row["rows_per_second"]) for row in found] == [
        (0, 100, 3, 50.0),
        (1, 100, 3, 50.0),
    ]
    assert found[0]["driver_peak_bytes"] > 1 << 20
    assert log.dropped == 0


def test_a_storage_that_fails_drops_rows_counts_them_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "MAX_ATTEMPTS", 1)
    (tmp_path / "control").write_text("a file where a folder should be")
    log = ProgressLog(StorageSpec(root=f"file://{tmp_path}"), "shop", owner_epoch=1, flush_seconds=0.05)
    log.start()

    log.add(report(0))
    log.close()

    assert log.dropped == 1


def test_a_full_queue_drops_and_never_blocks(tmp_path: Path) -> None:
    log = ProgressLog(StorageSpec(root=f"file://{tmp_path}"), "shop", owner_epoch=1)

    started = time.monotonic()
    for number in range(1_500):
        log.add(report(number))

    assert log.dropped == 500
    assert time.monotonic() - started < 5
