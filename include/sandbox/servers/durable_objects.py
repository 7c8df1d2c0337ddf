"""An S3 endpoint that stores objects in a durable store, while moto handles buckets and event notifications.

Object requests are signed again and forwarded to the store. Bucket requests go to moto and are written to the journal,
from which buckets are recreated at the next start. An object's notification is published after the store has the object
and before the client gets its response. The pending notification is written to the journal before the object is put, so
a crash loses none: the next start publishes it. Notifications are delivered at least once, like those of S3.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import urllib3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.s3.models import s3_backends
from moto.s3.notifications import S3NotificationEvent, _get_s3_event
from moto.sns.models import sns_backends
from moto.sqs.models import sqs_backends

from sandbox.servers.durable_messaging import ACCOUNT
from sandbox.servers.landing import LAKE_BUCKET, VAULT_BUCKET
from sandbox.servers.landing_journal import Announcement, LandingJournal
from sandbox.servers.object_store import ObjectStoreAddress

log = logging.getLogger(__name__)
Environ = dict[str, Any]
Respond = Callable[..., Any]
WsgiApp = Callable[[Environ, Respond], Iterable[bytes]]

_S3 = re.compile(r"/s3/aws4_request")
_AUTH_QUERY = "X-Amz-"
#: Headers of a single connection; new ones are computed for the store.
_HOP_HEADERS = {"host", "authorization", "connection", "content-length", "transfer-encoding", "expect", "date"}
_HOP_HEADERS |= {
    "x-amz-date",
    "x-amz-content-sha256",
    "x-amz-security-token",
    "x-amz-decoded-content-length",
    "x-amz-trailer",
}
_RESPONSE_HOP_HEADERS = {"connection", "transfer-encoding", "keep-alive", "server", "date"}
#: Query parameters of bucket requests that the store answers.
_OBJECT_QUERIES = {"list-type", "delete", "uploads", "prefix", "delimiter", "marker", "max-keys", "start-after"}
_OK = range(200, 300)
_RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class _Target:
    """The target of a request: bucket, URL-encoded key, and query. `address` is path and query without signature."""

    bucket: str
    key: str
    query: dict[str, str]
    address: str

    @classmethod
    def from_environ(cls, environ: Environ) -> _Target:
        path, _, query = str(environ.get("REQUEST_URI") or environ["PATH_INFO"]).partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        if any(name.startswith(_AUTH_QUERY) for name, _ in pairs):
            pairs = [(name, value) for name, value in pairs if not name.startswith(_AUTH_QUERY)]
            query = urlencode(pairs)
        bucket, _, key = path.lstrip("/").partition("/")
        # Some clients add `x-id` with the operation's name, which does not affect routing.
        decides = {name: value for name, value in pairs if name != "x-id"}
        return cls(bucket, key, decides, path + (f"?{query}" if query else ""))

    def is_about_objects(self, method: str) -> bool:
        """Returns whether the store answers the request instead of moto."""
        if self.key:
            return True
        listing = method == "GET" and (not self.query or bool(_OBJECT_QUERIES & self.query.keys()))
        return bool(self.bucket) and (listing or (method == "POST" and "delete" in self.query))

    def created_event(self, method: str, headers: dict[str, str]) -> S3NotificationEvent | None:
        """Returns the notification event of a request that creates an object; None for other requests."""
        if method == "POST" and "uploadId" in self.query:
            return S3NotificationEvent.OBJECT_CREATED_COMPLETE_MULTIPART_UPLOAD_EVENT
        if method != "PUT" or not self.key or self.query:
            return None
        copied = "x-amz-copy-source" in headers
        return S3NotificationEvent.OBJECT_CREATED_COPY_EVENT if copied else S3NotificationEvent.OBJECT_CREATED_PUT_EVENT


class DurableObjects:
    """WSGI application in front of moto. Thread-safe."""

    def __init__(self, moto: WsgiApp, *, store: ObjectStoreAddress, journal: LandingJournal) -> None:
        self._moto = moto
        self._store = store
        self._journal = journal
        self._pool = urllib3.PoolManager(maxsize=32, timeout=urllib3.Timeout(connect=5, read=120), retries=False)
        self._ended = threading.Event()
        self._unannounced: SimpleQueue[Announcement] = SimpleQueue()
        threading.Thread(target=self._announce_pending_items, daemon=True).start()

    def __call__(self, environ: Environ, respond: Respond) -> Iterable[bytes]:
        """Handles one request."""
        method, target = str(environ["REQUEST_METHOD"]), _Target.from_environ(environ)
        signed = f"{environ.get('HTTP_AUTHORIZATION', '')}?{environ.get('QUERY_STRING', '').replace('%2F', '/')}"
        if not _S3.search(signed):
            return self._moto(environ, respond)
        if self._is_denied(target, environ):
            return _respond_error(
                "403 Forbidden", "AccessDenied", "This endpoint serves only the landing bucket.", method, respond
            )
        try:
            # For a missing bucket moto creates it or responds with the error.
            if target.bucket not in s3_backends[ACCOUNT]["aws"].buckets or not target.is_about_objects(method):
                return self._handle_bucket(method, target, environ, respond)
            body, headers = _body_and_headers(environ)
            event = target.created_event(method, headers)
            if event is None:
                return _forward_response(self._request_store(method, target.address, headers, body), respond)
            return self._create(event, target, (method, headers, body), respond)
        except urllib3.exceptions.HTTPError as error:
            log.warning("%s %s: the store does not answer: %s", method, target.address, error)
            return _respond_error(
                "503 Slow Down", "SlowDown", "The store of landed objects does not answer.", method, respond
            )

    @staticmethod
    def _is_denied(target: _Target, environ: Environ) -> bool:
        """Returns whether a request could reach the lake or the vault, whose keys this endpoint does not verify.

        Keys with `.` or `..` segments are denied too, because they could escape their bucket in the store.
        """
        source = unquote(str(environ.get("HTTP_X_AMZ_COPY_SOURCE", "")))
        places = [unquote(f"{target.bucket}/{target.key}"), source.lstrip("/").partition("?")[0]]
        return any(
            place.partition("/")[0] in (LAKE_BUCKET, VAULT_BUCKET)
            or {".", ".."} & set(place.replace("\\", "/").split("/"))
            for place in places
        )

    def announce_pending(self) -> None:
        """Publishes, in the background, notifications that were pending when the process ended."""
        for item in self._journal.pending():
            self._unannounced.put(item)

    def close(self) -> None:
        """Stops background publishing and closes connections to the store."""
        self._ended.set()
        self._pool.clear()

    def recreate_buckets(self, endpoint: str) -> None:
        """Recreates the journal's buckets and their settings in moto. Their topics and queues must exist.

        Args:
            endpoint: moto's own address, not that of this application.
        """
        for declaration in self._journal.declarations("bucket").values():
            answer = self._pool.request(
                "PUT", endpoint + declaration["address"], headers=declaration["headers"], body=declaration["body"]
            )
            if answer.status not in _OK:
                log.warning(
                    "%s could not be recreated: %s %s", declaration["address"], answer.status, answer.data[:500]
                )

    # -- buckets -------------------------------------------------------------------------------------------------

    def _handle_bucket(self, method: str, target: _Target, environ: Environ, respond: Respond) -> Iterable[bytes]:
        if method not in ("PUT", "DELETE") or not target.bucket:
            return self._moto(environ, respond)
        body = _read_body(environ)
        answers: list[tuple[Any, ...]] = []
        content = b"".join(self._moto(environ | {"wsgi.input": BytesIO(body)}, lambda *answer: answers.append(answer)))
        if answers and str(answers[0][0]).startswith("2"):
            self._store_bucket(method, target, environ, body)
        respond(*answers[0])
        return [content]

    def _store_bucket(self, method: str, target: _Target, environ: Environ, body: bytes) -> None:
        if not target.query:
            self._request_store(method, f"/{target.bucket}", {}, b"").drain_conn()
        name = f"{target.bucket}?{'&'.join(sorted(target.query))}"
        if method == "DELETE":
            self._journal.delete_declaration("bucket", name)
        else:
            headers = {"Authorization": environ["HTTP_AUTHORIZATION"], "Content-Type": "application/xml"}
            self._journal.declare("bucket", name, {"address": target.address, "headers": headers, "body": body})

    # -- objects -------------------------------------------------------------------------------------------------

    def _create(
        self, event: S3NotificationEvent, target: _Target, request: tuple[str, dict[str, str], bytes], respond: Respond
    ) -> Iterable[bytes]:
        method, headers, body = request
        number = self._journal.add_pending(target.bucket, target.key, event.value)
        item = Announcement(number, target.bucket, target.key, event.value)
        try:
            answer = self._request_store(method, target.address, headers, body)
            content = answer.read(decode_content=False)
            # A completed multipart upload can fail with status 200 and an error body.
            if answer.status in _OK and not content.lstrip().startswith(b"<Error"):
                self._announce(item)
            else:
                self._journal.delete_pending(number)
        except urllib3.exceptions.HTTPError:
            # The store may have the object although it did not respond, so its notification is retried in the
            # background.
            self._unannounced.put(item)
            raise
        respond(f"{answer.status} {answer.reason}", _response_headers(answer, length=len(content)))
        return [content]

    def _announce_pending_items(self) -> None:
        """Publishes queued notifications, in a thread; waits for the store without limit."""
        while not self._ended.is_set():
            item = self._unannounced.get()
            while not self._ended.is_set():
                try:
                    self._announce(item)
                except urllib3.exceptions.HTTPError:
                    self._ended.wait(_RETRY_SECONDS)
                else:
                    break

    def _announce(self, item: Announcement) -> None:
        """Publishes the notification of an object if it exists, and removes it from the journal."""
        head = self._request_store("HEAD", f"/{item.bucket}/{item.key}", {}, b"")
        # Read completely, because a pooled connection with an unread response would fail the next request.
        head.drain_conn()
        if head.status in _OK:
            self._publish(item, size=int(head.headers["Content-Length"]), etag=head.headers["ETag"])
        self._journal.delete_pending(item.number)

    def _publish(self, item: Announcement, *, size: int, etag: str) -> None:
        bucket = s3_backends[ACCOUNT]["aws"].buckets.get(item.bucket)
        if bucket is None or bucket.notification_configuration is None:
            return
        key = SimpleNamespace(name=unquote(item.key), size=size, etag=etag)
        event = S3NotificationEvent(item.event)
        # Not moto's own function, which ignores failures of a topic.
        for topic in bucket.notification_configuration.topic:
            if topic.matches(event, key.name):
                message = json.dumps(_get_s3_event(event, bucket, key, topic.id))
                sns_backends[ACCOUNT][topic.arn.split(":")[3]].publish(arn=topic.arn, message=message)
        for queue in bucket.notification_configuration.queue:
            if queue.matches(event, key.name):
                message = json.dumps(_get_s3_event(event, bucket, key, queue.id))
                sqs_backends[ACCOUNT][queue.arn.split(":")[3]].send_message(queue.arn.split(":")[5], message)

    def _request_store(
        self, method: str, address: str, headers: dict[str, str], body: bytes
    ) -> urllib3.BaseHTTPResponse:
        """Sends a signed request to the store; returns the response with its body unread."""
        url = self._store.endpoint + address
        request = AWSRequest(method=method, url=url, headers=headers, data=body)
        keys = Credentials(self._store.access_key, self._store.secret_key)
        S3SigV4Auth(keys, "s3", self._store.region).add_auth(request)
        # Set for an empty body too; otherwise a store waits for the body.
        sent = dict(request.headers.items()) | ({"Content-Length": str(len(body))} if method in ("PUT", "POST") else {})
        return self._pool.request(
            method, url, body=body, headers=sent, preload_content=False, redirect=False, decode_content=False
        )


def _read_body(environ: Environ) -> bytes:
    """Reads a request body: `Content-Length` bytes, or to the end if it is chunked."""
    stream = environ["wsgi.input"]
    length = environ.get("CONTENT_LENGTH")
    if length:
        return bytes(stream.read(int(length)))
    return bytes(stream.read()) if environ.get("wsgi.input_terminated") else b""


def _body_and_headers(environ: Environ) -> tuple[bytes, dict[str, str]]:
    """Returns the decoded body, and the headers to forward with it."""
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): str(value)
        for name, value in environ.items()
        if name.startswith("HTTP_") or name == "CONTENT_TYPE"
    }
    body = _read_body(environ)
    if headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        body = _decode_chunked(body)
        encodings = [part.strip() for part in headers.pop("content-encoding", "").split(",")]
        if other_encodings := ",".join(part for part in encodings if part and part != "aws-chunked"):
            headers["content-encoding"] = other_encodings
    forwarded = {name: value for name, value in headers.items() if name not in _HOP_HEADERS and value}
    return body, {name: value for name, value in forwarded.items() if not name.startswith("x-amz-checksum")}


def _decode_chunked(body: bytes) -> bytes:
    """Decodes a body in AWS's signed chunks; drops trailers."""
    parts = []
    while body:
        head, _, rest = body.partition(b"\r\n")
        size = int(head.split(b";")[0] or b"0", 16)
        if not size:
            break
        parts.append(rest[:size])
        body = rest[size + 2 :]
    return b"".join(parts)


def _respond_error(status: str, code: str, message: str, method: str, respond: Respond) -> Iterable[bytes]:
    content = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    respond(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(content)))])
    return [b"" if method == "HEAD" else content]


def _response_headers(answer: urllib3.BaseHTTPResponse, *, length: int | None = None) -> list[tuple[str, str]]:
    dropped = _RESPONSE_HOP_HEADERS | ({"content-length"} if length is not None else set())
    headers = [(name, value) for name, value in answer.headers.items() if name.lower() not in dropped]
    return headers + ([("Content-Length", str(length))] if length is not None else [])


def _forward_response(answer: urllib3.BaseHTTPResponse, respond: Respond) -> Iterable[bytes]:
    if "Content-Length" in answer.headers:
        respond(f"{answer.status} {answer.reason}", _response_headers(answer))
        return answer.stream(1 << 20, decode_content=False)
    content = answer.read(decode_content=False)
    respond(f"{answer.status} {answer.reason}", _response_headers(answer, length=len(content)))
    return [content]
