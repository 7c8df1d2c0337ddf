"""What an operation is: one thing people and schedules do to a pipeline or a relay, declared once.

The command, the entry in `spark_jobs/`, the Airflow task and its form derive from the declaration. Nothing here is
heavier than the standard library: `deltaworks --help` and the scheduler read declarations and load nothing else.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from deltaworks.control.listing import Listing, listing_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pyspark.sql import SparkSession

    from deltaworks.operations.options import Options
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.shares import JobClass

Scope = Literal["pipeline", "relay", "namespace"]
#: The jobs of a pipeline that an operation may run beside.
PipelineJob = Literal["stream", "maintenance", "mutations", "gold"]
#: The class of job by the family of an operation; of others it is `maintenance`.
_JOB_CLASSES: Mapping[str, JobClass] = {"gold": "gold", "mutations": "mutation", "recovery": "reprocess"}
ALL_JOBS: tuple[PipelineJob, ...] = ("stream", "maintenance", "mutations", "gold")
#: The tasks before one that needs an approval: it is counted, whether more is requested is seen, and a person asked.
COUNT_TASK, DRY_RUN_GATE_TASK, APPROVE_TASK = "count", "dry_run_gate", "approve"
#: What a job did, record by record, as its task keeps it: for an approval, a report, the next task.
RESULTS_KEY = "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation.

    Args:
        name: its name everywhere: `spark_jobs/<name>.py`, the Spark application, the task and the DAG's id.
        command: the words of its command, such as `tables resume`.
        summary: what it does, in one sentence; the help of the command and the description of the DAG.
        run: `module:function` of what it does. The function takes an `OperationContext` and the options, whose model
            is the annotation of its second parameter.
        scope: what it works on, a namespace being one of personal data; its name is the first argument of the command.
        needs_spark: its task is a spark-submit job; otherwise a plain process, which may still open a session where a
            table asks for one.
        destructive: it deletes or rewrites what cannot be had again without work. It counts unless `dry_run` is off.
        approval: under Airflow it counts first, and a person approves the count before it is done.
        bounds: of what needs approval, the options that bound it, with the field of its results that they bound.
        unattended: the nightly upkeep runs it without an approval, on the first night of a lake that was there before
            as a count, and then within `maintenance.max_removed_share`.
        at_once: under Airflow it waits for no pool and gives way to nothing: an operator waits for it.
        gold_follows: under Airflow gold tables are built after it, since they are of rows that went.
        beside: the pipeline's jobs it may run beside; what is not named has to be stopped or is waited for.
        family: the tag under which Airflow's list shows it.
        for_mutable: only of pipelines that declare mutations.
        for_gold: only of pipelines that declare gold tables.
        for_feeds: only of pipelines that declare feeds.
        for_models: only of pipelines that declare models.
        dag: what the id of its DAG begins with, where a schedule runs it too: that DAG's form is its own.
    """

    name: str
    command: str
    summary: str
    run: str
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
    dag_prefix: str = ""

    def load(self) -> Callable[[OperationContext, Any], Report]:
        """The function that does it. Imports its module, and so whatever that needs."""
        module, _, function = self.run.partition(":")
        loaded: Callable[[OperationContext, Any], Report] = getattr(importlib.import_module(module), function)
        return loaded

    def options_model(self) -> type[Options]:
        """The model of its options. Its module imports engines inside functions only, so this is light."""
        return _options_model(self.load())

    def dag_id(self, subject: str) -> str:
        """The DAG that runs it for a pipeline or a relay."""
        return f"{self.dag_prefix or self.name}__{subject}"

    @property
    def waits_for_approval(self) -> bool:
        """Whether its DAG counts first, and then asks a person."""
        return self.approval and self.scope == "pipeline"

    def task_ids(self, *, gold: bool) -> list[str]:
        """The tasks of its DAG, in their order; the one of its name does it.

        Args:
            gold: whether its pipeline declares gold tables.
        """
        if not self.waits_for_approval:
            return [self.name]
        follows = ["rebuild_gold"] if self.rebuilds_gold and gold else []
        return [COUNT_TASK, DRY_RUN_GATE_TASK, APPROVE_TASK, self.name, *follows]

    @property
    def job_class(self) -> JobClass:
        """By which class its jobs have their share of the cluster and their pool."""
        return _JOB_CLASSES.get(self.family, "maintenance")

    def concurrency_note(self) -> str:
        """What it may run beside, as a sentence."""
        if self.concurrent_with == ALL_JOBS:
            return "It may run beside the stream and every other job."
        if not self.concurrent_with:
            return "The stream and all jobs of the pipeline have to be stopped."
        return f"It may run beside: {', '.join(self.concurrent_with)}."


@functools.cache
def _options_model(function: Callable[..., Any]) -> type[Options]:
    parameter = list(inspect.signature(function).parameters.values())[1]
    model: type[Options] = inspect.getmodule(function).__dict__[parameter.annotation]
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an operation did, or would do: for people, and the same as data.

    Args:
        parts: sentences and listings, in the order in which they are read; without any, the results are listed.
        results: the same as records: what a task keeps as its result.
        exit_code: of the command and the job; not 0 where the work was done and its outcome is bad.
    """

    parts: Sequence[str | Listing] = ()
    results: Sequence[DataclassInstance] = ()
    exit_code: int = 0

    def displayed_parts(self) -> list[str | Listing]:
        """What people read of it."""
        if self.parts or not self.results:
            return list(self.parts)
        return [listing_of(self.results)]


@dataclass(slots=True, kw_only=True)
class OperationContext:
    """What an operation runs with.

    Args:
        subject: the pipeline or relay.
        run_id: the Airflow run it belongs to, the same at every try of its task; empty outside of Airflow.
        nightly: it is part of the nightly upkeep, with nobody watching.
        say: prints a line while the operation is at work.
    """

    operation: Operation
    catalog: Catalog
    subject: str
    run_id: str = ""
    nightly: bool = False
    echo: Callable[[str], None] = print
    _session: SparkSession | None = None

    def spark(self) -> SparkSession:
        """The Spark session, opened at its first use."""
        if self._session is None:
            from deltaworks.tables.spark.session import build_session

            name = f"{self.operation.name}.{self.subject}"
            environment = self.catalog.environment
            share = environment.shares.of(self.operation.job_class)
            self._session = build_session(environment, app_name=name, share=share)
        return self._session
