"""The context of a page: the person, the address, the time, and the data it may read; errors of pages and reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from deltaworks.control.clock import parse_iso
from deltaworks.errors import DeltaworksError
from deltaworks.specs.groups import group_of, stream_dag_id

if TYPE_CHECKING:
    from deltaworks.console.host import PendingApproval, Person, Reader
    from deltaworks.specs.catalog import Catalog

T = TypeVar("T")
#: The status of a page whose data are still being read, between processes of the console: "too early" of HTTP.
READING_STATUS: Final = 425


class PageError(Exception):
    """A page that cannot be shown; `status` is the HTTP status of the response."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class PageReadingError(PageError):
    """The page's data are still being read, so it cannot say anything yet. The browser loads it again."""

    def __init__(self) -> None:
        super().__init__("Still reading the lake's records: the page follows in a moment.", status=READING_STATUS)


class PageMissingError(PageError):
    """The page does not exist, or the person may not see it. The response is the same, so it does not reveal which."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=404)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """The inputs of a page. The parts of its address are `values`, the query string is `query`.

    The paused DAGs are None if unknown. If no action can start, `actions_unavailable` is the reason, otherwise empty.
    The prefix of Airflow's pages is `airflow`, None without Airflow. Approvals that the person may not see are excluded
    from `pending_approvals`.
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
        """Returns the DAG that runs a pipeline's stream. Readers of this DAG may see the pipeline."""
        return stream_dag_id(pipeline, group_of(self.catalog, pipeline))

    def may_read(self, pipeline: str) -> bool:
        """Returns whether the person may see a declared pipeline, valid or not."""
        return self.catalog.declares("pipeline", pipeline) and self.person.may_read(self.stream_dag(pipeline))

    def pipelines(self) -> list[str]:
        """Returns the pipelines the person may see, sorted, including those with invalid declarations."""
        declared = {*self.catalog.pipelines, *self.catalog.invalid_pipelines()}
        return [name for name in sorted(declared) if self.person.may_read(self.stream_dag(name))]

    @property
    def pipeline(self) -> str:
        """The pipeline in the address, which the person may see: access is checked before the page is rendered.

        Raises:
            PageMissingError: the address has no pipeline.
        """
        name = self.values.get("pipeline")
        if name is None:
            raise PageMissingError("This page has no pipeline.")
        return name


def read_or_none(read: Callable[[], T]) -> T | None:
    """Returns the result of a read, or None if it fails. The page's banner reports storage errors."""
    try:
        return read()
    except (DeltaworksError, ValueError, KeyError, TypeError, AttributeError):
        return None


def parse_instant(text: Any) -> datetime | None:
    """Returns the instant of a record, or None."""
    return read_or_none(lambda: parse_iso(text))
