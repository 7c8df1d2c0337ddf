"""The task of a night's OPTIMIZE, with a second round on one night of the week."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param

from deltaworks.airflow.child_process import MAINTENANCE_NICENESS
from deltaworks.airflow.job_settings import job_settings
from deltaworks.airflow.operators import ParamArgument, SparkJobOperator
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.maintenance import MaintenanceSpec
from deltaworks.specs.pipeline import PipelineSpec

BY_DAY = "by_day"


def round_choice() -> Param:
    """A form field that says which rounds a run has."""
    return Param(
        BY_DAY,
        type="string",
        enum=[BY_DAY, "daily", "weekly"],
        title="Rounds of OPTIMIZE",
        description="weekly: a second round over what the daily one leaves; by_day: as declared for this weekday",
    )


def round_argument(upkeep: MaintenanceSpec) -> str:
    """The round of a run: what its form says, or what is declared for the weekday it runs on."""
    by_day = f"'weekly' if dag_run.run_after.strftime('%A').lower() == '{upkeep.weekly_on}' else 'daily'"
    return f"--round={{{{ params.round if params.round != '{BY_DAY}' else ({by_day}) }}}}"


def optimize_task(spec: PipelineSpec, environment: EnvironmentSpec, *params: ParamArgument) -> SparkJobOperator:
    """The task. It ends by itself within the declared minutes; each try goes on where the one before it was."""
    upkeep = spec.maintenance
    minutes = upkeep.optimize_minutes + (upkeep.weekly_minutes if upkeep.weekly_on is not None else 0)
    # A command that has begun is let finish, and tables are looked at first.
    settings = job_settings() | {"execution_timeout": timedelta(minutes=minutes + 120)}
    return SparkJobOperator(
        task_id="optimize_tables",
        job="optimize_tables",
        pipeline=spec.pipeline,
        environment=environment,
        arguments=(round_argument(upkeep),),
        param_arguments=params,
        niceness=MAINTENANCE_NICENESS,
        **settings,
    )
