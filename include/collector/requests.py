"""The events of an API-Gateway request: one, or JSON lines of them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LINES_TYPE = "application/x-ndjson"
# Not `str.splitlines`: that ends lines at characters which JSON allows inside of a string.
_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class EventRequest:
    """A request that holds one event, and the line of the body it was on, from 1."""

    line: int
    request: Mapping[str, Any]


def events_of(request: Mapping[str, Any]) -> list[EventRequest]:
    """A request an event, its body as text: bodies that came in Base64 are decoded, JSON lines taken apart.

    Blank lines are no events. Bytes that are no UTF-8 become escapes, which no reader takes for an event's own.
    """
    request = _as_text(request)
    body = request.get("body")
    if not isinstance(body, str) or not _content_type(request).startswith(LINES_TYPE):
        return [EventRequest(1, request)]
    lines = enumerate(_LINE_END.split(body.removeprefix("\ufeff")), 1)
    return [EventRequest(number, {**request, "body": line}) for number, line in lines if line.strip()]


def _as_text(request: Mapping[str, Any]) -> Mapping[str, Any]:
    body = request.get("body")
    if not request.get("isBase64Encoded") or not isinstance(body, str):
        return request
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return request
    return {**request, "body": data.decode("utf-8", "backslashreplace"), "isBase64Encoded": False}


def _content_type(request: Mapping[str, Any]) -> str:
    """The request's content type in lower case. Names of headers are as the client wrote them, or in lower case."""
    headers = request.get("headers")
    for name, value in headers.items() if isinstance(headers, Mapping) else ():
        if str(name).lower() == "content-type":
            return str(value).strip().lower()
    return ""
