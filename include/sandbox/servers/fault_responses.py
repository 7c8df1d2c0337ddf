"""Responses that a fault proxy sends instead of a server, in the format that AWS clients expect.

Services with the JSON protocol (SQS, Kinesis) name the operation in a header and return errors as JSON; S3 returns XML.
An SQS batch request can succeed with failed entries.
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
    """Returns the operation of a JSON protocol request; empty for other requests."""
    target = _TARGET.search(head)
    return target[1].decode().strip() if target else ""


def error_response(head: bytes, *, status: int, code: str) -> bytes:
    """Returns an error response in the protocol of the request."""
    message = "refused by a fault proxy"
    if operation_of(head):
        kind, body = "application/x-amz-json-1.0", json.dumps({"__type": code, "message": message})
    else:
        kind, body = "application/xml", f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return _answer(status, kind, body.encode())


def truncated_response(answer: bytes) -> bytes:
    """Returns the response with its original head and the first half of its body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n" + body[: len(body) // 2]


def drop_entries(head: bytes, body: bytes) -> tuple[bytes, bytes, list[dict[str, Any]]]:
    """Removes the first half of the entries from a batch request.

    Returns:
        Head and body of the remaining request, and the removed entries as failures. The body is empty if no entry
            remains.
    """
    request = json.loads(body)
    entries = request["Entries"]
    remaining = entries[(len(entries) + 1) // 2 :]
    failed = [
        {"Id": entry["Id"], "SenderFault": False, "Code": "InternalError", "Message": "failed by a fault proxy"}
        for entry in entries[: len(entries) - len(remaining)]
    ]
    remaining_body = json.dumps(request | {"Entries": remaining}).encode() if remaining else b""
    return _LENGTH.sub(b"\r\nContent-Length: %d" % len(remaining_body), head), remaining_body, failed


def fail_entries(answer: bytes | None, failed: list[dict[str, Any]]) -> bytes:
    """Adds failed entries to the server's response. `answer` is None if the server got no request."""
    body = answer.partition(b"\r\n\r\n")[2] if answer is not None else b"{}"
    response = json.loads(body)
    response["Failed"] = [*(response.get("Failed") or []), *failed]
    response.setdefault("Successful", [])
    return _answer(200, "application/x-amz-json-1.0", json.dumps(response).encode())


def _answer(status: int, kind: str, body: bytes) -> bytes:
    first = f"HTTP/1.1 {status} {_REASONS.get(status, 'OK' if status == 200 else 'Error')}"
    return f"{first}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
