"""One DAG per relay: an endless process that turns queue messages into the file event log; and one that cleans up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param

from deltaworks.airflow import names
from deltaworks.airflow.job_alerts import job_callbacks
from deltaworks.airflow.operation_dags import operation_task
from deltaworks.airflow.operation_forms import operation_form
from deltaworks.airflow.operators import ProcessOperator
from deltaworks.airflow.retry_policy import EndlessRetryPolicy
from deltaworks.airflow.runbooks import clean_runbook, relay_runbook
from deltaworks.control.backoff import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS
from deltaworks.operations.registry import operation
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.relay import CleanSpec, RelaySpec

#: High: a DAG that pauses itself does not come back by itself. With the back-off of retries this is hours.
FAILED_RUNS_BEFORE_PAUSE = 50
ENDLESS_RETRIES = 8


def relay_dag(relay: RelaySpec) -> DAG:
    """The DAG of one relay."""
    with DAG(
        dag_id=names.relay_dag_id(relay.relay),
        description=relay.description or f"Relay of {', '.join(relay.buckets)}",
        doc_md=relay_runbook(relay),
        schedule="@continuous",
        start_date=names.START_DATE,
        catchup=False,
        max_active_runs=1,
        max_consecutive_failed_dag_runs=FAILED_RUNS_BEFORE_PAUSE,
        is_paused_upon_creation=False,
        tags=["relay", "endless"],
        default_args={"owner": relay.owner},
    ) as dag:
        ProcessOperator(
            task_id="relay",
            module="deltaworks.sources.objects.relay",
            arguments=["--relay", relay.relay],
            pool=names.POOL_RELAYS,
            **endless_retries(),
        )
    return dag


def clean_dag(relay: RelaySpec, declared: CleanSpec, environment: EnvironmentSpec) -> DAG:
    """The DAG that deletes or archives what every pipeline has landed. It deletes for good, so no backfill."""
    with DAG(
        dag_id=names.clean_dag_id(relay.relay),
        description=f"Objects of {', '.join(relay.buckets)} that have landed everywhere: {declared.mode}",
        doc_md=clean_runbook(relay, declared),
        schedule=names.cron(declared.schedule),
        catchup=False,
        max_active_runs=1,
        allowed_run_types=names.NO_BACKFILL,
        is_paused_upon_creation=False,
        dagrun_timeout=timedelta(hours=12),
        tags=["maintenance", "relay"],
        default_args={"owner": relay.owner, **job_callbacks()},
        params=_clean_form(declared),
    ) as dag:
        operation_task("clean_source", relay.relay, environment, from_form=True)
    return dag


def _clean_form(declared: CleanSpec) -> dict[str, Param]:
    """The form of the operation; a run on schedule does what the relay declares."""
    form = operation_form(operation("clean_source"))
    form["dry_run"] = Param(declared.dry_run, **form["dry_run"].schema)
    return form


def endless_retries() -> dict[str, Any]:
    """Retry settings of a task without end; the delays also hold for a killed task, which asks no policy."""
    return {
        "retries": ENDLESS_RETRIES,
        "retry_delay": timedelta(seconds=FIRST_WAIT_SECONDS),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(seconds=LONGEST_WAIT_SECONDS),
        "retry_policy": EndlessRetryPolicy(),
    }
