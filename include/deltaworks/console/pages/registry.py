"""The list of all pages, in the order of the navigation, and the page of a single DAG.

A page is a module, a template and an entry here. The DAG page combines parts of other pages; Airflow's tab, runbooks
and task links lead to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deltaworks.console.page_context import PageContext, PageMissingError
from deltaworks.console.pages import (
    alerts,
    batch,
    costs,
    dashboards,
    erasures,
    gold,
    lineage,
    mutations,
    nights,
    overview,
    quarantine,
    stream,
    table,
    table_read_pages,
    tables,
    widgets,
)
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.open_issues import OpenIssue, alert_dag
from deltaworks.specs.dag_ids import split_dag_id


@dataclass(frozen=True, slots=True, kw_only=True)
class DagPage:
    """The streams and other processes that a DAG runs, and the pipelines its jobs work for.

    All are empty for a DAG that does not belong to Deltaworks.
    """

    dag_id: str
    pipelines: tuple[str, ...]
    processes: tuple[overview.ProcessRow, ...]
    issues: tuple[OpenIssue, ...]


def view(context: PageContext) -> DagPage:
    """Returns the page of the DAG in the address.

    Raises:
        PageMissingError: the DAG does not exist, or the person may not see it.
    """
    dag_id = context.values["dag_id"]
    if not context.person.may_read(dag_id):
        raise PageMissingError(f"There is no DAG {dag_id!r} that you may see.")
    name, kind = split_dag_id(dag_id)
    pipelines = {item for item in context.pipelines() if context.stream_dag(item) == dag_id}
    if kind not in ("relay", "remediation", "rules", "sql_server", "spark_connect") and context.may_read(name):
        pipelines.add(name)
    overview_view = overview.view(context)
    return DagPage(
        dag_id=dag_id,
        pipelines=tuple(sorted(pipelines)),
        processes=tuple(
            row for row in (*overview_view.streams, *overview_view.other_processes) if row.dag_id == dag_id
        ),
        issues=tuple(need for need in overview_view.issues if _concerns_dag(context, need, dag_id, pipelines)),
    )


def _concerns_dag(context: PageContext, need: OpenIssue, dag_id: str, pipelines: set[str]) -> bool:
    if need.pipeline:
        return need.pipeline in pipelines
    return dag_id in need.subject.split() or alert_dag(context.catalog, need.subject) == dag_id


PAGE = Page(name="dag", route="/dag/{dag_id}", title="DAG {dag_id}", view=view)


PAGES: Final[tuple[Page, ...]] = (
    overview.PAGE,
    stream.PAGE,
    batch.PAGE,
    PAGE,
    tables.PAGE,
    table.PAGE,
    *quarantine.PAGES,
    alerts.PAGE,
    *nights.PAGES,
    *gold.PAGES,
    *dashboards.PAGES,
    *widgets.PAGES,
    lineage.PAGE,
    costs.PAGE,
    *mutations.PAGES,
    *erasures.PAGES,
    *table_read_pages.PAGES,
)
