"""One DAG per pipeline that rebuilds its gold tables."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from deltaworks.airflow import names
from deltaworks.airflow.job_alerts import tell_deadline
from deltaworks.airflow.job_settings import job_dag_settings
from deltaworks.airflow.operation_dags import rebuild_gold_task
from deltaworks.airflow.operation_forms import operation_form
from deltaworks.airflow.runbooks import gold_runbook
from deltaworks.airflow.timetables import GoldTimetable
from deltaworks.operations.registry import operation
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec

#: A backfilled run builds its own date, a run by hand those of its form, and any other what has changed.
DATES_OF_RUN = "{{ ds if dag_run.run_type == 'backfill' else (params.dates or '') }}"


def gold_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """The DAG that rebuilds a pipeline's gold tables, on schedule and by hand."""
    with DAG(
        dag_id=names.gold_dag_id(spec.pipeline),
        description=f"Rebuilds the gold tables of {spec.pipeline}",
        doc_md=gold_runbook(spec),
        schedule=_timetable(spec.gold.schedule),
        deadline=_deadline(spec),
        params=operation_form(operation("rebuild_gold"), spec),
        **job_dag_settings(
            spec.owner, tags=("gold", spec.pipeline, *spec.tags), hours=6, run_types=names.WITH_BACKFILL
        ),
    ) as dag:
        rebuild_gold_task(spec, environment, from_form=True, values={"dates": DATES_OF_RUN})
    return dag


def _deadline(spec: PipelineSpec) -> DeadlineAlert | None:
    """The alert of a run that has not ended in time. Airflow's scheduler sees it, also of a run that never started."""
    minutes = spec.gold.deadline_minutes
    if minutes is None:
        return None
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(minutes=minutes),
        callback=SyncCallback(tell_deadline, {"dag_id": names.gold_dag_id(spec.pipeline), "minutes": minutes}),
    )


def _timetable(expression: str | None) -> GoldTimetable | None:
    if expression is None:
        return None
    return GoldTimetable(expression, timezone="UTC", run_immediately=False)
