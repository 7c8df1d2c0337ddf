"""How every job ends: an exit code a launcher can act on and, on failure, one last line that says why.

Foreign errors become DeltaworksErrors here and nowhere else, so that a retry policy handles those alone.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from deltaworks.control.guard import start_guard
from deltaworks.errors import (
    ConcurrencyError,
    ConfigError,
    ContractError,
    DeltaworksError,
    FencedError,
    TransientError,
    error_in,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: Delta's commit conflicts, by the names they have in Java, in Python and in Delta's own condition codes.
_CONFLICT = re.compile(
    r"\bConcurrent(?:Append|DeleteRead|DeleteDelete|Write|Transaction)Exception\b"
    r"|\bDeltaConcurrentModificationException\b|\b(?:Metadata|Protocol)ChangedException\b"
    r"|\bDELTA_(?:CONCURRENT_[A-Z_]+|METADATA_CHANGED|PROTOCOL_CHANGED)\b"
    # A listing that is no snapshot shows commit N+1 without N while others commit: Delta refuses to read on.
    r"|\bDELTA_(?:VERSIONS_NOT_CONTIGUOUS|TRUNCATED_TRANSACTION_LOG)\b"
)
#: What Spark says when another driver has written the next file of a query's checkpoint.
_CHECKPOINT_TAKEN = re.compile(r"\bCONCURRENT_STREAM_LOG_UPDATE\b")
#: What Kafka's clients and Spark's connector say of records that are gone, and of a login that is refused.
_OUT_OF_RANGE = re.compile(r"\bOffsetOutOfRangeException\b[^\n]*")
_EXPIRED = re.compile(r"Some data may have been lost because they are not available[^\n]*")
_LOGIN_REFUSED = re.compile(r"\bSaslAuthenticationException\b[^\n]*|\b(?:Topic|Group)AuthorizationException\b[^\n]*")
#: What Java says of a certificate that one side does not take.
_CERTIFICATE_REFUSED = re.compile(r"\bSslAuthenticationException\b[^\n]*|\bSSLHandshakeException\b[^\n]*")
_CERTIFICATE_CAUSE = re.compile(
    r"PKIX path[^\n]*|No subject alternative[^\n]*|Received fatal alert[^\n]*"
    r"|\bCertificate(?:Expired|NotYetValid)\w+[^\n]*"
)
_STORE_UNREADABLE = re.compile(r"Failed to load (?:PEM )?SSL keystore[^\n]*|Invalid PEM keystore configs[^\n]*")
#: What Delta says of a stream that comes to a commit which replaces rows.
_REWRITTEN = re.compile(r"\bDELTA_SOURCE_(?:TABLE_IGNORE_CHANGES|IGNORE_DELETE)\b(?:[^\n]*?(at version \d+))?")
#: What it says of commits that are gone from the log, and of another table at the place of the one that was read.
_COMMITS_GONE = re.compile(
    r"\bDELTA_(?:LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE|MISSING_FILES_UNEXPECTED_VERSION)\b"
    r"(?:[^\n]*?from version (\d+))?"
)
_NEXT_VERSION = re.compile(r'"reservoirVersion":\s*(\d+)')
_ANOTHER_TABLE = re.compile(r"\bDIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE\b[^\n]*")
#: What clients of object stores and of messaging say when a server or the way to it fails.
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
_MESSAGE_LENGTH = 1_000


def run_job(main: Callable[[], int | None], *, guard: bool = True) -> int:
    """Run a job's `main` and return the process's exit code.

    0 or what `main` returned; the exit code of a DeltaworksError; 1 for any other error. On an error the traceback goes
    to standard error, and the last line on standard output is the `DELTAWORKS_ERROR` line of the error.

    Args:
        guard: end this process and its JVM when whoever launched them has died.
    """
    if guard:
        start_guard()
    try:
        code = main()
    except Exception as error:
        own = as_deltaworks_error(error)
        traceback.print_exception(error)
        sys.stderr.flush()
        print(own.as_line(), flush=True)  # noqa: T201 - the line a launcher reads
        return own.exit_code
    return code or 0


def print_results(results: Sequence[DataclassInstance | BaseModel]) -> None:
    """Print the results of a job: one line per result for people, its texts last, then all as one line of JSON."""
    records = [_plain(result) for result in results]
    if records:
        columns = [name for name, value in records[0].items() if not isinstance(value, dict | list | tuple)]
        columns.sort(key=lambda name: name == "reason")
        lines = [columns, *([_cell(record[name]) for name in columns] for record in records)]
        widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
        for line in lines:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())  # noqa: T201
    print_result_line(results)


def print_result_line(results: Sequence[DataclassInstance | BaseModel]) -> None:
    """The results as one line of JSON, which the task of the job keeps."""
    print(json.dumps([_plain(result) for result in results], default=_plain), flush=True)  # noqa: T201


def _plain(value: Any) -> Any:
    """A result, or a part of one, as JSON has it."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else str(value)  # type: ignore[arg-type]


def _cell(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def as_deltaworks_error(error: BaseException) -> DeltaworksError:
    """The error as a DeltaworksError: itself or the one it wraps, a known error of Spark or a server, or JOB_FAILED."""
    chain = list(_chain(error))
    text = "\n".join(_text_of(link) for link in chain)
    own = next((link for link in chain if isinstance(link, DeltaworksError)), None) or error_in(text)
    if own is not None:
        return own
    if _CONFLICT.search(text):
        return ConcurrencyError(
            "DELTA_CONFLICT",
            f"Another writer changed what this job read or rewrote: {_first_line(error)}",
            hint="Run the job again; it starts from the table as it is then.",
        )
    if _CHECKPOINT_TAKEN.search(text):
        return FencedError(
            "CHECKPOINT_TAKEN",
            f"Another driver runs this query on the same checkpoint: {_first_line(error)}",
            hint="None: the other one goes on. Run one stream a pipeline.",
        )
    if (of_source := _of_the_source(text)) is not None:
        return of_source
    if _OUTAGE.search(text) or any(_is_outage(link) for link in chain):
        return TransientError(
            "STORAGE_UNREACHABLE",
            f"A server could not be reached or failed: {_first_line(error)}",
            hint="Run the job again once the server answers.",
        )
    return DeltaworksError(
        "JOB_FAILED",
        f"{type(error).__name__}: {_first_line(error)}",
        hint="Read the traceback above this line.",
        retryable=True,
    )


def _of_the_source(text: str) -> DeltaworksError | None:
    if expired := _OUT_OF_RANGE.search(text) or _EXPIRED.search(text):
        return ContractError(
            "SOURCE_EXPIRED",
            f"Records that no batch has read are not in the source any more: {expired.group()[:_MESSAGE_LENGTH]}",
            hint="See what was lost, and why the stream was behind; to go on after it declare `allow_data_loss: true`.",
        )
    if (of_table := _of_the_table(text)) is not None:
        return of_table
    if refused := _CERTIFICATE_REFUSED.search(text) or _STORE_UNREADABLE.search(text):
        cause = _CERTIFICATE_CAUSE.search(text)
        reason = refused.group() if cause is None else f"{refused.group()}: {cause.group()}"
        return ConfigError(
            "SOURCE_CERTIFICATE_REFUSED",
            f"The source and this client do not take each other's certificate: {reason[:_MESSAGE_LENGTH]}",
            hint="Mend `source.security`: truststore has to hold the authority of the brokers' certificate, keystore a "
            "certificate that they take, and bootstrap_servers the names in theirs.",
        )
    if refused := _LOGIN_REFUSED.search(text):
        return ConfigError(
            "SOURCE_LOGIN_REFUSED",
            f"The source refuses the login: {refused.group()[:_MESSAGE_LENGTH]}",
            hint="Mend the variables that `source.security` refers to, or what the user is allowed to read.",
        )
    return None


def _of_the_table(text: str) -> DeltaworksError | None:
    """What Delta says of a table that is read as a stream."""
    if rewritten := _REWRITTEN.search(text):
        return ContractError(
            "DELTA_SOURCE_REWRITTEN",
            "The table that is read has had rows rewritten, by a merge, an update, a delete or a reprocess in place"
            f"{' ' + rewritten.group(1) if rewritten.group(1) else ''}.",
            hint="Declare `skip_change_commits: true`, which leaves rewritten rows out; or, in a new generation, "
            "`change_feed: true` with the feed switched on, which tells inserts from changes.",
        )
    if gone := _COMMITS_GONE.search(text):
        following = gone if gone.group(1) else _NEXT_VERSION.search(text)
        return ContractError(
            "SOURCE_EXPIRED",
            "The log of the table that is read no longer has the version that comes next"
            f"{', ' + following.group(1) if following else ''}.",
            hint="Start the pipeline over, which reads the table as it is; keep its log for longer.",
        )
    if another := _ANOTHER_TABLE.search(text):
        return ContractError(
            "DELTA_SOURCE_REPLACED",
            f"The table that was read is gone, and another one is in its place: {another.group()[:_MESSAGE_LENGTH]}",
            hint="Read it from its beginning: `deltaworks pipelines start-over`; or put the former table back.",
        )
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, then what it was raised from, outermost first. Errors that merely preceded it are not part of it."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def _text_of(link: BaseException) -> str:
    # A captured JVM error shows only its description; its causes are named in the stack trace it carries.
    stack = getattr(link, "_stackTrace", None) or getattr(link, "stackTrace", None) or ""
    return f"{type(link).__name__}: {link}\n{stack}"


def _is_outage(link: BaseException) -> bool:
    return any(kind.__name__ in _OUTAGE_TYPES for kind in type(link).__mro__)


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        # A Java error that no Python one stands for: what it says comes after where it was met.
        lines = [lines[1].removeprefix(": ")]
    return (lines[0] if lines else type(error).__name__)[:_MESSAGE_LENGTH]
