"""Unity Catalog as a catalog, by the published REST API 2.1 of its open-source server.

The API has no call that changes a table: a changed entry is deleted and created again, which takes two requests, in
between which readers do not find the name. Tables are external, so the data stay. Should the second request fail, the
next synchronisation creates the entry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx2
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from deltaworks.catalogs.base import Registered, entry_properties, in_scheme
from deltaworks.errors import ConfigError, TransientError
from deltaworks.specs.base import resolve_text
from deltaworks.specs.environment_sections import UnityCatalogSpec
from deltaworks.tables.entries import ColumnEntry, TableEntry

_API: Final = "/api/2.1/unity-catalog"
#: Largest page that a server returns.
_PAGE: Final = 50
_ATTEMPTS: Final = 4
_ABSENT, _CONFLICT, _TOO_MANY, _SERVER_ERROR, _CLIENT_ERROR = 404, 409, 429, 500, 400
_DECIMAL: Final = re.compile(r"^decimal\((\d+),\s*(\d+)\)$")
#: Names of types in the API by Delta's, where they are not the same in capitals.
_TYPE_NAMES: Final = {"integer": "INT"}


class _Unavailable(Exception):
    """The server did not answer, or answered that it cannot now."""


class UnityCatalog:
    """A catalog of a Unity Catalog server; see `CatalogClient`.

    Requests are retried four times; https:// uses the proxy of the environment variables, if any.

    Args:
        transport: sends the requests in place of the network.
    """

    scheme = "s3"

    def __init__(self, spec: UnityCatalogSpec, *, transport: httpx2.BaseTransport | None = None) -> None:
        self._spec = spec
        url = resolve_text(spec.url).rstrip("/")
        headers = {} if spec.token is None else {"Authorization": f"Bearer {spec.token.resolve()}"}
        self._client = httpx2.Client(
            base_url=url + _API,
            headers=headers,
            timeout=spec.timeout_seconds,
            transport=transport,
            trust_env=url.startswith("https://"),
        )
        self._url = url

    def render(self, entry: TableEntry) -> Mapping[str, Any]:
        """Returns the entry as the body of `createTable`."""
        return {
            "name": entry.name,
            "catalog_name": self._spec.catalog,
            "schema_name": entry.pipeline,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "storage_location": in_scheme(entry.location, self.scheme),
            "comment": entry.description,
            "properties": entry_properties(entry),
            "columns": [_column(position, column) for position, column in enumerate(entry.columns)],
        }

    def registered(self, pipeline: str) -> Mapping[str, Registered]:
        """Returns the pipeline's tables."""
        tables = (self._get(f"/tables/{self._full_name(pipeline, name)}") for name in self._table_names(pipeline))
        return {table["name"]: _registered(table) for table in tables if table is not None}

    def _table_names(self, pipeline: str) -> Iterator[str]:
        token = ""
        while True:
            query = {"catalog_name": self._spec.catalog, "schema_name": pipeline, "max_results": str(_PAGE)}
            page = self._get("/tables", {**query, **({"page_token": token} if token else {})})
            yield from (table["name"] for table in (page or {}).get("tables") or ())
            token = (page or {}).get("next_page_token") or ""
            if not token:
                return

    def ensure_schema(self, pipeline: str, description: str) -> None:
        """Creates the catalog, and the schema of a pipeline, unless they exist."""
        catalog = self._spec.catalog
        if self._get(f"/schemas/{catalog}.{pipeline}") is not None:
            return
        if self._get(f"/catalogs/{catalog}") is None:
            self._send("POST", "/catalogs", {"name": catalog, "comment": "Tables of Deltaworks"}, allowed=_CONFLICT)
        body = {"name": pipeline, "catalog_name": catalog, "comment": description}
        self._send("POST", "/schemas", body, allowed=_CONFLICT)

    def put(self, entry: TableEntry, present: Registered | None) -> None:
        """Creates the table's entry, after deleting a present one."""
        if present is not None:
            self.drop(entry.pipeline, entry.name)
        self._send("POST", "/tables", dict(self.render(entry)))

    def drop(self, pipeline: str, table: str) -> None:
        """Removes the table's entry; succeeds if there is none."""
        self._send("DELETE", f"/tables/{self._full_name(pipeline, table)}", allowed=_ABSENT)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _full_name(self, pipeline: str, table: str) -> str:
        return f"{self._spec.catalog}.{pipeline}.{table}"

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """Returns the JSON of a resource; None if it does not exist."""
        response = self._send("GET", path, query=query, allowed=_ABSENT)
        return None if response.status_code == _ABSENT else response.json()

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        allowed: int = 0,
    ) -> httpx2.Response:
        """Sends a request until the server answers.

        Args:
            allowed: a status of errors that the caller handles.

        Raises:
            TransientError: CATALOG_UNAVAILABLE. ConfigError: CATALOG_REFUSED.
        """
        try:
            response = _RETRY(self._send_once, method, path, body, query)
        except _Unavailable as error:
            raise TransientError("CATALOG_UNAVAILABLE", f"Unity Catalog at {self._url}: {error}.") from error
        if response.status_code >= _CLIENT_ERROR and response.status_code != allowed:
            raise ConfigError(
                "CATALOG_REFUSED",
                f"Unity Catalog at {self._url} refuses {method} {path} with {response.status_code}: "
                f"{response.text[:300]}.",
            )
        return response

    def _send_once(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None
    ) -> httpx2.Response:
        try:
            response = self._client.request(method, path, json=body, params=query)
        except httpx2.TransportError as error:
            raise _Unavailable(f"it does not answer ({type(error).__name__})") from error
        if response.status_code == _TOO_MANY or response.status_code >= _SERVER_ERROR:
            raise _Unavailable(f"it answers {response.status_code}: {response.text[:300]}")
        return response


_RETRY: Final = Retrying(
    retry=retry_if_exception_type(_Unavailable),
    stop=stop_after_attempt(_ATTEMPTS),
    wait=wait_exponential_jitter(initial=0.2, max=3.0),
    reraise=True,
)


def _column(position: int, column: ColumnEntry) -> dict[str, Any]:
    """Returns a column as the API's `ColumnInfo`. `type_json` is the field of Spark's schema, as its connector writes
    it.
    """
    metadata = {**({"comment": column.description} if column.description else {})}
    metadata |= {"deltaworks_personal": "true"} if column.personal else {}
    field = {"name": column.name, "type": column.delta_type, "nullable": True, "metadata": metadata}
    decimal = _DECIMAL.match(column.type)
    return {
        "name": column.name,
        "type_text": column.type,
        "type_json": json.dumps(field, separators=(",", ":")),
        "type_name": _type_name(column.delta_type),
        **({"type_precision": int(decimal[1]), "type_scale": int(decimal[2])} if decimal else {}),
        "position": position,
        **({"comment": column.description} if column.description else {}),
        "nullable": True,
        **({} if column.partition is None else {"partition_index": column.partition}),
    }


def _type_name(delta_type: Any) -> str:
    name = str(delta_type if isinstance(delta_type, str) else delta_type["type"]).partition("(")[0]
    return _TYPE_NAMES.get(name, name.upper())


#: Fields of the API's answers that a request has too.
_TABLE_FIELDS: Final = (
    "name", "catalog_name", "schema_name", "table_type", "data_source_format", "storage_location", "comment",
)  # fmt: skip
_COLUMN_FIELDS: Final = (
    "name", "type_text", "type_json", "type_name", "type_precision", "type_scale", "position", "comment", "nullable",
    "partition_index",
)  # fmt: skip


def _registered(table: Mapping[str, Any]) -> Registered:
    columns = sorted(table.get("columns") or (), key=lambda column: column.get("position") or 0)
    content: dict[str, Any] = {name: table.get(name) for name in _TABLE_FIELDS}
    location = content["storage_location"] = _plain_location(str(table.get("storage_location") or ""))
    content["properties"] = table.get("properties") or {}
    content["columns"] = [
        {name: column[name] for name in _COLUMN_FIELDS if column.get(name) is not None} for column in columns
    ]
    return Registered(location=location, content=content)


def _plain_location(location: str) -> str:
    """Returns a location as it was sent: servers add a slash at the end, or shorten `file:///`."""
    plain = location.rstrip("/")
    return re.sub(r"^file:/+", "file:///", plain)
