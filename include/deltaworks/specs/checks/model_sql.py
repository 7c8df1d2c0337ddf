"""Checks the SQL of model labels and the columns that models use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from deltaworks.specs.base import KeyPath
from deltaworks.specs.checks.sql_files import Columns, QueryCache, read_sql_file
from deltaworks.specs.gold import view_name
from deltaworks.specs.models import ModelSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_errors import SpecError, closest_match
from deltaworks.specs.validation_errors import Declaration

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
            nearest = closest_match(name, columns)
            advice = f"did you mean {nearest!r}?" if nearest is not None else f"its columns are {', '.join(columns)}"
            yield key_path, f"the gold table {model.features!r} has no column {name!r}; {advice}"


def _label_problems(model: ModelSpec, output_columns: Columns) -> Iterator[tuple[KeyPath, str]]:
    if output_columns is None:
        return
    for name in (*model.entity, model.timestamp, _LABEL_COLUMN):
        if name not in output_columns:
            nearest = closest_match(name, output_columns)
            advice = (
                f"did you mean {nearest!r}?" if nearest is not None else f"its columns are {', '.join(output_columns)}"
            )
            yield ("label",), f"the result of {model.label} has no column {name!r}; {advice}"


def _entity_columns(model: ModelSpec) -> list[tuple[KeyPath, str]]:
    if len(model.entity) == 1:
        return [(("entity",), model.entity[0])]
    return [(("entity", index), name) for index, name in enumerate(model.entity)]
