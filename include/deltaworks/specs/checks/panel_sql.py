"""Checks the SQL of panels: syntax, time bounds, and existing tables and columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from deltaworks.specs.base import KeyPath
from deltaworks.specs.checks.sql_files import Columns, QueryCache, read_sql_file
from deltaworks.specs.dashboards import PanelSpec
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
        for number, panel in enumerate(dashboard.panels):
            path = declaration.path.parent / panel.sql
            if not path.is_file():
                continue
            output_columns, errors = read_sql_file(path, tables, spec, cache, purpose="panel")
            yield from errors
            if output_columns is not None and not errors:
                for key_path, text in _column_problems(panel, output_columns):
                    yield declaration.error_at(("dashboards", index, "panels", number, *key_path), text)


def _column_problems(panel: PanelSpec, output_columns: Sequence[str]) -> Iterator[tuple[KeyPath, str]]:
    """Yields keys of a panel that name a column its result does not have."""
    for key_path, name in panel.result_columns():
        if name not in output_columns:
            nearest = closest_match(name, output_columns)
            advice = (
                f"did you mean {nearest!r}?" if nearest is not None else f"its columns are {', '.join(output_columns)}"
            )
            yield key_path, f"the result of {panel.sql} has no column {name!r}; {advice}"
