"""Decides from a job's own error whether trying again can help, and how soon.

Airflow sees one exception class for everything that can go wrong in a Spark job. The job's last output line
names the condition and whether it is retryable; where that line was lost the exit code tells.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import RetryDecision, RetryPolicy

from deltaworks.airflow.job_output import read_error, read_exit_code
from deltaworks.control.backoff import SETTLED_SECONDS, wait_seconds
from deltaworks.errors import ConfigError, ContractError, DeltaworksError, FencedError

if TYPE_CHECKING:
    from airflow.sdk import Context

_FINAL_EXIT_CODES = frozenset({ConfigError.exit_code, ContractError.exit_code, FencedError.exit_code})


def error_of(exception: BaseException) -> DeltaworksError | None:
    """The Deltaworks error an exception is, or carries in its text."""
    if isinstance(exception, DeltaworksError):
        return exception
    text = str(exception)
    error = read_error(text)
    if error is None and read_exit_code(text) in _FINAL_EXIT_CODES:
        code = read_exit_code(text)
        return DeltaworksError("JOB_FAILED", f"The job ended with exit code {code}.", retryable=False)
    return error


class JobRetryPolicy(RetryPolicy):
    """Fails at once what no retry can mend (configuration, contract, fencing); retries the rest."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        error = error_of(exception)
        if error is None:
            return RetryDecision.default()
        if error.retryable:
            return RetryDecision.retry(reason=f"{error.condition} is retryable")
        return RetryDecision.fail(reason=f"{error.condition} is not retryable")

    def serialize(self) -> dict[str, Any]:
        return {"__type": type(self).__name__}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls()


class EndlessRetryPolicy(JobRetryPolicy):
    """The back-off that `@continuous` lacks: an endless job is always started again, soon or later.

    Airflow's part of `deltaworks.control.backoff`: it waits by the same schedule, counted by the tries of one DAG run,
    so that a failed stream occupies no slot meanwhile. What is left of a longer wait, after failures of earlier DAG
    runs, the stream waits for itself when it starts.
    """

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        error = error_of(exception)
        condition = error.condition if error else type(exception).__name__
        failures = 1 if self._ran_seconds(context) >= SETTLED_SECONDS else try_number
        seconds = wait_seconds(failures, retryable=error is None or error.retryable)
        return RetryDecision.retry(
            delay=timedelta(seconds=seconds), reason=f"{condition}: starting again in {seconds:.0f} s"
        )

    @staticmethod
    def _ran_seconds(context: Context | None) -> float:
        started = getattr(context.get("ti"), "start_date", None) if context else None
        return (datetime.now(UTC) - started).total_seconds() if started else 0.0
