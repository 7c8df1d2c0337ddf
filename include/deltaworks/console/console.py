"""The console of one process: pages over what a host gives it, made by threads of its own or by a process apart."""

from __future__ import annotations

from typing import Protocol

import anyio
from fastapi import Request, Response

from deltaworks.console.catalog_cache import CatalogCache
from deltaworks.console.host import Actions, Authenticator, Person, Records
from deltaworks.console.page_builder import HostState, PageBuilder, RequestData
from deltaworks.console.page_context import PageContext
from deltaworks.console.pages.base import Page

_THREADS = 4


class PageRenderer(Protocol):
    """Makes pages apart from this process."""

    def render(self, page: Page, request: RequestData, person: Person, host_state: HostState) -> Response | None:
        """The page; None where it is to be made here.

        Raises:
            PageMissingError: there is no such page that they may see.
        """


class Console:
    """The console of one process: its pages over what a host gives it.

    Args:
        elsewhere: makes the pages, where that is; whatever it does not make is made here.
    """

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        actions: Actions,
        records: Records,
        catalog: CatalogCache,
        renderer: PageRenderer | None = None,
    ) -> None:
        self.authenticator = authenticator
        self.actions = actions
        self._builder = PageBuilder(records=records, catalog=catalog)
        self._renderer = renderer
        self._limiter: anyio.CapacityLimiter | None = None

    @property
    def limiter(self) -> anyio.CapacityLimiter:
        """The turn of the console's threads. It belongs to the event loop that is running."""
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_THREADS)
        return self._limiter

    def page_context(self, request: RequestData, person: Person) -> PageContext:
        """One look, by a thread of the console's."""
        return self._builder.page_context(request, person, self._host_state(request, person))

    def render(self, page: Page, request: RequestData, person: Person) -> Response:
        """A page for a person, or word that they have its newest already.

        Raises:
            PageMissingError: there is no such page that they may see.
        """
        host_state = self._host_state(request, person)
        if self._renderer is not None:
            rendered = self._renderer.render(page, request, person, host_state)
            if rendered is not None:
                return rendered
        return self._builder.render(page, request, person, host_state)

    def request_data(self, request: Request) -> RequestData:
        """What a thread is given of a request."""
        root = str(request.scope.get("root_path", ""))
        return RequestData(
            root=root,
            path=request.url.path.removeprefix(root) or "/",
            values=dict(request.path_params),
            query=dict(request.query_params),
            if_none_match=request.headers.get("if-none-match", ""),
            airflow=self.actions.airflow_address(request),
            accepts_gzip="gzip" in request.headers.get("accept-encoding", ""),
        )

    def _host_state(self, request: RequestData, person: Person) -> HostState:
        return HostState(
            paused_dags=self.actions.paused_dags(),
            actions_unavailable=self.actions.unavailable_reason(),
            pending_approvals=tuple(
                one for one in self.actions.pending_approvals(request.airflow) if person.may_read(one.dag_id)
            ),
        )
