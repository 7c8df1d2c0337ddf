"""One look at a page: who asks, for what, at what time, and all that the page may read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from deltaworks.specs.groups import group_of, stream_dag_id

if TYPE_CHECKING:
    from deltaworks.console.host import PendingApproval, Person, Reader
    from deltaworks.specs.catalog import Catalog


class PageMissingError(Exception):
    """There is no such page, or it is of something that the person may not see: both are answered alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """What a page is made of. `values` are the parts of its address, `query` is what follows it.

    `paused` are the DAGs that Airflow starts no runs of, None where nobody knows. `actions_unavailable` is why no act can be
    offered, empty where acts can. `airflow` is what addresses of Airflow's own pages begin with, if there is one.
    `questions` are approvals that the person may see and that wait for somebody.
    """

    person: Person
    catalog: Catalog
    objects: Reader
    now: datetime
    values: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    paused_dags: frozenset[str] | None = None
    actions_unavailable: str = ""
    airflow: str | None = None
    pending_approvals: tuple[PendingApproval, ...] = ()

    def stream_dag(self, pipeline: str) -> str:
        """The DAG that runs the stream of a pipeline, whose readers may see the pipeline."""
        return stream_dag_id(pipeline, group_of(self.catalog, pipeline))

    def may_read(self, pipeline: str) -> bool:
        """Whether the person may see a pipeline that is declared, rightly or not."""
        return self.catalog.declares("pipeline", pipeline) and self.person.may_read(self.stream_dag(pipeline))

    def pipelines(self) -> list[str]:
        """The pipelines that the person may see, sorted, those that are declared wrongly among them."""
        declared = {*self.catalog.pipelines, *self.catalog.invalid_pipelines()}
        return [name for name in sorted(declared) if self.person.may_read(self.stream_dag(name))]

    @property
    def pipeline(self) -> str:
        """The pipeline that the address names; it may be read, or the page is never asked.

        Raises:
            PageMissingError: the address names none.
        """
        name = self.values.get("pipeline")
        if name is None:
            raise PageMissingError("This page is of no pipeline.")
        return name
