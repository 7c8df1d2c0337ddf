"""A file event log that is deleted and recreated, or reset to an older version, after a stream has read part of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from deltaworks.errors import DeltaworksError
from deltaworks.sources.objects.file_event_log import FileEventLog, file_events_key
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.sources.objects.slices import FileEventPlanner, SliceLimits
from deltaworks.testing import local_lake
from tests.faults.harness.file_protections import switch_off

BEFORE, AFTER = 5, 20


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose relay's log has five objects. The stream's offset is stored as Spark stores it."""
    announce(tmp_path, [f"old-{number}" for number in range(BEFORE)], epoch=1)
    return tmp_path


def announce(project: Path, keys: list[str], *, epoch: int) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    events = [FileEvent("b", key, 9, "e", None, at, "ObjectCreated:Put", None) for key in keys]
    lake = local_lake(f"{project}/lake")
    FileEventLogWriter(lake, "landing", epoch=epoch).append([ReceivedEvent(event, "m", at) for event in events])


def read(project: Path, start: dict[str, Any] | None) -> tuple[list[str], dict[str, Any]]:
    """Returns the files that a new run of a stream reads from an offset, and the end offset."""
    lake = local_lake(f"{project}/lake")
    limits = SliceLimits(max_files=500, max_bytes=None)
    batches = FileEventPlanner(FileEventLog(lake, "landing"), bucket="b", prefix="", limits=limits)
    start = json.loads(json.dumps(start or batches.initial_offset()))
    batches.prepare_for_available_now()
    end = batches.next_end_offset(start) or start
    return batches.rows(start, end).column("key").to_pylist(), end


@pytest.mark.parametrize("without", [[], ["log_check"]], ids=["protected", "without"])
@pytest.mark.parametrize("how", ["made anew", "set back"])
def test_15_a_log_that_is_another_one_is_not_read_on(
    project: Path, print_result: Callable[..., None], monkeypatch: pytest.MonkeyPatch, how: str, without: list[str]
) -> None:
    switch_off(monkeypatch, without)
    _, position = read(project, None)
    log = project / "lake" / file_events_key("landing")
    if how == "made anew":
        shutil.rmtree(log)
        owed = [f"new-{number}" for number in range(AFTER)]
        announce(project, owed, epoch=2)
    else:
        DeltaTable(str(log)).restore(0)
        owed = ["new-0"]
        announce(project, owed, epoch=2)
    found: list[str] = []
    refused = ""
    try:
        found, _ = read(project, position)
    except DeltaworksError as error:
        refused = error.condition
    silently_lost = [] if refused else [key for key in owed if key not in found]
    protection = f"WITHOUT {', '.join(without)}" if without else "protected"
    print_result(
        f"15 log {how}", protection, refused or "went on", f"silently lost {len(silently_lost)} of {len(owed)}"
    )
    assert refused == ("" if without else {"made anew": "LOG_REPLACED", "set back": "LOG_ROLLED_BACK"}[how])
    assert bool(silently_lost) == bool(without)
