"""A server of Unity Catalog's published REST API 2.1, as far as external tables need it.

It accepts what the published `api/all.yaml` allows and refuses everything else: unknown fields, missing required ones,
and values outside an enumeration. Credentials of tables are fixed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

API = "/api/2.1/unity-catalog"
_CREATE_TABLE = {
    "name",
    "catalog_name",
    "schema_name",
    "table_type",
    "data_source_format",
    "columns",
    "storage_location",
}
_OPTIONAL_TABLE = {"comment", "properties"}
_COLUMN_TYPES = {"name": str, "type_text": str, "type_json": str, "type_name": str, "type_precision": int} | {
    "type_scale": int, "position": int, "comment": str, "nullable": bool, "partition_index": int
}  # fmt: skip
_TYPE_NAMES = {
    *("BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "STRING"),
    *("BINARY", "DECIMAL", "ARRAY", "STRUCT", "MAP", "VARIANT"),
}
_MAX_PAGE = 50


class UnityServer:
    """The state: catalogs, schemas and tables by full name. `failures` answers that many requests with 503."""

    def __init__(self, token: str = "") -> None:
        self.catalogs: dict[str, Any] = {}
        self.schemas: dict[str, Any] = {}
        self.tables: dict[str, Any] = {}
        self.requests: list[str] = []
        self.failures = 0
        self.token = token
        self.url = ""

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        self.requests.append(f"{method} {path}")
        kind, _, name = path.removeprefix("/").partition("/")
        if kind == "temporary-table-credentials":
            (table,) = [one for one in self.tables.values() if one["table_id"] == body["table_id"]]
            keys = {"access_key_id": "key", "secret_access_key": "secret", "session_token": "token"}
            until = 4_102_444_800_000
            return 200, {"aws_temp_credentials": keys, "expiration_time": until, "url": table["storage_location"]}
        stored = {"catalogs": self.catalogs, "schemas": self.schemas, "tables": self.tables}[kind]
        if method == "POST":
            return self._create(kind, stored, body)
        if not name:
            return self._list(query)
        if name not in stored:
            return 404, {"error_code": "NOT_FOUND", "message": f"{name} not found"}
        return (200, stored[name]) if method == "GET" else (200, stored.pop(name) and {})

    def _create(self, kind: str, stored: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        parents = [body[key] for key in ("catalog_name", "schema_name") if key in body]
        full_name = ".".join([*parents, body["name"]])
        problem = _table_problem(body) if kind == "tables" else ""
        if problem:
            return 400, {"error_code": "INVALID_ARGUMENT", "message": problem}
        if parents and ".".join(parents) not in {**self.catalogs, **self.schemas}:
            return 404, {"error_code": "NOT_FOUND", "message": f"{'.'.join(parents)} not found"}
        if full_name in stored:
            return 409, {"error_code": "ALREADY_EXISTS", "message": f"{full_name} already exists"}
        stored[full_name] = {**body, "full_name": full_name, "created_at": 1, "updated_at": 1}
        if kind == "tables":
            stored[full_name]["table_id"] = f"id-of-{full_name}"
        return 200, stored[full_name]

    def _list(self, query: dict[str, str]) -> tuple[int, Any]:
        parent = f"{query['catalog_name']}.{query['schema_name']}"
        if parent not in self.schemas:
            return 404, {"error_code": "NOT_FOUND", "message": f"{parent} not found"}
        names = sorted(name for name in self.tables if name.startswith(f"{parent}."))
        start, size = int(query.get("page_token") or 0), min(int(query.get("max_results") or _MAX_PAGE), _MAX_PAGE)
        page: dict[str, Any] = {"tables": [{"name": name.rpartition(".")[2]} for name in names[start : start + size]]}
        return 200, page | ({"next_page_token": str(start + size)} if start + size < len(names) else {})


def _table_problem(body: dict[str, Any]) -> str:
    if not _CREATE_TABLE <= {*body} <= _CREATE_TABLE | _OPTIONAL_TABLE:
        return f"fields {sorted({*body} ^ _CREATE_TABLE)}"
    if body["table_type"] != "EXTERNAL" or body["data_source_format"] != "DELTA":
        return "only external Delta tables"
    if not all(isinstance(value, str) for value in (body.get("properties") or {}).values()):
        return "properties are texts"
    for index, column in enumerate(body["columns"]):
        wrong = [name for name, value in column.items() if not isinstance(value, _COLUMN_TYPES.get(name, type(None)))]
        if wrong or column["type_name"] not in _TYPE_NAMES or column["position"] != index:
            return f"column {column['name']}: {wrong or column['type_name']}"
        if column["type_name"] == "DECIMAL" and not {"type_precision", "type_scale"} <= {*column}:
            return f"column {column['name']} has no precision and scale"
        json.loads(column["type_json"])
    return ""


@contextmanager
def running_unity(token: str = "") -> Iterator[UnityServer]:
    """Serves the API on a free port; yields its state."""
    state = UnityServer(token)

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, answer = 503, {"error_code": "UNAVAILABLE", "message": "starting"}
            if state.failures:
                state.failures -= 1
            elif state.token and self.headers.get("Authorization") != f"Bearer {state.token}":
                status, answer = 401, {"error_code": "UNAUTHENTICATED", "message": "no valid token"}
            else:
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                path = unquote(parts.path).removeprefix(API).rstrip("/")
                status, answer = state.answer(self.command, path, query, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _respond

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
