"""The tasks of operations, and a DAG for each operation and pipeline or relay, with a form of its options.

One DAG an operation, and not one `operate__<pipeline>` with a choice: a form cannot show fields by an earlier answer,
so one DAG would show some thirty fields of which three matter, and its runs would mix restores with OPTIMIZE. Airflow's
list finds `restore__games` by typing either word, and its tags show a pipeline's, or all of one kind.

What cannot be taken back waits for a person's approval (`deltaworks.airflow.approvals`), and is done within the figures
that were approved.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import DAG, Asset, BaseOperator, chain

from deltaworks.airflow import names
from deltaworks.airflow.approvals import OperationApproval
from deltaworks.airflow.job_settings import job_settings, manual_dag_settings, pool_settings, process_settings
from deltaworks.airflow.operation_forms import operation_form, set_form
from deltaworks.airflow.operators import ProcessOperator, SparkJobOperator
from deltaworks.airflow.runbooks import operation_runbook
from deltaworks.operations.availability import restrictions, unavailable_reason
from deltaworks.operations.base import APPROVE_TASK, COUNT_TASK, DRY_RUN_GATE_TASK, RESULTS_KEY, Operation
from deltaworks.operations.registry import OPERATIONS, get_operation
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec

_COUNT_RESULTS = f"ti.xcom_pull(task_ids='{COUNT_TASK}', key='{RESULTS_KEY}')"
#: Long enough for a reprocess of everything.
_EXECUTION_TIMEOUT = timedelta(hours=20)
#: Of what an operator waits for: before everything else that waits for room in the scheduler, and over soon.
_TOP_PRIORITY, _SHORT_TIMEOUT = 200, timedelta(hours=1)
APPROVAL_BODY = f"""
{{% set results = {_COUNT_RESULTS} or [] -%}}
{{% set columns = (results[0].keys() if results else []) | list -%}}
| {{{{ columns | join(" | ") }}}} |
|{{% for column in columns %}}---|{{% endfor %}}
{{% for record in results -%}}
| {{{{ record.values() | join(" | ") }}}} |
{{% endfor %}}

{{% for name, value in params.items() if value and name != 'dry_run' -%}}
- {{{{ name }}}}: {{{{ value }}}}
{{% endfor %}}
Rejected or not answered, nothing is done.
"""


#: Whose jobs run as a process first, with their option `spark` off, and are submitted for what that leaves.
_TRIED_WITHOUT_SPARK = frozenset({"reprocess"})


def operation_task(
    name: str,
    subject: str,
    environment: EnvironmentSpec,
    *,
    task_id: str = "",
    as_process: bool = False,
    values: Mapping[str, Any] | None = None,
    from_form: bool = False,
    **settings: Any,
) -> BaseOperator:
    """The task that runs an operation: a spark-submit job, or a process where it needs no Spark.

    Args:
        as_process: run it as a process though it may need Spark, for what it does without.
        values: options that the DAG fixes; texts may be templates.
        from_form: take the other options from the params of their names.
        settings: further arguments of the operator, over those that all jobs have.
    """
    declared = get_operation(name)
    options: dict[str, Any] = {"operation": declared, "values": values, "from_form": from_form}
    share = environment.shares.of(declared.job_class)
    if declared.runs_immediately:
        settings = (
            pool_settings(names.DEFAULT_POOL, priority=_TOP_PRIORITY) | {"execution_timeout": _SHORT_TIMEOUT} | settings
        )
    if declared.needs_spark and not as_process:
        return SparkJobOperator(
            task_id=task_id or name,
            job=name,
            pipeline=subject,
            environment=environment,
            share=share,
            **options,
            **{"try_without_spark": str(declared.name in _TRIED_WITHOUT_SPARK), **job_settings(share), **settings},
        )
    return ProcessOperator(
        task_id=task_id or name,
        job=name,
        environment=environment,
        arguments=[f"--{declared.scope}", subject],
        niceness=0 if declared.runs_immediately else share.niceness,
        **options,
        **{**process_settings(share), **settings},
    )


def rebuild_gold_task(
    spec: PipelineSpec,
    environment: EnvironmentSpec,
    *,
    from_form: bool = False,
    values: Mapping[str, str] | None = None,
    try_without_spark: str = "False",
) -> BaseOperator:
    """The task that rebuilds gold tables; it announces them as assets when it succeeds.

    Args:
        try_without_spark: a template of whether it looks for changes before it starts a JVM.
    """
    return operation_task(
        "rebuild_gold",
        spec.pipeline,
        environment,
        from_form=from_form,
        values=values,
        try_without_spark=try_without_spark,
        inlets=_gold_inlets(spec, environment),
        outlets=[names.gold_asset(environment.lake, spec.pipeline, table.name) for table in spec.gold.tables],
    )


def _gold_inlets(spec: PipelineSpec, environment: EnvironmentSpec) -> list[Asset]:
    """What gold tables are made of, for the graph of assets: tables of the stream, gold of other pipelines."""
    reads = {name for table in spec.gold.tables for name in table.reads}
    bronze = [names.bronze_asset(environment.lake, spec.pipeline, t.name) for t in spec.tables if t.name in reads]
    return bronze + [names.gold_asset(environment.lake, *other) for other in spec.gold.cross_pipeline_inputs]


def available_operations(spec: PipelineSpec) -> list[Operation]:
    """The operations of a pipeline that have a DAG of their own, in the order of the registry; none it can never do.

    Where the environment names the pipelines whose operations have DAGs, others have none: `pipelines_with_operation_dags`.
    """
    offered = pipeline_operations(
        mutable=spec.mutations is not None, gold=bool(spec.gold.tables), feeds=bool(spec.feeds)
    )
    return [declared for declared in offered if unavailable_reason(declared, spec) is None]


def pipelines_with_operation_dags(catalog: Catalog) -> list[PipelineSpec]:
    """The pipelines whose operations have DAGs in this environment."""
    environment = catalog.environment
    return [spec for name, spec in catalog.pipelines.items() if environment.has_operation_dags(name)]


def pipeline_operations(*, mutable: bool, gold: bool, feeds: bool) -> list[Operation]:
    """The same, of any pipeline that declares mutations, gold tables or feeds, or none; whatever its source can do."""
    return [
        declared
        for declared in OPERATIONS.values()
        if declared.scope == "pipeline"
        and not declared.dag_prefix
        and (mutable or not declared.needs_mutations)
        and (gold or not declared.needs_gold)
        and (feeds or not declared.needs_feeds)
    ]


def relay_operations() -> list[Operation]:
    """The operations of a relay that have a DAG of their own."""
    return [item for item in OPERATIONS.values() if item.scope == "relay" and not item.dag_prefix]


def operation_dag(declared: Operation, subject: PipelineSpec | RelaySpec, environment: EnvironmentSpec) -> DAG:
    """The DAG of an operation: run by hand only, for what its form says."""
    spec = subject if isinstance(subject, PipelineSpec) else None
    name = subject.pipeline if isinstance(subject, PipelineSpec) else subject.relay
    with DAG(
        dag_id=declared.dag_id(name),
        description=declared.summary,
        doc_md=operation_runbook(
            declared, name, subject.owner, limits="" if spec is None else restrictions(declared, spec)
        ),
        **manual_dag_settings(name, subject.owner, tags=("operation", declared.family)),
    ) as dag:
        if declared.waits_for_approval and spec is not None:
            steps = _approval_tasks(declared, spec, environment)
            if declared.rebuilds_gold and spec.gold.tables:
                steps.append(rebuild_gold_task(spec, environment))
            chain(*steps)
        else:
            limit: dict[str, Any] = {} if declared.runs_immediately else {"execution_timeout": _EXECUTION_TIMEOUT}
            operation_task(declared.name, name, environment, from_form=True, **limit)
    set_form(dag, operation_form(declared, spec))
    return dag


def _approval_tasks(declared: Operation, spec: PipelineSpec, environment: EnvironmentSpec) -> list[BaseOperator]:
    """Counted, approved by a person, and done within what was approved, to which the job holds itself."""
    subject, share = spec.pipeline, environment.shares.of(declared.job_class)
    return [
        operation_task(
            declared.name, subject, environment, task_id=COUNT_TASK, values={"dry_run": True}, from_form=True
        ),
        ShortCircuitOperator(task_id=DRY_RUN_GATE_TASK, python_callable=is_not_dry_run, **process_settings(share)),
        OperationApproval(
            task_id=APPROVE_TASK,
            subject=f"{declared.command} {subject}?",
            body=APPROVAL_BODY,
            operation=declared,
            spec=spec,
            environment=environment,
            count_task_id=COUNT_TASK,
        ),
        operation_task(declared.name, subject, environment, values={"dry_run": False}, from_form=True),
    ]


def is_not_dry_run(params: dict[str, Any], **_: Any) -> bool:
    """Whether the form requests more than a count."""
    return not params["dry_run"]
