"""Usual input is learned from the progress table, and missing input is detected by it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from deltaworks.control import paths
from deltaworks.control.health.limits import read_input_rate
from deltaworks.control.health.verdicts import evaluate_health
from deltaworks.engine.progress import PROGRESS_SCHEMA
from deltaworks.maintenance.control_tables import learn_input_rate
from tests.heartbeats import healthy_heartbeat
from tests.unit.engine.hold_harness import Harness

NOW = datetime(2026, 3, 30, 4, 0, tzinfo=UTC)
DAY = timedelta(days=1)


def progress(stage: Harness, inputs: list[tuple[datetime, int]]) -> None:
    """Rows of the progress table: batches with and without rows."""
    empty = dict.fromkeys(PROGRESS_SCHEMA.names)
    rows = [{**empty, "pipeline": "shop", "at": at, "rows": count} for at, count in inputs]
    table = pa.Table.from_pylist(rows, schema=PROGRESS_SCHEMA)
    write_deltalake(stage.lake.storage.uri(paths.pipeline_control("shop", "progress")), table, mode="append")


def test_missing_input_is_detected_only_in_usual_hours(tmp_path: Path) -> None:
    stage = Harness.at(tmp_path)
    catalog = stage.catalog()
    today = NOW.replace(hour=0)
    at_work = [
        (today - day * DAY + timedelta(hours=hour, minutes=5), 100) for day in range(1, 20) for hour in range(8, 18)
    ]
    idle = [(today - day * DAY + timedelta(hours=2), 0) for day in range(1, 20)]
    progress(stage, at_work + idle)

    norm = learn_input_rate(catalog, "shop", now=NOW)

    assert norm.days == 18, "the first day was not whole"
    assert [hour for hour, rows in enumerate(norm.rows_by_hour) if rows] == list(range(8, 18))
    kept = read_input_rate(stage.objects, paths.pipeline_control("shop", "input_rate.json"))
    assert kept == norm

    def cause(now: datetime, last: datetime) -> str:
        times = {"started_at": (last - DAY).isoformat(), "last_batch_at": last.isoformat()}
        beat = healthy_heartbeat(at=now.isoformat(), state="idle", batch_id=1, backlog_files=0, **times)
        return evaluate_health(beat, None, kind="stream", name="shop", now=now, input_rate=kept).cause

    evening = today - timedelta(hours=6, minutes=10)
    assert cause(today + timedelta(hours=8, minutes=59), evening) == "OK"
    assert cause(today + timedelta(hours=9, minutes=1), evening) == "INPUT_SILENT"
    assert cause(today + timedelta(hours=10, minutes=1), today + timedelta(hours=9, minutes=2)) == "OK"


def test_a_pipeline_without_input_has_an_empty_norm(tmp_path: Path) -> None:
    norm = learn_input_rate(Harness.at(tmp_path).catalog(), "shop", now=NOW)

    assert (norm.days, set(norm.rows_by_hour)) == (0, {0.0})
