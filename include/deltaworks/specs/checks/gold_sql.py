"""Checks the SQL of gold tables, views, panels, rules and labels of models: syntax for Spark or DuckDB, existing tables
and columns, and the result columns that the specs name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deltaworks.specs.alert_rule import BUCKET, MINUTE, SAMPLES, VALUE, RuleSpec
from deltaworks.specs.base import KeyPath
from deltaworks.specs.checks.sql_files import Columns, QueryCache, read_sql_file
from deltaworks.specs.dashboards import DashboardSpec, PanelSpec
from deltaworks.specs.descriptions import result_personal_columns
from deltaworks.specs.gold import GoldTableSpec, build_order, find_cycle, view_name, view_order
from deltaworks.specs.models import MODEL_COLUMNS, SCORE_COLUMNS, ModelSpec
from deltaworks.specs.mutation import NAMES_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.pipeline_tables import readable_by_views
from deltaworks.specs.spec_errors import SpecError, closest_match
from deltaworks.specs.types import VARIANT
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
                for key_path, text in _panel_column_problems(panel, output_columns):
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


def _panel_column_problems(panel: PanelSpec, output_columns: Sequence[str]) -> Iterator[tuple[KeyPath, str]]:
    """Yields keys of a panel that name a column its result does not have."""
    for key_path, name in panel.result_columns():
        if name not in output_columns:
            yield key_path, f"the result of {panel.sql} {_lacks_column(name, output_columns)}"


_LABEL_COLUMN = "holds"


def model_errors(
    spec: PipelineSpec, declaration: Declaration, columns: Mapping[str, Columns], cache: QueryCache
) -> Iterator[SpecError]:
    """Yields all errors in the label SQL of models and in the columns that models name.

    Args:
        columns: columns by table; a table without an entry has unknown columns.
    """
    gold = {table.name for table in spec.gold.tables}
    for index, model in enumerate(spec.models):
        output_columns: Columns = None
        path = declaration.path.parent / model.label
        if path.is_file():
            tables = {view_name(name): columns.get(name) if name in gold else None for name in model.reads}
            output_columns, errors = read_sql_file(path, tables, spec, cache, purpose="gold")
            yield from errors
        for key_path, text in (
            *_feature_problems(model, columns.get(model.features)),
            *_label_problems(model, output_columns),
        ):
            yield declaration.error_at(("models", index, *key_path), text)


def _feature_problems(model: ModelSpec, columns: Columns) -> Iterator[tuple[KeyPath, str]]:
    if columns is None:
        return
    key_paths: list[tuple[KeyPath, str]] = [(("timestamp",), model.timestamp), *_entity_columns(model)]
    key_paths += [
        (("feature_groups", group, index), name)
        for group, names in model.feature_groups.items()
        for index, name in enumerate(names)
    ]
    for key_path, name in key_paths:
        if name not in columns:
            yield key_path, f"the gold table {model.features!r} {_lacks_column(name, columns)}"


def _label_problems(model: ModelSpec, output_columns: Columns) -> Iterator[tuple[KeyPath, str]]:
    if output_columns is None:
        return
    for name in (*model.entity, model.timestamp, _LABEL_COLUMN):
        if name not in output_columns:
            yield ("label",), f"the result of {model.label} {_lacks_column(name, output_columns)}"


def _entity_columns(model: ModelSpec) -> list[tuple[KeyPath, str]]:
    if len(model.entity) == 1:
        return [(("entity",), model.entity[0])]
    return [(("entity", index), name) for index, name in enumerate(model.entity)]


def rule_errors(
    spec: PipelineSpec, declaration: Declaration, columns: Mapping[str, Columns], cache: QueryCache
) -> Iterator[SpecError]:
    """Yields all errors in the SQL of rules and in the result columns that rules need.

    Args:
        columns: columns by table or view; a table without an entry has unknown columns.
    """
    for index, rule in enumerate(spec.rules):
        path = declaration.path.parent / rule.sql
        if not path.is_file():
            continue
        tables = {name: columns.get(name) for name in rule.reads}
        output_columns, errors = read_sql_file(path, tables, spec, cache, purpose="rule")
        yield from errors
        if output_columns is not None and not errors:
            for key_path, text in _rule_column_problems(rule, output_columns):
                yield declaration.error_at(("rules", index, *key_path), text)


def required_columns(rule: RuleSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yields the result columns that a rule needs, each with the key that requires it."""
    yield ("sql",), MINUTE
    for position, label in enumerate(rule.labels):
        yield ("labels", position), label
    yield (("sql",), VALUE) if rule.percentile is None else (("percentile",), BUCKET)
    if rule.min_samples is not None:
        yield ("samples",), SAMPLES


def _rule_column_problems(rule: RuleSpec, output_columns: Sequence[str]) -> Iterator[tuple[KeyPath, str]]:
    for key_path, name in required_columns(rule):
        if name not in output_columns:
            yield key_path, f"the result of {rule.sql} {_lacks_column(name, output_columns)}"


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
            yield key_path, f"the result of {table.sql} {_lacks_column(name, output_columns)}"


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


def _lacks_column(name: str, columns: Sequence[str]) -> str:
    """Returns the end of an error: a column is missing, and the nearest name or all names."""
    nearest = closest_match(name, columns)
    advice = f"did you mean {nearest!r}?" if nearest is not None else f"its columns are {', '.join(columns)}"
    return f"has no column {name!r}; {advice}"
