"""Routes of actions: the form, its submission, the run, and the confirmation of a count.

A submission redirects with 303 to the run's page, so that going back or reloading sends nothing again. It must come
from a page of this server, which is checked here: Airflow checks no origin, and cookies are sent with every request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.to_thread
import orjson
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from deltaworks.console.actions import steps
from deltaworks.console.actions.fields import FormError
from deltaworks.console.actions.steps import Action, find_action
from deltaworks.console.console import Console
from deltaworks.console.host import Person
from deltaworks.console.page_builder import HEADERS, RequestData, build_frame
from deltaworks.console.page_context import PageContext
from deltaworks.console.rendering import render
from deltaworks.errors import DeltaworksError


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Returns whether the browser's headers say that a page of this origin sent the request.

    Browsers send `Sec-Fetch-Site` on secure pages and `Origin` with every POST; scripts can set neither. A request
    without both was not sent by a browser form. One wrong header is enough to reject the request. A proxy may pass the
    host as `X-Forwarded-Host`, which no form can set.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        return False
    if site is not None and site != "same-origin":
        return False
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    forwarded = headers.get("x-forwarded-host", "").partition(",")[0].strip()
    hosts = {host.lower() for host in (headers.get("host", ""), forwarded) if host}
    return parts.scheme in ("http", "https") and parts.netloc.lower() in hosts


ROUTE: Final = "/actions/{operation}/{subject}"
_THREADS = 4
_MAX_FORM_BYTES = 64_000
_FORBIDDEN, _UNPROCESSABLE, _BAD_GATEWAY, _UNAVAILABLE, _TOO_LARGE = 403, 422, 502, 503, 413
_MISSING = 404
#: HTTP status by condition. Every other condition is a failure of Airflow (502).
_STATUS: Final[Mapping[str, int]] = {
    "AIRFLOW_FORBIDDEN": _FORBIDDEN,
    "AIRFLOW_LOGIN_REFUSED": _FORBIDDEN,
    "AIRFLOW_DAG_UNKNOWN": _MISSING,
    "AIRFLOW_CONNECTION_MISSING": _UNAVAILABLE,
    "AIRFLOW_REFUSED": _UNPROCESSABLE,
    "ACTION_FORM_STALE": _UNPROCESSABLE,
    "ACTION_NOT_COUNTED": _UNPROCESSABLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A request as a thread gets it. `connect` opens a client with the login of the person."""

    request: RequestData
    person: Person
    connect: steps.Connect
    posted: Mapping[str, list[str]]


Answer = Callable[[_Call, PageContext, Action], Response]


def add_actions(app: FastAPI, console: Console) -> None:
    """Adds the routes of actions. If Airflow rejects a request, its message is shown, and no run was started."""
    routes = _ActionRoutes(console)
    for route, method, answer in (
        (ROUTE, "GET", routes.form),
        (ROUTE, "POST", routes.submit),
        (f"{ROUTE}/runs/{{run_id}}", "GET", routes.run),
        (f"{ROUTE}/confirm/{{run_id}}", "GET", routes.confirm),
    ):
        app.add_api_route(route, routes.handle(answer), methods=[method], response_model=None)


class _ActionRoutes:
    """Handlers of the action routes. They run in threads of their own, since they wait for Airflow."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._limiter: anyio.CapacityLimiter | None = None

    def handle(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """Wraps a route: checks that the person may see the action, and turns errors into pages."""

        async def route(request: Request) -> Response:
            if self._limiter is None:
                self._limiter = anyio.CapacityLimiter(_THREADS)
            call = _Call(
                request=self._console.request_data(request),
                person=request.state.person,
                connect=self._console.actions.connect(request),
                posted=await _read_form(request) if request.method == "POST" else {},
            )
            return await anyio.to_thread.run_sync(self._answer, answer, call, limiter=self._limiter)

        return route

    def _answer(self, answer: Answer, call: _Call) -> Response:
        context = self._console.page_context(call.request, call.person)
        action = find_action(context, call.request.values["operation"], call.request.values["subject"])
        try:
            return answer(call, context, action)
        except DeltaworksError as error:
            status = _STATUS.get(error.condition, _BAD_GATEWAY)
            raise HTTPException(status, f"[{error.condition}] {error.message} {error.hint}") from error

    def form(self, call: _Call, context: PageContext, action: Action) -> Response:
        view = steps.form_view(
            call.connect,
            action,
            values=dict(call.request.query),
            may_start=not context.actions_unavailable and _may_start(call, context, action),
        )
        return _page(call, context, "action", view)

    def submit(self, call: _Call, context: PageContext, action: Action) -> Response:
        if not _may_start(call, context, action):
            raise HTTPException(_FORBIDDEN, f"You may not trigger {action.dag_id}. Nothing was started.")
        if context.actions_unavailable:
            raise HTTPException(_UNAVAILABLE, f"{context.actions_unavailable} Nothing was started.")
        try:
            run_id = steps.submit(call.connect, action, call.posted)
        except FormError as error:
            values = {name: texts[-1] for name, texts in call.posted.items()}
            view = steps.form_view(call.connect, action, values=values, may_start=True, error=str(error))
            return _page(call, context, "action", view, status=_UNPROCESSABLE)
        address = f"{call.request.root}{action.route}/runs/{run_id}"
        return RedirectResponse(address, status_code=303, headers=dict(HEADERS))

    def run(self, call: _Call, context: PageContext, action: Action) -> Response:
        view = steps.run_view(call.connect, action, call.request.values["run_id"])
        return _page(call, context, "action_run", view)

    def confirm(self, call: _Call, context: PageContext, action: Action) -> Response:
        may_start = not context.actions_unavailable and _may_start(call, context, action)
        view = steps.confirm_view(call.connect, action, call.request.values["run_id"], may_start=may_start)
        return _page(call, context, "action_confirm", view)


def _may_start(call: _Call, context: PageContext, action: Action) -> bool:
    person = context.person
    if not person.may_start(action.dag_id) and not person.may_read(action.dag_id):
        # Rights cover only DAGs that Airflow has; if it does not have this one, its error says so.
        steps.check_dag(call.connect, action)
    return person.may_start(action.dag_id)


def _page(
    call: _Call,
    context: PageContext,
    name: str,
    view: steps.FormView | steps.RunView | steps.ConfirmView,
    *,
    status: int = 200,
) -> Response:
    headers = {**HEADERS, "Cache-Control": "no-store"}
    if context.query.get("format") == "json":
        data = orjson.dumps({"page": name, "view": view}, option=orjson.OPT_NON_STR_KEYS, default=list)
        return Response(data, status, headers=headers, media_type="application/json")
    verb = view.verb if isinstance(view, steps.FormView) else ""
    title = f"{verb or view.action.operation.command} {view.action.subject}"
    frame = build_frame(call.request, context, title=title, current="")
    return HTMLResponse(render(name, frame, view, fragment="fragment" in context.query), status, headers=headers)


async def _read_form(request: Request) -> Mapping[str, list[str]]:
    """Returns the values of a URL-encoded form that a page of this console sent."""
    if not is_same_origin(request.headers):
        raise HTTPException(_FORBIDDEN, "The form was not sent by a page of this console. Nothing was started.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise HTTPException(_TOO_LARGE, f"The form has more than {_MAX_FORM_BYTES:,} bytes. Nothing was started.")
    try:
        return cast("dict[str, list[str]]", parse_qs(body.decode(), keep_blank_values=True, max_num_fields=200))
    except ValueError as error:
        raise HTTPException(_UNPROCESSABLE, f"The form cannot be read: {error}. Nothing was started.") from error
