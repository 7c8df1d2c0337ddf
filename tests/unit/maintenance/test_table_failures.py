"""Errors of one table name the table, the file and the innermost cause, and say whether a retry can help."""

from __future__ import annotations

import pyarrow as pa
import pytest

from deltaworks.errors import ConcurrencyError, ContractError, DeltaworksError, TransientError
from deltaworks.maintenance.table_failures import combined_error, table_error

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
