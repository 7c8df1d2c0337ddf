"""The declaration of an operation, which people and schedules run on a pipeline, relay or namespace.

The command, the job, the Airflow task and its form derive from it. This module imports only
the standard library: `deltaworks --help` and the scheduler load declarations and nothing else.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from deltaworks.control.listing import Listing, listing_of
from deltaworks.specs.dag_ids import dag_id

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pyspark.sql import SparkSession

    from deltaworks.operations.options import Options
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.shares import JobClass

Scope = Literal["pipeline", "relay", "namespace"]
#: The jobs of a pipeline, for declaring which of them an operation may run at the same time as.
PipelineJob = Literal["stream", "maintenance", "mutations", "gold"]
#: Job classes by family; `maintenance` for all others.
_JOB_CLASSES: Mapping[str, JobClass] = {"gold": "gold", "mutations": "mutation", "recovery": "reprocess"}
ALL_JOBS: tuple[PipelineJob, ...] = ("stream", "maintenance", "mutations", "gold")
#: The tasks before an operation that needs approval: count the affected rows, stop after a dry run, ask for approval.
COUNT_TASK, DRY_RUN_GATE_TASK, APPROVE_TASK = "count", "dry_run_gate", "approve"
#: The module that runs an operation without Spark: `python -m deltaworks.operations NAME --pipeline games`.
OPERATIONS_MODULE = "deltaworks.operations"
#: The option that chooses between Spark and one process. It changes who does the work and not what is done.
ENGINE_OPTION = "spark"
#: Key of the XCom with a job's results, a list of records. Approvals, reports and the next task read it.
RESULTS_KEY = "results"
#: Keys of the XComs with what did a task's work and why, and with its error.
ENGINE_KEY, ERROR_KEY = "engine", "error"
#: XCom key of a failed task's error as a record, for commands that follow the run.
ERROR_RECORD_KEY = "error_record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """The declaration of an operation.

    Args:
        name: its name everywhere: the job, the Spark application and the task.
        command: the words of its command, such as `tables resume`.
        summary: its effect in one sentence: the help of the command and the description of the DAG.
        run: its function as `module:function`. The function takes an `OperationContext` and the options; their model is
            the annotation of its second parameter.
        look: the function as `module:function` that tells whether a scheduled run has work, with the same arguments.
            It runs in a thread of Airflow's triggerer, before the task has a process, and writes no row.
        scope: the kind of its subject, whose name is the first argument of the command.
        needs_spark: its task is a spark-submit job; otherwise a process, which may still open a session for some
            tables.
        destructive: it deletes or rewrites data that cannot be restored without work. `dry_run` is on by default.
        approval: in Airflow it counts first, and runs after a person has approved the count.
        bounds: options that limit an approved run, each with the result field whose sum is the approved limit.
        unattended: nightly maintenance runs it without approval: on the first night of an existing lake as a dry run,
            and then within `maintenance.max_removed_share`.
        runs_immediately: in Airflow it bypasses pools and has top priority, because a person waits for it.
        rebuilds_gold: in Airflow gold tables are rebuilt after it, because it removes rows they were built from.
        concurrent_with: the pipeline's jobs it may run at the same time as; others have to be stopped or are waited
            for.
        family: its tag in Airflow's list of DAGs.
        needs_mutations: only for pipelines that declare mutations.
        needs_gold: only for pipelines that declare gold tables.
        needs_feeds: only for pipelines that declare feeds.
        needs_models: only for pipelines that declare models.
        dag_kind: the kind in the id of its DAG if that is not its name. Operations of the same kind share a DAG and its
            form; see `deltaworks.operations.dag_forms`.
        action: its choice in the field `action` of a shared form.
        is_default_action: scheduled runs of the shared DAG execute it.
        actions_from: the option whose choices are its actions, instead of `action`.
    """

    name: str
    command: str
    summary: str
    run: str
    look: str = ""
    scope: Scope = "pipeline"
    needs_spark: bool = False
    destructive: bool = False
    approval: bool = False
    bounds: Mapping[str, str] = field(default_factory=dict, hash=False)
    unattended: bool = False
    runs_immediately: bool = False
    rebuilds_gold: bool = False
    concurrent_with: tuple[PipelineJob, ...] = ALL_JOBS
    family: str = "operations"
    needs_mutations: bool = False
    needs_gold: bool = False
    needs_feeds: bool = False
    needs_models: bool = False
    dag_kind: str = ""
    action: str = ""
    is_default_action: bool = False
    actions_from: str = ""

    def load(self) -> Callable[[OperationContext, Any], Report]:
        """Imports and returns the function that runs the operation."""
        loaded: Callable[[OperationContext, Any], Report] = _imported_function(self.run)
        return loaded

    def options_model(self) -> type[Options]:
        """Returns the model of the operation's options. Its module imports engines inside functions only, so this is
        cheap.
        """
        return _options_model(self.load())

    @property
    def kind(self) -> str:
        """The kind in the id of its DAG."""
        return self.dag_kind or self.name

    @property
    def actions(self) -> tuple[str, ...]:
        """Its choices in the field `action` of a shared form; empty if it has none."""
        if self.actions_from:
            return get_args(self.options_model().model_fields[self.actions_from].annotation)
        return (self.action,) if self.action else ()

    def dag_id(self, subject: str) -> str:
        """Returns the id of the operation's DAG for a pipeline, relay or namespace."""
        return dag_id(subject, self.kind)

    @property
    def waits_for_approval(self) -> bool:
        """Whether in Airflow it counts first and then waits for an approval."""
        return self.approval and self.scope == "pipeline"

    @property
    def job_class(self) -> JobClass:
        """The job class of the operation, which determines its pool and its share of the cluster."""
        return _JOB_CLASSES.get(self.family, "maintenance")

    def concurrency_note(self) -> str:
        """Returns a sentence about the jobs that the operation may run at the same time as."""
        if self.concurrent_with == ALL_JOBS:
            return "It may run at the same time as the stream and all other jobs."
        if not self.concurrent_with:
            return "The stream and all jobs of the pipeline have to be stopped first."
        return f"It may run at the same time as: {', '.join(self.concurrent_with)}."


def imported_look(name: str) -> Callable[..., Look]:
    """Imports and returns a look, named as `module:function`. No look uses pandas, so it is not loaded."""
    from deltaworks.sources.pandas_blocker import skip_pandas_import

    skip_pandas_import()
    loaded: Callable[..., Look] = _imported_function(name)
    return loaded


def _imported_function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


@functools.cache
def _options_model(function: Callable[..., Any]) -> type[Options]:
    parameter = list(inspect.signature(function).parameters.values())[1]
    model: type[Options] = inspect.getmodule(function).__dict__[parameter.annotation]
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of an operation, as text for people and as records.

    Args:
        parts: sentences and listings in display order; if empty, the results are listed.
        results: the outcome as records, which a task pushes as its result.
        exit_code: of the command and the job; not 0 if the work was done with a bad outcome.
    """

    parts: Sequence[str | Listing] = ()
    results: Sequence[DataclassInstance] = ()
    exit_code: int = 0

    def displayed_parts(self) -> list[str | Listing]:
        """Returns the parts; if there are none, a listing of the results."""
        if self.parts or not self.results:
            return list(self.parts)
        return [listing_of(self.results)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Whether a scheduled run has work, and why.

    Args:
        work: units of work that remain; 0 ends the run without a process.
        reason: what remains, or why nothing does.
        results: what the task pushes as its result if nothing remains.
    """

    work: int
    reason: str
    results: Sequence[DataclassInstance] = ()


@dataclass(slots=True, kw_only=True)
class OperationContext:
    """The inputs of a running operation.

    Args:
        subject: the pipeline, relay or namespace.
        run_id: the Airflow run, the same for all tries of its task; empty outside Airflow.
        nightly: whether it is part of nightly maintenance, without a person present.
        echo: prints a progress line.
    """

    operation: Operation
    catalog: Catalog
    subject: str
    run_id: str = ""
    nightly: bool = False
    echo: Callable[[str], None] = print
    _session: SparkSession | None = None

    def spark(self) -> SparkSession:
        """Returns the Spark session, opened at the first call."""
        if self._session is None:
            from deltaworks.tables.spark_session import build_session

            name = f"{self.operation.name}.{self.subject}"
            environment = self.catalog.environment
            share = environment.shares.of(self.operation.job_class)
            self._session = build_session(environment, app_name=name, share=share)
        return self._session
