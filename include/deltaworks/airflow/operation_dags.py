"""The tasks of operations, and a DAG for each operation and pipeline or relay, with a form of its options.

One DAG an operation, and not one `operate__<pipeline>` with a choice: a form cannot show fields by an earlier answer,
so one DAG would show some thirty fields of which three matter, and its runs would mix restores with OPTIMIZE. Airflow's
list finds `restore__games` by typing either word, and its tags show a pipeline's, or all of one kind.

What cannot be taken back waits for a person's approval. There is no default answer: a question that nobody answers in
time fails its task, after which nothing behind it runs. While it waits it holds no slot and no process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.exceptions import HITLRejectException, HITLTimeoutError
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import DAG, BaseOperator, RetryDecision, chain
from airflow.sdk.bases.notifier import BaseNotifier

from deltaworks.airflow import names
from deltaworks.airflow.child_process import MAINTENANCE_NICENESS
from deltaworks.airflow.job_settings import JobRetryPolicy, by_hand_only, job_settings, process_settings
from deltaworks.airflow.operation_forms import operation_form
from deltaworks.airflow.operators import RESULTS_XCOM, ProcessOperator, SparkJobOperator
from deltaworks.airflow.runbooks import operation_runbook
from deltaworks.operations.base import Operation
from deltaworks.operations.registry import OPERATIONS, operation
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec

if TYPE_CHECKING:
    from airflow.sdk import Context

COUNT, REQUESTED, APPROVE = "count", "requested", "approve"
_COUNTED = f"ti.xcom_pull(task_ids='{COUNT}', key='{RESULTS_XCOM}')"
#: Long enough for a reprocess of everything.
_LONGEST = timedelta(hours=20)
#: How long a question waits for its answer.
ANSWER_WITHIN = timedelta(hours=10)
_BODY = f"""
{{% set results = {_COUNTED} or [] -%}}
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


def operation_task(
    name: str,
    subject: str,
    environment: EnvironmentSpec,
    *,
    task_id: str = "",
    values: Mapping[str, Any] | None = None,
    from_form: bool = False,
    **settings: Any,
) -> BaseOperator:
    """The task that runs an operation: a spark-submit job, or a process where it needs no Spark.

    Args:
        values: options that the DAG fixes; texts may be templates.
        from_form: take the other options from the params of their names.
        settings: further arguments of the operator, over those that all jobs have.
    """
    declared = operation(name)
    options: dict[str, Any] = {"operation": declared, "values": values, "from_form": from_form}
    if declared.needs_spark:
        niceness = MAINTENANCE_NICENESS if declared.family == "maintenance" else 0
        return SparkJobOperator(
            task_id=task_id or name,
            job=name,
            pipeline=subject,
            environment=environment,
            niceness=niceness,
            **options,
            **{**job_settings(), **settings},
        )
    return ProcessOperator(
        task_id=task_id or name,
        job=name,
        arguments=[f"--{declared.scope}", subject],
        **options,
        **{**process_settings(), **settings},
    )


def rebuild_gold_task(
    spec: PipelineSpec,
    environment: EnvironmentSpec,
    *,
    from_form: bool = False,
    values: Mapping[str, str] | None = None,
) -> BaseOperator:
    """The task that rebuilds gold tables; it announces them as assets when it succeeds."""
    return operation_task(
        "rebuild_gold",
        spec.pipeline,
        environment,
        from_form=from_form,
        values=values,
        outlets=[names.gold_asset(environment.lake, spec.pipeline, table.name) for table in spec.gold.tables],
    )


def offered_operations(spec: PipelineSpec) -> list[Operation]:
    """The operations of a pipeline that have a DAG of their own, in the order of the registry."""
    return [
        declared
        for declared in OPERATIONS.values()
        if declared.scope == "pipeline"
        and declared.name not in names.SCHEDULED
        and (spec.mutations is not None or not declared.for_mutable)
        and (spec.gold.tables or not declared.for_gold)
    ]


def relay_operations() -> list[Operation]:
    """The operations of a relay that have a DAG of their own."""
    return [item for item in OPERATIONS.values() if item.scope == "relay" and item.name not in names.SCHEDULED]


def operation_dag(declared: Operation, subject: PipelineSpec | RelaySpec, environment: EnvironmentSpec) -> DAG:
    """The DAG of an operation: run by hand only, for what its form says."""
    spec = subject if isinstance(subject, PipelineSpec) else None
    name = subject.pipeline if isinstance(subject, PipelineSpec) else subject.relay
    with DAG(
        dag_id=names.operation_dag_id(declared.name, name),
        description=declared.summary,
        doc_md=operation_runbook(declared, name, subject.owner),
        params=operation_form(declared, spec),
        **by_hand_only(name, subject.owner, tags=("operation", declared.family)),
    ) as dag:
        if declared.approval:
            steps = _approved(declared, name, environment)
            if declared.gold_follows and spec is not None and spec.gold.tables:
                steps.append(rebuild_gold_task(spec, environment))
            chain(*steps)
        else:
            operation_task(declared.name, name, environment, from_form=True, execution_timeout=_LONGEST)
    return dag


def _approved(declared: Operation, subject: str, environment: EnvironmentSpec) -> list[BaseOperator]:
    """Counted, approved by a person, and done within what was counted."""
    bound: dict[str, Any] = {}
    if "max_rows" in declared.options().model_fields:
        # What was approved is the bound of what is done, unless the form named one.
        counted = f"({_COUNTED} or []) | sum(attribute='rows_out')"
        bound = {"max_rows": f"{{{{ params.max_rows if params.max_rows is not none else {counted} }}}}"}
    return [
        operation_task(declared.name, subject, environment, task_id=COUNT, values={"dry_run": True}, from_form=True),
        ShortCircuitOperator(task_id=REQUESTED, python_callable=_is_requested, **process_settings()),
        approval(task_id=APPROVE, subject=f"{declared.command} {subject}?", body=_BODY),
        operation_task(declared.name, subject, environment, values={"dry_run": False, **bound}, from_form=True),
    ]


def _is_requested(params: dict[str, Any], **_: Any) -> bool:
    """Whether the form requests more than a count."""
    return not params["dry_run"]


class ApprovalRetryPolicy(JobRetryPolicy):
    """Retries after an outage; a rejected question, or one without an answer in time, is not repeated."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        if isinstance(exception, HITLTimeoutError | HITLRejectException):
            return RetryDecision.fail(reason="it was not approved")
        return super().evaluate(exception, try_number, max_tries, context)


def approval(
    *,
    task_id: str,
    subject: str,
    body: str,
    answer_within: timedelta = ANSWER_WITHIN,
    notifiers: Sequence[BaseNotifier] = (),
    **settings: Any,
) -> ApprovalOperator:
    """The task that asks. Approved, what follows runs; rejected, what follows is skipped and the run ends without it.

    Put a task before it that counts what would be done, and let the body say what it counted.

    Args:
        subject: the question in one line; may be a template.
        body: what a person needs to know to decide, in Markdown; may be a template.
        answer_within: less than the DAG's own time-out, so that the question fails and not the whole run.
        notifiers: called when the question is open.
        settings: further ones of the operator, `assigned_users` among them.

    Raises:
        ValueError: a default answer is given.
    """
    if settings.pop("defaults", None) is not None:
        raise ValueError(f"{task_id}: an approval has no default answer")
    return ApprovalOperator(
        task_id=task_id,
        subject=subject,
        body=body,
        response_timeout=answer_within,
        notifiers=list(notifiers),
        pool=names.POOL_SPARK_JOBS,
        retries=2,
        retry_delay=timedelta(seconds=30),
        retry_exponential_backoff=2.0,
        retry_policy=ApprovalRetryPolicy(),
        **settings,
    )
