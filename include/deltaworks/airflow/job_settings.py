"""Settings that tasks share: pools, timeouts, and whether and when a task is retried.

Airflow raises the same exception class for every failure of a Spark job. The job's last output line names the condition
and whether it is retryable; if this line is missing, the exit code decides.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import RetryDecision, RetryPolicy

from deltaworks.airflow.child_process import error_of
from deltaworks.control.backoff import FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS, STABLE_RUN_SECONDS, wait_seconds
from deltaworks.specs.shares import ClusterShares, JobClass, Share

if TYPE_CHECKING:
    from airflow.sdk import Context

CONTINUOUS_RETRIES = 8


class JobRetryPolicy(RetryPolicy):
    """Fails immediately on errors that no retry can fix (configuration, contract, fencing); retries all others."""

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


class ContinuousRetryPolicy(JobRetryPolicy):
    """Always retries a continuous job, with a backoff; Airflow's `@continuous` schedule has none.

    The wait follows the schedule of `deltaworks.control.backoff`, counted by the tries of one DAG run, and occupies no
    slot. If failures of earlier DAG runs require a longer wait, the stream itself waits for the rest when it starts.
    """

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        error = error_of(exception)
        condition = error.condition if error else type(exception).__name__
        failures = 1 if self._ran_seconds(context) >= STABLE_RUN_SECONDS else try_number
        seconds = wait_seconds(failures, retryable=error is None or error.retryable)
        return RetryDecision.retry(
            delay=timedelta(seconds=seconds), reason=f"{condition}: restarting in {seconds:.0f} s"
        )

    @staticmethod
    def _ran_seconds(context: Context | None) -> float:
        started = getattr(context.get("ti"), "start_date", None) if context else None
        return (datetime.now(UTC) - started).total_seconds() if started else 0.0


def pool_settings(pool: str, *, priority: int) -> dict[str, Any]:
    """Returns pool and priority of a task.

    The priority orders job classes that share a pool or wait for the scheduler. Downstream tasks do not change it.
    """
    return {"pool": pool, "priority_weight": priority, "weight_rule": "absolute"}


def job_settings(share: Share) -> dict[str, Any]:
    """Returns pool, retries and timeout of a Spark job that ends."""
    return {
        **pool_settings(share.pool, priority=share.priority),
        "retries": 3,
        "retry_delay": timedelta(seconds=30),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(minutes=10),
        "retry_policy": JobRetryPolicy(),
        "execution_timeout": timedelta(hours=4),
        # A cleared task must run again. A durable task that succeeded in cluster mode would be skipped instead.
        "durable": False,
    }


def process_settings(shares: ClusterShares, job_class: JobClass) -> dict[str, Any]:
    """Returns the settings of `job_settings` for a task without a Spark job: in the pool of processes, and without
    `durable`, which does not apply.
    """
    settings = job_settings(shares.of(job_class))
    del settings["durable"]
    return settings | {"pool": shares.process_pool}


def continuous_retries() -> dict[str, Any]:
    """Returns retry settings of a continuous task. Killed tasks do not reach the retry policy and use these delays."""
    return {
        "retries": CONTINUOUS_RETRIES,
        "retry_delay": timedelta(seconds=FIRST_WAIT_SECONDS),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(seconds=MAX_WAIT_SECONDS),
        "retry_policy": ContinuousRetryPolicy(),
    }
