"""Exit protocol of jobs: an exit code for the launcher and, on failure, a last line with the error.

Errors of libraries are mapped to DeltaworksErrors here and nowhere else, so a retry policy needs to know only those.
Errors of sources that Spark reads are mapped by their text: they are raised in the JVM and reach a job as text,
wherever it happens to wait.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from deltaworks.control.foreign_errors import (
    cause_chain,
    data_file_error,
    describe_cause,
    error_text,
    redacted_traceback,
)
from deltaworks.control.listing import LOG_WIDTH, json_value, listing_of, plain_record, plain_text
from deltaworks.control.parent_watchdog import start_parent_watchdog
from deltaworks.errors import (
    NONCE_VARIABLE,
    ConcurrencyError,
    ConfigError,
    ContractError,
    DeltaworksError,
    FencedError,
    TransientError,
    job_line,
    last_error_in,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import BaseModel

#: A stream met a commit that replaces rows.
_REWRITTEN = re.compile(r"\bDELTA_SOURCE_(?:TABLE_IGNORE_CHANGES|IGNORE_DELETE)\b(?:[^\n]*?(at version \d+))?")
#: Commits are missing from the log, or another table replaced the one that was read.
_MISSING_COMMITS = re.compile(
    r"\bDELTA_(?:LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE|MISSING_FILES_UNEXPECTED_VERSION)\b"
    r"(?:[^\n]*?from version (\d+))?"
)
_NEXT_VERSION = re.compile(r'"reservoirVersion":\s*(\d+)')
_DIFFERENT_TABLE = re.compile(r"\bDIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE\b[^\n]*")
#: Messages of Kafka's clients and Spark's connector for expired records and rejected logins.
_OUT_OF_RANGE = re.compile(r"\bOffsetOutOfRangeException\b[^\n]*")
_EXPIRED = re.compile(r"Some data may have been lost because they are not available[^\n]*")
_LOGIN_REFUSED = re.compile(r"\bSaslAuthenticationException\b[^\n]*|\b(?:Topic|Group)AuthorizationException\b[^\n]*")
#: Java's messages for certificates that one side rejects.
_CERTIFICATE_REFUSED = re.compile(r"\bSslAuthenticationException\b[^\n]*|\bSSLHandshakeException\b[^\n]*")
_CERTIFICATE_CAUSE = re.compile(
    r"PKIX path[^\n]*|No subject alternative[^\n]*|Received fatal alert[^\n]*"
    r"|\bCertificate(?:Expired|NotYetValid)\w+[^\n]*"
)
_STORE_UNREADABLE = re.compile(r"Failed to load (?:PEM )?SSL keystore[^\n]*|Invalid PEM keystore configs[^\n]*")
_MESSAGE_LENGTH = 1_000


def source_error(text: str) -> DeltaworksError | None:
    """Returns the error for the text of a foreign exception; None if it does not concern a source."""
    return kafka_error(text) or delta_error(text)


def kafka_error(text: str) -> DeltaworksError | None:
    """Returns the error for messages of Kafka's Java clients and Spark's connector; None if it is not Kafka's."""
    if expired := _OUT_OF_RANGE.search(text) or _EXPIRED.search(text):
        return ContractError(
            "SOURCE_EXPIRED",
            f"Records expired before any batch read them: {expired.group()[:_MESSAGE_LENGTH]}",
        )
    if refused := _CERTIFICATE_REFUSED.search(text) or _STORE_UNREADABLE.search(text):
        cause = _CERTIFICATE_CAUSE.search(text)
        detail = refused.group() if cause is None else f"{refused.group()}: {cause.group()}"
        return ConfigError(
            "SOURCE_CERTIFICATE_REFUSED",
            f"Client or brokers reject the other side's certificate: {detail[:_MESSAGE_LENGTH]}",
        )
    if refused := _LOGIN_REFUSED.search(text):
        return ConfigError(
            "SOURCE_LOGIN_REFUSED",
            f"The brokers reject the login: {refused.group()[:_MESSAGE_LENGTH]}",
        )
    return None


def delta_error(text: str) -> DeltaworksError | None:
    """Returns the error for messages of a stream that reads a Delta table; None if it does not concern one."""
    if rewritten := _REWRITTEN.search(text):
        return ContractError(
            "DELTA_SOURCE_REWRITTEN",
            "A merge, update, delete or reprocess rewrote rows of the source table"
            f"{' ' + rewritten.group(1) if rewritten.group(1) else ''}.",
            hint=(
                "Declare `skip_change_commits: true` to skip rewritten rows. Or, in a new generation, declare "
                "`change_feed: true` and enable the feed, which distinguishes inserts from changes."
            ),
        )
    if missing := _MISSING_COMMITS.search(text):
        next_version = missing if missing.group(1) else _NEXT_VERSION.search(text)
        return ContractError(
            "SOURCE_EXPIRED",
            "The source table's log no longer has the next version"
            f"{', ' + next_version.group(1) if next_version else ''}.",
            hint="Start the pipeline over to read the current table. Increase the table's log retention.",
        )
    if different := _DIFFERENT_TABLE.search(text):
        return ContractError(
            "DELTA_SOURCE_REPLACED",
            f"The source table was replaced by another table: {different.group()[:_MESSAGE_LENGTH]}",
        )
    return None


#: Delta's commit conflicts, by their names in Java, in Python and in Delta's error classes.
_DELTA_CONFLICT = re.compile(
    r"\bConcurrent(?:Append|DeleteRead|DeleteDelete|Write|Transaction)Exception\b"
    r"|\bDeltaConcurrentModificationException\b|\b(?:Metadata|Protocol)ChangedException\b"
    r"|\bDELTA_(?:CONCURRENT_[A-Z_]+|METADATA_CHANGED|PROTOCOL_CHANGED)\b"
    # An inconsistent listing shows commit N+1 without N while others commit; Delta then refuses to read.
    r"|\bDELTA_(?:VERSIONS_NOT_CONTIGUOUS|TRUNCATED_TRANSACTION_LOG)\b"
)
#: Spark's error when another driver has written the next file of a query's checkpoint.
_CHECKPOINT_IN_USE = re.compile(r"\bCONCURRENT_STREAM_LOG_UPDATE\b")
#: Spark's error when a Python worker did not connect within its ten seconds.
_PYTHON_WORKER_TIMEOUT = re.compile(r"\bPython worker failed to connect back\b")
#: Errors of object-store and messaging clients when the server or the network fails.
_OUTAGE = re.compile(
    r"\bjava\.net\.(?:ConnectException|SocketException|SocketTimeoutException|UnknownHostException|NoRouteToHost\w*)"
    r"|\bAWS(?:ClientIO|ServiceIO|Status500|ServiceThrottled|ApiCallTimeout|NoResponse)Exception\b"
    r"|\borg\.apache\.kafka\.common\.errors\.(?:TimeoutException|DisconnectException)\b"
    r"|\bCannot fetch record for offset \d+ in \d+ milliseconds"
    r"|\bHttpHostConnectException\b|\bConnectTimeoutException\b|\bSdkClientException: Unable to execute HTTP request"
    r"|\bGeneric S3 error: (?:Error after \d+ retries|error sending request|Error performing)"
    r"|\bAWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT)\b"
)
_OUTAGE_TYPES = frozenset(
    {
        "ConnectionError",
        "ConnectTimeoutError",
        "EndpointConnectionError",
        "ConnectionClosedError",
        "ReadTimeoutError",
        "HTTPClientError",
        "TimeoutError",
    }
)


def run_job(main: Callable[[], int | None], *, watch_parent: bool = True) -> int:
    """Runs a job's `main` and returns the process's exit code.

    The code is 0, the value `main` returned, the exit code of a DeltaworksError, or 1 for any other error. On an error
    the traceback goes to standard error, and the last line on standard output is the `DELTAWORKS_ERROR` line.

    Args:
        watch_parent: end this process and its JVM when its launcher has died.
    """
    if watch_parent:
        start_parent_watchdog()
    try:
        code = main()
    except Exception as error:
        converted = as_deltaworks_error(error)
        sys.stderr.write(redacted_traceback(error))
        sys.stderr.flush()
        print(converted.as_line(), flush=True)  # noqa: T201 - the line a launcher reads
        return converted.exit_code
    return code or 0


def print_results(results: Sequence[DataclassInstance | BaseModel]) -> None:
    """Prints the results of a job: a table for people, then one line of JSON."""
    if results:
        print(plain_text(listing_of(results), width=LOG_WIDTH))  # noqa: T201
    print_result_line(results)


def print_result_line(results: Sequence[DataclassInstance | BaseModel]) -> None:
    """Prints the results as one line of JSON, which the job's task stores. For the task the line is marked."""
    text = json.dumps([plain_record(result) for result in results], default=json_value)
    print(job_line("RESULTS", text) if NONCE_VARIABLE in os.environ else text, flush=True)  # noqa: T201


def as_deltaworks_error(error: BaseException) -> DeltaworksError:
    """Converts any exception to a DeltaworksError.

    Returns the error itself, else the DeltaworksError it wraps, else the one for a known error of Spark or a server, or
    for a missing or damaged data file, else JOB_FAILED.
    """
    chain, text = list(cause_chain(error)), error_text(error)
    wrapped = next((link for link in chain if isinstance(link, DeltaworksError)), None) or last_error_in(text)
    if wrapped is not None:
        return wrapped
    if (specific := _spark_error(text, error) or source_error(text)) is not None:
        return specific
    if _OUTAGE.search(text) or any(_is_outage(link) for link in chain):
        return TransientError(
            "STORAGE_UNREACHABLE", f"A server could not be reached or failed: {describe_cause(error)}"
        )
    if (damaged := data_file_error(error)) is not None:
        return damaged
    return DeltaworksError(
        "JOB_FAILED",
        describe_cause(error),
        retryable=True,
    )


def error_of_table(error: BaseException, table: str) -> DeltaworksError:
    """Converts any exception to a DeltaworksError whose message names the table. Words of a sentence are no names."""
    converted = as_deltaworks_error(error)
    if re.search(rf"(?:^|[.'\"`/]|\btable ){re.escape(table)}(?![\w-])", converted.message):
        return converted
    named = converted.with_message(f"{table}: {converted.message}")
    named.__cause__ = error
    return named


def _spark_error(text: str, error: BaseException) -> DeltaworksError | None:
    if _DELTA_CONFLICT.search(text):
        return ConcurrencyError(
            "DELTA_CONFLICT", f"Another writer changed what this job read or rewrote: {describe_cause(error)}"
        )
    if _CHECKPOINT_IN_USE.search(text):
        return FencedError(
            "CHECKPOINT_IN_USE", f"Another driver runs this query on the same checkpoint: {describe_cause(error)}"
        )
    if _PYTHON_WORKER_TIMEOUT.search(text):
        # Checked before outages: a timed-out socket is among its causes although no server failed.
        return TransientError(
            "PYTHON_WORKER_TIMEOUT",
            f"Spark gave up waiting for a Python process it had started: {describe_cause(error)}",
        )
    return None


def _is_outage(link: BaseException) -> bool:
    return any(kind.__name__ in _OUTAGE_TYPES for kind in type(link).__mro__)
