"""One DAG per pipeline that rebuilds its gold tables."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from deltaworks.airflow import names
from deltaworks.airflow.job_alerts import job_callbacks, tell_deadline
from deltaworks.airflow.job_settings import job_settings
from deltaworks.airflow.operators import ParamArgument, SparkJobOperator
from deltaworks.airflow.runbooks import gold_runbook
from deltaworks.airflow.timetables import GoldTimetable
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec

#: A backfilled run builds its own date, a run by hand those of its form, and any other what has changed.
DATES_ARGUMENT = "--dates={{ ds if dag_run.run_type == 'backfill' else params.dates }}"


def gold_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """The DAG that rebuilds a pipeline's gold tables, on schedule and by hand."""
    with DAG(
        dag_id=names.gold_dag_id(spec.pipeline),
        description=f"Rebuilds the gold tables of {spec.pipeline}",
        doc_md=gold_runbook(spec),
        schedule=_timetable(spec.gold.schedule),
        catchup=False,
        max_active_runs=1,
        allowed_run_types=names.WITH_BACKFILL,
        is_paused_upon_creation=False,
        dagrun_timeout=timedelta(hours=6),
        deadline=_deadline(spec),
        tags=sorted({"gold", spec.pipeline, *spec.tags}),
        default_args={"owner": spec.owner, **job_callbacks()},
        params={
            "tables": table_choice([table.name for table in spec.gold.tables], "Gold tables to build"),
            "dates": Param(
                "",
                type="string",
                title="Dates",
                description="Only these: 2026-01-01..2026-01-07, or with commas between; empty for what has changed",
            ),
            "full": Param(
                False,
                type="boolean",
                title="Full rebuild",
                description="Build every partition, not only touched ones",
            ),
            "shadow": Param(
                False,
                type="boolean",
                title="Full rebuild in a shadow",
                description="Beside the tables, which get it in one commit once it holds their checks",
            ),
            "dry_run": Param(
                True,
                type="boolean",
                title="Shadow: count only",
                description="Off: the shadow is built, checked and swapped in",
            ),
        },
    ) as dag:
        rebuild_gold_task(
            spec,
            environment,
            arguments=(DATES_ARGUMENT,),
            param_arguments=(
                ParamArgument("tables", "--tables"),
                ParamArgument("full", "--full"),
                ParamArgument("shadow", "--shadow"),
                ParamArgument("dry_run", "--no-dry-run", when=False),
            ),
        )
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


def rebuild_gold_task(
    spec: PipelineSpec,
    environment: EnvironmentSpec,
    *,
    arguments: tuple[str, ...] = (),
    param_arguments: tuple[ParamArgument, ...] = (),
) -> SparkJobOperator:
    """The task that rebuilds gold tables; it announces them as assets when it succeeds."""
    return SparkJobOperator(
        task_id="rebuild_gold",
        job="rebuild_gold",
        pipeline=spec.pipeline,
        environment=environment,
        arguments=arguments,
        param_arguments=param_arguments,
        outlets=[names.gold_asset(environment.lake, spec.pipeline, table.name) for table in spec.gold.tables],
        **job_settings(),
    )


def table_choice(tables: list[str], title: str) -> Param:
    """A form field that takes some of these tables; none chosen means all."""
    return Param(
        [],
        type="array",
        items={"type": "string", "enum": tables},
        examples=tables,
        title=title,
        description="None chosen: all of them",
    )
