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
class Bounds:
    """What the panels of one page may take."""

    panel_seconds: float = 20
    page_seconds: float = 60
    rows: int = 20_000
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
    more_rows: bool = False
    ages: tuple[TableAge, ...] = ()
    absent: tuple[str, ...] = ()
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
    bounds: Bounds = Bounds(),
    marks: Marks = NO_MARKS,
) -> DashboardAnswer:
    """Ask what the panels of a dashboard ask, one after the other. Reads the lake alone; safe beside anything."""
    at = utc_now()
    spec = catalog.pipeline(pipeline)
    own = dataclasses.replace(catalog, pipelines={pipeline: spec})
    ends_at = time.monotonic() + bounds.page_seconds
    panels = []
    with _Questions(own, spec, dashboard.panels, {"from": span.since, "to": span.until}) as questions:
        for panel in dashboard.panels:
            seconds = min(bounds.panel_seconds, ends_at - time.monotonic())
            if seconds > 0:
                panels.append(questions.answer(panel, bounds, seconds=seconds))
            else:
                panels.append(PanelAnswer(panel=panel, problem=f"not asked: the page took {bounds.page_seconds:g} s"))
    return DashboardAnswer(pipeline=pipeline, dashboard=dashboard, span=span, at=at, panels=tuple(panels), marks=marks)


class _Questions:
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
        self._texts: dict[str, str] = {}
        self._read_names: dict[str, set[str]] = {}
        self._open = ExitStack()
        self._parser = self._open.enter_context(duckdb.connect(":memory:"))
        self._panels = panels
        self._shared: duckdb.DuckDBPyConnection | None = None
        self._apart = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def answer(self, panel: PanelSpec, bounds: Bounds, *, seconds: float) -> PanelAnswer:
        """The answer of one panel, which is given up after so many seconds of asking."""
        started = time.monotonic()
        try:
            answered = self._answer(panel, bounds, seconds)
        except duckdb.InterruptException:
            answered = PanelAnswer(panel=panel, problem=f"it took more than {seconds:.0f} s and was ended")
        # Whatever becomes of one panel, the others are to be seen.
        except Exception as error:
            answered = PanelAnswer(panel=panel, problem=describe_error(error))
        return dataclasses.replace(answered, seconds=time.monotonic() - started)

    def _answer(self, panel: PanelSpec, bounds: Bounds, seconds: float) -> PanelAnswer:
        text = self._text(panel)
        names = self._names(text)
        # Before the rows are read: what is committed in between is in the rows, and the age says less than there is.
        ages = {name: self._age(name) for name in sorted(names & self._keys.keys())}
        answered = PanelAnswer(panel=panel, ages=tuple(age for age in ages.values() if age is not None))
        absent = tuple(name for name, age in ages.items() if age is None)
        if absent:
            return dataclasses.replace(answered, absent=absent)
        connection = self._connection(names, bounds)
        try:
            columns, rows = _rows(connection, text, self._span, most=bounds.rows + 1, seconds=seconds)
        except duckdb.InterruptException:
            raise
        except duckdb.Error as error:
            return dataclasses.replace(answered, problem=describe_error(error))
        missing = [name for _, name in panel.result_columns() if name not in columns]
        if missing:
            return dataclasses.replace(answered, problem=f"the answer of {panel.sql} has no column {missing[0]!r}")
        shown = tuple(rows[: bounds.rows])
        return dataclasses.replace(answered, columns=columns, rows=shown, more_rows=len(rows) > len(shown))

    def _text(self, panel: PanelSpec) -> str:
        if panel.sql not in self._texts:
            file = self._catalog.folder(self._spec.pipeline) / panel.sql
            self._texts[panel.sql] = file.read_text(encoding="utf-8")
        return self._texts[panel.sql]

    def _connection(self, names: Collection[str], bounds: Bounds) -> duckdb.DuckDBPyConnection:
        """One for all panels, which opens their tables once; where that fails, one for the tables of this panel."""
        if self._shared is None and not self._apart:
            try:
                every = set[str]().union(*(self._names(self._text(panel)) for panel in self._panels))
                self._shared = self._connected(every, bounds)
            # A table of another panel that cannot be opened, or its file.
            except Exception:
                self._apart = True
        return self._shared if self._shared is not None else self._connected(names, bounds)

    def _connected(self, names: Collection[str], bounds: Bounds) -> duckdb.DuckDBPyConnection:
        """A connection that reads these tables of the pipeline and nothing else, within bounds."""
        connection, _ = connect(self._catalog, statement=" ".join(sorted(names)) or "nothing")
        self._open.enter_context(connection)
        restrict_connection(connection, self._spec.pipeline, memory_mib=bounds.memory_mib, threads=bounds.threads)
        return connection

    def _names(self, text: str) -> set[str]:
        """The tables and views that a query reads, by itself and through views, in lower case; and its own names."""
        if text not in self._read_names:
            self._read_names[text] = self._names_in(text)
        return self._read_names[text]

    def _names_in(self, text: str) -> set[str]:
        tree = json.loads(self._parser.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()[0][0])
        waiting = {str(node["table_name"]).lower() for node in _nodes(tree) if node.get("type") == "BASE_TABLE"}
        names: set[str] = set()
        while waiting:
            name = waiting.pop()
            names.add(name)
            waiting |= {*self._views.get(name, ())} - names
        return names

    def _age(self, name: str) -> TableAge | None:
        if name not in self._ages:
            age = table_age(self._lake, self._keys[name], name)
            if age is not None and name in self._references:
                # Its times say what holds when, such as sessions to come, and not how new what is drawn is.
                age = dataclasses.replace(age, newest_row_at=None)
            self._ages[name] = age
        return self._ages[name]


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object in a tree of JSON."""
    if isinstance(tree, dict):
        yield tree
    for below in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(below)


def _rows(
    connection: duckdb.DuckDBPyConnection, text: str, span: Mapping[str, dt.datetime], *, most: int, seconds: float
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """The columns and up to `most` rows of a query, which is interrupted after so many seconds."""
    query, parameters = parse_single_select(connection, text)
    named = {name: span[name] for name in parameters if name in span}
    with query_timeout(connection, seconds):
        result = connection.execute(f"SELECT * FROM (\n{query}\n) AS panel LIMIT {most}", named)
        return tuple(column[0] for column in result.description or ()), result.fetchall()
