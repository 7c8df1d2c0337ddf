"""Asks the questions of a dashboard's panels: DuckDB over the lake, bounded in time, memory and rows.

A panel that fails says so in its place, and the others are shown. Nothing is written.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import duckdb

from deltaworks.control.clock import utc_now
from deltaworks.dashboards.marks import NO_MARKS, Marks
from deltaworks.dashboards.spans import Span
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dashboards import DashboardSpec, PanelSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.ages import TableAge, newest_row_time, table_age
from deltaworks.tables.bounded_query import describe_error, parse_single_select, query_timeout, restrict_connection
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect, table_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """What the panels of one page may take."""

    panel_seconds: float = 20
    page_seconds: float = 60
    max_rows: int = 20_000
    memory_mib: int = 512
    threads: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelAnswer:
    """What is known of a panel: its rows, or the problem for which there are none.

    `absent` are declared tables it reads that nothing has made yet. `more_rows` says that there were more than the
    bound. `ages` are of the tables it reads, those behind views included.
    """

    panel: PanelSpec
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    is_truncated: bool = False
    ages: tuple[TableAge, ...] = ()
    missing_tables: tuple[str, ...] = ()
    problem: str = ""
    seconds: float = 0.0

    @property
    def newest_at(self) -> dt.datetime | None:
        """The newest moment that data of the panel are of; None where that is not known."""
        return newest_row_time(self.ages)

    def column(self, name: str) -> list[Any]:
        """The values of one column of the answer."""
        place = self.columns.index(name)
        return [row[place] for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardAnswer:
    """A dashboard as it was at one time: the answers of its panels for rows of a span of time, and what happened."""

    pipeline: str
    dashboard: DashboardSpec
    span: Span
    at: dt.datetime
    panels: tuple[PanelAnswer, ...]
    marks: Marks = NO_MARKS


def answer_dashboard(
    catalog: Catalog,
    pipeline: str,
    dashboard: DashboardSpec,
    span: Span,
    *,
    limits: QueryLimits = QueryLimits(),
    marks: Marks = NO_MARKS,
) -> DashboardAnswer:
    """Ask what the panels of a dashboard ask, one after the other. Reads the lake alone; safe beside anything."""
    at = utc_now()
    spec = catalog.pipeline(pipeline)
    single_catalog = dataclasses.replace(catalog, pipelines={pipeline: spec})
    ends_at = time.monotonic() + limits.page_seconds
    panels = []
    with _PanelQueries(single_catalog, spec, dashboard.panels, {"from": span.since, "to": span.until}) as questions:
        for panel in dashboard.panels:
            seconds = min(limits.panel_seconds, ends_at - time.monotonic())
            if seconds > 0:
                panels.append(questions.run_panel(panel, limits, seconds=seconds))
            else:
                panels.append(PanelAnswer(panel=panel, problem=f"not asked: the page took {limits.page_seconds:g} s"))
    return DashboardAnswer(pipeline=pipeline, dashboard=dashboard, span=span, at=at, panels=tuple(panels), marks=marks)


class _PanelQueries:
    """The questions of one page, over the tables of one pipeline."""

    def __init__(
        self, catalog: Catalog, spec: PipelineSpec, panels: Sequence[PanelSpec], span: dict[str, dt.datetime]
    ) -> None:
        self._catalog = catalog
        self._spec = spec
        self._span = span
        self._lake = Lake(catalog.environment.lake)
        self._keys = table_keys(spec)
        self._views = {view.name: view.reads for view in spec.views}
        self._references = {reference.name for reference in spec.references}
        self._ages: dict[str, TableAge | None] = {}
        self._sql_by_file: dict[str, str] = {}
        self._names_by_sql: dict[str, set[str]] = {}
        self._exit_stack = ExitStack()
        self._parser = self._exit_stack.enter_context(duckdb.connect(":memory:"))
        self._panels = panels
        self._shared: duckdb.DuckDBPyConnection | None = None
        self._is_per_panel = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def run_panel(self, panel: PanelSpec, limits: QueryLimits, *, seconds: float) -> PanelAnswer:
        """The answer of one panel, which is given up after so many seconds of asking."""
        started = time.monotonic()
        try:
            answered = self._run_query(panel, limits, seconds)
        except duckdb.InterruptException:
            answered = PanelAnswer(panel=panel, problem=f"it took more than {seconds:.0f} s and was ended")
        # Whatever becomes of one panel, the others are to be seen.
        except Exception as error:
            answered = PanelAnswer(panel=panel, problem=describe_error(error))
        return dataclasses.replace(answered, seconds=time.monotonic() - started)

    def _run_query(self, panel: PanelSpec, limits: QueryLimits, seconds: float) -> PanelAnswer:
        text = self._read_sql(panel)
        names = self._referenced_names(text)
        # Before the rows are read: what is committed in between is in the rows, and the age says less than there is.
        ages = {name: self._age(name) for name in sorted(names & self._keys.keys())}
        answered = PanelAnswer(panel=panel, ages=tuple(age for age in ages.values() if age is not None))
        missing_tables = tuple(name for name, age in ages.items() if age is None)
        if missing_tables:
            return dataclasses.replace(answered, missing_tables=missing_tables)
        connection = self._connection(names, limits)
        try:
            columns, rows = _fetch_rows(connection, text, self._span, max_rows=limits.max_rows + 1, seconds=seconds)
        except duckdb.InterruptException:
            raise
        except duckdb.Error as error:
            return dataclasses.replace(answered, problem=describe_error(error))
        missing_columns = [name for _, name in panel.result_columns() if name not in columns]
        if missing_columns:
            return dataclasses.replace(
                answered, problem=f"the answer of {panel.sql} has no column {missing_columns[0]!r}"
            )
        shown = tuple(rows[: limits.max_rows])
        return dataclasses.replace(answered, columns=columns, rows=shown, is_truncated=len(rows) > len(shown))

    def _read_sql(self, panel: PanelSpec) -> str:
        if panel.sql not in self._sql_by_file:
            file = self._catalog.folder(self._spec.pipeline) / panel.sql
            self._sql_by_file[panel.sql] = file.read_text(encoding="utf-8")
        return self._sql_by_file[panel.sql]

    def _connection(self, names: Collection[str], limits: QueryLimits) -> duckdb.DuckDBPyConnection:
        """One for all panels, which opens their tables once; where that fails, one for the tables of this panel."""
        if self._shared is None and not self._is_per_panel:
            try:
                all_names = set[str]().union(*(self._referenced_names(self._read_sql(panel)) for panel in self._panels))
                self._shared = self._connect(all_names, limits)
            # A table of another panel that cannot be opened, or its file.
            except Exception:
                self._is_per_panel = True
        return self._shared if self._shared is not None else self._connect(names, limits)

    def _connect(self, names: Collection[str], limits: QueryLimits) -> duckdb.DuckDBPyConnection:
        """A connection that reads these tables of the pipeline and nothing else, within bounds."""
        connection, _ = connect(self._catalog, statement=" ".join(sorted(names)) or "nothing")
        self._exit_stack.enter_context(connection)
        restrict_connection(connection, self._spec.pipeline, memory_mib=limits.memory_mib, threads=limits.threads)
        return connection

    def _referenced_names(self, text: str) -> set[str]:
        """The tables and views that a query reads, by itself and through views, in lower case; and its own names."""
        if text not in self._names_by_sql:
            self._names_by_sql[text] = self._find_referenced_names(text)
        return self._names_by_sql[text]

    def _find_referenced_names(self, text: str) -> set[str]:
        tree = json.loads(self._parser.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()[0][0])
        pending = {str(node["table_name"]).lower() for node in _json_objects(tree) if node.get("type") == "BASE_TABLE"}
        names: set[str] = set()
        while pending:
            name = pending.pop()
            names.add(name)
            pending |= {*self._views.get(name, ())} - names
        return names

    def _age(self, name: str) -> TableAge | None:
        if name not in self._ages:
            age = table_age(self._lake, self._keys[name], name)
            if age is not None and name in self._references:
                # Its times say what holds when, such as sessions to come, and not how new what is drawn is.
                age = dataclasses.replace(age, newest_row_at=None)
            self._ages[name] = age
        return self._ages[name]


def _json_objects(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object in a tree of JSON."""
    if isinstance(tree, dict):
        yield tree
    for below in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _json_objects(below)


def _fetch_rows(
    connection: duckdb.DuckDBPyConnection, text: str, span: Mapping[str, dt.datetime], *, max_rows: int, seconds: float
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """The columns and up to `most` rows of a query, which is interrupted after so many seconds."""
    query, parameters = parse_single_select(connection, text)
    parameters_in_query = {name: span[name] for name in parameters if name in span}
    with query_timeout(connection, seconds):
        result = connection.execute(f"SELECT * FROM (\n{query}\n) AS panel LIMIT {max_rows}", parameters_in_query)
        return tuple(column[0] for column in result.description or ()), result.fetchall()
