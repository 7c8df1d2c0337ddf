"""Missing input is found: by the usual rate, learned from progress, and by sequence numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.health.limits import read_input_rate
from deltaworks.control.health.verdicts import evaluate_health
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.collector import HourCounts, LostEvents, MissingRange
from deltaworks.control.records.store import RecordStore
from deltaworks.engine.progress import PROGRESS_SCHEMA
from deltaworks.events.reasons import QUARANTINE_SCHEMA
from deltaworks.maintenance.control_tables import learn_input_rate
from deltaworks.maintenance.lost_events import assigned_ranges, find_lost_events
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.testing import declare_pipeline, declare_table, present, write_project
from tests.heartbeats import healthy_heartbeat
from tests.unit.engine.hold_harness import Harness
from tests.unit.kubernetes.conftest import write_collector

PROCESS = "0123456789abcdef" * 2
NOW = datetime(2026, 11, 23, 14, 30, tzinfo=UTC)
COLUMNS = ("collector string from _collector.collector", "seq long from _collector.seq")


def project(root: Path, *, columns: Sequence[str] = COLUMNS) -> Catalog:
    write_project(root, declare_pipeline(declare_table("events", "device string", *columns)))
    write_collector(root)
    return load_catalog(root=root)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return project(tmp_path)


def landed(root: Path, seqs: list[int]) -> None:
    table = pa.table({"collector": pa.array([PROCESS] * len(seqs), pa.string()), "seq": pa.array(seqs, pa.int64())})
    write_deltalake(str(root / "lake" / paths.table("shop", "events")), table, mode="append")


def quarantined(root: Path, raws: list[str]) -> None:
    rows = pa.Table.from_pylist([{"raw": raw, "_position": 0} for raw in raws], schema=QUARANTINE_SCHEMA)
    write_deltalake(str(root / "lake" / paths.table("shop", "quarantine")), rows, mode="append")


def gave(objects: LocalObjects, hour: str, first: int, behind: int) -> None:
    record = HourCounts(id=PROCESS, hour=hour, first_seq=first, next_seq=behind, is_complete=True)
    objects.put(paths.collector_counts("edge", PROCESS, hour), record.encode())


def test_pipelines_that_are_not_selected_here_are_checked_too(
    catalog: Catalog, objects: LocalObjects, tmp_path: Path
) -> None:
    gave(objects, "2026-11-23T12", 1, 4)
    landed(tmp_path, [1, 3])
    selected = load_catalog(root=catalog.root, only=[])

    report = find_lost_events(selected, objects, "edge", now=NOW)

    assert report.missing == (MissingRange(id=PROCESS, first=2, last=2),)


def test_a_gap_in_tables_and_quarantine_is_reported(catalog: Catalog, objects: LocalObjects, tmp_path: Path) -> None:
    gave(objects, "2026-11-23T12", 1, 11)
    gave(objects, "2026-11-23T14", 11, 99)  # may still be in transit
    stamp = json.dumps(
        {"_collector": {"v": 1, "seq": 4, "collector": PROCESS}, "raw": "no json"}, separators=(",", ":")
    )
    wrapped = json.dumps({"body": stamp.replace('"seq":4', '"seq":5') + ",}"})
    landed(tmp_path, [1, 2, 3, 6, 6, 9, 10])
    quarantined(tmp_path, [stamp[:-1], wrapped, "not of a collector"])

    report = find_lost_events(catalog, objects, "edge", now=NOW)

    assert report.missing == (MissingRange(id=PROCESS, first=7, last=8),)
    record = present(RecordStore(objects, LostEvents).read(paths.lost_events("edge")))
    assert (record.missing, record.checked_up_to) == (report.missing, {PROCESS: 10})

    landed(tmp_path, [7, 8])  # late events are found, and all are counted
    assert find_lost_events(catalog, objects, "edge", now=NOW).missing == ()
    record = present(RecordStore(objects, LostEvents).read(paths.lost_events("edge")))
    assert (record.missing, record.checked_up_to) == ((), {PROCESS: 10})
    assert find_lost_events(catalog, objects, "edge", now=NOW).events == 0


def test_accepted_losses_are_not_reported_again(catalog: Catalog, objects: LocalObjects, tmp_path: Path) -> None:
    gave(objects, "2026-11-23T12", 1, 6)
    landed(tmp_path, [1, 5])
    assert find_lost_events(catalog, objects, "edge", accept_losses=True, now=NOW).missing
    assert find_lost_events(catalog, objects, "edge", now=NOW).missing == ()


def test_with_no_table_at_all_everything_is_missing(catalog: Catalog, objects: LocalObjects) -> None:
    gave(objects, "2026-11-23T12", 3, 6)
    assert find_lost_events(catalog, objects, "edge", now=NOW).missing == (MissingRange(id=PROCESS, first=3, last=5),)


def test_pipelines_without_sequence_numbers_are_unverifiable(tmp_path: Path, objects: LocalObjects) -> None:
    catalog = project(tmp_path, columns=())
    gave(objects, "2026-11-23T12", 1, 6)
    report = find_lost_events(catalog, objects, "edge", now=NOW)
    assert (report.unverifiable_pipelines, report.missing) == (("shop",), ())
    assert RecordStore(objects, LostEvents).read(paths.lost_events("edge")) is None


@given(st.lists(st.tuples(st.integers(0, 13), st.integers(0, 50)), max_size=10), st.integers(0, 400))
def test_only_numbers_older_than_an_hour_are_checked(hours: list[tuple[int, int]], counted: int) -> None:
    records, seq = [], 1
    by_hour: dict[int, tuple[int, int]] = {}
    for hour, count in sorted(dict(hours).items()):
        records.append(HourCounts(id="p", hour=f"2026-11-23T{hour:02d}", first_seq=seq, next_seq=seq + count))
        by_hour[hour] = (seq, seq + count)
        seq += count
    wanted = {
        number for hour, (first, behind) in by_hour.items() if hour <= 12 for number in range(first, behind)
    } - set(range(counted + 1))
    bounds = assigned_ranges(records, {"p": counted}, now=NOW)
    found = {number for first, last in bounds.values() for number in range(first, last + 1)}
    assert found == wanted


NIGHT = datetime(2026, 3, 30, 4, 0, tzinfo=UTC)
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
    today = NIGHT.replace(hour=0)
    at_work = [
        (today - day * DAY + timedelta(hours=hour, minutes=5), 100) for day in range(1, 20) for hour in range(8, 18)
    ]
    idle = [(today - day * DAY + timedelta(hours=2), 0) for day in range(1, 20)]
    progress(stage, at_work + idle)

    norm = learn_input_rate(catalog, "shop", now=NIGHT)

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
    norm = learn_input_rate(Harness.at(tmp_path).catalog(), "shop", now=NIGHT)

    assert (norm.days, set(norm.rows_by_hour)) == (0, {0.0})
