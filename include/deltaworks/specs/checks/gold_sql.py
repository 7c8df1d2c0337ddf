"""Checks the SQL of gold tables, views, panels and rules: syntax for Spark or DuckDB, and existing tables and
columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deltaworks.specs.base import KeyPath
from deltaworks.specs.checks.model_sql import model_errors
from deltaworks.specs.checks.panel_sql import panel_errors
from deltaworks.specs.checks.rule_sql import rule_errors
from deltaworks.specs.checks.sql_files import Columns, QueryCache, read_sql_file
from deltaworks.specs.descriptions import result_personal_columns
from deltaworks.specs.gold import GoldTableSpec, build_order, find_cycle, view_name, view_order
from deltaworks.specs.models import MODEL_COLUMNS, SCORE_COLUMNS
from deltaworks.specs.mutation import NAMES_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_errors import SpecError, closest_match
from deltaworks.specs.types import VARIANT
from deltaworks.specs.validation_errors import Declaration


def gold_sql_errors(spec: PipelineSpec, declaration: Declaration) -> Iterator[SpecError]:
    """Yields all errors in the SQL of gold tables, views, panels and rules, and in the spec keys that name result
    columns.
    """
    columns: dict[str, Sequence[str] | None] = {table.name: list(table.column_types()) for table in spec.tables}
    columns |= {table.name: list(table.types) for table in (*spec.keyed_tables, *spec.latest_tables)}
    if spec.mutations is not None:
        columns[spec.mutations.names] = list(NAMES_COLUMNS)
    columns |= {reference.name: list(reference.column_types()) for reference in spec.references}
    key_paths: dict[str, KeyPath] = {
        table.name: ("gold", "tables", index) for index, table in enumerate(spec.gold.tables)
    }
    cache = QueryCache()
    for table in build_order(spec.gold.tables):
        path = declaration.path.parent / table.sql
        if not path.is_file():
            columns[table.name] = None
            continue
        models = {model.name: model for model in spec.models}
        views = {
            view_name(name): _scored_columns(columns, models[name].features) if name in models else columns.get(name)
            for name in table.reads
        }
        output_columns, errors = read_sql_file(path, views, spec, cache, purpose="gold")
        yield from errors
        columns[table.name] = output_columns
        if output_columns is not None:
            for key_path, text in _result_problems(table, output_columns):
                yield declaration.error_at((*key_paths[table.name], *key_path), text)
        if not errors and (text := _refresh_problem(table, path, spec)):
            yield declaration.error_at((*key_paths[table.name], "refresh"), text)
    columns |= {model.name: list(MODEL_COLUMNS) for model in spec.models}
    yield from model_errors(spec, declaration, columns, cache)
    yield from _view_errors(spec, declaration, columns, cache)
    yield from panel_errors(spec, declaration, columns, cache)
    yield from rule_errors(spec, declaration, columns, cache)
    cache.save()
    yield from _dedupe_errors(spec, declaration)


def _refresh_problem(table: GoldTableSpec, path: Path, spec: PipelineSpec) -> str:
    """Returns why a table cannot be refreshed as it declares; empty if it can."""
    if table.refresh not in ("incremental", "strict"):
        return ""
    # Imported here: it imports sqlglot, which takes half a second.
    from deltaworks.specs.checks.refresh_class import classify

    refresh = classify(table, path.read_text(encoding="utf-8"), spec)
    if refresh.query is not None:
        return ""
    return (
        f"{table.sql} cannot be kept up with new rows alone: {refresh.reason}; write refresh: auto, or change the SQL"
    )


def _scored_columns(columns: Mapping[str, Columns], features: str) -> Columns:
    """Returns the columns of a model as gold SQL reads it: the features and the scores."""
    own = columns.get(features)
    return None if own is None else [*own, *SCORE_COLUMNS]


def _view_errors(
    spec: PipelineSpec, declaration: Declaration, columns: dict[str, Columns], cache: QueryCache
) -> Iterator[SpecError]:
    """Yields errors in the SQL of views. They may also read the engine's tables, whose columns are not checked."""
    if find_cycle(spec.views):
        return
    positions = {view.name: index for index, view in enumerate(spec.views)}
    personal = result_personal_columns(spec)
    for view in view_order(spec.views):
        path = declaration.path.parent / view.sql
        columns[view.name] = None
        if path.is_file():
            tables = {name: columns.get(name) for name in view.reads}
            columns[view.name], errors = read_sql_file(path, tables, spec, cache, purpose="view")
            yield from errors
        for name in columns[view.name] or () if view.widget is not None else ():
            if name in personal:
                text = f"the result of {view.sql} has the personal column {name!r}; remove it, or declare no widget"
                yield declaration.error_at(("views", positions[view.name], "widget"), text)


def _result_problems(table: GoldTableSpec, output_columns: Sequence[str]) -> Iterator[tuple[KeyPath, str]]:
    """Yields spec keys of a gold table that name a column its result does not have."""
    key_paths: list[tuple[KeyPath, str]] = [(("partition_by",), table.partition_by)]
    if table.grain is not None:
        key_paths.append((("grain", "column"), table.grain.column))
    intervals = table.checks.intervals
    if intervals is not None:
        key_paths += [(("checks", "intervals", "by", index), name) for index, name in enumerate(intervals.by)]
        key_paths += [
            (("checks", "intervals", "from"), intervals.start),
            (("checks", "intervals", "to"), intervals.end),
        ]
    for check in ("unique", "not_null"):
        key_paths += [(("checks", check, index), name) for index, name in enumerate(getattr(table.checks, check))]
    key_paths += [(("columns", name), name) for name in table.columns]
    for key_path, name in key_paths:
        if name not in output_columns:
            nearest = closest_match(name, output_columns)
            advice = (
                f"did you mean {nearest!r}?" if nearest is not None else f"its columns are {', '.join(output_columns)}"
            )
            yield key_path, f"the result of {table.sql} has no column {name!r}; {advice}"


def _dedupe_errors(spec: PipelineSpec, declaration: Declaration) -> Iterator[SpecError]:
    """Yields an error for each event table that gold reads and that lacks the dedupe key."""
    if spec.gold.dedupe is None:
        return
    read = {name for table in spec.gold.tables for name in table.reads}
    for table in spec.event_tables:
        if table.name in read and table.column_types().get(spec.gold.dedupe.by) == VARIANT:
            text = f"{spec.gold.dedupe.by} of {table.name!r} is a variant; declare a column for the field"
            yield declaration.error_at(("gold", "dedupe", "by"), text)
        elif table.name in read and spec.gold.dedupe.by not in table.column_types():
            nearest = closest_match(spec.gold.dedupe.by, table.column_types())
            advice = f"; did you mean {nearest!r}?" if nearest is not None else ""
            text = f"{table.name!r}, which gold reads, has no column {spec.gold.dedupe.by!r}{advice}"
            yield declaration.error_at(("gold", "dedupe", "by"), text)
