"""The Flight SQL service: requests of clients, their logins, and errors with conditions of Deltaworks.

Every request is authenticated by a middleware, also the handshake. A request's client is detected as gone by the
engine's watch; the middleware ends the query when the request does.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import duckdb
import pyarrow as pa
from pyarrow import flight

from deltaworks.errors import ConfigError, DeltaworksError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.sql_server import SqlRoleSpec
from deltaworks.sql_server import messages, metadata
from deltaworks.sql_server.query_engine import Caller, QueryEngine, RunningQuery
from deltaworks.sql_server.references import CATALOG
from deltaworks.sql_server.statements import StatementStore
from deltaworks.sql_server.users import Access, Authenticator, LoginError, User
from deltaworks.tables.duckdb_session import describe_error

_LOGGER = logging.getLogger(__name__)
_MIDDLEWARE: Final = "login"
_PREPARE, _CLOSE = "CreatePreparedStatement", "ClosePreparedStatement"
_CANCEL_QUERY, _CANCEL_INFO = "CancelQuery", "CancelFlightInfo"
_ACTIONS: Final = {
    _PREPARE: "Creates a prepared statement.",
    _CLOSE: "Closes a prepared statement.",
    _CANCEL_QUERY: "Cancels a query.",
    _CANCEL_INFO: "Cancels a query.",
}
#: The result of a cancellation: cancelled, or there is nothing to cancel.
_CANCELLED, _NOT_CANCELLABLE = 1, 3
_KEYS: Final = {
    "CommandGetPrimaryKeys": metadata.PRIMARY_KEYS,
    "CommandGetExportedKeys": metadata.FOREIGN_KEYS,
    "CommandGetImportedKeys": metadata.FOREIGN_KEYS,
    "CommandGetCrossReference": metadata.FOREIGN_KEYS,
}

_LOGIN_REFUSED: Final = "SQL_LOGIN_REFUSED"


class _LoginMiddleware(flight.ServerMiddleware):  # type: ignore[misc]
    """The login of one request, and the query that it runs."""

    def __init__(self, user: User, token: str) -> None:
        self.user, self._token = user, token
        self.query: RunningQuery | None = None

    def sending_headers(self) -> dict[str, str]:
        """Returns the token, with which a client continues after its login."""
        return {"authorization": f"Bearer {self._token}"}

    def call_completed(self, exception: Exception | None) -> None:
        """Ends the request's query."""
        if self.query is not None:
            self.query.detach()


class _LoginFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Any]) -> _LoginMiddleware:
        """Verifies the login of a request."""
        values = headers.get("authorization") or headers.get("Authorization") or [""]
        value = values[0].decode("latin-1") if isinstance(values[0], bytes) else str(values[0])
        try:
            return _LoginMiddleware(*self._authenticator.login(value))
        except LoginError as error:
            if error.busy:
                raise flight.FlightUnavailableError(f"[{_LOGIN_REFUSED}] {error}") from None
            raise flight.FlightUnauthenticatedError(f"[{_LOGIN_REFUSED}] {error}") from None


class _NoHandshake(flight.ServerAuthHandler):  # type: ignore[misc]
    """Answers the handshake, with which clients begin: the middleware has verified it already."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Does nothing."""

    def is_valid(self, token: bytes) -> str:
        """Accepts every token of the handshake, which has none."""
        return ""


class SqlServer(flight.FlightServerBase):  # type: ignore[misc]
    """The server. It listens as soon as it is created; its threads are Arrow's.

    Args:
        location: such as `grpc+tls://0.0.0.0:31337`.
        certificates: pairs of certificate chain and key, PEM.
        roles: by name, as users have them.
    """

    def __init__(
        self,
        location: str,
        *,
        engine: QueryEngine,
        authenticator: Authenticator,
        roles: Mapping[str, SqlRoleSpec],
        catalog: Catalog,
        certificates: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        self._engine, self._roles, self._catalog = engine, roles, catalog
        self._statements = StatementStore()
        super().__init__(
            location,
            auth_handler=_NoHandshake(),
            tls_certificates=certificates,
            middleware={_MIDDLEWARE: _LoginFactory(authenticator)},
        )

    def reload(self, catalog: Catalog) -> None:
        """Uses changed declarations of pipelines from the next request on."""
        self._catalog = catalog
        self._engine.reload(catalog)

    def get_flight_info(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> Any:
        """Plans a statement or a list of metadata. Returns its schema and the ticket of its rows."""
        with _flight_errors():
            command = descriptor.command or b""
            name, message = messages.decode(command)
            caller = self._caller(context)
            if name == "CommandStatementQuery":
                _reject_transaction(message)
                statement = self._engine.plan(caller, message.query)
            elif name == "CommandPreparedStatementQuery":
                prepared = self._statements.get(caller.user, message.prepared_statement_handle)
                statement = self._engine.plan(caller, prepared.parsed.text, prepared.parameters)
            else:
                return _info(descriptor, self._metadata_schema(name, message), command)
            handle = self._statements.add(caller.user, statement)
            ticket = messages.encode("TicketStatementQuery", statement_handle=handle)
            return _info(descriptor, statement.schema, ticket)

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> Any:
        """Returns the schema of a statement or a list of metadata."""
        with _flight_errors():
            name, message = messages.decode(descriptor.command or b"")
            caller = self._caller(context)
            if name == "CommandStatementQuery":
                return flight.SchemaResult(self._engine.plan(caller, message.query).schema)
            if name == "CommandPreparedStatementQuery":
                prepared = self._statements.get(caller.user, message.prepared_statement_handle)
                return flight.SchemaResult(prepared.schema)
            return flight.SchemaResult(self._metadata_schema(name, message))

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> Any:
        """Runs a planned statement, or returns a list of metadata."""
        with _flight_errors():
            name, message = messages.decode(ticket.ticket)
            caller = self._caller(context)
            if name == "TicketStatementQuery":
                handle = message.statement_handle
                statement = self._statements.get(caller.user, handle)
                # A plan is run once, and would keep versions of tables in memory.
                self._statements.remove(caller.user, handle)
            elif name == "CommandPreparedStatementQuery":
                handle = message.prepared_statement_handle
                prepared = self._statements.get(caller.user, handle)
                statement = self._engine.plan(caller, prepared.parsed.text, prepared.parameters)
            else:
                return flight.RecordBatchStream(self._metadata(caller, name, message))
            query = self._engine.run(caller, statement, handle=handle)
            context.get_middleware(_MIDDLEWARE).query = query
            return flight.GeneratorStream(query.schema, _stream(query))

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Binds the parameters of a prepared statement. All other uploads are refused: the server is read-only."""
        with _flight_errors():
            name, message = messages.decode(descriptor.command or b"")
            caller = self._caller(context)
            if name != "CommandPreparedStatementQuery":
                raise ConfigError("SQL_REFUSED", "The server is read-only: write one SELECT and nothing else.")
            handle = message.prepared_statement_handle
            prepared = self._statements.get(caller.user, handle)
            bound = self._engine.bind(prepared, _first_rows(reader))
            self._statements.replace(caller.user, handle, bound)
            result = messages.encode_bare("DoPutPreparedStatementResult", prepared_statement_handle=handle)
            writer.write(pa.py_buffer(result))

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        """Creates or closes a prepared statement, or cancels a query."""
        with _flight_errors():
            caller, body = self._caller(context), action.body.to_pybytes()
            if action.type == _PREPARE:
                return iter([flight.Result(self._prepare(caller, body))])
            if action.type == _CLOSE:
                _, message = messages.decode(body)
                self._statements.remove(caller.user, message.prepared_statement_handle)
                return iter([])
            if action.type in (_CANCEL_QUERY, _CANCEL_INFO):
                return iter([flight.Result(self._cancel(caller, body, is_packed=action.type == _CANCEL_QUERY))])
            raise ConfigError("SQL_REFUSED", f"The server has no action {action.type[:100]!r}; it is read-only.")

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Returns the supported actions."""
        return list(_ACTIONS.items())

    def _prepare(self, caller: Caller, body: bytes) -> bytes:
        _, message = messages.decode(body)
        _reject_transaction(message)
        statement = self._engine.prepare(caller, message.query)
        handle = self._statements.add(caller.user, statement)
        parameters = statement.parameter_schema.remove_metadata()
        return messages.encode(
            "ActionCreatePreparedStatementResult",
            prepared_statement_handle=handle,
            dataset_schema=statement.schema.serialize().to_pybytes(),
            parameter_schema=pa.schema([pa.field(field.name, field.type) for field in parameters])
            .serialize()
            .to_pybytes(),
        )

    def _cancel(self, caller: Caller, body: bytes, *, is_packed: bool) -> bytes:
        """Cancels the query of a flight: `CancelQuery` of Flight SQL, and `CancelFlightInfo` of Flight."""
        _, message = (
            messages.decode(body) if is_packed else ("", messages.decode_bare("ActionCancelQueryRequest", body))
        )
        info = flight.FlightInfo.deserialize(message.info)
        cancelled = False
        for endpoint in info.endpoints:
            name, ticket = messages.decode(endpoint.ticket.ticket)
            if name == "TicketStatementQuery":
                cancelled = self._engine.cancel(caller.user, ticket.statement_handle) or cancelled
        result = _CANCELLED if cancelled else _NOT_CANCELLABLE
        encode = messages.encode if is_packed else messages.encode_bare
        return encode("ActionCancelQueryResult", result=result)

    def _caller(self, context: flight.ServerCallContext) -> Caller:
        user: User = context.get_middleware(_MIDDLEWARE).user
        roles = [self._roles[name] for name in user.roles if name in self._roles]
        access = Access.of_roles(roles, self._catalog.pipelines)
        return Caller(user=user.name, access=access, peer=context.peer(), is_cancelled=context.is_cancelled)

    def _metadata_schema(self, name: str, message: Any) -> pa.Schema:
        schemas = {
            "CommandGetCatalogs": metadata.CATALOGS,
            "CommandGetDbSchemas": metadata.DB_SCHEMAS,
            "CommandGetTableTypes": metadata.TABLE_TYPES,
            "CommandGetSqlInfo": metadata.SQL_INFO,
            "CommandGetXdbcTypeInfo": metadata.TYPE_INFO,
            **_KEYS,
        }
        if name == "CommandGetTables":
            return metadata.TABLES_WITH_SCHEMA if message.include_schema else metadata.TABLES
        if name not in schemas:
            raise ConfigError("SQL_REFUSED", "The server is read-only: write one SELECT and nothing else.")
        return schemas[name]

    def _metadata(self, caller: Caller, name: str, message: Any) -> pa.Table:
        if name == "CommandGetDbSchemas":
            matches = metadata.like(_optional(message, "db_schema_filter_pattern"))
            schemas = self._engine.names(caller.access).schemas if _is_own_catalog(message, "catalog") else []
            return metadata.db_schemas(filter(matches, schemas))
        if name == "CommandGetXdbcTypeInfo":
            return metadata.type_info(message.data_type if message.HasField("data_type") else None)
        tables: Mapping[str, Callable[[], pa.Table]] = {
            "CommandGetCatalogs": metadata.catalogs,
            "CommandGetTableTypes": metadata.table_types,
            "CommandGetSqlInfo": lambda: metadata.sql_info(message.info),
            "CommandGetTables": lambda: self._tables(caller, message),
        }
        return tables[name]() if name in tables else self._metadata_schema(name, message).empty_table()

    def _tables(self, caller: Caller, message: Any) -> pa.Table:
        schema_matches = metadata.like(_optional(message, "db_schema_filter_pattern"))
        name_matches = metadata.like(_optional(message, "table_name_filter_pattern"))
        kinds = set(message.table_types)

        def kind_of(schema: str, name: str) -> str:
            return metadata.VIEW if self._engine.is_view(caller, schema, name) else metadata.TABLE

        def matches(schema: str, name: str) -> bool:
            is_kind = not kinds or kind_of(schema, name) in kinds
            return is_kind and schema_matches(schema) and name_matches(name)

        rows: list[tuple[Any, ...]] = []
        if _is_own_catalog(message, "catalog"):
            existing = self._engine.existing_tables(caller, matches, with_schema=message.include_schema)
            rows = [
                (
                    CATALOG,
                    schema,
                    name,
                    kind_of(schema, name),
                    *([_table_schema(row_schema)] if row_schema is not None else []),
                )
                for (schema, name), row_schema in existing.items()
            ]
        return metadata.table_of(self._metadata_schema("CommandGetTables", message), rows)


def _table_schema(schema: pa.Schema) -> bytes:
    data: bytes = schema.serialize().to_pybytes()
    return data


def _stream(query: RunningQuery) -> Iterator[pa.RecordBatch]:
    with _flight_errors():
        yield from query.batches()


def _info(descriptor: flight.FlightDescriptor, schema: pa.Schema, ticket: bytes) -> flight.FlightInfo:
    # Without a location, clients read the rows from where they asked for them.
    return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], -1, -1)


def _first_rows(reader: flight.MetadataRecordBatchReader) -> pa.Table:
    """Returns the rows of an upload, reading two batches at most: a statement takes one row."""
    batches: list[pa.RecordBatch] = []
    while len(batches) < 2:
        try:
            batches.append(reader.read_chunk().data)
        except StopIteration:
            break
    return pa.Table.from_batches(batches, schema=reader.schema)


def _optional(message: Any, name: str) -> str | None:
    return getattr(message, name) if message.HasField(name) else None


def _is_own_catalog(message: Any, name: str) -> bool:
    return _optional(message, name) in (None, "", CATALOG)


def _reject_transaction(message: Any) -> None:
    if message.transaction_id:
        raise ConfigError("SQL_REFUSED", "The server has no transactions: each statement reads its own snapshots.")


@contextmanager
def _flight_errors() -> Iterator[None]:
    """Raises the errors of the block as errors of Flight, whose text has condition and next step."""
    try:
        yield
    except flight.FlightError:
        raise
    except pa.ArrowInvalid as error:  # a request that cannot be decoded
        raise _flight_error(ConfigError("SQL_REFUSED", describe_error(error))) from None
    except DeltaworksError as error:
        raise _flight_error(error) from None
    except duckdb.Error as error:
        raise _flight_error(ConfigError("SQL_REFUSED", describe_error(error))) from None
    except Exception as error:
        _LOGGER.exception("A request failed")
        raise flight.FlightInternalError(f"[SQL_SERVER_FAILED] {type(error).__name__}: see the server's log.") from None


def _flight_error(error: DeltaworksError) -> Exception:
    kinds: Mapping[str, Callable[..., Exception]] = {
        "SQL_ACCESS_DENIED": flight.FlightUnauthorizedError,
        "SQL_CANCELLED": flight.FlightCancelledError,
        "SQL_SERVER_BUSY": flight.FlightUnavailableError,
    }
    # Only errors of Flight reach clients without the traceback of this process.
    record = json.dumps(error.as_record()).encode()
    default = flight.FlightUnavailableError if error.retryable else flight.FlightServerError
    flight_error: Exception = kinds.get(error.condition, default)(str(error), extra_info=record)
    return flight_error
