"""The console of a process: its pages, actions and host. Pages are rendered by threads of the console or by a separate
process.
"""

from __future__ import annotations

from typing import Protocol

import anyio
from fastapi import Request, Response

from deltaworks.console.cached_objects import CatalogCache
from deltaworks.console.host import Actions, Authenticator, Person, Records
from deltaworks.console.page_builder import HostState, PageBuilder, RequestData
from deltaworks.console.page_context import PageContext
from deltaworks.console.pages.base import Page

THREADS = 4
#: Threads for documents, most of which wait for the one that is drawn.
DOCUMENT_THREADS = 6


class PageRenderer(Protocol):
    """Renders pages in another process."""

    def render(self, page: Page, request: RequestData, person: Person, host_state: HostState) -> Response | None:
        """Returns the page; None if this process has to render it.

        Raises:
            PageError: the page does not exist, the person may not see it, or it cannot be drawn.
        """


class Console:
    """The console of a process. Its host provides users, actions and control objects.

    Args:
        renderer: renders the pages; a page that it returns None for is rendered by this process.
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
        self.builder = PageBuilder(records=records, catalog=catalog)
        self._renderer = renderer
        self._limiters: dict[bool, anyio.CapacityLimiter] = {}

    def limiter(self, *, document: bool = False) -> anyio.CapacityLimiter:
        """Returns the limiter of the console's threads, or of those for documents, in the running event loop."""
        if document not in self._limiters:
            self._limiters[document] = anyio.CapacityLimiter(DOCUMENT_THREADS if document else THREADS)
        return self._limiters[document]

    def page_context(self, request: RequestData, person: Person) -> PageContext:
        """Returns the context of a request, in a console thread."""
        return self.builder.page_context(request, person, self._host_state(request, person))

    def render(self, page: Page, request: RequestData, person: Person) -> Response:
        """Returns a page for a person, or status 304 if the browser's copy is current.

        Raises:
            PageError: the page does not exist, the person may not see it, or it cannot be drawn.
        """
        host_state = self._host_state(request, person)
        if self._renderer is not None:
            rendered = self._renderer.render(page, request, person, host_state)
            if rendered is not None:
                return rendered
        return self.builder.render(page, request, person, host_state)

    def request_data(self, request: Request) -> RequestData:
        """Copies the data that a console thread needs from a request, which threads must not use."""
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
