"""The job of a rollback's DAG: what it counts is the bound that the deed is given."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from deltaworks.errors import ConfigError
from deltaworks.rework.restore import job
from tests.unit.rework.restore.source_stage import SourceStage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceStage:
    made = SourceStage.at(tmp_path)
    assert isinstance(made, SourceStage)
    made.land_all(0, 1, 2, 3)
    monkeypatch.setattr(job, "load_catalog", lambda tolerant: made.catalog())
    return made


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["job", "--pipeline", "shop", *words])
    assert job.main() == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])[0]
    return found


@pytest.mark.parametrize("table", ["orders", ""])
def test_what_was_counted_bounds_what_is_done(
    stage: SourceStage, table: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As the form fills it in: what was left empty is an empty text.
    form = [f"--table={table}", "--to-batch=1", "--to-time=", "--to-version=", "--repair=none", "--reason=a mistake"]
    counted = run(monkeypatch, capsys, *form)
    assert (counted["dry_run"], counted["rows_out"]) == (True, 4 if table else 14)
    assert len(stage.landed("orders")) == 6

    with pytest.raises(ConfigError, match="TOO_LARGE"):
        run(monkeypatch, capsys, *form, "--max-rows", str(counted["rows_out"] - 1), "--no-dry-run")
    run(monkeypatch, capsys, *form, "--max-rows", str(counted["rows_out"]), "--no-dry-run")

    assert {seq for seq, _ in stage.landed("orders")} == {1}
    assert {seq for seq, _ in stage.landed("clicks")} == ({1, 2, 3} if table else {1})


def test_times_are_read_as_utc_and_nonsense_is_named() -> None:
    point = job.point_of(version="", time="2026-01-31T12:00:00", batch="")

    assert point.time is not None
    assert point.time.isoformat() == "2026-01-31T12:00:00+00:00"
    with pytest.raises(ConfigError, match="RESTORE_POINT"):
        job.point_of(version="", time="yesterday", batch="")
    with pytest.raises(ConfigError, match="RESTORE_POINT"):
        job.point_of(version="", time="", batch="")
