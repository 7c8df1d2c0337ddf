"""Renders pages from request data, the person and the host's state. Runs in the host's process or a separate one."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from fastapi import Response
from fastapi.responses import HTMLResponse

from deltaworks.console.cached_objects import CatalogCache
from deltaworks.console.host import PendingApproval, Person, Records
from deltaworks.console.page_context import PageContext, PageMissingError, PageReadingError
from deltaworks.console.pages import overview
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.registry import PAGES
from deltaworks.console.rendering import Frame, assets, render
from deltaworks.console.table_reads import RenderLock
from deltaworks.control.clock import utc_now
from deltaworks.errors import DeltaworksError

log = logging.getLogger(__name__)
#: Shorter than the age up to which a copy of a heartbeat is shown (`deltaworks.console.cached_objects`).
_READ_AHEAD_SECONDS: Final = 20.0
#: Nothing is read ahead once no page has been opened for this long. The next page then says that it is reading.
_IDLE_SECONDS: Final = 300.0

#: The content security policy: only the console's own scripts, styles and responses. Displayed data cannot add any.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
#: Headers of documents, whose styles are part of the page. The only script is the console's, which renews the page.
DOCUMENT_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestData:
    """The data of a request that a page needs, for threads that must not use the request itself."""

    root: str
    path: str
    values: Mapping[str, str]
    query: Mapping[str, str]
    if_none_match: str
    airflow: str | None
    accepts_gzip: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """The host's state at the time of a request: paused DAGs, why no action can start, and approvals the person may
    see.
    """

    paused_dags: frozenset[str] | None = None
    actions_unavailable: str = ""
    pending_approvals: tuple[PendingApproval, ...] = ()


class PageBuilder:
    """Renders pages, one at a time. Thread-safe."""

    def __init__(self, *, records: Records, catalog: CatalogCache) -> None:
        self.records = records
        self.catalog = catalog
        self._render_lock = RenderLock()
        self._opened = threading.Event()
        self._opened_at = time.monotonic()

    def page_context(self, request: RequestData, person: Person, host_state: HostState) -> PageContext:
        """Returns the context of a request."""
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
        """Returns a page for a person, or status 304 if the browser's copy is current.

        Raises:
            PageError: the page does not exist, the person may not see it, or it cannot be drawn; PageReadingError: its
                data are still being read.
        """
        self.note_reader()
        context = self.page_context(request, person, host_state)
        if "pipeline" in context.values and not context.may_read(context.values["pipeline"]):
            raise PageMissingError(f"There is no pipeline {context.values['pipeline']!r} whose stream you may see.")
        with self._render_lock.hold():
            return self._respond(page, request, context)

    def note_reader(self) -> None:
        """Notes that somebody opens a page, so that the start page is read ahead again."""
        self._opened_at = time.monotonic()
        self._opened.set()

    def await_readers(self) -> None:
        """Waits for the next page if none was opened for some minutes."""
        if time.monotonic() - self._opened_at < _IDLE_SECONDS:
            return
        self._opened.clear()
        # A page that was opened before the event was cleared has moved the time.
        if time.monotonic() - self._opened_at >= _IDLE_SECONDS:
            self._opened.wait()

    def read_ahead(self) -> bool:
        """Reads what the start page shows, so that it is there for the first person after a pause.

        Returns whether everything has been read.
        """
        request = RequestData(root="", path="/", values={}, query={}, if_none_match="", airflow=None)
        everyone = Person(name="", readable_dags=None, startable_dags=frozenset())
        context = self.page_context(request, everyone, HostState())
        with self._render_lock.hold(), suppress(DeltaworksError):
            overview.view(context)
        return not context.objects.is_reading

    def _respond(self, page: Page, request: RequestData, context: PageContext) -> Response:
        context, view = _view(page, context)
        if page.document:
            return HTMLResponse(view, headers=DOCUMENT_HEADERS)
        frame = build_frame(request, context, title=page.title_of(context), current=page.name)
        data = orjson.dumps(
            {"page": page.name, "stale_since": frame.stale_since, "problem": frame.problem, "view": view},
            option=orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z,
            default=list,
        )
        kind = (
            "json" if context.query.get("format") == "json" else "fragment" if context.query.get("fragment") else "page"
        )
        tag = _etag(kind, request.root, context.person.name, context.actions_unavailable, data)
        headers = {**HEADERS, "ETag": tag, "Cache-Control": "private, no-cache" if page.may_cache else "no-store"}
        if page.may_cache and tag in {part.strip() for part in request.if_none_match.split(",")}:
            return Response(status_code=304, headers=headers)
        if kind == "json":
            return Response(data, media_type="application/json", headers=headers)
        return HTMLResponse(render(page.name, frame, view, fragment=kind == "fragment"), headers=headers)


def keep_read(builder: PageBuilder, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Reads ahead for the start page until the process ends, in at most a twentieth of the time, and only while people
    open pages.
    """
    while True:
        builder.await_readers()
        began, is_read = time.monotonic(), True
        try:
            is_read = builder.read_ahead()
        except Exception:
            if not threading.main_thread().is_alive():
                return
            log.warning("The start page could not be read ahead.", exc_info=True)
        sleep(max(_READ_AHEAD_SECONDS if is_read else 1.0, 20 * (time.monotonic() - began)))


def _view(page: Page, context: PageContext) -> tuple[PageContext, Any]:
    """Returns the view of a page, and the context with the time by which it judged its data.

    If data could not be read again, that is the time of the oldest of them: by the current time each heartbeat would be
    stale.

    Raises:
        PageReadingError: data of the page are still being read, so that its view may be false.
    """
    try:
        view = page.view(context)
    except Exception as error:
        if context.objects.is_reading:
            raise PageReadingError from error
        raise
    if context.objects.is_reading:
        raise PageReadingError
    age_seconds = context.objects.age_seconds
    if not age_seconds or page.document:
        return context, view
    context = replace(context, now=context.now - timedelta(seconds=age_seconds))
    return context, page.view(context)


def build_frame(request: RequestData, context: PageContext, *, title: str, current: str) -> Frame:
    """Returns the frame of a page: navigation, person and storage problems."""
    query = {name: value for name, value in request.query.items() if name not in ("fragment", "format")}
    return Frame(
        title=title,
        root=request.root,
        address=request.path + (f"?{urlencode(query)}" if query else ""),
        now=utc_now(),
        as_of=context.now,
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
    """Returns a digest of the page assets. It is part of page versions, so that cached pages do not refer to old
    assets.
    """
    return "".join(asset.digest for asset in assets().values())
