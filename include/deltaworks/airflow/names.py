"""The names of DAGs, tasks and assets, and the defaults every DAG shares."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from airflow.sdk import Asset, CronTriggerTimetable

from deltaworks.control import paths, provenance
from deltaworks.operations import registry
from deltaworks.specs import groups
from deltaworks.specs.catalog import project_root
from deltaworks.specs.schedules import schedules_enabled
from deltaworks.specs.storage import StorageSpec

SPARK_CONNECTION: Final = "spark_default"
#: Airflow's own, of what waits for no class of job.
DEFAULT_POOL: Final = "default_pool"
HEALTH_DAG_ID: Final = "stream_health"
#: The kind in the id of a group's DAG, as `named_in` gives it.
GROUP_KIND: Final = groups.GROUP_KIND
#: How the health check reaches Airflow itself, to restart hung streams: an HTTP connection with a login.
AIRFLOW_CONNECTION: Final = "deltaworks_airflow"

#: The task that keeps what a night did, once its other tasks have ended.
RECORD_NIGHT_TASK: Final = "record_night"

#: Any fixed instant in the past: nothing here depends on a logical date and no DAG catches up.
START_DATE: Final = datetime(2026, 1, 1, tzinfo=UTC)

#: For how old a time of its schedule a new DAG still runs. By default that is five minutes, or a tenth of what lies
#: between two runs: with a schedule of every five minutes it would always run at once.
NO_IMMEDIATE_RUN: Final = timedelta(0)

#: Run types of DAGs that work on the present state of tables: a backfill would repeat one run many times.
RUN_TYPES_WITHOUT_BACKFILL: Final[Any] = ("scheduled", "manual", "operator_triggered")

#: Run types of the DAGs of gold, whose runs can work on one date, or follow other pipelines' gold.
GOLD_RUN_TYPES: Final[Any] = (*RUN_TYPES_WITHOUT_BACKFILL, "backfill", "asset_triggered")

#: Who a job works for; it ends up in every Delta commit the job makes.
RUN_TEMPLATE: Final = "{{ dag.dag_id }}/{{ run_id }}/{{ task.task_id }}/{{ ti.try_number }}"
#: What a job has in its environment of the run it is of: which one, and who triggered it.
RUN_VARIABLES: Final[Mapping[str, str]] = {
    provenance.RUN_VARIABLE: RUN_TEMPLATE,
    provenance.PERSON_VARIABLE: f"{{{{ dag_run.triggering_user_name or '{provenance.SCHEDULER}' }}}}",
}


def cron_timetable(expression: str | None) -> CronTriggerTimetable | None:
    """A schedule in UTC that begins with the next time it names: a DAG seen for the first time does not run at once
    for a time that has passed, when there may be nothing to build or keep yet. The DAG must have no start date, with
    which Airflow runs the last time passed all the same."""
    if expression is None or not schedules_enabled():
        return None
    return CronTriggerTimetable(expression, timezone="UTC", run_immediately=NO_IMMEDIATE_RUN)


def relay_dag_id(relay: str) -> str:
    """The DAG that runs a relay."""
    return f"relay__{relay}"


def feeds_dag_id(pipeline: str) -> str:
    """The DAG that delivers a pipeline's feeds."""
    return f"feeds__{pipeline}"


def remediation_dag_id(remediation: str) -> str:
    """The DAG that runs a remediation."""
    return f"remediation__{remediation}"


def clean_dag_id(relay: str) -> str:
    """The DAG that removes landed objects of a relay's buckets."""
    return f"clean__{relay}"


def stream_dag_id(pipeline: str, group: str | None = None) -> str:
    """The DAG that runs a pipeline's stream: its own, or that of its group."""
    return groups.stream_dag_id(pipeline, group)


def gold_dag_id(pipeline: str) -> str:
    """The DAG that rebuilds a pipeline's gold tables."""
    return f"gold__{pipeline}"


def operation_dag_id(operation: str, subject: str) -> str:
    """The DAG that runs an operation: the one of its schedule where it has one."""
    return registry.get_operation(operation).dag_id(subject)


def mutation_dag_id(pipeline: str) -> str:
    """The DAG that applies a pipeline's mutation requests."""
    return f"mutations__{pipeline}"


def training_dag_id(pipeline: str) -> str:
    """The DAG that trains a pipeline's models."""
    return f"models__{pipeline}"


def maintenance_dag_id(pipeline: str) -> str:
    """The DAG that keeps a pipeline's tables healthy."""
    return provenance.maintenance_dag_id(pipeline)


def split_dag_id(dag_id: str) -> tuple[str, str]:
    """The kind and the name in a DAG id: `("stream", "games")`; an empty name where there is none."""
    kind, _, name = dag_id.partition("__")
    return kind, name


def spark_job(name: str) -> Path:
    """The entry point of a spark-submit job."""
    return project_root() / "spark_jobs" / f"{name}.py"


def gold_asset(lake: StorageSpec, pipeline: str, table: str) -> Asset:
    """The asset that stands for a gold table."""
    return Asset(name=f"gold.{pipeline}.{table}", uri=lake.uri(paths.table(pipeline, table)), group="gold")


def bronze_asset(lake: StorageSpec, pipeline: str, table: str) -> Asset:
    """The asset that stands for a table of a stream. Nothing announces it: a stream that never ends would say every few
    hours that there is something new."""
    return Asset(name=f"bronze.{pipeline}.{table}", uri=lake.uri(paths.table(pipeline, table)), group="bronze")
