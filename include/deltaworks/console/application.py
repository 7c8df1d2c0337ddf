"""Builds the console's FastAPI application: routes, downloads of certificates, access checks and error pages.

Every route depends on the host's authenticator, so that a forgotten check denies access. Pages are rendered by four
threads of the console, so that slow reads do not block the host's threads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import anyio
import anyio.to_thread
import orjson
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from deltaworks.console.actions.routes import add_actions
from deltaworks.console.console import Console
from deltaworks.console.host import Person
from deltaworks.console.page_builder import HEADERS, RequestData
from deltaworks.console.page_context import READING_STATUS, PageError, PageMissingError, PageReadingError
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.erasures import certified_request
from deltaworks.console.pages.registry import PAGES
from deltaworks.console.rendering import Frame, assets, render
from deltaworks.console.widget_streams import WidgetStreams, add_widget_streams
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.errors import DeltaworksError

ROUTE: Final = "/erasures/{namespace}/{request_id}/certificate"
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]+")


def add_downloads(app: FastAPI, console: Console) -> None:
    """Adds the routes of downloads."""

    async def certificate(request: Request) -> Response:
        plain, person = console.request_data(request), request.state.person
        return await anyio.to_thread.run_sync(_certificate, console, plain, person, limiter=console.limiter())

    app.add_api_route(ROUTE, certificate, methods=["GET"], response_model=None)


def _certificate(console: Console, request: RequestData, person: Person) -> Response:
    context = console.page_context(request, person)
    namespace = request.values["namespace"]
    request_id = certified_request(context, namespace, request.values["request_id"])
    try:
        stored = context.objects.get(paths.erasure_certificate(namespace, request_id))
    except DeltaworksError:
        stored = None
    if stored is None:
        raise PageMissingError(f"The certificate of {request_id!r} cannot be read at the moment.")
    headers = {
        **HEADERS,
        "Cache-Control": "no-store",
        "Content-Disposition": f'attachment; filename="{file_name(namespace, request_id)}"',
    }
    return Response(stored.data, media_type="application/json", headers=headers)


def file_name(namespace: str, request_id: str) -> str:
    """Returns the file name of a certificate, with characters that are safe in headers and file systems."""
    return _UNSAFE_CHARACTERS.sub("-", f"erasure-{namespace}-{request_id}") + ".json"


_NOT_LOGGED_IN, _MISSING = 401, 404
_TITLES = {_NOT_LOGGED_IN: "Not allowed", 403: "Not allowed", _MISSING: "Not found", READING_STATUS: "Reading"}


def build_console(console: Console, *, pages: Sequence[Page] = PAGES, streams: WidgetStreams | None = None) -> FastAPI:
    """Returns the application with all pages, which a host mounts or serves."""

    identify = Depends(console.authenticator.identify)

    async def set_person(request: Request, person: Person = identify) -> None:
        request.state.person = person

    app = FastAPI(
        title="Deltaworks", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(set_person)]
    )
    app.state.console = console

    @app.get("/assets/{digest}/{name}")
    async def load_asset(digest: str, name: str) -> Response:
        asset = assets().get(name)
        if asset is None or asset.digest != digest:
            raise HTTPException(_MISSING, "There is no such file.")
        headers = {**HEADERS, "Cache-Control": "private, max-age=31536000, immutable"}
        return Response(asset.data, media_type=asset.media_type, headers=headers)

    for page in pages:
        _add_page(app, console, page)
    add_actions(app, console)
    add_downloads(app, console)
    add_widget_streams(app, console, streams or WidgetStreams())
    _add_error_pages(app, console)
    return app


def _add_page(app: FastAPI, console: Console, page: Page) -> None:
    async def show(request: Request) -> Response:
        return await anyio.to_thread.run_sync(
            console.render,
            page,
            console.request_data(request),
            request.state.person,
            limiter=console.limiter(document=page.document),
        )

    app.add_api_route(page.route, show, methods=["GET"], name=page.name, response_model=None)


def _add_error_pages(app: FastAPI, console: Console) -> None:
    """Adds handlers that show errors as pages; a request without login is redirected to the login page."""

    @app.exception_handler(PageError)
    async def failed(request: Request, error: PageError) -> Response:
        return _error_page(console, request, error.status, str(error))

    @app.exception_handler(PageReadingError)
    async def reading(request: Request, error: PageReadingError) -> Response:
        if "fragment" in request.query_params:
            return Response(status_code=204, headers={**HEADERS, "Cache-Control": "no-store"})
        answer = _error_page(console, request, error.status, str(error))
        if answer.media_type == "application/json":
            answer.status_code, answer.headers["Retry-After"] = 503, "1"
        else:
            answer.status_code, answer.headers["Refresh"] = 200, "1"
        return answer

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        wants_page = "text/html" in request.headers.get("accept", "") and request.method == "GET"
        if error.status_code == _NOT_LOGGED_IN and wants_page and "fragment" not in request.query_params:
            address = console.authenticator.login_address(request)
            if address is not None:
                return RedirectResponse(address, status_code=303, headers=dict(HEADERS))
        return _error_page(console, request, error.status_code, str(error.detail))


def _error_page(console: Console, request: Request, status: int, reason: str) -> Response:
    headers = {**HEADERS, "Cache-Control": "no-store"}
    if "text/html" not in request.headers.get("accept", "") or request.query_params.get("format") == "json":
        return Response(orjson.dumps({"detail": reason}), status, headers=headers, media_type="application/json")
    plain = console.request_data(request)
    person: Person | None = getattr(request.state, "person", None)
    frame = Frame(
        title=_TITLES.get(status, "Not shown"),
        root=plain.root,
        address=plain.path,
        now=utc_now(),
        person="" if person is None else person.name,
        menu=tuple((page.route, page.menu) for page in PAGES if page.menu) if person else (),
        airflow=plain.airflow,
    )
    return HTMLResponse(render("error", frame, {"status": status, "reason": reason}), status, headers=headers)
