"""Ids of DAGs, tasks and assets, and settings that all DAGs share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.sdk import Asset, CronTriggerTimetable

from deltaworks.control import paths, provenance
from deltaworks.specs.catalog import project_root
from deltaworks.specs.dag_ids import asset_name
from deltaworks.specs.schedules import schedules_enabled
from deltaworks.specs.storage import StorageSpec

SPARK_CONNECTION: Final = "spark_default"
#: Airflow's default pool, for tasks of no job class.
DEFAULT_POOL: Final = "default_pool"
#: The HTTP connection, with a login, by which the health check calls Airflow's API to restart hung streams.
AIRFLOW_CONNECTION: Final = "deltaworks_airflow"

#: The last task of a maintenance run, which records the run for the console.
RECORD_NIGHT_TASK: Final = "record_night"

#: Any fixed instant in the past, since no DAG depends on its logical date or catches up.
START_DATE: Final = datetime(2026, 1, 1, tzinfo=UTC)

#: How late a new DAG may still run for a scheduled time. Airflow's default is five minutes or a tenth of the interval:
#: with a schedule of every five minutes a new DAG would run immediately.
NO_IMMEDIATE_RUN: Final = timedelta(0)

#: Run types of DAGs that work on the current state of tables. A backfill would only repeat the same run.
RUN_TYPES_WITHOUT_BACKFILL: Final[Any] = ("scheduled", "manual", "operator_triggered")

#: Run types of gold DAGs, whose runs can build one date or follow gold of other pipelines.
GOLD_RUN_TYPES: Final[Any] = (*RUN_TYPES_WITHOUT_BACKFILL, "backfill", "asset_triggered")

#: The Airflow run of a job. It is written into every Delta commit of the job.
RUN_TEMPLATE: Final = "{{ dag.dag_id }}/{{ run_id }}/{{ task.task_id }}/{{ ti.try_number }}"
#: Environment variables by which a job knows its Airflow run and the person who triggered it.
RUN_VARIABLES: Final[Mapping[str, str]] = {
    provenance.RUN_VARIABLE: RUN_TEMPLATE,
    provenance.PERSON_VARIABLE: f"{{{{ dag_run.triggering_user_name or '{provenance.SCHEDULER}' }}}}",
}


def cron_timetable(expression: str | None) -> CronTriggerTimetable | None:
    """Returns a timetable in UTC whose first run is at the next time of the expression; None without a schedule.

    For a new DAG there may be nothing to do yet, so it does not run for a time that has passed. The DAG must have no
    start date; with one Airflow would still run the last time passed.
    """
    if expression is None or not schedules_enabled():
        return None
    return CronTriggerTimetable(expression, timezone="UTC", run_immediately=NO_IMMEDIATE_RUN)


def spark_job(name: str) -> Path:
    """Returns the path of a spark-submit job's entry point."""
    return project_root() / "spark_jobs" / f"{name}.py"


def gold_asset(lake: StorageSpec, pipeline: str, table: str) -> Asset:
    """Returns the Airflow asset of a gold table."""
    return Asset(name=asset_name("gold", pipeline, table), uri=lake.uri(paths.table(pipeline, table)), group="gold")


def bronze_asset(lake: StorageSpec, pipeline: str, table: str) -> Asset:
    """Returns the Airflow asset of a stream's table.

    No task updates it, because a continuous stream would announce updates all the time.
    """
    return Asset(name=asset_name("bronze", pipeline, table), uri=lake.uri(paths.table(pipeline, table)), group="bronze")


def server_path(path: str) -> str:
    """Returns a path on the API server with its path prefix."""
    prefix = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{prefix}{path}"
