"""Creates all DAGs: two factories, placeholders for invalid declarations, and the DAGs of a file in dags/.

Without placeholders Airflow would deactivate the DAGs of an invalid declaration without a reason, and a running task
could be neither seen nor stopped there. They have no schedule and no form, and a manual run fails immediately with the
errors. Once the declaration is valid the original DAGs return with their runs.

The scheduler parses a DAG file with all pipelines, and a task only with its own: with 1,000 pipelines, loading the 999
others took seconds of CPU time before each task.

The runbook of each DAG is rendered from the Jinja template in `runbooks/` that has the name of the kind of DAG: its
purpose, what to do after a failure, how to stop and start it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from airflow.sdk import DAG, BaseOperator, chain, get_parsing_context
from jinja2 import DictLoader, Environment, StrictUndefined

from deltaworks.airflow import names
from deltaworks.airflow.job_alerts import job_callbacks, log_callbacks
from deltaworks.airflow.names import server_path
from deltaworks.errors import DeltaworksError
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.catalog import Catalog, project_root
from deltaworks.specs.dag_ids import HEALTH_DAG, RULES_DAG, SQL_SERVER_DAG, dag_id, display_name, split_dag_id
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.groups import GROUP_KIND
from deltaworks.specs.project import load_catalog, pipeline_files

if TYPE_CHECKING:
    from airflow.sdk import Context


_RUNBOOKS = Path(__file__).parent / "runbooks"


def runbook(template: str, values: Mapping[str, Any]) -> str:
    """Returns the Markdown text of a template.

    Args:
        values: the subject's `name` and `owner`, and what else the template shows, mostly the subject's `spec`.
    """
    return _templates().get_template(f"{template}.md").render(values, console=server_path("/deltaworks"))


@functools.cache
def _templates() -> Environment:
    pages = {path.name: path.read_text(encoding="utf-8") for path in _RUNBOOKS.glob("*.md")}
    environment = Environment(
        loader=DictLoader(pages),
        undefined=StrictUndefined,
        # Markdown, which Airflow renders and sanitizes.
        autoescape=False,  # noqa: S701
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _code
    return environment


def _code(names: Iterable[str]) -> str:
    """Lists names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


S = TypeVar("S")
#: High, because a DAG that paused itself stays paused. With the retries' backoff this takes hours.
FAILED_RUNS_BEFORE_PAUSE: Final = 50
INVALID_TAG: Final = "invalid declaration"
#: Kinds of DAGs whose id does not name all their pipelines: groups of streams and namespaces.
_MULTI_PIPELINE_KINDS: Final = {
    GROUP_KIND,
    *(item.kind for item in OPERATIONS.values() if item.scope == "namespace"),
}


def scheduled_dag(
    subject: str,
    kind: str,
    *,
    owner: str,
    tags: Iterable[str],
    timeout: timedelta,
    schedule: Any = None,
    run_types: Sequence[str] | None = names.RUN_TYPES_WITHOUT_BACKFILL,
    has_alerts: bool = True,
    template: str = "",
    context: Mapping[str, Any],
    **settings: Any,
) -> DAG:
    """Returns a DAG of jobs that end: one run at a time, no catch-up, alerts on failed tasks.

    Args:
        timeout: of a run.
        schedule: None for a DAG that is only triggered. The tags say `scheduled` or `manual`.
        run_types: the types of runs that are allowed.
        has_alerts: whether failed tasks raise alerts.
        template: its runbook; by default the one of its kind.
        context: what the runbook shows, in addition to the subject's name and owner.
        settings: further arguments of the DAG.
    """
    return _dag(
        subject,
        kind,
        schedule=schedule,
        allowed_run_types=run_types,
        dagrun_timeout=timeout,
        tags=sorted({"manual" if schedule is None else "scheduled", *tags}),
        default_args={"owner": owner, **(job_callbacks() if has_alerts else log_callbacks())},
        doc_md=runbook(template or kind, {"name": subject, "owner": owner, **context}),
        **settings,
    )


def continuous_dag(
    subject: str, kind: str, *, owner: str, tags: Iterable[str], context: Mapping[str, Any], **settings: Any
) -> DAG:
    """Returns a DAG with one continuous task: Airflow starts the next run when one has ended.

    Args:
        context: what the runbook shows, in addition to the subject's name and owner.
        settings: further arguments of the DAG.
    """
    return _dag(
        subject,
        kind,
        schedule="@continuous",
        start_date=names.START_DATE,
        max_consecutive_failed_dag_runs=FAILED_RUNS_BEFORE_PAUSE,
        tags=sorted({"continuous", subject, *tags}),
        default_args={"owner": owner, **log_callbacks()},
        doc_md=runbook(kind, {"name": subject, "owner": owner, **context}),
        **settings,
    )


def _dag(subject: str, kind: str, **settings: Any) -> DAG:
    identifier = dag_id(subject, kind)
    return DAG(
        dag_id=identifier,
        dag_display_name=display_name(identifier),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        **settings,
    )


class FailingOperator(BaseOperator):
    """Fails with the errors of a declaration."""

    def __init__(self, *, error: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.error = error

    def execute(self, context: Context) -> None:
        """Fails the task.

        Raises:
            AirflowFailException: always; a retry cannot help.
        """
        from airflow.sdk.exceptions import AirflowFailException

        raise AirflowFailException(self.error)


def invalid_dag(
    subject: str, kind: str, error: DeltaworksError, *, task_ids: Sequence[str], tags: Iterable[str] = ()
) -> DAG:
    """Returns the placeholder for a DAG whose declaration is invalid.

    Args:
        task_ids: the tasks of the original DAG in order, or its main task: Airflow marks a running task as removed once
            its DAG no longer has it. Later tasks of a running run fail.
        tags: the tags of the original, in addition to its kind and subject.
    """
    with scheduled_dag(
        subject,
        kind,
        description=f"{subject} has an invalid declaration and is not started until it is corrected",
        owner="deltaworks",
        tags=(INVALID_TAG, subject, kind, *tags),
        timeout=timedelta(days=1),
        start_date=names.START_DATE,
        run_types=None,
        has_alerts=False,
        template="invalid",
        context={"kind": kind, "error": error},
    ) as dag:
        limit = timedelta(minutes=1)
        chain(*(FailingOperator(task_id=task_id, error=str(error), execution_timeout=limit) for task_id in task_ids))
    return dag


@dataclass(frozen=True, slots=True, kw_only=True)
class DagKind(Generic[S]):
    """The declaration of a kind of DAG.

    Args:
        kind: the kind in the DAG id, such as `gold`.
        subjects: the declarations that have such a DAG.
        build: returns the DAG of one of them.
        invalid: the errors of invalid declarations that have a placeholder, by subject.
        task_ids: the tasks of a placeholder.
    """

    kind: str
    subjects: Callable[[Catalog], Iterable[S]]
    build: Callable[[S, EnvironmentSpec], DAG]
    invalid: Callable[[Catalog], Mapping[str, DeltaworksError]] = lambda _: {}
    task_ids: Sequence[str] = ()

    def dags(self, catalog: Catalog) -> Iterator[DAG]:
        """Yields the DAGs of this kind: of valid declarations, then the placeholders."""
        for subject in self.subjects(catalog):
            yield self.build(subject, catalog.environment)
        for name, error in self.invalid(catalog).items():
            yield invalid_dag(name, self.kind, error, task_ids=self.task_ids)


def dags_of(*sources: Callable[[Catalog], Iterable[DAG]]) -> dict[str, DAG]:
    """Returns the DAGs of a file in dags/ by id, for its global variables, where Airflow looks for DAGs."""
    catalog = parsed_catalog()
    return {dag.dag_id: dag for source in sources for dag in source(catalog)}


def parsed_catalog() -> Catalog:
    """Returns the catalog for the DAG file that Airflow is parsing. Invalid declarations are left out."""
    return load_catalog(skip_invalid=True, only=needed_pipelines(get_parsing_context().dag_id))


def needed_pipelines(dag_id: str | None) -> Collection[str] | None:
    """Returns the pipelines a DAG needs; None for all, if the DAG covers several or no DAG is given."""
    subject, kind = split_dag_id(dag_id or "")
    if not kind or kind in _MULTI_PIPELINE_KINDS or dag_id in (HEALTH_DAG, RULES_DAG, SQL_SERVER_DAG):
        return None
    # Any other subject is a relay, which needs no pipeline.
    return [subject] if subject in pipeline_files(project_root()) else []
