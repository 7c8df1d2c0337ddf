"""Makes pages: from what a request says, who asks, and what the host knows besides. In the host's process or apart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from fastapi import Response
from fastapi.responses import HTMLResponse

from deltaworks.console.catalog_cache import CatalogCache
from deltaworks.console.page_context import PageContext, PageMissingError
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.registry import PAGES
from deltaworks.console.rendering import Frame, assets, render
from deltaworks.console.host import Person, PendingApproval, Records
from deltaworks.console.render_lock import RenderLock
from deltaworks.control.clock import utc_now

#: Scripts, styles and answers of the console alone; what a page shows of others can be none of them.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestData:
    """What a page needs of a request, for a thread that must not touch the request itself. `packs` says that whoever
    sent it takes gzip."""

    root: str
    path: str
    values: Mapping[str, str]
    query: Mapping[str, str]
    if_none_match: str
    airflow: str | None
    accepts_gzip: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """What a host knows at the time of a request: the DAGs that are paused, why nothing can be started, and approvals
    that wait, those that the person may see alone."""

    paused_dags: frozenset[str] | None = None
    actions_unavailable: str = ""
    pending_approvals: tuple[PendingApproval, ...] = ()


class PageBuilder:
    """Makes pages over records and declarations, one at a time. For several threads."""

    def __init__(self, *, records: Records, catalog: CatalogCache) -> None:
        self.records = records
        self.catalog = catalog
        self._render_lock = RenderLock()

    def page_context(self, request: RequestData, person: Person, host_state: HostState) -> PageContext:
        """One look."""
        return PageContext(
            person=person,
            catalog=self.catalog.current(),
            objects=self.records.reader(),
            now=utc_now(),
            values=request.values,
            query=request.query,
            paused_dags=host_state.paused_dags,
            actions_unavailable=host_state.actions_unavailable,
            airflow=request.airflow,
            pending_approvals=host_state.pending_approvals,
        )

    def render(self, page: Page, request: RequestData, person: Person, host_state: HostState) -> Response:
        """A page for a person, or word that they have its newest already.

        Raises:
            PageMissingError: there is no such page that they may see.
        """
        context = self.page_context(request, person, host_state)
        if "pipeline" in context.values and not context.may_read(context.values["pipeline"]):
            raise PageMissingError(f"There is no pipeline {context.values['pipeline']!r} whose stream you may see.")
        with self._render_lock.hold():
            return self._respond(page, request, context)

    def _respond(self, page: Page, request: RequestData, context: PageContext) -> Response:
        view = page.view(context)
        frame = build_frame(request, context, title=page.title_of(context), current=page.name)
        data = orjson.dumps(
            {"page": page.name, "stale_since": frame.stale_since, "problem": frame.problem, "view": view},
            option=orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z,
            default=list,
        )
        kind = "json" if context.query.get("format") == "json" else "fragment" if context.query.get("fragment") else "page"
        tag = _etag(kind, request.root, context.person.name, context.actions_unavailable, data)
        headers = {**HEADERS, "ETag": tag, "Cache-Control": "private, no-cache" if page.may_cache else "no-store"}
        if page.may_cache and tag in {part.strip() for part in request.if_none_match.split(",")}:
            return Response(status_code=304, headers=headers)
        if kind == "json":
            return Response(data, media_type="application/json", headers=headers)
        return HTMLResponse(render(page.name, frame, view, fragment=kind == "fragment"), headers=headers)


def build_frame(request: RequestData, context: PageContext, *, title: str, current: str) -> Frame:
    """What surrounds a view."""
    query = {name: value for name, value in request.query.items() if name not in ("fragment", "format")}
    return Frame(
        title=title,
        root=request.root,
        address=request.path + (f"?{urlencode(query)}" if query else ""),
        now=context.now,
        person=context.person.name,
        menu=tuple((page.route, page.menu) for page in PAGES if page.menu),
        current=current,
        airflow=context.airflow,
        actions_unavailable=context.actions_unavailable,
        docs=context.catalog.environment.alerts.docs_url,
        stale_since=context.objects.stale_since,
        problem=context.objects.problem,
    )


def _etag(*parts: Any) -> str:
    digest = hashlib.sha256(_assets_digest().encode())
    for part in parts:
        digest.update(part if isinstance(part, bytes) else str(part).encode())
        digest.update(b"\0")
    return f'W/"{digest.hexdigest()[:24]}"'


def _assets_digest() -> str:
    """A word that changes with the files that pages load, so that nothing old is kept beside them."""
    return "".join(asset.digest for asset in assets().values())
