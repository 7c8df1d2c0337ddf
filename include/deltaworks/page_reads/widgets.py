"""Reads the widgets of a console in one process: `python -m deltaworks.page_reads.widgets`.

Standard input names the widgets with readers: a line `+ pipeline view seconds`, with the time until its first read, or
`- pipeline view`. Standard output has a line of JSON for each changed result or problem, of bounded size. However many
readers a widget has, its view is queried once per change of its tables, at most once in its declared interval; a view
may use the current time, so it is also queried each minute. One query runs at a time. The process ends with its input,
and some time after its last widget. Read-only.

A read that exceeds its deadline ends the process, also where it cannot be interrupted, as in DuckDB's parser. The file
whose descriptor is the argument names the widget that is being read, so that the host knows which one ended it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.control.clock import iso_now, utc_now
from deltaworks.control.foreign_errors import redact_values
from deltaworks.control.parent_watchdog import start_parent_watchdog
from deltaworks.engine.view_announcer import rows_digest, to_json_value
from deltaworks.errors import ConfigError, DeltaworksError
from deltaworks.specs.base import suggest_name
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import ViewSpec, WidgetSpec, names_read
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.project_folder import DeclarationState, declaration_state, project_root
from deltaworks.sql_server.sessions import projection
from deltaworks.tables.duckdb_session import describe_error, query_timeout, restrict_connection
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect, how_a_table_is_created, table_keys

#: Maximum size of a result, as JSON.
MAX_RESULT_BYTES: Final = 64 * 1024
QUERY_SECONDS: Final = 20.0
#: Deadline of a read: opening the tables, planning and the query.
READ_SECONDS: Final = 30.0
_MEMORY_MIB, _QUERY_THREADS = 512, 2
#: Interval of queries without a change of the tables, for views that use the current time.
_REQUERY_SECONDS: Final = 60.0
_CATALOG_CHECK_SECONDS: Final = 5.0
#: The process ends this long after the last widget, so that a page that is loaded again finds it.
_IDLE_SECONDS: Final = 60.0
_MAX_TEXT_CHARACTERS = 300
_NICENESS: Final = 5
Widget = tuple[str, str]


class WidgetProblemError(Exception):
    """A widget has no rows; the message says why, without data values."""


@dataclass(slots=True)
class _State:
    """The state of one widget. A widget that is added again is due at another time, and starts again."""

    added: float
    due_at: float
    queried_at: float = float("-inf")
    versions: tuple[Any, ...] = ()
    #: The id of the rows, or the text of the problem, that was written last.
    written: str = ""


class WidgetReader:
    """Reads widgets for one process. Not thread-safe.

    Args:
        load: loads the declarations of one pipeline.
        guard: entered for the read of a widget.
    """

    def __init__(
        self,
        load: Callable[[str], Catalog] | None = None,
        *,
        guard: Callable[[Widget], AbstractContextManager[None]] = lambda widget: nullcontext(),
    ) -> None:
        self._guard = guard
        self._load = load or (lambda pipeline: load_catalog(skip_invalid=True, only=(pipeline,)))
        self._catalogs: dict[str, Catalog] = {}
        self._files: DeclarationState = frozenset()
        self._checked_at = float("-inf")
        self._states: dict[Widget, _State] = {}
        self._tables: dict[str, DeltaTable] = {}
        #: Number of queries, for tests.
        self.queries = 0

    def watch(self, widgets: Mapping[Widget, float]) -> None:
        """Sets the widgets that are read, each with the time of its first read. One with a new time starts again."""
        states = self._states
        self._states = {
            widget: states[widget] if widget in states and states[widget].added == at else _State(at, at)
            for widget, at in widgets.items()
        }
        if not widgets:
            self._tables.clear()

    @property
    def seconds_until_due(self) -> float | None:
        """Seconds until a widget is due; None without widgets."""
        due = min((state.due_at for state in self._states.values()), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def read_due(self) -> list[dict[str, Any]]:
        """Returns the messages of the widgets that are due and whose rows or problem changed. Raises nothing."""
        messages = []
        for widget, state in self._states.items():
            if state.due_at <= time.monotonic():
                with self._guard(widget):
                    message = self._read(widget, state)
                if message is not None:
                    messages.append({"pipeline": widget[0], "view": widget[1]} | message)
        return messages

    def _read(self, widget: Widget, state: _State) -> dict[str, Any] | None:
        every_seconds = float(WidgetSpec().every_seconds)
        try:
            spec, view, declared = self._declared(*widget)
            every_seconds = declared.every_seconds
            result = self._changed_result(spec, view, declared, state)
        except WidgetProblemError as error:
            return _problem(state, str(error))
        except DeltaworksError as error:
            return _problem(state, redact_values(error.message))
        # The page shows any error of a damaged table.
        except Exception as error:
            return _problem(state, redact_values(describe_error(error)).replace(f"{project_root()}/", ""))
        finally:
            state.due_at = time.monotonic() + every_seconds
        if result is None or result["id"] == state.written:
            return None
        state.written = result["id"]
        return result

    def _declared(self, pipeline: str, name: str) -> tuple[PipelineSpec, ViewSpec, WidgetSpec]:
        """Returns the declaration of a widget, as it is in the files of now.

        Raises:
            ConfigError: PIPELINE_UNKNOWN, TABLE_UNKNOWN.
        """
        if time.monotonic() - self._checked_at >= _CATALOG_CHECK_SECONDS:
            files = declaration_state(project_root())
            if files != self._files:
                self._catalogs.clear()
                self._files = files
            self._checked_at = time.monotonic()
        if pipeline not in self._catalogs:
            self._catalogs[pipeline] = self._load(pipeline)
        spec = self._catalogs[pipeline].pipeline(pipeline)
        for view in spec.views:
            if view.name == name and view.widget is not None:
                return spec, view, view.widget
        shown = [view.name for view in spec.views if view.widget is not None]
        raise ConfigError(
            "TABLE_UNKNOWN", f"{pipeline} declares no widget {name!r}; {suggest_name(name, shown)}.", hint=""
        )

    def _changed_result(
        self, spec: PipelineSpec, view: ViewSpec, declared: WidgetSpec, state: _State
    ) -> dict[str, Any] | None:
        """Returns the result of the view; None if its tables have not changed since the last query."""
        catalog = self._catalogs[spec.pipeline]
        lake, keys = Lake(catalog.environment.lake), table_keys(spec)
        versions: list[Any] = [spec.fingerprint()]
        for name in sorted(_names_read(spec, view) & keys.keys()):
            table = self._open(lake, keys[name])
            if table is None:
                advice = redact_values(how_a_table_is_created(spec, name, now=utc_now()))
                raise WidgetProblemError(f"Table {name} does not exist yet. {advice}")
            versions.append((table.metadata().id, table.version()))
        is_recent = time.monotonic() - state.queried_at < _REQUERY_SECONDS
        if tuple(versions) == state.versions and is_recent and state.written:
            return None
        result = self._query(catalog, spec, view, declared)
        state.versions, state.queried_at = tuple(versions), time.monotonic()
        return result

    def _open(self, lake: Lake, key: str) -> DeltaTable | None:
        """Returns the newest version of a table, by reading the commits since it was opened."""
        table = self._tables.get(key)
        if table is not None:
            try:
                table.update_incremental()
                return table
            # Its log may have been cleaned up, or the table replaced.
            except Exception:
                del self._tables[key]
        table = lake.open(key)
        if table is not None:
            self._tables[key] = table
        return table

    def _query(self, catalog: Catalog, spec: PipelineSpec, view: ViewSpec, declared: WidgetSpec) -> dict[str, Any]:
        name, lake = f'"{spec.pipeline}"."{view.name}"', Lake(catalog.environment.lake)
        # A view that cannot be parsed affects no widget but those that read it.
        read = {view.name} | _names_read(spec, view)
        needed = spec.model_copy(update={"views": tuple(one for one in spec.views if one.name in read)})
        single = dataclasses.replace(catalog, pipelines={spec.pipeline: needed})
        opened = lambda key: self._tables.get(key) or lake.open(key)  # noqa: E731
        self.queries += 1
        connection, names = connect(single, statement=f"SELECT * FROM {spec.pipeline}.{view.name}", open_table=opened)
        with connection:
            if f"{spec.pipeline}.{view.name}" not in names:
                raise WidgetProblemError(f"A table that {view.name} reads does not exist yet.")
            restrict_connection(connection, spec.pipeline, memory_mib=_MEMORY_MIB, threads=_QUERY_THREADS)
            with query_timeout(connection, QUERY_SECONDS):
                try:
                    schema: pa.Schema = connection.sql(f"SELECT * FROM {name} LIMIT 0").to_arrow_table().schema
                    columns = projection(spec, view.name, schema, show_personal=False)
                    statement = f"SELECT {columns} FROM {name} LIMIT {declared.max_rows + 1}"
                    rows = connection.execute(statement).fetchall()
                except duckdb.InterruptException as error:
                    raise WidgetProblemError(f"The query timed out after {QUERY_SECONDS:.0f} s.") from error
        return _encode(schema, rows, declared)


def _names_read(spec: PipelineSpec, view: ViewSpec) -> set[str]:
    """Returns the names of the tables and views that a view reads, also through other views."""
    return {*names_read({other.name: other.reads for other in spec.views}, view.reads)}


def _encode(schema: pa.Schema, rows: list[tuple[Any, ...]], declared: WidgetSpec) -> dict[str, Any]:
    """Returns the message of a result. Its id is a digest, so that equal rows have equal ids in every process.

    Raises:
        WidgetProblemError: the result is too large.
    """
    shown = [
        dict(zip(schema.names, map(_shorten, map(to_json_value, row)), strict=True))
        for row in rows[: declared.max_rows]
    ]
    columns = [{"name": column.name, "number": _is_number(column.type)} for column in schema]
    data = {"columns": columns, "rows": shown, "is_truncated": len(rows) > len(shown)}
    digest = hashlib.sha256(f"{columns} {data['is_truncated']} {rows_digest(shown)}".encode()).hexdigest()[:20]
    size = len(json.dumps(data, ensure_ascii=False).encode())
    if size > MAX_RESULT_BYTES:
        raise WidgetProblemError(
            f"The result has {size:,} bytes, and a widget at most {MAX_RESULT_BYTES:,}: lower its max_rows, or select "
            "fewer columns."
        )
    return {"id": digest, "data": data | {"at": iso_now()}}


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _shorten(value: Any) -> Any:
    return value if not isinstance(value, str) or len(value) <= _MAX_TEXT_CHARACTERS else value[:_MAX_TEXT_CHARACTERS]


def _problem(state: _State, text: str) -> dict[str, Any] | None:
    """Returns the message of a problem; None if it was the last one. Rows that follow are written in any case."""
    state.versions, text = (), text[:_MAX_TEXT_CHARACTERS]
    if state.written == text:
        return None
    state.written = text
    return {"problem": text}


@dataclass(slots=True)
class _Watched:
    """The widgets that the input names, with the time of their first read. A thread follows the input."""

    widgets: dict[Widget, float] = field(default_factory=dict)
    has_ended: bool = False
    changed: threading.Event = field(default_factory=threading.Event)

    def follow(self, lines: TextIO) -> None:
        """Applies lines until the input ends."""
        for line in lines:
            sign, pipeline, view, *seconds = line.split()
            self.widgets.pop((pipeline, view), None)
            if sign == "+":
                self.widgets[pipeline, view] = time.monotonic() + float(seconds[0])
            self.changed.set()
        self.has_ended = True
        self.changed.set()


def serve(lines: TextIO, write: Callable[[Mapping[str, Any]], None], reader: WidgetReader) -> None:
    """Writes messages until the input ends, or for a while after the last widget was removed."""
    watched = _Watched()
    threading.Thread(target=watched.follow, args=(lines,), name="widgets-input", daemon=True).start()
    while True:
        wait = reader.seconds_until_due
        is_changed = watched.changed.wait(_IDLE_SECONDS if wait is None else wait)
        if watched.has_ended or (wait is None and not is_changed):
            return
        watched.changed.clear()
        reader.watch(watched.widgets.copy())
        for message in reader.read_due():
            write(message)


@contextmanager
def name_and_limit(file: int, widget: Widget, seconds: float = READ_SECONDS) -> Iterator[None]:
    """Names the widget in a file within the block, whose deadline ends the process. For the main thread.

    The alarm is left to the kernel, since the parser holds the interpreter's lock.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.pwrite(file, " ".join(widget).encode(), 0)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.ftruncate(file, 0)


def main() -> None:
    """Serves standard input and output."""
    os.nice(_NICENESS)
    file = int(sys.argv[1])

    def write(message: Mapping[str, Any]) -> None:
        sys.stdout.write(json.dumps(message, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    serve(sys.stdin, write, WidgetReader(guard=lambda widget: name_and_limit(file, widget)))


if __name__ == "__main__":
    start_parent_watchdog()
    main()
