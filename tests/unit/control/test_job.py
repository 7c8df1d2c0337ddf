"""How jobs end: exit codes and the last line."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from deltaworks.control.backoff import OUTAGE_CONDITIONS
from deltaworks.control.job import as_deltaworks_error, error_of_table, print_result_line, print_results, run_job
from deltaworks.errors import ConcurrencyError, ConfigError, FencedError, TransientError


class CapturedError(Exception):
    """Like PySpark's captured JVM errors: a short text, and a stack trace with the causes."""

    def __init__(self, text: str, stack_trace: str = "") -> None:
        super().__init__(text)
        self._stackTrace = stack_trace


def job_raising(error: Exception) -> Callable[[], int | None]:
    def main() -> int | None:
        raise error

    return main


def last_line(output: str) -> dict[str, Any]:
    prefix, _, record = output.rstrip("\n").splitlines()[-1].partition(" ")
    assert prefix == "DELTAWORKS_ERROR"
    found: dict[str, Any] = json.loads(record)
    return found


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (3, 3)])
def test_a_successful_job_prints_nothing(returned: int | None, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_job(lambda: returned, watch_parent=False) == code
    assert "DELTAWORKS_ERROR" not in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "code"), [(ConfigError, 10), (ConcurrencyError, 20), (FencedError, 30)])
def test_our_own_errors_keep_their_exit_code_condition_and_verdict(
    kind: Any, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    error = kind("SOME_CONDITION", "what\nhappened", hint="do this")

    assert run_job(job_raising(error), watch_parent=False) == code

    said = last_line(capsys.readouterr().out)
    assert said == {
        "condition": "SOME_CONDITION",
        "message": "what happened",
        "hint": "do this",
        "retryable": error.retryable,
    }


def test_a_wrapped_deltaworks_error_is_used() -> None:
    outer = RuntimeError("the query ended")
    outer.__cause__ = FencedError("OWNER_FENCED", "a successor has taken over")

    assert as_deltaworks_error(outer).condition == "OWNER_FENCED"


@pytest.mark.parametrize(
    "error",
    [
        CapturedError("io.delta.exceptions.ConcurrentAppendException: [DELTA_CONCURRENT_APPEND] Files were added"),
        CapturedError("Job aborted.", "... Caused by: io.delta.exceptions.MetadataChangedException: [...]"),
        CapturedError("[DELTA_CONCURRENT_DELETE_READ.WITH_PARTITION_HINT] files were deleted"),
    ],
)
def test_delta_conflicts_are_retryable(error: Exception) -> None:
    own = as_deltaworks_error(error)

    assert (type(own), own.condition, own.retryable) == (ConcurrencyError, "DELTA_CONFLICT", True)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        OSError("Generic S3 error: Error after 10 retries in 12s, max_retries:10, source: connection refused"),
        OSError("When reading information for key 'a': AWS Error NETWORK_CONNECTION during HeadObject"),
        CapturedError("Job aborted.", "Caused by: org.apache.hadoop.fs.s3a.AWSClientIOException: on lake: ..."),
        CapturedError("Could not read", "Caused by: java.net.ConnectException: Connection refused"),
    ],
)
def test_outages_are_retryable(error: Exception) -> None:
    own = as_deltaworks_error(error)

    assert (type(own), own.condition, own.exit_code) == (TransientError, "STORAGE_UNREACHABLE", 21)


@pytest.mark.parametrize(
    ("text", "condition", "named"),
    [
        (
            '[DELTA_SOURCE_TABLE_IGNORE_CHANGES] Detected a data update (for example WRITE (Map(mode -> "Overwrite")))'
            " in the source table at version 2. This is currently not supported.",
            "DELTA_SOURCE_REWRITTEN",
            "at version 2.",
        ),
        (
            "[DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE] If you never deleted it\nCurrent Available Offsets: "
            '{DeltaSource[s3a://b/t]: {"sourceVersion":1,"reservoirVersion":7,"index":-1}}',
            "SOURCE_EXPIRED",
            "the next version, 7.",
        ),
        (
            "[DELTA_MISSING_FILES_UNEXPECTED_VERSION] Delta stream cannot resume from version 2; transaction log "
            "starts at 3. Log files may have been deleted by log retention.",
            "SOURCE_EXPIRED",
            "the next version, 2.",
        ),
        (
            "[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE] The streaming query was reading from an unexpected Delta "
            "table (id = 'b').",
            "DELTA_SOURCE_REPLACED",
            "(id = 'b')",
        ),
        (
            "org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed\n"
            "Caused by: sun.security.validator.ValidatorException: PKIX path building failed: no valid path",
            "SOURCE_CERTIFICATE_REFUSED",
            "PKIX path building failed",
        ),
        (
            "org.apache.kafka.common.KafkaException: Failed to load PEM SSL keystore /k.pem",
            "SOURCE_CERTIFICATE_REFUSED",
            "/k.pem",
        ),
        (
            "org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed during authentication",
            "SOURCE_LOGIN_REFUSED",
            "Authentication failed",
        ),
    ],
)
def test_source_errors_are_named_and_not_retryable(text: str, condition: str, named: str) -> None:
    own = as_deltaworks_error(RuntimeError(f"An error occurred.\n{text}"))

    assert (own.condition, own.retryable) == (condition, False)
    assert named in own.message


@pytest.mark.parametrize(
    "text",
    [
        "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment",
        "java.util.concurrent.TimeoutException: Cannot fetch record for offset 26200 in 120000 milliseconds",
    ],
)
def test_a_broker_that_does_not_answer_is_an_outage(text: str) -> None:
    own = as_deltaworks_error(RuntimeError(text))

    assert (own.condition, own.retryable) == ("STORAGE_UNREACHABLE", True)


def test_a_slow_python_worker_is_retryable_and_not_an_outage() -> None:
    cause = "Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back"
    late = CapturedError("Python worker failed to connect back.", cause)

    own = as_deltaworks_error(late)

    assert (own.condition, own.retryable) == ("PYTHON_WORKER_TIMEOUT", True)
    assert own.condition in OUTAGE_CONDITIONS, "a group parks no member for it"


def test_a_driver_is_fenced_when_another_writes_its_checkpoint() -> None:
    own = as_deltaworks_error(RuntimeError("[CONCURRENT_STREAM_LOG_UPDATE] Multiple streaming jobs detected for 7"))

    assert (type(own), own.condition) == (FencedError, "CHECKPOINT_IN_USE")


def test_an_unexpected_error_is_printed_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_job(job_raising(ValueError("odd")), watch_parent=False) == 1

    output = capsys.readouterr()
    assert last_line(output.out)["condition"] == "JOB_FAILED"
    assert last_line(output.out)["message"] == "ValueError: odd"
    assert "Traceback" in output.err


@dataclasses.dataclass(frozen=True)
class Outcome:
    table: str
    reason: str
    partitions: tuple[str, ...] | None
    seconds: float


def test_results_are_printed_as_text_then_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_results([Outcome("events", "it changed", ("2025-03-01",), 1.234), Outcome("a", "no", None, 0.0)])

    *people, last = capsys.readouterr().out.splitlines()
    assert [line.split() for line in people] == [
        ["table", "seconds", "reason"],
        ["events", "1.2", "it", "changed"],
        ["a", "0.0", "no"],
    ]
    assert json.loads(last)[0] == {
        "table": "events",
        "reason": "it changed",
        "partitions": ["2025-03-01"],
        "seconds": 1.234,
    }


def test_counts_by_name_are_part_of_the_last_line_of_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclasses.dataclass
    class Inner:
        rows: tuple[int, ...]

    @dataclasses.dataclass
    class Result:
        pipeline: str
        by_table: Counter[str]
        parts: list[Inner]

    print_result_line([Result("shop", Counter({"events": 60, "orders": 2}), [Inner((1, 2))])])

    (record,) = json.loads(capsys.readouterr().out)
    assert record == {"pipeline": "shop", "by_table": {"events": 60, "orders": 2}, "parts": [{"rows": [1, 2]}]}


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("games.events: data file part-1.parquet is missing.", True),
        ("events: it fails its checks.", True),
        ("The table 'events' has no column x.", True),
        ("table events has no column x.", True),
        ("Could not read tables/games/events/_delta_log.", True),
        ("There are no events in the input.", False),
        ("games.events_per_hour: it fails.", False),
        ("events-old: it fails.", False),
    ],
)
def test_the_error_of_a_table_names_it_once(message: str, named: bool) -> None:
    error = ConfigError("GOLD_SQL_INVALID", message)

    assert error_of_table(error, "events").message == (message if named else f"events: {message}")


def test_any_exception_of_a_table_has_its_name_and_its_cause() -> None:
    error = ValueError("no events")

    named = error_of_table(error, "events")

    assert (named.condition, named.message) == ("JOB_FAILED", "events: ValueError: no events")
    assert named.__cause__ is error
