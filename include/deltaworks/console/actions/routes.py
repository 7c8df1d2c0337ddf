"""Routes of actions: the form, its submission, the run, and the confirmation of a count.

A submission redirects with 303 to the run's page, so that going back or reloading sends nothing again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast
from urllib.parse import parse_qs

import anyio.to_thread
import orjson
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from deltaworks.console.actions import steps
from deltaworks.console.actions.available import Action, find_action
from deltaworks.console.actions.fields import FormError
from deltaworks.console.actions.origin import is_same_origin
from deltaworks.console.console import Console
from deltaworks.console.page_builder import HEADERS, build_frame
from deltaworks.console.page_context import PageContext
from deltaworks.console.rendering import render
from deltaworks.errors import DeltaworksError

ROUTE: Final = "/actions/{operation}/{subject}"
_MAX_FORM_BYTES = 64_000
_FORBIDDEN, _UNPROCESSABLE, _BAD_GATEWAY, _UNAVAILABLE, _TOO_LARGE = 403, 422, 502, 503, 413
_MISSING = 404
#: HTTP status by condition. Every other condition is a failure of Airflow (502).
_STATUS: Final[Mapping[str, int]] = {
    "AIRFLOW_FORBIDDEN": _FORBIDDEN,
    "AIRFLOW_DAG_UNKNOWN": _MISSING,
    "AIRFLOW_CONNECTION_MISSING": _UNAVAILABLE,
    "AIRFLOW_REFUSED": _UNPROCESSABLE,
    "ACTION_FORM_STALE": _UNPROCESSABLE,
    "ACTION_NOT_COUNTED": _UNPROCESSABLE,
}
Answer = Callable[[Request, PageContext, Action], Awaitable[Response]]


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
    """Handlers of the action routes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def handle(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """Wraps a route: checks that the person may see the action, and turns errors into pages."""

        async def route(request: Request) -> Response:
            context, action = await self._resolve(request)
            try:
                return await answer(request, context, action)
            except DeltaworksError as error:
                status = _STATUS.get(error.condition, _BAD_GATEWAY)
                raise HTTPException(status, f"[{error.condition}] {error.message} {error.hint}") from error

        return route

    async def form(self, request: Request, context: PageContext, action: Action) -> Response:
        values = dict(request.query_params)
        may_start = await self._may_start(context, action) and not context.actions_unavailable
        view = await steps.form_view(self._console.actions, request, action, values=values, may_start=may_start)
        return self._page(request, context, "action", view, title=f"{action.operation.command} {action.subject}")

    async def submit(self, request: Request, context: PageContext, action: Action) -> Response:
        if not is_same_origin(request.headers):
            raise HTTPException(_FORBIDDEN, "The form was not sent by a page of this console. Nothing was started.")
        if not await self._may_start(context, action):
            raise HTTPException(_FORBIDDEN, f"You may not trigger {action.dag_id}. Nothing was started.")
        if context.actions_unavailable:
            raise HTTPException(_UNAVAILABLE, f"{context.actions_unavailable} Nothing was started.")
        posted = await _read_form(request)
        try:
            run_id, _ = await steps.submit(self._console.actions, request, action, posted)
        except FormError as error:
            values = {name: texts[-1] for name, texts in posted.items()}
            view = await steps.form_view(
                self._console.actions, request, action, values=values, may_start=True, error=str(error)
            )
            title = f"{action.operation.command} {action.subject}"
            return self._page(request, context, "action", view, title=title, status=_UNPROCESSABLE)
        plain = self._console.request_data(request)
        return RedirectResponse(f"{plain.root}{action.route}/runs/{run_id}", status_code=303, headers=dict(HEADERS))

    async def run(self, request: Request, context: PageContext, action: Action) -> Response:
        view = await steps.run_view(self._console.actions, request, action, request.path_params["run_id"])
        return self._page(request, context, "action_run", view, title=f"{action.operation.command} {action.subject}")

    async def confirm(self, request: Request, context: PageContext, action: Action) -> Response:
        may_start = await self._may_start(context, action) and not context.actions_unavailable
        view = await steps.confirm_view(
            self._console.actions, request, action, request.path_params["run_id"], may_start=may_start
        )
        return self._page(
            request, context, "action_confirm", view, title=f"{action.operation.command} {action.subject}"
        )

    async def _resolve(self, request: Request) -> tuple[PageContext, Action]:
        plain, person = self._console.request_data(request), request.state.person

        def resolve() -> tuple[PageContext, Action]:
            context = self._console.page_context(plain, person)
            return context, find_action(context, plain.values["operation"], plain.values["subject"])

        return await anyio.to_thread.run_sync(resolve, limiter=self._console.limiter)

    async def _may_start(self, context: PageContext, action: Action) -> bool:
        check = context.person.may_start
        return bool(await anyio.to_thread.run_sync(check, action.dag_id, limiter=self._console.limiter))

    def _page(
        self, request: Request, context: PageContext, name: str, view: Any, *, title: str, status: int = 200
    ) -> Response:
        frame = build_frame(self._console.request_data(request), context, title=title, current="")
        fragment = "fragment" in request.query_params
        headers = {**HEADERS, "Cache-Control": "no-store"}
        if request.query_params.get("format") == "json":
            data = orjson.dumps({"page": name, "view": view}, option=orjson.OPT_NON_STR_KEYS, default=list)
            return Response(data, status, headers=headers, media_type="application/json")
        return HTMLResponse(render(name, frame, view, fragment=fragment), status, headers=headers)


async def _read_form(request: Request) -> Mapping[str, list[str]]:
    """Returns the values of a URL-encoded form."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise HTTPException(_TOO_LARGE, f"The form has more than {_MAX_FORM_BYTES:,} bytes. Nothing was started.")
    try:
        return cast("dict[str, list[str]]", parse_qs(body.decode(), keep_blank_values=True, max_num_fields=200))
    except ValueError as error:
        raise HTTPException(_UNPROCESSABLE, f"The form cannot be read: {error}. Nothing was started.") from error
