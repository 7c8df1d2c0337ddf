"""Builds the tasks of operations, and one DAG with a form for each operation and pipeline or relay.

One DAG per pipeline with a choice of operation would be worse: a form cannot show fields depending on an earlier
answer, so it would show about thirty fields of which three matter, and its runs would mix restores with OPTIMIZE. In
Airflow's list `games__restore` is found by either word, and tags filter by pipeline or kind.

Irreversible operations wait for a person's approval (`deltaworks.airflow.approvals`) and stay within the approved
counts.
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
#: Long enough to reprocess everything.
_EXECUTION_TIMEOUT = timedelta(hours=20)
#: For tasks that a person waits for. They are scheduled before all others and end soon.
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
If it is rejected or not answered, nothing is done.
"""


#: Operations that first run as a process without Spark. A Spark job is submitted only if work remains.
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
    """Returns the task that runs an operation: a spark-submit job, or a process if the operation needs no Spark.

    Args:
        as_process: runs a process although the operation may need Spark, for the work that needs none.
        values: options the DAG fixes; texts may be templates.
        from_form: reads the other options from the run's params of the same names.
        settings: further operator arguments, which override those of all jobs.
    """
    operation = get_operation(name)
    options: dict[str, Any] = {"operation": operation, "values": values, "from_form": from_form}
    share = environment.shares.of(operation.job_class)
    if operation.runs_immediately:
        settings = (
            pool_settings(names.DEFAULT_POOL, priority=_TOP_PRIORITY) | {"execution_timeout": _SHORT_TIMEOUT} | settings
        )
    if operation.needs_spark and not as_process:
        return SparkJobOperator(
            task_id=task_id or name,
            job=name,
            pipeline=subject,
            environment=environment,
            share=share,
            **options,
            **{"try_without_spark": str(operation.name in _TRIED_WITHOUT_SPARK), **job_settings(share), **settings},
        )
    return ProcessOperator(
        task_id=task_id or name,
        job=name,
        environment=environment,
        arguments=[f"--{operation.scope}", subject],
        niceness=0 if operation.runs_immediately else share.niceness,
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
    """Returns the task that rebuilds gold tables. On success it updates their assets.

    Args:
        try_without_spark: a template. If it renders to True, the task first checks for changes without starting a JVM.
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
    """Returns the assets that gold tables read, for Airflow's asset graph: stream tables and gold of other
    pipelines."""
    reads = {name for table in spec.gold.tables for name in table.reads}
    bronze = [names.bronze_asset(environment.lake, spec.pipeline, t.name) for t in spec.tables if t.name in reads]
    return bronze + [names.gold_asset(environment.lake, *other) for other in spec.gold.cross_pipeline_inputs]


def available_operations(spec: PipelineSpec) -> list[Operation]:
    """Returns the operations that have their own DAG for a pipeline, in registry order.

    Operations that the pipeline can never run are excluded. Whether the environment has DAGs of operations for the
    pipeline is decided by `pipelines_with_operation_dags`.
    """
    offered = pipeline_operations(
        mutable=spec.mutations is not None, gold=bool(spec.gold.tables), feeds=bool(spec.feeds)
    )
    return [operation for operation in offered if unavailable_reason(operation, spec) is None]


def pipelines_with_operation_dags(catalog: Catalog) -> list[PipelineSpec]:
    """Returns the pipelines whose operations have DAGs in this environment."""
    environment = catalog.environment
    return [spec for name, spec in catalog.pipelines.items() if environment.has_operation_dags(name)]


def pipeline_operations(*, mutable: bool, gold: bool, feeds: bool) -> list[Operation]:
    """Returns the operations that have their own DAG for pipelines with these features, for any kind of source.

    Args:
        mutable: the pipelines declare mutations. gold: they declare gold tables. feeds: they declare feeds.
    """
    return [
        operation
        for operation in OPERATIONS.values()
        if operation.scope == "pipeline"
        and not operation.dag_kind
        and (mutable or not operation.needs_mutations)
        and (gold or not operation.needs_gold)
        and (feeds or not operation.needs_feeds)
    ]


def relay_operations() -> list[Operation]:
    """Returns the operations of a relay that have their own DAG."""
    return [item for item in OPERATIONS.values() if item.scope == "relay" and not item.dag_kind]


def operation_dag(operation: Operation, subject: PipelineSpec | RelaySpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG of an operation, which is triggered manually with the operation's form."""
    spec = subject if isinstance(subject, PipelineSpec) else None
    name = subject.pipeline if isinstance(subject, PipelineSpec) else subject.relay
    with DAG(
        **names.dag_name(operation.dag_id(name)),
        description=operation.summary,
        doc_md=operation_runbook(
            operation, name, subject.owner, limits="" if spec is None else restrictions(operation, spec)
        ),
        **manual_dag_settings(name, subject.owner, tags=("operation", operation.family)),
    ) as dag:
        if operation.waits_for_approval and spec is not None:
            steps = _approval_tasks(operation, spec, environment)
            if operation.rebuilds_gold and spec.gold.tables:
                steps.append(rebuild_gold_task(spec, environment))
            chain(*steps)
        else:
            limit: dict[str, Any] = {} if operation.runs_immediately else {"execution_timeout": _EXECUTION_TIMEOUT}
            operation_task(operation.name, name, environment, from_form=True, **limit)
    set_form(dag, operation_form(operation, spec))
    return dag


def _approval_tasks(operation: Operation, spec: PipelineSpec, environment: EnvironmentSpec) -> list[BaseOperator]:
    """Returns the tasks of an operation that needs approval: count, wait for approval, run.

    The job itself checks that it stays within the approved counts.
    """
    subject, share = spec.pipeline, environment.shares.of(operation.job_class)
    return [
        operation_task(
            operation.name, subject, environment, task_id=COUNT_TASK, values={"dry_run": True}, from_form=True
        ),
        ShortCircuitOperator(task_id=DRY_RUN_GATE_TASK, python_callable=is_not_dry_run, **process_settings(share)),
        OperationApproval(
            task_id=APPROVE_TASK,
            subject=f"{operation.command} {subject}?",
            body=APPROVAL_BODY,
            operation=operation,
            spec=spec,
            environment=environment,
            count_task_id=COUNT_TASK,
        ),
        operation_task(operation.name, subject, environment, values={"dry_run": False}, from_form=True),
    ]


def is_not_dry_run(params: dict[str, Any], **_: Any) -> bool:
    """Returns whether the form asks for changes and not only for a dry run."""
    return not params["dry_run"]
