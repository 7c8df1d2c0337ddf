"""One DAG per pipeline that reads what has landed again: a form to fill in, which counts unless told otherwise."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from deltaworks.airflow import names
from deltaworks.airflow.gold_dags import table_choice
from deltaworks.airflow.job_settings import by_hand_only, job_settings
from deltaworks.airflow.operators import ParamArgument, SparkJobOperator
from deltaworks.airflow.runbooks import reprocess_runbook
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec

#: Every try of a task works under one id, which this gives.
RUN_ARGUMENT = "--run={{ run_id }}"


def reprocess_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """The reprocess DAG of one pipeline. It is run by hand only, and never backfilled: it selects by its form."""
    with DAG(
        dag_id=names.reprocess_dag_id(spec.pipeline),
        description=f"Reads objects of {spec.pipeline} again, in place or into shadow tables",
        doc_md=reprocess_runbook(spec),
        params=_form(spec),
        **by_hand_only(spec, "reprocess"),
    ) as dag:
        SparkJobOperator(
            task_id="reprocess",
            job="reprocess",
            pipeline=spec.pipeline,
            environment=environment,
            arguments=[RUN_ARGUMENT],
            param_arguments=(
                ParamArgument("batches", "--batches"),
                ParamArgument("files", "--files"),
                ParamArgument("events", "--events"),
                ParamArgument("from_start", "--from-start"),
                ParamArgument("tables", "--tables"),
                ParamArgument("shadow", "--shadow"),
                ParamArgument("allow_missing", "--allow-missing"),
                ParamArgument("exact", "--exact"),
                ParamArgument("dry_run", "--no-dry-run", when=False),
            ),
            **{**job_settings(), "execution_timeout": timedelta(hours=20)},
        )
    return dag


def _form(spec: PipelineSpec) -> dict[str, Param]:
    """One section says what is read again, the other what becomes of it."""
    select, act = "What is read again: fill in one", "What becomes of it"
    return {
        "batches": Param(
            "",
            type="string",
            pattern=r"^(\d+(-\d+)?)?$",
            title="Batches",
            description="The first and the last, such as 10-20; `deltaworks batches` lists them",
            section=select,
        ),
        "files": Param(
            [],
            type="array",
            items={"type": "string"},
            title="Objects",
            description="Keys, or patterns such as games/2026/01/02/*",
            section=select,
        ),
        "events": Param(
            "",
            type="string",
            title="Time of events",
            description="Start and end (excluded), such as 2026-01-01..2026-01-02",
            section=select,
        ),
        "from_start": Param(False, type="boolean", title="Everything from the start", section=select),
        "tables": _of(table_choice([table.name for table in spec.tables], "Bronze tables"), act),
        "shadow": Param(
            False,
            type="boolean",
            title="Into shadow tables",
            description="New tables beside the present ones, which stay as they are",
            section=act,
        ),
        "allow_missing": Param(
            False,
            type="boolean",
            title="Objects may be missing",
            description="The rows of objects that are gone stay as they are",
            section=act,
        ),
        "exact": Param(False, type="boolean", title="Count exactly, by reading all objects", section=act),
        "dry_run": Param(
            True,
            type="boolean",
            title="Count only",
            description="Off: rows are replaced; the stream goes on meanwhile",
            section=act,
        ),
    }


def _of(param: Param, section: str) -> Param:
    """A field moved into a section of the form."""
    return Param(param.value, **{**param.schema, "section": section})
