"""Answers that a fault proxy gives in a server's place, in the form that AWS' own clients understand.

Services of the JSON protocol (SQS, Kinesis) name the operation in a header and answer errors as JSON; S3 answers
XML. A batch call of SQS succeeds as a whole while single entries of it fail.
"""

from __future__ import annotations

import json
import re
from typing import Any

_TARGET = re.compile(rb"\r\nx-amz-target: *[^\r\n.]*\.?([^\r\n.]+)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *\d+", re.IGNORECASE)
_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    429: "Too Many Requests",
    503: "Slow Down",
}


def operation_of(head: bytes) -> str:
    """The operation that a request of the JSON protocol names; empty for any other."""
    target = _TARGET.search(head)
    return target[1].decode().strip() if target else ""


def error_response(head: bytes, *, status: int, code: str) -> bytes:
    """An error in the protocol of the request; its server has not seen it."""
    message = "refused by a fault proxy"
    if operation_of(head):
        kind, body = "application/x-amz-json-1.0", json.dumps({"__type": code, "message": message})
    else:
        kind, body = "application/xml", f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return _answer(status, kind, body.encode())


def truncated_response(answer: bytes) -> bytes:
    """The head of an answer, which promises all of its body, and the first half of that."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n" + body[: len(body) // 2]


def drop_entries(head: bytes, body: bytes) -> tuple[bytes, bytes, list[dict[str, Any]]]:
    """A batch call without the first half of its entries, and those, failed by the server; no body if none is left."""
    request = json.loads(body)
    entries = request["Entries"]
    spared = entries[(len(entries) + 1) // 2 :]
    failed = [
        {"Id": entry["Id"], "SenderFault": False, "Code": "InternalError", "Message": "failed by a fault proxy"}
        for entry in entries[: len(entries) - len(spared)]
    ]
    left = json.dumps(request | {"Entries": spared}).encode() if spared else b""
    return _LENGTH.sub(b"\r\nContent-Length: %d" % len(left), head), left, failed


def fail_entries(answer: bytes | None, failed: list[dict[str, Any]]) -> bytes:
    """The server's answer to the other entries, with those that failed."""
    body = answer.partition(b"\r\n\r\n")[2] if answer is not None else b"{}"
    response = json.loads(body)
    response["Failed"] = [*(response.get("Failed") or []), *failed]
    response.setdefault("Successful", [])
    return _answer(200, "application/x-amz-json-1.0", json.dumps(response).encode())


def _answer(status: int, kind: str, body: bytes) -> bytes:
    first = f"HTTP/1.1 {status} {_REASONS.get(status, 'OK' if status == 200 else 'Error')}"
    return f"{first}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
