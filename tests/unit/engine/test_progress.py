"""Progress and failures are written out of band and never affect a batch; waiting between two checks of a query."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.health.throughput import EventTotals, ThroughputWriter, read_throughput
from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import quarantine_summary, rule_warnings_summary
from deltaworks.control.summaries.base import read_summary
from deltaworks.control.summaries.quarantine import QuarantineCounter, QuarantineSummary
from deltaworks.control.summaries.rule_warnings import RuleWarningsCounter, RuleWarningsSummary
from deltaworks.control.summaries.stream import StreamSummaryWriter, read_hours, read_recent
from deltaworks.engine import queries
from deltaworks.engine.driver_host import CountingObjectStore, DriverMetrics
from deltaworks.engine.progress import BatchReport, ProgressLog
from deltaworks.engine.queries import IngestListener
from deltaworks.engine.runner import failure_record
from deltaworks.errors import ContractError
from deltaworks.tables import commit
from deltaworks.tables.lake import Lake
from deltaworks.testing import local_lake, local_storage, present
from tests.failing_objects import RefusingObjects
from tests.waiting import PATIENCE_SECONDS, eventually


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
    storage = local_storage(tmp_path)
    log = ProgressLog(storage, "shop", owner_epoch=3, flush_seconds=0.05)
    log.start()
    log.add(report(0))
    eventually(lambda: len(rows_of(tmp_path)) == 1, "the first row is written")
    log.add(report(1))

    log.close()

    written = present(Lake(storage).rows(paths.pipeline_control("shop", "progress")))
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
    log = ProgressLog(local_storage(tmp_path), "shop", owner_epoch=1, flush_seconds=0.05)
    log.start()

    log.add(report(0))
    log.close()

    assert log.dropped == 1


def test_a_full_queue_drops_and_never_blocks(tmp_path: Path) -> None:
    log = ProgressLog(local_storage(tmp_path), "shop", owner_epoch=1)

    # Nobody takes anything out: one that waited for room would wait for ever.
    for number in range(1_500):
        log.add(report(number))

    assert log.dropped == 500


def rows_of(tmp_path: Path) -> list[dict[str, Any]]:
    found = local_lake(tmp_path).rows(paths.pipeline_control("shop", "progress"))
    return [] if found is None else sorted(found.to_pylist(), key=lambda row: row["at"])


SPARK = {
    "batchId": 4,
    "name": "shop.ingest",
    "durationMs": {"addBatch": 900, "walCommit": 12},
    "sources": [{"startOffset": '{"seq":7}', "endOffset": {"seq": 9}}],
}


def test_sparks_progress_of_a_batch_is_joined_to_its_row(tmp_path: Path) -> None:
    log = ProgressLog(local_storage(tmp_path), "shop", owner_epoch=1, flush_seconds=0.05)
    log.set_backlog({"backlog_files": 3, "backlog_bytes": 30, "oldest_pending_at": "2020-01-01T00:00:00+00:00"})
    log.start()

    log.add(report(104), spark_batch_id=4)
    log.add_idle()
    eventually(lambda: bool(rows_of(tmp_path)), "what came after it is written")
    assert [row["kind"] for row in rows_of(tmp_path)] == ["idle"], "it waits for what Spark says"
    log.add_spark_progress(SPARK)
    log.add_spark_progress({**SPARK, "batchId": 5})  # a trigger of which there is no report
    log.close()

    (row,) = (row for row in rows_of(tmp_path) if row["kind"] == "batch")
    assert row["batch_id"] == 104
    assert json.loads(row["phases_ms"]) == {"addBatch": 900, "walCommit": 12}
    assert (json.loads(row["start_offset"]), json.loads(row["end_offset"])) == ({"seq": 7}, {"seq": 9})
    assert (row["backlog_files"], row["backlog_bytes"]) == (3, 30)
    assert row["oldest_pending_seconds"] > 86_400
    assert row["driver_rss_bytes"] > 1 << 20
    assert row["jvm_heap_bytes"] is None, "there is no JVM here"


def test_a_batch_without_sparks_progress_still_has_its_row(tmp_path: Path) -> None:
    log = ProgressLog(local_storage(tmp_path), "shop", owner_epoch=1, flush_seconds=0.05)
    log.start()

    log.add(report(104), spark_batch_id=4)
    log.close()

    assert [(row["batch_id"], row["phases_ms"]) for row in rows_of(tmp_path)] == [(104, None)]


def test_idling_has_a_row_when_it_begins_and_the_end_has_one_with_its_error(tmp_path: Path) -> None:
    log = ProgressLog(local_storage(tmp_path), "shop", owner_epoch=1, flush_seconds=0.05)
    log.start()

    for _ in range(5):
        log.add_idle()
    log.add(report(0))
    log.add_idle()
    log.add_termination("boom")
    log.await_termination()
    log.close()

    assert [row["kind"] for row in rows_of(tmp_path)] == ["idle", "batch", "idle", "terminated"]
    assert rows_of(tmp_path)[-1]["message"] == "boom"
    assert log.dropped == 0


def test_rows_of_several_appends_without_a_batch_are_all_kept(tmp_path: Path) -> None:
    log = ProgressLog(local_storage(tmp_path), "shop", owner_epoch=1, flush_seconds=0.05)
    log.start()
    log.add(report(7))
    eventually(lambda: len(rows_of(tmp_path)) == 1, "the batch's row is written")
    log.add_idle()
    eventually(lambda: len(rows_of(tmp_path)) == 2, "that of idling is written")
    log.add_termination(None)

    log.close()

    assert [row["kind"] for row in rows_of(tmp_path)] == ["batch", "idle", "terminated"]


def test_console_summaries_are_written_and_their_failure_does_not_end_the_log(tmp_path: Path) -> None:
    objects = RefusingObjects(tmp_path / "objects")
    log = ProgressLog(
        local_storage(tmp_path),
        "shop",
        owner_epoch=1,
        flush_seconds=0.05,
        summary=StreamSummaryWriter(objects, "shop"),
    )
    log.start()
    arrived = tuple(int((utc_now().timestamp() - age) * 1e6) for age in (40, 9))
    log.add(dataclasses.replace(report(0), arrived_us=arrived))
    eventually(lambda: len(rows_of(tmp_path)) == 1, "the row is written though the summary is not")
    objects.refuses = False
    log.add_termination("boom")
    log.close()
    recent, hours = read_recent(objects, "shop"), read_hours(objects, "shop")

    assert recent is not None
    assert hours is not None
    assert [(batch.batch_id, batch.files, batch.bytes, batch.seconds) for batch in recent.batches] == [(0, 2, 3, 2.0)]
    youngest, oldest = recent.batches[0].arrival_ages
    assert 30 < oldest - youngest < 32
    assert [problem.text for problem in recent.problems] == ["boom"]
    assert [hour.rows for hour in hours.hours] == [100]
    assert log.dropped == 0


def test_requests_to_the_store_are_counted_between_batches(tmp_path: Path) -> None:
    objects = CountingObjectStore(LocalObjects(tmp_path / "objects"))
    measures = DriverMetrics(objects=objects)
    log = ProgressLog(local_storage(tmp_path), "shop", owner_epoch=1, flush_seconds=0.05, metrics=measures)
    log.start()
    objects.put_if_absent("a", b"1")
    objects.get("a")
    objects.get("b")
    log.add(report(0))
    eventually(lambda: len(rows_of(tmp_path)) == 1, "the first row is written")
    objects.list("")
    log.add(report(1))
    log.close()

    assert [json.loads(row["requests"]) for row in rows_of(tmp_path)] == [
        {"control_get": 2, "control_put": 1},
        {"control_list": 1},
    ]


class _Event:
    """A listener event of Spark, with the values that the listener reads."""

    def __init__(self, **said: Any) -> None:
        self.__dict__.update({name: lambda value=value: value for name, value in said.items()})


def _run(name: str) -> Any:
    return SimpleNamespace(toString=lambda: name)


def _option(value: str) -> Any:
    return _Event(isDefined=True, get=value)


def test_a_listener_receives_only_its_own_query_and_swallows_errors() -> None:
    heard: list[Any] = []

    def fails() -> None:
        raise RuntimeError

    listener = IngestListener("shop.ingest", on_progress=heard.append, on_idle=fails, on_terminated=heard.append)
    listener.onQueryStarted(_Event(name="shop.live", runId=_run("2")))
    listener.onQueryStarted(_Event(name="shop.ingest", runId=_run("1")))
    for name in ("shop.live", "shop.ingest"):
        listener.onQueryProgress(_Event(progress=_Event(name=name, json=json.dumps({"name": name}))))
    for run in ("2", "1"):
        listener.onQueryIdle(_Event(runId=_run(run)))
        listener.onQueryTerminated(_Event(runId=_run(run), exception=_option("boom")))

    assert heard == [{"name": "shop.ingest"}, "boom"]
    assert listener.failures == 1


def test_queueing_never_waits_for_a_stalled_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, hanging = threading.Event(), threading.Event()

    def hang(_: ProgressLog, rows: list[dict[str, Any]]) -> None:
        reached.set()
        hanging.wait()

    monkeypatch.setattr(ProgressLog, "_append", hang)
    log = ProgressLog(local_storage(tmp_path), "shop", owner_epoch=1, flush_seconds=0.01)
    log.start()
    log.add(report(0))
    assert reached.wait(PATIENCE_SECONDS)

    # The storage hangs until all is said: whoever waited for it would wait for ever.
    for number in range(1_200):
        log.add(report(number))
        log.add_spark_progress(SPARK)
    dropped = log.dropped
    hanging.set()

    assert dropped == 1_400


def test_events_read_and_rejected_are_recorded_for_the_health_check(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    storage, key = local_storage(tmp_path), paths.throughput("control/pipelines/shop")
    log = ProgressLog(storage, "shop", owner_epoch=3, flush_seconds=0.05, throughput=ThroughputWriter(objects, key))
    log.start()
    rejected = (("malformed", "", 7), ("type_mismatch", "level", 3))
    log.add(
        dataclasses.replace(report(0), events=110, rows=200, quarantined=2, quarantined_events=10, rejected=rejected)
    )
    log.add(dataclasses.replace(report(1), events=5, rows=10, quarantined=0))

    log.close()

    reasons = {("malformed", ""): 7, ("type_mismatch", "level"): 3}
    expected = EventTotals(events=115, rows=210, quarantined=10, reasons=reasons)
    assert read_throughput(objects, key).last_hour(utc_now()) == expected


def test_the_log_counts_open_rows_for_pages_at_the_latest_when_it_is_closed(tmp_path: Path) -> None:
    objects, storage = LocalObjects(tmp_path), local_storage(tmp_path)
    counts = QuarantineCounter(objects, "shop", generation=1, spec="4f2a")
    log = ProgressLog(storage, "shop", owner_epoch=3, flush_seconds=0.05, quarantine=counts)
    log.start()
    for number in range(3):
        log.add(dataclasses.replace(report(number), rejected_events=(("malformed", "", "", 2),)))

    log.close()

    summary, _ = read_summary(QuarantineSummary, objects, quarantine_summary("shop"))
    assert summary is not None
    assert [(row.reason, row.rows, row.spec) for row in summary.open_rows] == [("malformed", 6, "4f2a")]


def test_a_failing_count_of_open_rows_loses_no_progress_row(tmp_path: Path) -> None:
    class Refusing(LocalObjects):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            raise OSError("the disk is full")

    counts = QuarantineCounter(Refusing(tmp_path / "other"), "shop", generation=1, spec="4f2a")
    storage = local_storage(tmp_path)
    log = ProgressLog(storage, "shop", owner_epoch=3, flush_seconds=0.05, quarantine=counts)
    log.start()
    log.add(dataclasses.replace(report(0), rejected_events=(("malformed", "", "", 2),)))

    log.close()

    assert (len(rows_of(tmp_path)), log.dropped) == (1, 0)


class Query:
    """A query that has ended."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.waits: list[float] = []

    def awaitTermination(self, timeout: float) -> bool:
        self.waits.append(timeout)
        if self.failure is not None:
            raise self.failure
        return True


def test_a_query_that_has_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    query: Any = Query()

    queries.wait_for_end(query, 1.0)

    assert (query.waits, slept) == ([1.0], [])


def test_a_failed_query_is_left_to_the_callers_check_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    query: Any = Query(RuntimeError("it failed"))

    queries.wait_for_end(query, 1.0)

    assert slept == [1.0]


PYTHON_FAILED = (
    "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: "
)


class StreamingQueryException(Exception):
    """Named like Spark's exception."""


def test_a_deltaworks_error_of_another_process_keeps_its_condition_and_hint() -> None:
    error = ContractError("LOG_DAMAGED", "The log cannot be read.", hint="Put it back.")
    planner = "".join(traceback.format_exception(error))

    record = failure_record(
        StreamingQueryException(f"{PYTHON_FAILED}Traceback (most recent call last):\n{planner}\nSQLSTATE")
    )

    assert record == error.as_record()


def test_a_deltaworks_error_is_unchanged() -> None:
    error = ContractError("SPEC_X", "It differs.", hint="Restart it.")

    assert failure_record(error) == error.as_record()


def test_an_unknown_error_is_reported_by_the_line_closest_to_its_cause() -> None:
    try:
        int("a secret")
    except ValueError as error:
        planner = "".join(traceback.format_exception(error))

    record = failure_record(StreamingQueryException(f"{PYTHON_FAILED}{'x' * 600}\n{planner}"))

    assert record["condition"] == "STREAM_FAILED"
    assert record["message"] == "ValueError: invalid literal for int() with base 10: (a value)"
    assert "driver log" in record["hint"]


def test_an_error_without_a_message_has_the_name_of_its_type() -> None:
    assert failure_record(KeyError())["message"] == "KeyError"


def test_rows_that_fail_a_rule_are_counted_with_all_rows_of_its_table(tmp_path: Path) -> None:
    home = LocalObjects(tmp_path)
    counter = RuleWarningsCounter(home, "shop", {"orders": ["paid"]}, generation=1)
    log = ProgressLog(local_storage(tmp_path), "shop", owner_epoch=1, rule_warnings=counter)
    log.start()

    log.add(dataclasses.replace(report(1), table_rows={"orders": 80, "items": 20}, rule_warnings='{"orders.paid": 4}'))
    log.add(dataclasses.replace(report(2), table_rows={"orders": 20, "items": 80}))
    log.close()

    summary = present(read_summary(RuleWarningsSummary, home, rule_warnings_summary("shop"))[0])
    (paid,) = summary.rules
    assert (paid.days[0].rows, paid.days[0].failed, summary.through_batch) == (100, 4, 2)
