"""Downloads of stored files: the certificate of an erasure."""

from __future__ import annotations

import re
from typing import Final

import anyio.to_thread
from fastapi import FastAPI, Request, Response

from deltaworks.console.console import Console
from deltaworks.console.host import Person
from deltaworks.console.page_builder import HEADERS, RequestData
from deltaworks.console.page_context import PageMissingError
from deltaworks.console.pages.erasures import certified_request
from deltaworks.control import paths
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
