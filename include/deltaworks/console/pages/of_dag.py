"""The page of a DAG, for every DAG: where Airflow's tab, the runbooks and the links of tasks lead."""

from __future__ import annotations

from dataclasses import dataclass

from deltaworks.console.alert_subjects import alert_dag
from deltaworks.console.look import Look, PageMissingError
from deltaworks.console.pages import overview
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.needs import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class OfDag:
    """What a DAG is to the console: the streams it runs, other processes it runs, the pipelines its jobs work for.

    All are empty for a DAG that is none of Deltaworks'.
    """

    dag_id: str
    pipelines: tuple[str, ...]
    processes: tuple[overview.Row, ...]
    needs: tuple[Need, ...]


def view(look: Look) -> OfDag:
    """What there is to say of the DAG that the address names.

    Raises:
        PageMissingError: the person may not see the DAG, or there is none.
    """
    dag_id = look.values["dag_id"]
    if not look.person.may_read(dag_id):
        raise PageMissingError(f"There is no DAG {dag_id!r} that you may see.")
    kind, _, name = dag_id.partition("__")
    pipelines = {item for item in look.pipelines() if look.stream_dag(item) == dag_id}
    if kind not in ("relay", "remediation", "rules") and look.may_read(name):
        pipelines.add(name)
    whole = overview.view(look)
    return OfDag(
        dag_id=dag_id,
        pipelines=tuple(sorted(pipelines)),
        processes=tuple(row for row in (*whole.streams, *whole.others) if row.dag_id == dag_id),
        needs=tuple(need for need in whole.needs if _concerns(look, need, dag_id, pipelines)),
    )


def _concerns(look: Look, need: Need, dag_id: str, pipelines: set[str]) -> bool:
    if need.pipeline:
        return need.pipeline in pipelines
    return dag_id in need.subject.split() or alert_dag(look.catalog, need.subject) == dag_id


PAGE = Page(name="of_dag", route="/dag/{dag_id}", title="DAG {dag_id}", view=view)
