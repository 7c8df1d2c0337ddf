"""Checks the SQL of panels: syntax, time bounds, and existing tables and columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from deltaworks.specs.base import KeyPath
from deltaworks.specs.checks.sql_files import Columns, QueryCache, read_sql_file
from deltaworks.specs.dashboards import DashboardSpec, PanelSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.pipeline_tables import readable_by_views
from deltaworks.specs.spec_errors import SpecError, closest_match
from deltaworks.specs.validation_errors import Declaration


def panel_errors(
    spec: PipelineSpec, declaration: Declaration, columns: Mapping[str, Columns], cache: QueryCache
) -> Iterator[SpecError]:
    """Yields all errors in the SQL of panels and in the result columns that panels name.

    Args:
        columns: columns by table or view; a table without an entry has unknown columns.
    """
    tables = {name: columns.get(name) for name in readable_by_views(spec)}
    for index, dashboard in enumerate(spec.dashboards):
        yield from _filter_errors(dashboard, declaration, ("dashboards", index))
        choices = declaration.path.parent / dashboard.choices
        if dashboard.choices and choices.is_file():
            output_columns, errors = read_sql_file(choices, tables, spec, cache, purpose="panel")
            yield from errors
            if output_columns is not None and sorted(output_columns) != ["filter", "value"]:
                listed = ", ".join(output_columns)
                text = f"the result of {dashboard.choices} has the columns {listed}, not filter and value"
                yield declaration.error_at(("dashboards", index, "choices"), text)
        for number, panel in enumerate(dashboard.panels):
            path = declaration.path.parent / panel.sql
            if not panel.sql or not path.is_file():
                continue
            output_columns, errors = read_sql_file(
                path, tables, spec, cache, purpose="panel", filters=dashboard.filters
            )
            yield from errors
            if output_columns is not None and not errors:
                for key_path, text in _column_problems(panel, output_columns):
                    yield declaration.error_at(("dashboards", index, "panels", number, *key_path), text)


def _filter_errors(dashboard: DashboardSpec, declaration: Declaration, key_path: KeyPath) -> Iterator[SpecError]:
    """Yields filters that no panel uses."""
    folder = declaration.path.parent
    files = [folder / panel.sql for panel in dashboard.panels if panel.sql]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()]
    for index, name in enumerate(dashboard.filters):
        if not any(re.search(rf"\${name}\b", text) for text in texts):
            text = (
                f"no panel is filtered by {name}: write a condition such as ($" + f"{name} IS NULL OR {name} = ${name})"
            )
            yield declaration.error_at((*key_path, "filters", index), text)


def _column_problems(panel: PanelSpec, output_columns: Sequence[str]) -> Iterator[tuple[KeyPath, str]]:
    """Yields keys of a panel that name a column its result does not have."""
    for key_path, name in panel.result_columns():
        if name not in output_columns:
            nearest = closest_match(name, output_columns)
            advice = (
                f"did you mean {nearest!r}?" if nearest is not None else f"its columns are {', '.join(output_columns)}"
            )
            yield key_path, f"the result of {panel.sql} has no column {name!r}; {advice}"
