"""Plans and runs statements: snapshots, sessions, limits, cancellation and the log of queries.

It knows nothing of Flight. A running query ends exactly once: with its last row, an error, a limit, or its
client.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import duckdb
import pyarrow as pa

from deltaworks.control.clock import utc_now
from deltaworks.control.foreign_errors import data_file_error
from deltaworks.errors import ConfigError, DeltaworksError, TransientError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.sql_server import SqlLimitsSpec
from deltaworks.sql_server.admission import Admission
from deltaworks.sql_server.messages import DEFAULT_TYPE, parameter_types
from deltaworks.sql_server.parser_process import GuardedParser
from deltaworks.sql_server.query_log import Outcome, QueryLog, QueryRecord
from deltaworks.sql_server.references import ParsedStatement
from deltaworks.sql_server.sessions import Keys, Names, Session, SessionPool, bound_tables
from deltaworks.sql_server.snapshots import Snapshot, TableSnapshots
from deltaworks.sql_server.statements import Statement
from deltaworks.sql_server.users import Access
from deltaworks.tables.duckdb_session import describe_error, query_timeout
from deltaworks.tables.query import how_a_table_is_created, table_keys

_BATCH_ROWS: Final = 65_536
#: Clients reject larger messages; the driver of ADBC by default from 16 MiB.
_BATCH_BYTES: Final = 4 << 20
_MAX_PARAMETER_BYTES: Final = 4 << 20
_PLAN_SECONDS: Final = 30.0
_WATCH_SECONDS: Final = 0.05
_CACHED_SCHEMAS: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request.

    Args:
        user: name. access: what the user may read. peer: address of the client.
        is_cancelled: returns whether the client has gone; callable until the request ends.
    """

    user: str
    access: Access
    peer: str = ""
    is_cancelled: Callable[[], bool] = field(default=lambda: False, repr=False)


class QueryEngine:
    """Plans and runs the statements of all users. Thread-safe.

    Args:
        log: None for a server that keeps none.
    """

    def __init__(
        self, catalog: Catalog, limits: SqlLimitsSpec, *, fresh_seconds: float, log: QueryLog | None = None
    ) -> None:
        self._catalog, self._limits, self._log = catalog, limits, log
        self._snapshots = TableSnapshots(catalog.environment.lake, fresh_seconds=fresh_seconds)
        self._parser = GuardedParser()
        self._pool = SessionPool(limits)
        self._admission = Admission(limits)
        self._lock = threading.Lock()
        self._names: dict[Access, Names] = {}
        self._schemas: OrderedDict[object, pa.Schema] = OrderedDict()
        self._running: dict[str, RunningQuery] = {}
        self._stopping = threading.Event()
        self.finished = 0
        threading.Thread(target=self._watch, name="watch-queries", daemon=True).start()
        # Loading the SQL parser takes a second or more, which the first prepared statement would wait for.
        threading.Thread(target=self._parser.parse, args=("", "SELECT 1"), name="start-parser", daemon=True).start()
        threading.Thread(target=parameter_types, args=("SELECT ?", 1, {}), name="load-parser", daemon=True).start()

    @property
    def running(self) -> int:
        """Number of queries that run now."""
        return self._admission.running

    def close(self) -> None:
        """Cancels running queries and closes all sessions."""
        self._stopping.set()
        for query in self._running_queries():
            query.stop(_stopped("The server stops.", "SQL_SERVER_BUSY"), "cancelled")
        self._pool.clear(close=True)
        self._parser.close()
        self._snapshots.close()

    def reload(self, catalog: Catalog) -> None:
        """Uses changed declarations from the next statement on."""
        with self._lock:
            self._catalog = catalog
            self._names.clear()
            self._schemas.clear()
        self._pool.clear()

    def names(self, access: Access) -> Names:
        """Returns the tables and views of an access."""
        with self._lock:
            return self._names.setdefault(access, Names(self._catalog, access))

    def plan(self, caller: Caller, text: str, parameters: Sequence[Any] | None = None) -> Statement:
        """Checks a statement and returns it with the schema of its result and the snapshots it will read.

        Raises:
            DeltaworksError: SQL_REFUSED, SQL_ACCESS_DENIED, SQL_SERVER_BUSY, ...; refused statements are logged.
        """
        with self._logged_refusals(caller, text):
            parsed = self._parser.parse(caller.user, text)
            if parsed.parameters != len(parameters or ()):
                raise ConfigError(
                    "SQL_REFUSED",
                    f"The statement has {parsed.parameters} parameters, and {len(parameters or ())} values are bound.",
                    hint="Prepare a statement with parameters, and bind a value for each.",
                )
            names = self.names(caller.access)
            keys = names.keys(parsed)
            snapshots = self._snapshots.current(keys.values())
            version = (names, parsed.text, tuple(map(type, parameters or ())), _versions(keys, snapshots))
            schema = self._cached_schema(version)
            if schema is None:
                with self._planning(caller, names, keys, snapshots) as session:
                    schema = self._describe(session, keys, snapshots, parsed.text, parameters)
                self._cache_schema(version, schema)
        bound = None if parameters is None else tuple(parameters)
        return Statement(parsed=parsed, keys=keys, schema=schema, snapshots=snapshots, parameters=bound)

    def prepare(self, caller: Caller, text: str) -> Statement:
        """Checks a statement that will be run several times, and infers the types of its parameters.

        Raises:
            DeltaworksError: as `plan` does.
        """
        with self._logged_refusals(caller, text):
            parsed = self._parser.parse(caller.user, text)
        if not parsed.parameters:
            # Its plan is cached for the query that mostly follows.
            planned = self.plan(caller, text)
            return Statement(parsed=parsed, keys=planned.keys, schema=planned.schema)
        with self._logged_refusals(caller, text):
            names = self.names(caller.access)
            keys = names.keys(parsed)
            snapshots = self._snapshots.current(keys.values())
            with self._planning(caller, names, keys, snapshots) as session:
                nulls = [None] * parsed.parameters
                schema = self._describe(session, keys, snapshots, parsed.text, nulls)
                types = _parameter_types(session, parsed)
                fields = zip(types, session.arrow_types([kind or DEFAULT_TYPE for kind in types]), strict=True)
        parameter_schema = pa.schema(
            [
                # The type of a parameter whose surroundings say nothing is that of its value.
                pa.field(f"parameter_{number}", kind, metadata={"deltaworks_inferred": "true"} if text else None)
                for number, (text, kind) in enumerate(fields, start=1)
            ]
        )
        return Statement(parsed=parsed, keys=keys, schema=schema, parameter_schema=parameter_schema)

    def bind(self, statement: Statement, values: pa.Table) -> Statement:
        """Returns a prepared statement with its parameters bound.

        Raises:
            ConfigError: SQL_REFUSED, the values do not fit.
        """
        declared = statement.parameter_schema
        if values.num_columns != len(declared) or (len(declared) and values.num_rows != 1):
            raise ConfigError(
                "SQL_REFUSED",
                f"The statement has {len(declared)} parameters; {values.num_columns} columns with {values.num_rows} "
                "rows were bound. Bind one row with a value for each.",
            )
        if values.nbytes > _MAX_PARAMETER_BYTES:
            raise ConfigError("SQL_REFUSED", f"The parameters have more than {_MAX_PARAMETER_BYTES >> 20} MiB.")
        bound = []
        for column, parameter in zip(values.columns, declared, strict=True):
            try:
                fits = not parameter.metadata or column.type == parameter.type
                value = (column if fits else column.cast(parameter.type))[0]
                bound.append(value.as_py())
            except (pa.ArrowException, ValueError, OverflowError) as error:
                text = f"{parameter.name} is {parameter.type}, and {column.type} cannot be converted: {error}"
                raise ConfigError("SQL_REFUSED", text) from error
        return replace(statement, parameters=tuple(bound), size=values.nbytes)

    def run(self, caller: Caller, statement: Statement, *, handle: bytes = b"") -> RunningQuery:
        """Starts a planned statement, when a slot is free.

        Raises:
            DeltaworksError: SQL_SERVER_BUSY, or the error of the query.
        """
        began, waiting = utc_now(), time.monotonic()
        try:
            self._admission.enter(caller.user, is_cancelled=caller.is_cancelled)
        except DeltaworksError as error:
            waited = time.monotonic() - waiting
            self._record(caller, statement.parsed.text, began, outcome="limited", error=error, waited_seconds=waited)
            raise
        query = RunningQuery(self, caller, statement, began=began, waited=time.monotonic() - waiting, handle=handle)
        with self._lock:
            self._running[query.id] = query
        query.start()
        return query

    def cancel(self, user: str, handle: bytes) -> bool:
        """Cancels the running queries of a user's handle. Returns whether there was one."""
        queries = [query for query in self._running_queries() if query.caller.user == user and query.handle == handle]
        for query in queries:
            query.stop(_stopped("The client has cancelled the query.", "SQL_CANCELLED"), "cancelled")
        return bool(queries)

    def existing_tables(
        self, caller: Caller, matches: Callable[[str, str], bool], *, with_schema: bool = False
    ) -> dict[tuple[str, str], pa.Schema | None]:
        """Returns the existing tables and views by schema and name, on request with the schema of their rows.

        Args:
            matches: selects by schema and name.
        """
        names = self.names(caller.access)
        selected = [(schema, name) for schema in names.schemas for name in names.declared(schema)]
        selected = [(schema, name) for schema, name in selected if matches(schema, name)]
        keys = dict[tuple[str, str], str]()
        for schema, name in selected:
            keys |= names.keys_of(schema, name)
        snapshots = self._snapshots.current(keys.values())
        with self._planning(caller, names, keys, snapshots) as session:
            existing = {(schema, name) for schema in names.schemas for name in session.existing(schema)}
            tables = sorted(set(selected) & existing)
            return {
                table: self._row_schema(session, names, table, snapshots) if with_schema else None for table in tables
            }

    def is_view(self, caller: Caller, schema: str, name: str) -> bool:
        """Returns whether a name is that of a view instead of a stored table."""
        spec = self.names(caller.access).spec(schema)
        return spec is not None and name not in table_keys(spec)

    def _row_schema(
        self, session: Session, names: Names, table: tuple[str, str], snapshots: Mapping[str, Snapshot]
    ) -> pa.Schema:
        schema, name = table
        keys = names.keys_of(schema, name)
        version = (names, table, _versions(keys, snapshots))
        row_schema = self._cached_schema(version)
        if row_schema is None:
            try:
                row_schema = session.describe(f'SELECT * FROM "{schema}"."{name}"')
            except duckdb.Error:  # a view with invalid SQL, whose error its queries show
                row_schema = pa.schema([])
            self._cache_schema(version, row_schema)
        return row_schema

    def _describe(
        self,
        session: Session,
        keys: Keys,
        snapshots: Mapping[str, Snapshot],
        text: str,
        parameters: Sequence[Any] | None,
    ) -> pa.Schema:
        try:
            with query_timeout(session.connection, _PLAN_SECONDS):
                return session.describe(text, parameters)
        except duckdb.Error as error:
            missing = next((table for table, key in keys.items() if key not in snapshots), None)
            if isinstance(error, duckdb.CatalogException) and missing is not None:
                raise self._missing(session.names, missing) from error
            raise query_error(error, list(bound_tables(keys)), self._limits) from error

    def _missing(self, names: Names, table: tuple[str, str]) -> ConfigError:
        spec, (schema, name) = names.spec(table[0]), table
        hint = "" if spec is None else how_a_table_is_created(spec, name, now=utc_now())
        return ConfigError("SQL_REFUSED", f"Table {schema}.{name} is declared but does not exist yet.", hint=hint)

    @contextmanager
    def _planning(
        self, caller: Caller, names: Names, keys: Keys, snapshots: Mapping[str, Snapshot]
    ) -> Iterator[Session]:
        """Takes a slot and a session with bound tables. The session is reused if the block does not raise."""
        self._admission.enter(caller.user, is_cancelled=caller.is_cancelled)
        try:
            session = self._pool.acquire(names)
            reusable = False
            try:
                session.bind(keys, snapshots)
                yield session
                reusable = True
            except ConfigError:
                # An invalid statement leaves the session as it was.
                reusable = True
                raise
            finally:
                self._pool.release(session, reusable=reusable)
        finally:
            self._admission.leave(caller.user)

    def _cached_schema(self, version: object) -> pa.Schema | None:
        with self._lock:
            row_schema = self._schemas.get(version)
            if row_schema is not None:
                self._schemas.move_to_end(version)
            return row_schema

    def _cache_schema(self, version: object, schema: pa.Schema) -> None:
        with self._lock:
            self._schemas[version] = schema
            while len(self._schemas) > _CACHED_SCHEMAS:
                self._schemas.popitem(last=False)

    def _running_queries(self) -> list[RunningQuery]:
        with self._lock:
            return list(self._running.values())

    def _watch(self) -> None:
        """Stops queries whose client has gone or whose time is over."""
        while not self._stopping.wait(_WATCH_SECONDS):
            for query in self._running_queries():
                query.check(self._limits.seconds)

    def acquire_session(self, names: Names) -> Session:
        """Returns a session for a query that has a slot."""
        return self._pool.acquire(names)

    def end(self, query: RunningQuery, session: Session | None, record: QueryRecord) -> None:
        """Releases what a query holds, and logs it. Called once per query."""
        with self._lock:
            self._running.pop(query.id, None)
            self.finished += 1
        if session is not None:
            self._pool.release(session, reusable=record.outcome == "succeeded")
        self._admission.leave(query.caller.user)
        if self._log is not None:
            self._log.add(record)

    @property
    def limits(self) -> SqlLimitsSpec:
        """The limits of each query."""
        return self._limits

    @contextmanager
    def _logged_refusals(self, caller: Caller, text: str) -> Iterator[None]:
        began, started = utc_now(), time.monotonic()
        try:
            yield
        except DeltaworksError as error:
            outcome: Outcome = "limited" if error.retryable else "refused"
            self._record(caller, text, began, outcome=outcome, error=error, seconds=time.monotonic() - started)
            raise

    def _record(
        self, caller: Caller, text: str, began: datetime, *, outcome: Outcome, error: DeltaworksError, **figures: float
    ) -> None:
        if self._log is None:
            return
        self._log.add(
            QueryRecord(
                started_at=began,
                query_id=uuid.uuid4().hex,
                user=caller.user,
                peer=caller.peer,
                statement=text,
                outcome=outcome,
                condition=error.condition,
                message=error.message,
                **figures,  # type: ignore[arg-type]
            )
        )


def _versions(keys: Keys, snapshots: Mapping[str, Snapshot]) -> tuple[object, ...]:
    """Returns the versions of tables and their problems. Unlike the snapshots they hold no file lists in memory."""
    read = map(snapshots.get, keys.values())
    return tuple(None if snapshot is None else (snapshot.version, snapshot.problem) for snapshot in read)


class RunningQuery:
    """One query from its slot until its end. `batches` is for one thread; all other methods are thread-safe.

    Args:
        waited: seconds for the slot. handle: by which its client may cancel it.
    """

    def __init__(
        self,
        engine: QueryEngine,
        caller: Caller,
        statement: Statement,
        *,
        began: datetime,
        waited: float,
        handle: bytes,
    ) -> None:
        self.id, self.caller, self.handle = uuid.uuid4().hex, caller, handle
        self._engine, self._statement = engine, statement
        self._began, self._waited, self._started = began, waited, time.monotonic()
        #: Held while DuckDB works for this query. A query that is stopped meanwhile ends by itself.
        self._working = threading.Lock()
        #: Guards the client's state, which must not be read after its request has ended.
        self._client = threading.Lock()
        self._is_cancelled: Callable[[], bool] | None = caller.is_cancelled
        #: Guards the session, which another query may use once this one has ended.
        self._owning = threading.Lock()
        self._stop: tuple[DeltaworksError, Outcome] | None = None
        self._ended = False
        self._session: Session | None = None
        self._reader: pa.RecordBatchReader | None = None
        self._rows = self._bytes = 0
        self.schema = statement.schema

    def start(self) -> None:
        """Runs the statement until its first rows.

        Raises:
            DeltaworksError: the query failed, and has ended; SQL_ACCESS_DENIED if its user may no longer read a table.
        """
        with self._working, self._failures():
            statement, names = self._statement, self._engine.names(self.caller.access)
            # Roles and declarations may have changed since the statement was planned.
            names.keys(statement.parsed)
            session = self._engine.acquire_session(names)
            with self._owning:
                self._session = session
            session.bind(statement.keys, statement.snapshots or {})
            parameters = list(statement.parameters) if statement.parameters else None
            relation = session.connection.sql(statement.parsed.text, params=parameters)
            self._reader = relation.to_arrow_reader(_BATCH_ROWS)
            self.schema = self._reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows in batches of at most about 4 MiB, then ends the query.

        Raises:
            DeltaworksError: the query failed, was cancelled or exceeds a limit, and has ended.
        """
        while (batch := self._next_batch()) is not None:
            yield from _parts(batch)

    def check(self, max_seconds: float) -> None:
        """Stops the query if its client has gone or its time is over."""
        if time.monotonic() - self._started > max_seconds:
            error = _stopped(f"The query took longer than {max_seconds:g} s.", "SQL_LIMIT_EXCEEDED")
            self.stop(error, "limited")
            return
        with self._client:
            is_disconnected = self._is_cancelled is not None and self._is_cancelled()
        if is_disconnected:
            self.stop(_stopped("The client has cancelled the query.", "SQL_CANCELLED"), "cancelled")

    def stop(self, error: DeltaworksError, outcome: Outcome) -> None:
        """Interrupts the query, which ends with this error."""
        self._stop = self._stop or (error, outcome)
        with self._owning:
            if self._session is not None:
                self._session.connection.interrupt()
        # A query whose client reads slowly does not work now, and would not notice.
        if self._working.acquire(blocking=False):
            try:
                self._end(*self._stop)
            finally:
                self._working.release()

    def detach(self) -> None:
        """Ends the query with its client's request."""
        with self._client:
            self._is_cancelled = None
        if not self._ended:
            self.stop(_stopped("The client has gone before the last row.", "SQL_CANCELLED"), "cancelled")

    def _next_batch(self) -> pa.RecordBatch | None:
        with self._working, self._failures():
            if self._stop is not None:
                raise self._stop[0]
            if self._reader is None:
                return None
            batch = next(self._reader, None)
            if batch is None:
                self._end(None, "succeeded")
                return None
            self._rows += batch.num_rows
            self._bytes += batch.nbytes
            limit = self._engine.limits.rows
            if self._rows > limit:
                raise ConfigError("SQL_LIMIT_EXCEEDED", f"The result has more than {limit:,} rows.")
            rows: pa.RecordBatch = batch
            return rows

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Ends the query with the errors of the block."""
        try:
            yield
        except Exception as error:
            if self._stop is not None:
                failure, outcome = self._stop
            else:
                failure = query_error(error, list(bound_tables(self._statement.keys)), self._engine.limits)
                outcome = "limited" if failure.condition == "SQL_LIMIT_EXCEEDED" else "failed"
            self._end(failure, outcome)
            raise failure from error

    def _end(self, error: DeltaworksError | None, outcome: Outcome) -> None:
        """Ends the query, once. The caller holds `_working`."""
        if self._ended:
            return
        self._ended = True
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        del reader
        with self._owning:
            session, self._session = self._session, None
        record = QueryRecord(
            started_at=self._began,
            query_id=self.id,
            user=self.caller.user,
            peer=self.caller.peer,
            statement=self._statement.parsed.text,
            tables=tuple(bound_tables(self._statement.keys)),
            outcome=outcome,
            condition="" if error is None else error.condition,
            message="" if error is None else error.message,
            waited_seconds=self._waited,
            seconds=time.monotonic() - self._started,
            rows=self._rows,
            bytes=self._bytes,
        )
        self._engine.end(self, session, record)


def query_error(error: Exception, tables: list[str], limits: SqlLimitsSpec) -> DeltaworksError:
    """Returns the error of a query for its user."""
    if isinstance(error, DeltaworksError):
        return error
    if isinstance(error, duckdb.OutOfMemoryException):
        text = f"The query needs more than {limits.memory >> 20} MiB of memory."
        return ConfigError("SQL_LIMIT_EXCEEDED", text, hint="Read fewer columns or rows, or aggregate first.")
    if isinstance(error, duckdb.InterruptException):
        return ConfigError("SQL_LIMIT_EXCEEDED", f"The statement could not be planned within {_PLAN_SECONDS:g} s.")
    if isinstance(error, duckdb.Error) and (damaged := data_file_error(error, tables=tables)) is not None:
        return damaged
    if isinstance(error, OSError):
        return TransientError("STORAGE_UNREACHABLE", f"The lake cannot be read: {describe_error(error)}")
    return ConfigError("SQL_REFUSED", describe_error(error))


def _stopped(text: str, condition: str) -> DeltaworksError:
    return ConfigError(condition, text)


def _parameter_types(session: Session, parsed: ParsedStatement) -> list[str]:
    columns = {(schema, name): session.column_types(schema, name) for schema, name in parsed.tables}
    return parameter_types(parsed.text, parsed.parameters, columns)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields a batch in slices of at most about 4 MiB, if its rows have similar sizes."""
    rows = max(1, batch.num_rows * _BATCH_BYTES // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
