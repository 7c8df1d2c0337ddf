"""The job of a restore: its count limits the restore."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from deltaworks.control.records.generations import LostCommit
from deltaworks.errors import ConfigError
from deltaworks.operations.base import OperationContext
from deltaworks.operations.job import main
from deltaworks.operations.registry import get_operation
from deltaworks.operations.restore import RestoreOptions, describe_lost, restore, restore_point
from deltaworks.specs import project
from tests.unit.recovery.restore.source_harness import SourceHarness


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceHarness:
    harness = SourceHarness.at(tmp_path)
    assert isinstance(harness, SourceHarness)
    harness.land_all(0, 1, 2, 3)
    monkeypatch.setattr(project, "load_catalog", lambda skip_invalid: harness.catalog())
    return harness


def arguments(options: dict[str, Any]) -> list[str]:
    return ["--pipeline", "shop", f"--options={json.dumps(options)}"]


def run(capsys: pytest.CaptureFixture[str], options: dict[str, Any]) -> dict[str, Any]:
    assert main("restore", arguments(options)) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])[0]
    return result


@pytest.mark.parametrize("table", ["orders", ""])
def test_the_count_is_the_limit_of_the_restore(
    harness: SourceHarness, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # As a template fills it in: what was left empty is an empty text.
    point = {"to_batch": "1", "to_time": "", "to_version": ""}
    form = {"table": table, **point, "repair": "none", "reason": "a mistake"}
    counted = run(capsys, form)
    assert (counted["dry_run"], counted["rows_removed"]) == (True, 4 if table else 14)
    assert len(harness.landed("orders")) == 6

    below = form | {"max_rows": counted["rows_removed"] - 1, "dry_run": False}
    assert main("restore", arguments(below)) == ConfigError.exit_code
    assert "TOO_LARGE" in capsys.readouterr().out
    run(capsys, form | {"max_rows": counted["rows_removed"], "dry_run": False})

    assert {seq for seq, _ in harness.landed("orders")} == {1}
    assert {seq for seq, _ in harness.landed("clicks")} == ({1, 2, 3} if table else {1})


def test_times_are_parsed_as_utc_and_invalid_ones_rejected() -> None:
    point = restore_point(RestoreOptions(to_time="2026-01-31T12:00:00"))

    assert point is not None
    assert point.time is not None
    assert point.time.isoformat() == "2026-01-31T12:00:00+00:00"
    with pytest.raises(ConfigError, match="RESTORE_POINT_INVALID"):
        restore_point(RestoreOptions(to_time="yesterday"))


@pytest.mark.parametrize("options", [RestoreOptions(), RestoreOptions(table="orders")])
def test_nothing_is_counted_without_a_restore_point(harness: SourceHarness, options: RestoreOptions) -> None:
    context = OperationContext(operation=get_operation("restore"), catalog=harness.catalog(), subject="shop")

    with pytest.raises(ConfigError, match="RESTORE_POINT_INVALID"):
        restore(context, options)


def test_lost_batches_are_described_by_their_number_and_their_rows() -> None:
    def lost(*numbers: int, kind: Literal["batch", "replay"] = "batch", rows: int = 1) -> tuple[LostCommit, ...]:
        return tuple(LostCommit(kind=kind, generation=1, number=number, rows=rows, files=1) for number in numbers)

    assert describe_lost(lost(11)) == "batch 11: 1 row"
    assert describe_lost(lost(11, 12, rows=18)) == "2 batches of 11-12: 36 rows"
    assert describe_lost((*lost(11), *lost(3, 4, kind="replay"))) == "batch 11: 1 row, 2 replays of 3-4: 2 rows"
