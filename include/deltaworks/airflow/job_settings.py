"""What all tasks of jobs have in common: pool, retries, time limits; and all DAGs that are run by hand only."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from deltaworks.airflow import names
from deltaworks.airflow.job_alerts import job_callbacks
from deltaworks.airflow.retry_policy import JobRetryPolicy


def job_settings() -> dict[str, Any]:
    """Pool and retries of a Spark job that ends."""
    return {
        "pool": names.POOL_SPARK_JOBS,
        "retries": 3,
        "retry_delay": timedelta(seconds=30),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(minutes=10),
        "retry_policy": JobRetryPolicy(),
        "execution_timeout": timedelta(hours=4),
        # A cleared task must run again; a durable one that had succeeded in cluster mode would be skipped.
        "durable": False,
    }


def process_settings() -> dict[str, Any]:
    """The same of a task that starts no Spark job, which is what `durable` speaks of."""
    return {name: value for name, value in job_settings().items() if name != "durable"}


def by_hand_only(subject: str, owner: str, *, tags: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of a DAG that nobody but a person starts, one run at a time, for what its form says.

    Args:
        subject: the pipeline or relay; one of the tags.
        tags: what the DAG does, as words to find it by.
    """
    return {
        "schedule": None,
        "catchup": False,
        "max_active_runs": 1,
        "allowed_run_types": names.NO_BACKFILL,
        "is_paused_upon_creation": False,
        "dagrun_timeout": timedelta(hours=24),
        "tags": sorted({*tags, subject}),
        "default_args": {"owner": owner, **job_callbacks()},
    }
