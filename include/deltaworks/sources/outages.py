"""Classifies failures of AWS and storage as outages and retries them with jittered exponential backoff."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from deltalake.exceptions import DeltaError
from tenacity import (
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_random_exponential,
)

from deltaworks.errors import DeltaworksError

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

T = TypeVar("T")
_THROTTLED = frozenset(
    {
        "KMSThrottlingException",
        "LimitExceededException",
        "OverLimit",
        "ProvisionedThroughputExceededException",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestTimeout",
        "RequestTimeoutException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)


def error_code(error: ClientError) -> str:
    """Returns the error code that the service sent."""
    return str(error.response.get("Error", {}).get("Code", ""))


def is_outage(error: BaseException) -> bool:
    """Returns whether a retry may succeed: network failures, overloaded servers, unreachable storage."""
    if isinstance(error, DeltaworksError):
        return error.retryable
    # Imported on the first failure: planner processes of streams use no AWS client.
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
    from botocore.exceptions import ConnectionError as BotoConnectionError

    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 or status == 429 or error_code(error) in _THROTTLED
    if isinstance(error, BotoCoreError):
        return isinstance(error, BotoConnectionError | HTTPClientError | IncompleteReadError)
    # delta-rs and pyarrow raise OSError or DeltaError for an unreachable store, without a class of its own.
    return isinstance(error, OSError | DeltaError)


def retry_outages(
    call: Callable[[], T],
    *,
    retry_seconds: float,
    max_pause_seconds: float = 15.0,
    cancelled: threading.Event | None = None,
) -> T:
    """Retries a call until it succeeds, fails permanently, or has failed for `retry_seconds`; raises the last error.

    Args:
        cancelled: when set, ends the current wait and the retries.
    """
    event = cancelled or threading.Event()
    retrying = Retrying(
        retry=retry_if_exception(is_outage),
        wait=wait_random_exponential(multiplier=0.2, max=max_pause_seconds),
        stop=stop_after_delay(retry_seconds) | stop_when_event_set(event),
        sleep=sleep_using_event(event),
        reraise=True,
    )
    return retrying(call)
