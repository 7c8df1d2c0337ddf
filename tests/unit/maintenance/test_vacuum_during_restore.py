"""Concurrent VACUUM and restore of a table: restored files are kept, deleted files are not restored."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.locks.write_turn import uncontested_turn
from deltaworks.errors import DeltaworksError
from deltaworks.maintenance import vacuum_files
from deltaworks.maintenance import vacuum_holds as holds
from deltaworks.maintenance.vacuum import VacuumResult, vacuum_tables
from deltaworks.recovery.restore import table_restore
from deltaworks.recovery.restore.plan import TableRestoreRequest
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.table_restore import TableRestore
from tests.crashes import Crash, crash_at
from tests.unit.engine.hold_harness import Harness

ORDERS = paths.table("shop", "orders")
#: The last commit before the loss, made two days ago: the ledger's times do not find it.
REQUEST = TableRestoreRequest(point=RestorePoint(version=2), max_rows=100)


@pytest.fixture
def stage(tmp_path: Path) -> Harness:
    """A table that lost a file two days ago."""
    made = Harness.with_broken_table(tmp_path)
    then = time.time() - 48 * 3600
    root = Path(made.storage.prefix) / ORDERS
    for path in (root / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            for name, field in (
                ("remove", "deletionTimestamp"),
                ("metaData", "createdTime"),
                ("commitInfo", "timestamp"),
            ):
                if name in action:
                    action[name][field] = int(then * 1000)
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))
    for path in root.rglob("*.parquet"):
        os.utime(path, (then, then))
    return made


def vacuumed(stage: Harness) -> VacuumResult:
    (result,) = vacuum_tables(
        None, stage.catalog(), "shop", dry_run=False, retention_hours=24, below_minimum="a test", tables=["orders"],
        mode="full",
    )  # fmt: skip
    return result


def restore(stage: Harness, fault: Any = lambda point: None) -> None:
    TableRestore(stage.catalog(), "shop", "orders", fault=fault).run(REQUEST)


@pytest.mark.parametrize("protected", [True, False])
def test_a_restore_does_not_reference_vacuumed_files(
    stage: Harness, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    if not protected:
        monkeypatch.setattr(table_restore, "table_files_lock", lambda *_, **__: uncontested_turn("orders"))
    ended: list[str] = []

    def restoring() -> None:
        try:
            restore(stage)
            ended.append("done")
        except DeltaworksError as error:
            ended.append(error.condition)

    thread = threading.Thread(target=restoring)

    delete = vacuum_files.delete_files

    def decide_then_delete(*arguments: Any) -> None:
        """A restore comes between the two halves of VACUUM."""
        thread.start()
        thread.join(3 if protected else 60)
        delete(*arguments)

    monkeypatch.setattr(vacuum_files, "delete_files", decide_then_delete)
    assert vacuumed(stage).files == 1
    thread.join()

    if protected:
        assert ended == ["RESTORE_FILES_MISSING"]
        assert stage.landed("orders") == stage.expected(1, 2, 3)
    else:
        assert ended == ["done"]
        with pytest.raises(Exception, match=r"(?i)not found|no such file"):
            stage.landed("orders")


@pytest.mark.parametrize("protected", [True, False])
def test_files_of_an_interrupted_restore_are_kept(
    stage: Harness, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    with pytest.raises(Crash):
        restore(stage, crash_at("planned"))
    if not protected:
        monkeypatch.setattr(holds, "_rollback_positions", lambda *_: [])

    result = vacuumed(stage)
    restore(stage)

    if protected:
        assert result.files == 0
        assert "rollback 1 of the table" in result.reason
        assert stage.landed("orders") == stage.expected(0, 1, 2, 3)
    else:
        assert result.files == 1
        with pytest.raises(Exception, match=r"(?i)not found|no such file"):
            stage.landed("orders")
