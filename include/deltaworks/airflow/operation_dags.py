"""Builds the tasks of operations, and the DAGs that run them when a person triggers their form, with one field per
option.

Operations that share their options share a DAG, with the field `action` (`deltaworks.operations.dag_forms`). A single
DAG for all of a pipeline's operations would be worse: a form cannot show fields depending on an earlier answer, so it
would show about thirty fields of which three matter, and its runs would mix restores with OPTIMIZE.

Irreversible operations wait for a person's approval (`deltaworks.airflow.approvals`) and stay within the approved
counts.

Airflow 3.3's form behaves as follows, as observed in a browser. A field is required if its schema's type does not allow
null, and an empty required field (an empty text included) disables Trigger. Clearing a field submits null. A choice
needs null in its `enum` to be optional, and shows it as "null" unless `values_display` names it; the choices of a list
are its `examples`. So an option without a default is `["null", type]` with default null. Fields without a section come
first, expanded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import DAG, Asset, BaseOperator, Param, chain
from airflow.sdk.definitions.param import ParamsDict

from deltaworks.airflow import names
from deltaworks.airflow.approvals import OperationApproval
from deltaworks.airflow.dag_factory import invalid_dag, scheduled_dag
from deltaworks.airflow.job_settings import job_settings, pool_settings, process_settings
from deltaworks.airflow.operators import ProcessOperator, SparkJobOperator
from deltaworks.operations.base import APPROVE_TASK, COUNT_TASK, DRY_RUN_GATE_TASK, Operation
from deltaworks.operations.dag_forms import (
    ACTION,
    DRY_RUN,
    STEPS,
    DagForm,
    declared_forms,
    pipeline_forms,
    relay_forms,
    restrictions,
)
from deltaworks.operations.options import OptionField
from deltaworks.operations.registry import get_operation
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec

_TYPES = {"text": "string", "integer": "integer", "number": "number", "switch": "boolean", "names": "array"}


def form_params(form: DagForm, spec: PipelineSpec | None = None) -> dict[str, Param]:
    """Returns the params of a DAG: the field that selects operations, if it has several, and one per option.

    Args:
        spec: the pipeline whose tables are offered as choices; None for a relay or a namespace.
    """
    params = {field.name: option_param(field, spec) for field in form.fields_for(spec)}
    if form.actions:
        return {ACTION: _action_param(form), **params}
    if form.has_steps:
        return {STEPS: steps_param([operation.name for operation in form.operations]), **params}
    return params


def _action_param(form: DagForm) -> Param:
    summaries = {operation: ", ".join(operation.actions) for operation in form.operations}
    help_text = " ".join(f"{actions}: {operation.summary}" for operation, actions in summaries.items())
    default: dict[str, Any] = {} if form.default_action is None else {"default": form.default_action}
    return Param(**default, type="string", enum=list(form.actions), title="Action", description=help_text)


def steps_param(steps: Sequence[str]) -> Param:
    """Returns the field that restricts a run to some of the DAG's steps."""
    return Param(
        None,
        type=["null", "array"],
        items={"type": "string", "enum": list(steps)},
        examples=list(steps),
        title="Steps",
        description="Only these steps, in the order of the DAG; by default all.",
    )


def set_form(dag: DAG, form: Mapping[str, Param]) -> None:
    """Sets a DAG's params after its tasks were created.

    If params are set before, each task copies them several times and stores them in the database again, which takes a
    third of the parsing time. Runs read the DAG's params.
    """
    dag.params = ParamsDict(dict(form))


def option_param(field: OptionField, spec: PipelineSpec | None = None) -> Param:
    """Returns an option as a form field."""
    schema: dict[str, Any] = {"title": field.name.replace("_", " ").capitalize(), "description": field.help}
    if field.section:
        schema["section"] = field.section
    if field.minimum is not None:
        schema["minimum"] = field.minimum
    if field.maximum is not None:
        schema["maximum"] = field.maximum
    choices = list(field.choices) or _table_choices(field, spec)
    kind = _TYPES[field.kind]
    if field.kind == "names":
        schema["items"] = {"type": "string", **({"enum": choices} if choices else {})}
        schema |= {"examples": choices} if choices else {}
        return Param(None, type=["null", "array"], **schema)
    if field.required:
        schema |= {"enum": choices} if choices else {"minLength": 1}
        return Param(type="string", **schema)
    if field.default is not None:
        schema |= {"enum": choices} if choices else {}
        return Param(field.default, type=kind, **schema)
    if choices:
        unset_label = "(not set)" if field.choices or field.is_needed else "(all tables)"
        return optional_choice(choices, unset_label=unset_label, **schema)
    return Param(None, type=["null", kind], **schema)


def optional_choice(names: Sequence[str], *, unset_label: str, **schema: Any) -> Param:
    """Returns an optional choice field without a default.

    Args:
        unset_label: the label of the empty choice.
    """
    return Param(None, type=["null", "string"], enum=[None, *names], values_display={"null": unset_label}, **schema)


def _table_choices(field: OptionField, spec: PipelineSpec | None) -> list[str]:
    if field.tables is None or spec is None:
        return []
    names = {
        "bronze": [table.name for table in spec.tables],
        "keyed": [table.name for table in spec.keyed_tables],
        "quarantine": ["quarantine"],
        "gold": [table.name for table in spec.gold.tables],
        "model": [model.name for model in spec.models],
    }
    return [name for kind in field.tables.kinds for name in names[kind]]


#: Long enough to reprocess everything.
_EXECUTION_TIMEOUT = timedelta(hours=20)
_DAY = timedelta(days=1)
#: For tasks that a person waits for. They are scheduled before all others and end soon.
_TOP_PRIORITY, _SHORT_TIMEOUT = 200, timedelta(hours=1)

#: The option of scheduled runs that do the waiting work; manual runs follow their form, whose default is a dry run.
DRY_RUN_IF_MANUAL = f"{{{{ params.{DRY_RUN} if dag_run.run_type == 'manual' else False }}}}"

#: Operations that run as a process without Spark unless their DAG says otherwise. A Spark job does what remains.
_RUN_AS_PROCESS_FIRST = frozenset({"reprocess"})


def operation_task(
    name: str,
    subject: str,
    environment: EnvironmentSpec,
    *,
    task_id: str = "",
    values: Mapping[str, Any] | None = None,
    form: DagForm | None = None,
    selected_if: str = "",
    look_if: str = "",
    **settings: Any,
) -> BaseOperator:
    """Returns the task that runs an operation: a spark-submit job, or a process if the operation needs no Spark.

    Args:
        values: options the DAG fixes; texts may be templates.
        form: the form of the DAG, from which the other options are read.
        selected_if: a template that renders to `False` in runs that skip the task; by default where the form selects
            other operations.
        look_if: a template that renders to `True` in runs that look for work before they start a process; see
            `SparkJobOperator`. `False` only looks whether the form selects the operation.
        settings: further operator arguments, which override those of all jobs.
    """
    operation = get_operation(name)
    options: dict[str, Any] = {
        "operation": operation,
        "values": values,
        "form": form,
        "selected_if": selected_if or selection_template(operation, form),
        "look_if": look_if,
    }
    share = environment.shares.of(operation.job_class)
    if operation.runs_immediately:
        settings = _immediate_settings() | settings
    if operation.needs_spark:
        return SparkJobOperator(
            task_id=task_id or name,
            job=name,
            pipeline=subject,
            environment=environment,
            share=share,
            **options,
            **{
                "engine": "process" if operation.name in _RUN_AS_PROCESS_FIRST else "spark",
                **job_settings(share),
                **settings,
            },
        )
    return ProcessOperator(
        task_id=task_id or name,
        environment=environment,
        arguments=[f"--{operation.scope}", subject],
        subject=subject,
        niceness=0 if operation.runs_immediately else share.niceness,
        **options,
        **{**process_settings(environment.shares, operation.job_class), **settings},
    )


def _immediate_settings() -> dict[str, Any]:
    return pool_settings(names.DEFAULT_POOL, priority=_TOP_PRIORITY) | {"execution_timeout": _SHORT_TIMEOUT}


def selection_template(operation: Operation, form: DagForm | None) -> str:
    """Returns a template that renders to `False` in runs whose form selects other operations."""
    if form is None:
        return "True"
    if form.actions:
        return f"{{{{ params.{ACTION} in {list(operation.actions)} }}}}"
    if form.has_steps:
        return f"{{{{ not params.{STEPS} or '{operation.name}' in params.{STEPS} }}}}"
    return "True"


def rebuild_gold_task(
    spec: PipelineSpec,
    environment: EnvironmentSpec,
    **settings: Any,
) -> BaseOperator:
    """Returns the task that rebuilds gold tables. On success it updates their assets.

    Args:
        settings: further arguments of `operation_task`.
    """
    return operation_task(
        "rebuild_gold",
        spec.pipeline,
        environment,
        **settings,
        inlets=_gold_inlets(spec, environment),
        outlets=[names.gold_asset(environment.lake, spec.pipeline, table.name) for table in spec.gold.tables],
    )


def _gold_inlets(spec: PipelineSpec, environment: EnvironmentSpec) -> list[Asset]:
    """Returns the assets that gold tables read, for Airflow's asset graph: stream tables and gold of other
    pipelines."""
    reads = {name for table in spec.gold.tables for name in table.reads}
    bronze = [names.bronze_asset(environment.lake, spec.pipeline, t.name) for t in spec.tables if t.name in reads]
    return bronze + [names.gold_asset(environment.lake, *other) for other in spec.gold.cross_pipeline_inputs]


def operation_dags(catalog: Catalog) -> Iterator[DAG]:
    """Yields the DAGs of the forms that run only when triggered, of all pipelines and relays."""
    environment = catalog.environment
    for name, spec in catalog.pipelines.items():
        if environment.has_operation_dags(name):
            yield from (triggered_dag(form, spec, environment) for form in pipeline_forms(spec))
    for relay in catalog.relays.values():
        yield from (triggered_dag(form, relay, environment) for form in relay_forms())
    yield from _invalid_operation_dags(catalog)


def _invalid_operation_dags(catalog: Catalog) -> Iterator[DAG]:
    """Yields the placeholders for DAGs of every pipeline and relay with an invalid declaration."""
    with_gold, with_mutations = catalog.invalid_pipelines("gold"), catalog.invalid_pipelines("mutations")
    with_feeds = catalog.invalid_pipelines("feeds")
    for name, error in catalog.invalid_pipelines().items():
        if not catalog.environment.has_operation_dags(name):
            continue
        for form in declared_forms(mutations=name in with_mutations, gold=name in with_gold, feeds=name in with_feeds):
            task_ids = form.task_ids(gold=name in with_gold)
            yield invalid_dag(name, form.kind, error, task_ids=task_ids, tags=_form_tags(form))
    for name, error in catalog.invalid_relays().items():
        for form in relay_forms():
            yield invalid_dag(name, form.kind, error, task_ids=form.task_ids(gold=False), tags=_form_tags(form))


def _form_tags(form: DagForm) -> tuple[str, ...]:
    return ("operation", *{operation.family for operation in form.operations})


def form_dag(form: DagForm, subject: str, *, tags: Iterable[str], timeout: timedelta = _DAY, **settings: Any) -> DAG:
    """Returns the DAG of a form without its tasks; by default it runs only when a person triggers it."""
    return scheduled_dag(
        subject,
        form.kind,
        description=" ".join(operation.summary for operation in form.operations),
        tags=(*tags, subject),
        timeout=timeout,
        **settings,
    )


def triggered_dag(form: DagForm, subject: PipelineSpec | RelaySpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG of a form, which runs only when a person triggers it."""
    spec = subject if isinstance(subject, PipelineSpec) else None
    name = subject.pipeline if isinstance(subject, PipelineSpec) else subject.relay
    limits = [] if spec is None else [restrictions(operation, spec) for operation in form.operations]
    with form_dag(
        form,
        name,
        owner=subject.owner,
        tags=_form_tags(form),
        template="operation",
        context={"form": form, "restrictions": [text for text in limits if text]},
    ) as dag:
        before = _approval_tasks(form, spec, environment) if spec is not None and form.waits_for_approval else []
        for operation in form.operations:
            limit: dict[str, Any] = {} if operation.runs_immediately else {"execution_timeout": _EXECUTION_TIMEOUT}
            values = {DRY_RUN: False} if before else None
            tasks = [*before, operation_task(operation.name, name, environment, form=form, values=values, **limit)]
            if operation.rebuilds_gold and spec is not None and spec.gold.tables:
                tasks.append(rebuild_gold_task(spec, environment))
            chain(*tasks)
    set_form(dag, form_params(form, spec))
    return dag


def _approval_tasks(form: DagForm, spec: PipelineSpec, environment: EnvironmentSpec) -> list[BaseOperator]:
    """Returns the tasks before operations that need approval: count, stop after a dry run, wait for approval.

    The job itself checks that it stays within the approved counts. An operation of the form that needs no approval is
    counted too, and then runs without a question.
    """
    settings = process_settings(environment.shares, form.operations[0].job_class)
    return [
        count_task(form, spec, environment),
        ShortCircuitOperator(task_id=DRY_RUN_GATE_TASK, python_callable=is_not_dry_run, **settings),
        approve_task(form, spec, environment),
    ]


def count_task(form: DagForm, spec: PipelineSpec, environment: EnvironmentSpec) -> BaseOperator:
    """Returns the task that runs the operation that the form selects as a dry run."""
    job_class = form.operations[0].job_class
    return ProcessOperator(
        task_id=COUNT_TASK,
        environment=environment,
        arguments=["--pipeline", spec.pipeline],
        niceness=environment.shares.of(job_class).niceness,
        form=form,
        values={DRY_RUN: True},
        **process_settings(environment.shares, job_class),
    )


def approve_task(form: DagForm, spec: PipelineSpec, environment: EnvironmentSpec, **settings: Any) -> BaseOperator:
    """Returns the task that asks for approval of the counts of `count_task`."""
    return OperationApproval(
        task_id=APPROVE_TASK,
        subject=f"{{{{ task.question(params) }}}} {spec.pipeline}?",
        form=form,
        spec=spec,
        environment=environment,
        count_task_id=COUNT_TASK,
        **settings,
    )


def is_not_dry_run(params: dict[str, Any], **_: Any) -> bool:
    """Returns whether the form asks for changes and not only for a dry run."""
    return not params[DRY_RUN]
