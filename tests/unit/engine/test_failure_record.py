"""The failure record of a stream: its condition if known, otherwise the error line closest to the cause."""

from __future__ import annotations

import traceback

from deltaworks.engine.runner import failure_record
from deltaworks.errors import ContractError

SPARK = "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: "


class StreamingQueryException(Exception):
    """Named like Spark's exception."""


def test_a_deltaworks_error_of_another_process_keeps_its_condition_and_hint() -> None:
    error = ContractError("LOG_DAMAGED", "The log cannot be read.", hint="Put it back.")
    planner = "".join(traceback.format_exception(error))

    record = failure_record(StreamingQueryException(f"{SPARK}Traceback (most recent call last):\n{planner}\nSQLSTATE"))

    assert record == error.as_record()


def test_a_deltaworks_error_is_unchanged() -> None:
    error = ContractError("SPEC_X", "It differs.", hint="Restart it.")

    assert failure_record(error) == error.as_record()


def test_an_unknown_error_is_reported_by_the_line_closest_to_its_cause() -> None:
    try:
        int("a secret")
    except ValueError as error:
        planner = "".join(traceback.format_exception(error))

    record = failure_record(StreamingQueryException(f"{SPARK}{'x' * 600}\n{planner}"))

    assert record["condition"] == "STREAM_FAILED"
    assert record["message"] == "ValueError: invalid literal for int() with base 10: (a value)"
    assert "driver log" in record["hint"]


def test_an_error_without_a_message_has_the_name_of_its_type() -> None:
    assert failure_record(KeyError())["message"] == "KeyError"
