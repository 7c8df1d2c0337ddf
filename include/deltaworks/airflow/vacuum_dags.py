"""The tasks of VACUUM: every night with the declared retention and, when asked for with less, once a person agrees."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import BaseOperator, Param

from deltaworks.airflow.approvals import approval
from deltaworks.airflow.child_process import MAINTENANCE_NICENESS
from deltaworks.airflow.job_settings import job_settings, process_settings
from deltaworks.airflow.operators import RESULTS_XCOM, ParamArgument, SparkJobOperator
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec

DRY_RUN, HOURS, REASON = "vacuum_dry_run", "vacuum_hours", "vacuum_reason"
#: From here on no approval is needed; below the least one the job refuses whatever the reason.
MINIMUM_HOURS, LEAST_HOURS = 168, 24
_SECTION = "VACUUM with less than seven days, once"
_SHORT = (f"--retention-hours={{{{ params.{HOURS} }}}}", f"--allow-below-minimum={{{{ params.{REASON} }}}}")
_BODY = f"""
Files that newer versions have done without for **{{{{ params.{HOURS} }}}} h** would be deleted for good. Versions
that need them can be neither read nor restored any more. Reason given: {{{{ params.{REASON} or "none" }}}}.

| table | files | bytes | kept for, h | |
|---|---|---|---|---|
{{% for each in ti.xcom_pull(task_ids="count_short_vacuum", key="{RESULTS_XCOM}") or [] -%}}
| {{{{ [each.table, each.files, each.bytes, each.retention_hours, each.reason] | join(" | ") }}}} |
{{% endfor %}}

A reader of an old version that this project does not know of would fail. Rejected or not answered, nothing is deleted.
"""


def vacuum_params(spec: PipelineSpec) -> dict[str, Param]:
    """The fields of the form that are VACUUM's."""
    return {
        DRY_RUN: Param(
            spec.maintenance.vacuum_dry_run,
            type="boolean",
            title="VACUUM lists only",
            description="Off: files that no retained version needs are deleted for good",
        ),
        HOURS: Param(
            None,
            type=["null", "integer"],
            minimum=LEAST_HOURS,
            maximum=MINIMUM_HOURS - 1,
            title="Hours to keep",
            description="Empty: nothing of this. A person is asked before anything is deleted",
            section=_SECTION,
        ),
        REASON: Param("", type="string", title="Why", description="It is kept in the tables' logs", section=_SECTION),
    }


def vacuum_task(spec: PipelineSpec, environment: EnvironmentSpec, tables: ParamArgument) -> SparkJobOperator:
    """The nightly task, a dry run until the form or the declaration says otherwise."""
    return _job("vacuum_tables", spec, environment, tables, ParamArgument(DRY_RUN, "--no-dry-run", when=False))


def short_vacuum_tasks(
    spec: PipelineSpec, environment: EnvironmentSpec, tables: ParamArgument
) -> tuple[BaseOperator, ...]:
    """VACUUM below seven days, in order: skipped unless asked for; counted; approved by a person; done."""
    asked = ShortCircuitOperator(task_id="short_vacuum_asked", python_callable=_is_asked, **process_settings())
    count = _job("count_short_vacuum", spec, environment, tables, arguments=_SHORT)
    approve = approval(
        task_id="approve_short_vacuum",
        subject=f"Delete files of {spec.pipeline} that are only {{{{ params.{HOURS} }}}} h out of use?",
        body=_BODY,
    )
    delete = _job("short_vacuum", spec, environment, tables, arguments=(*_SHORT, "--no-dry-run"))
    return asked, count, approve, delete


def _is_asked(params: dict[str, Any], **_: Any) -> bool:
    return params[HOURS] is not None


def _job(
    task_id: str,
    spec: PipelineSpec,
    environment: EnvironmentSpec,
    *param_arguments: ParamArgument,
    arguments: tuple[str, ...] = (),
) -> SparkJobOperator:
    return SparkJobOperator(
        task_id=task_id,
        job="vacuum_tables",
        pipeline=spec.pipeline,
        environment=environment,
        arguments=arguments,
        param_arguments=param_arguments,
        niceness=MAINTENANCE_NICENESS,
        **job_settings(),
    )
