"""Runs the queries of a dashboard's panels with DuckDB over the lake, with limits on time, memory and rows.

A failing panel shows its error; the others are still shown. Writes nothing.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Self

import duckdb

from deltaworks.charts.drawing import NO_MARKS, Marks, Span
from deltaworks.control.clock import utc_now
from deltaworks.control.foreign_errors import data_file_error
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dashboards import DashboardSpec, PanelSpec
from deltaworks.specs.gold import names_read
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.ages import TableAge, newest_row_time, table_age
from deltaworks.tables.duckdb_session import describe_error, parse_single_select, query_timeout, restrict_connection
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect, how_a_table_is_created, table_keys

#: Maximum values to choose from in a filter; any other can be written in the address.
MAX_CHOICES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """Limits on time, memory and rows for the queries of one page."""

    panel_seconds: float = 20
    page_seconds: float = 60
    max_rows: int = 20_000
    memory_mib: int = 512
    threads: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelAnswer:
    """The result of a panel: its rows, or why there are none.

    - `missing_tables`: declared tables that do not exist yet; `next_step` says what creates the first.
    - `is_truncated`: whether rows beyond the limit were dropped.
    - `ages`: ages of the data of all tables that the panel reads, also through views.
    - `marks`: the marks of this panel alone; None for those of the page.
    """

    panel: PanelSpec
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    is_truncated: bool = False
    ages: tuple[TableAge, ...] = ()
    missing_tables: tuple[str, ...] = ()
    next_step: str = ""
    problem: str = ""
    seconds: float = 0.0
    marks: Marks | None = None

    @property
    def newest_at(self) -> dt.datetime | None:
        """The time of the newest row in the panel's tables; None if unknown."""
        return newest_row_time(self.ages)

    def column(self, name: str) -> list[Any]:
        """Returns the values of one column."""
        position = self.columns.index(name)
        return [row[position] for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardAnswer:
    """The results of a dashboard's panels for a time span, and the marks on its charts.

    - `filters`: the values that it is filtered by; `choices`: the values to choose from, by filter.
    - `problem`: why there are no choices.
    """

    pipeline: str
    dashboard: DashboardSpec
    span: Span
    at: dt.datetime
    panels: tuple[PanelAnswer, ...]
    marks: Marks = NO_MARKS
    filters: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problem: str = ""


#: Answers a panel of a rule within so many seconds.
AnswerRule = Callable[[PanelSpec, float], PanelAnswer]


def unqueried_answer(spec: PipelineSpec, panel: PanelSpec, ages: Mapping[str, TableAge | None]) -> PanelAnswer:
    """Returns a panel's answer without rows: the ages of its tables, or which do not exist and how one is created.

    Args:
        ages: by table; None for a table that does not exist.
    """
    answered = PanelAnswer(panel=panel, ages=tuple(age for age in ages.values() if age is not None))
    missing_tables = tuple(name for name, age in ages.items() if age is None)
    if not missing_tables:
        return answered
    next_step = how_a_table_is_created(spec, missing_tables[0], now=utc_now())
    return dataclasses.replace(answered, missing_tables=missing_tables, next_step=next_step)


def answer_dashboard(
    catalog: Catalog,
    pipeline: str,
    dashboard: DashboardSpec,
    span: Span,
    *,
    limits: QueryLimits = QueryLimits(),
    marks: Marks = NO_MARKS,
    filters: Mapping[str, str] | None = None,
    answer_rule: AnswerRule | None = None,
) -> DashboardAnswer:
    """Runs the panels of a dashboard one after the other. Reads the lake only; safe at any time.

    Args:
        filters: values by declared filter. They are bound as parameters of the panels' SQL.
        answer_rule: answers panels of rules.
    """
    at = utc_now()
    spec = catalog.pipeline(pipeline)
    single_catalog = dataclasses.replace(catalog, pipelines={pipeline: spec})
    ends_at = time.monotonic() + limits.page_seconds
    panels = []
    parameters: dict[str, Any] = {name: (filters or {}).get(name) for name in dashboard.filters}
    parameters |= {"from": span.since, "to": span.until}
    choices = PanelSpec(title="choices", chart="table", sql=dashboard.choices) if dashboard.choices else None
    declared = (*dashboard.panels, *([choices] if choices is not None else []))
    chosen: PanelAnswer | None = None
    with _PanelQueries(single_catalog, spec, declared, parameters) as questions:
        if choices is not None:
            chosen = questions.run_panel(choices, limits, seconds=limits.panel_seconds)
        for panel in dashboard.panels:
            seconds = min(limits.panel_seconds, ends_at - time.monotonic())
            if panel.rule is not None and answer_rule is not None and seconds > 0:
                panels.append(_answer_rule(panel, answer_rule, seconds))
            elif seconds > 0:
                panels.append(questions.run_panel(panel, limits, seconds=seconds))
            else:
                panels.append(PanelAnswer(panel=panel, problem=f"skipped: the page took {limits.page_seconds:g} s"))
    return DashboardAnswer(
        pipeline=pipeline,
        dashboard=dashboard,
        span=span,
        at=at,
        panels=tuple(panels),
        marks=marks,
        filters=dict(filters or {}),
        choices=_choices(chosen, dashboard) if chosen is not None else {},
        problem=chosen.problem if chosen is not None else "",
    )


def _answer_rule(panel: PanelSpec, answer_rule: AnswerRule, seconds: float) -> PanelAnswer:
    started = time.monotonic()
    try:
        answered = answer_rule(panel, seconds)
    # A failing panel must not hide the others.
    except Exception as error:
        answered = PanelAnswer(panel=panel, problem=describe_error(error))
    return dataclasses.replace(answered, seconds=time.monotonic() - started)


def _choices(answer: PanelAnswer, dashboard: DashboardSpec) -> dict[str, tuple[str, ...]]:
    """Returns the values of each filter, sorted."""
    values: dict[str, set[str]] = {name: set() for name in dashboard.filters}
    if answer.columns:
        for name, value in zip(answer.column("filter"), answer.column("value"), strict=True):
            if name in values and value is not None and len(values[name]) < MAX_CHOICES:
                values[name].add(str(value))
    return {name: tuple(sorted(items)) for name, items in values.items()}


class _PanelQueries:
    """Runs the panel queries of one page over the tables of one pipeline."""

    def __init__(
        self, catalog: Catalog, spec: PipelineSpec, panels: Sequence[PanelSpec], parameters: Mapping[str, Any]
    ) -> None:
        self._catalog = catalog
        self._spec = spec
        self._parameters = parameters
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
        """Runs one panel's query, with a timeout."""
        started = time.monotonic()
        try:
            answered = self._run_query(panel, limits, seconds)
        except duckdb.InterruptException:
            answered = PanelAnswer(panel=panel, problem=f"the query timed out after {seconds:.0f} s")
        # A failing panel must not hide the others.
        except Exception as error:
            answered = PanelAnswer(panel=panel, problem=describe_error(error))
        return dataclasses.replace(answered, seconds=time.monotonic() - started)

    def _run_query(self, panel: PanelSpec, limits: QueryLimits, seconds: float) -> PanelAnswer:
        text = self._read_sql(panel)
        names = self._referenced_names(text)
        # Read before the rows: a commit in between makes the data newer than the shown age, never older.
        ages = {name: self._age(name) for name in sorted(names & self._keys.keys())}
        answered = unqueried_answer(self._spec, panel, ages)
        if answered.missing_tables:
            return answered
        connection = self._connection(names, limits)
        try:
            columns, rows = _fetch_rows(
                connection, text, self._parameters, max_rows=limits.max_rows + 1, seconds=seconds
            )
        except duckdb.InterruptException:
            raise
        except duckdb.Error as error:
            damaged = data_file_error(error, tables=[f"{self._spec.pipeline}.{name}" for name in sorted(ages)])
            if damaged is not None:
                return dataclasses.replace(answered, problem=f"{damaged.message} {damaged.hint}")
            return dataclasses.replace(answered, problem=describe_error(error))
        missing_columns = [name for _, name in panel.result_columns() if name not in columns]
        if missing_columns:
            return dataclasses.replace(answered, problem=f"{panel.sql} returns no column {missing_columns[0]!r}")
        shown = tuple(rows[: limits.max_rows])
        return dataclasses.replace(answered, columns=columns, rows=shown, is_truncated=len(rows) > len(shown))

    def _read_sql(self, panel: PanelSpec) -> str:
        if panel.sql not in self._sql_by_file:
            file = self._catalog.folder(self._spec.pipeline) / panel.sql
            self._sql_by_file[panel.sql] = file.read_text(encoding="utf-8")
        return self._sql_by_file[panel.sql]

    def _connection(self, names: Collection[str], limits: QueryLimits) -> duckdb.DuckDBPyConnection:
        """Returns the connection that all panels share, or a separate one for this panel if any table cannot be
        opened."""
        if self._shared is None and not self._is_per_panel:
            try:
                all_names = set[str]().union(
                    *(self._referenced_names(self._read_sql(panel)) for panel in self._panels if panel.sql)
                )
                self._shared = self._connect(all_names, limits)
            # If a table or file of another panel cannot be opened, this panel gets a separate connection.
            except Exception:
                self._is_per_panel = True
        return self._shared if self._shared is not None else self._connect(names, limits)

    def _connect(self, names: Collection[str], limits: QueryLimits) -> duckdb.DuckDBPyConnection:
        """Opens a DuckDB connection that can read only these tables of the pipeline, with limits."""
        connection, _ = connect(self._catalog, statement=" ".join(sorted(names)) or "nothing")
        self._exit_stack.enter_context(connection)
        restrict_connection(connection, self._spec.pipeline, memory_mib=limits.memory_mib, threads=limits.threads)
        return connection

    def _referenced_names(self, text: str) -> set[str]:
        """Returns the names of tables and views that a query reads, also through views, in lower case.

        The names of the query's own CTEs are included.
        """
        if text not in self._names_by_sql:
            self._names_by_sql[text] = self._find_referenced_names(text)
        return self._names_by_sql[text]

    def _find_referenced_names(self, text: str) -> set[str]:
        tree = json.loads(self._parser.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()[0][0])
        tables = {str(node["table_name"]).lower() for node in _json_objects(tree) if node.get("type") == "BASE_TABLE"}
        return {*names_read(self._views, tables)}

    def _age(self, name: str) -> TableAge | None:
        if name not in self._ages:
            age = table_age(self._lake, self._keys[name], name)
            if age is not None and name in self._references:
                # Times in reference tables are validity times, such as future sessions. They do not show how recent the
                # data are.
                age = dataclasses.replace(age, newest_row_at=None)
            self._ages[name] = age
        return self._ages[name]


def _json_objects(tree: Any) -> Iterator[dict[str, Any]]:
    """Yields every object in a JSON tree."""
    if isinstance(tree, dict):
        yield tree
    for below in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _json_objects(below)


def _fetch_rows(
    connection: duckdb.DuckDBPyConnection, text: str, parameters: Mapping[str, Any], *, max_rows: int, seconds: float
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Returns the columns and up to `max_rows` rows of a query. Interrupts the query after the timeout."""
    query, names = parse_single_select(connection, text)
    parameters_in_query = {name: parameters[name] for name in names if name in parameters}
    with query_timeout(connection, seconds):
        result = connection.execute(f"SELECT * FROM (\n{query}\n) AS panel LIMIT {max_rows}", parameters_in_query)
        return tuple(column[0] for column in result.description or ()), result.fetchall()
