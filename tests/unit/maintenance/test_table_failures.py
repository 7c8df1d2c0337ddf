"""Errors of one table name the table, the file and the innermost cause; a table that VACUUM skips has one alert."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from deltaworks.alerts.raising import alerts
from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConcurrencyError, ContractError, DeltaworksError, TransientError
from deltaworks.maintenance import vacuum
from deltaworks.maintenance import vacuum as maintenance_alerts
from deltaworks.maintenance.table_failures import combined_error, table_error
from deltaworks.maintenance.vacuum import VacuumResult, alert_not_vacuumed, resolve_not_vacuumed, vacuum_tables
from tests.unit.maintenance.table_data import ORDERS, SHOP, project

KEY = "tables/games/events"
FILE = "event_date=2026-03-01/part-1.zstd.parquet"


class Py4JJavaError(Exception):
    """An error as py4j raises it: the stack trace is part of its text."""


def failure(error: BaseException) -> DeltaworksError:
    return table_error(error, table="events", key=KEY)


def test_a_missing_file_in_a_java_stack_trace_is_named() -> None:
    error = Py4JJavaError(
        "An error occurred while calling o1.collectToPython.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure\n"
        f"\tat org.apache.spark.X [FAILED_READ_FILE.FILE_NOT_EXIST] reading file s3a://lake/{KEY}/{FILE}. SQLSTATE: 1\n"
        "Caused by: java.io.FileNotFoundException: No such file or directory: part-1.zstd.parquet\n\tat a.b.C\n"
    )

    found = failure(error)

    assert isinstance(found, ContractError)
    assert (found.condition, found.retryable) == ("DATA_FILE_MISSING", False)
    assert found.message == (
        f"events: data file {FILE} does not exist: "
        "FileNotFoundException: No such file or directory: part-1.zstd.parquet."
    )


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (FileNotFoundError(2, "No such file or directory", f"/lake/{KEY}/{FILE}"), "DATA_FILE_MISSING"),
        (pa.ArrowInvalid(f"{FILE}: Parquet magic bytes not found in footer"), "DATA_FILE_UNREADABLE"),
        (OSError("Couldn't deserialize thrift: TProtocolException"), "DATA_FILE_UNREADABLE"),
        (
            Py4JJavaError(f"x\nCaused by: java.lang.RuntimeException: {FILE} is not a Parquet file."),
            "DATA_FILE_UNREADABLE",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_damaged_file_is_not_tried_again(error: Exception, condition: str) -> None:
    found = failure(error)

    assert (type(found), found.condition, found.retryable) == (ContractError, condition, False)
    assert found.message.startswith("events: ")
    assert FILE in found.message or "a data file" in found.message


def test_an_outage_and_a_conflict_keep_their_class_and_get_the_tables_name() -> None:
    outage = failure(Py4JJavaError("x\nCaused by: java.net.ConnectException: Connection refused"))
    conflict = failure(ConcurrencyError("TURN_NOT_GRANTED", "The write turn was not granted."))
    named = ConcurrencyError("TURN_LOST", "The write turn of 'events' was lost.")

    assert (type(outage), outage.retryable) == (TransientError, True)
    assert conflict.message == "events: The write turn was not granted."
    assert (type(conflict), conflict.condition, conflict.retryable) == (ConcurrencyError, "TURN_NOT_GRANTED", True)
    assert failure(named) is named


def test_an_unknown_error_may_pass() -> None:
    found = failure(RuntimeError("an executor is gone"))

    assert (found.condition, found.retryable) == ("OPTIMIZE_FAILED", True)
    assert found.message == "events: RuntimeError: an executor is gone."


def test_a_run_is_retried_if_the_error_of_one_table_can_pass() -> None:
    broken, gone = ContractError("DATA_FILE_UNREADABLE", "a: x."), ContractError("DATA_FILE_MISSING", "b: y.")
    outage = TransientError("STORAGE_UNREACHABLE", "c: z.")

    assert combined_error([broken], tables=9) is broken
    lasting, passing = combined_error([broken, gone], tables=9), combined_error([broken, outage], tables=9)
    assert lasting.message == "2 of 9 tables failed: [DATA_FILE_UNREADABLE] a: x; [DATA_FILE_MISSING] b: y."
    assert (lasting.retryable, passing.retryable) == (False, True)
    assert "DATA_FILE_MISSING: " in lasting.hint


def open_alerts(objects: LocalObjects) -> dict[str, str]:
    return {alert.subject: alert.summary for alert in alerts(objects) if alert.state.is_open}


def test_the_alert_is_open_until_the_table_is_vacuumed(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)

    for _ in range(2):
        alert_not_vacuumed(PipelineHome(objects, "shop"), "orders", reason="a reader is gone")
    resolve_not_vacuumed(PipelineHome(objects, "shop"), "clicks")
    assert open_alerts(objects) == {"shop.orders": "VACUUM skips shop.orders: a reader is gone"}
    assert len(objects.list(paths.alerts("spool/"))) == 1

    resolve_not_vacuumed(PipelineHome(objects, "shop"), "orders")
    assert open_alerts(objects) == {}
    assert len(objects.list(paths.alerts("spool/"))) == 2


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_run_raises_alerts_for_skipped_tables_and_resolves_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    catalog, objects = project(tmp_path, shop=SHOP + ORDERS), LocalObjects(tmp_path / "lake")
    found = {"orders": VacuumResult(table="orders", dry_run=dry_run, skipped=True, reason="files wait")}
    found["quarantine"] = VacuumResult(table="quarantine", dry_run=dry_run, reason="it does not exist yet")
    monkeypatch.setattr(vacuum._VacuumRun, "vacuum_table", lambda _, name: found[name])
    alert_not_vacuumed(PipelineHome(objects, "shop"), "quarantine", reason="as last night")

    vacuum_tables(None, catalog, "shop", dry_run=dry_run)
    assert set(open_alerts(objects)) == ({"shop.quarantine"} if dry_run else {"shop.orders", "shop.quarantine"})

    for name in found:
        found[name] = VacuumResult(table=name, dry_run=dry_run, mode="lite")
    vacuum_tables(None, catalog, "shop", dry_run=dry_run)
    assert set(open_alerts(objects)) == ({"shop.quarantine"} if dry_run else set())


def test_alert_failures_do_not_stop_vacuum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def away(*arguments: object, **__: object) -> None:
        asked.append(arguments)
        raise TransientError("STORAGE_UNREACHABLE", "it does not answer")

    monkeypatch.setattr(maintenance_alerts, "raise_alert", away)
    objects = LocalObjects(tmp_path)

    alert_not_vacuumed(PipelineHome(objects, "shop"), "orders", reason="a reader is gone")

    assert len(asked) == 1
    assert open_alerts(objects) == {}
    assert "table=shop.orders its alert could not be raised or resolved: " in caplog.text
    monkeypatch.undo()
    alert_not_vacuumed(PipelineHome(objects, "shop"), "orders", reason="a reader is gone")
    assert set(open_alerts(objects)) == {"shop.orders"}, "told as soon as it can be"
