"""One DAG per pipeline that goes back: it counts, a person approves what was counted, it is done, gold follows."""

from __future__ import annotations

from airflow.sdk import DAG, BaseOperator, Param, chain

from deltaworks.airflow import names
from deltaworks.airflow.approvals import approval
from deltaworks.airflow.gold_dags import rebuild_gold_task
from deltaworks.airflow.job_settings import by_hand_only, process_settings
from deltaworks.airflow.operators import RESULTS_XCOM, ProcessOperator
from deltaworks.airflow.runbooks import rollback_runbook
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec

MODULE = "deltaworks.rework.restore.job"
COUNT, APPROVE, RESTORE = "count", "approve", "restore"
_COUNTED = f"ti.xcom_pull(task_ids='{COUNT}', key='{RESULTS_XCOM}')[0]"


def rollback_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """The rollback DAG of one pipeline. It is run by hand only, and does nothing that nobody has approved."""
    with DAG(
        dag_id=names.rollback_dag_id(spec.pipeline),
        description=f"Puts tables of {spec.pipeline} back as they were",
        doc_md=rollback_runbook(spec),
        params=_form(spec),
        **by_hand_only(spec, "rollback"),
    ) as dag:
        chain(*_steps(spec, environment))
    return dag


def _steps(spec: PipelineSpec, environment: EnvironmentSpec) -> list[BaseOperator]:
    steps: list[BaseOperator] = [
        _task(COUNT, spec, []),
        approval(
            task_id=APPROVE,
            subject=f"Put {spec.pipeline} {{{{ params.table or '(all tables)' }}}} back?",
            body=f"{{{{ {_COUNTED}['rows_out'] }}}} rows go. {{{{ {_COUNTED}['told'] }}}}",
        ),
        # What was approved is the bound of what is done.
        _task(RESTORE, spec, ["--max-rows", f"{{{{ {_COUNTED}['rows_out'] }}}}", "--no-dry-run"]),
    ]
    return [*steps, rebuild_gold_task(spec, environment)] if spec.gold.tables else steps


def _task(task_id: str, spec: PipelineSpec, arguments: list[str]) -> ProcessOperator:
    filled = [f"--{name.replace('_', '-')}={{{{ params.{name} or '' }}}}" for name in _FIELDS]
    return ProcessOperator(
        task_id=task_id,
        module=MODULE,
        arguments=["--pipeline", spec.pipeline, *filled, *arguments],
        **process_settings(),
    )


_FIELDS = ("table", "to_batch", "to_time", "to_version", "repair", "reason")


def _form(spec: PipelineSpec) -> dict[str, Param]:
    """What goes back, where to, and what becomes of what has landed since."""
    where, since = "Where to: fill in one", "What has landed since"

    def number(title: str, description: str) -> Param:
        return Param("", type="string", pattern=r"^\d*$", title=title, description=description, section=where)

    return {
        "table": Param(
            "",
            type="string",
            enum=["", *(table.name for table in spec.tables), "quarantine"],
            title="Table",
            description="Empty: all tables, to one batch; the stream has to be stopped",
        ),
        "to_batch": number("Batch", "As it was when this batch was complete"),
        "to_time": Param("", type="string", title="Time", description="Such as 2026-01-31T12:00:00Z", section=where),
        "to_version": number("Version", "Of one table only"),
        "repair": Param(
            "prepared",
            type="string",
            enum=["prepared", "source", "none"],
            title="Rows landed since",
            description="Of one table: their files come back, their objects are read again, or they stay out",
            section=since,
        ),
        "reason": Param("", type="string", title="Reason", description="Kept on record", section=since),
    }
