"""Tables of published models, and scores of feature rows.

A model is valid from `valid_from` until the `valid_from` of the next one. A row is scored by the model that is valid at
its timestamp, so no row is scored by a model that was trained on later data, even in a late build.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaworks.control.clock import parse_iso
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.model import ModelRun, ModelRuns
from deltaworks.errors import ConfigError
from deltaworks.gold.references import (
    ReferenceResult,
    changed_references,
    is_changed,
    refresh_references,
    replace_if_changed,
)
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.descriptions import TableDescription, table_descriptions
from deltaworks.specs.models import MODEL_COLUMNS, SCORE_COLUMNS, ModelSpec, instant_sql
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

OPERATION = "refresh_models"
#: Part of the digest, so that a change of columns recreates the table.
_COLUMNS_JSON = json.dumps(list(MODEL_COLUMNS.items()))


@dataclass(frozen=True, slots=True)
class ScoredInput:
    """The input whose rows a model scores, and its timestamp column."""

    table: str
    time_column: str


def refresh_external_inputs(
    catalog: Catalog, pipeline: str, *, names: Sequence[str] | None = None
) -> list[ReferenceResult]:
    """Refreshes reference tables from their files and model tables from published models. Needs no JVM; idempotent.

    Args:
        names: of tables; by default all.

    Raises:
        ContractError: REFERENCE_UNREADABLE, REFERENCE_INVALID or MODEL_UNREADABLE.
        ConcurrencyError: REFERENCE_CONTENDED.
    """
    results = refresh_references(catalog, pipeline, names=names)
    models = [model for model in catalog.pipeline(pipeline).models if names is None or model.name in names]
    if models:
        lake, runs = Lake(catalog.environment.lake), PipelineHome.open(catalog.environment.lake, pipeline).models
        descriptions = table_descriptions(catalog.pipeline(pipeline))
        results += [_refresh(lake, pipeline, model, runs, descriptions) for model in models]
    return results


def changed_external_inputs(catalog: Catalog, pipeline: str) -> list[str]:
    """Returns the reference tables and tables of models that `refresh_external_inputs` would replace.

    Raises:
        ContractError: REFERENCE_UNREADABLE or MODEL_UNREADABLE.
    """
    models, lake = catalog.pipeline(pipeline).models, Lake(catalog.environment.lake)
    changed = changed_references(catalog, pipeline)
    if models:
        runs = PipelineHome.open(catalog.environment.lake, pipeline).models
        changed += [model.name for model in models if is_changed(lake, pipeline, model.name, _digest(model, runs))]
    return changed


def _refresh(
    lake: Lake, pipeline: str, model: ModelSpec, runs: ModelRuns, descriptions: Mapping[str, TableDescription]
) -> ReferenceResult:
    return replace_if_changed(
        lake,
        pipeline,
        model.name,
        _digest(model, runs),
        lambda: published_models(runs.all(model.name)),
        description=descriptions[model.name],
        operation=OPERATION,
    )


def _digest(model: ModelSpec, runs: ModelRuns) -> str:
    # Records of training runs are immutable, so their numbers identify the content.
    return hashlib.sha256(json.dumps([_COLUMNS_JSON, runs.numbers(model.name)]).encode()).hexdigest()


def published_models(runs: Sequence[ModelRun]) -> pa.Table:
    """Returns a table with one row per published model of these training runs."""
    rows = [row for run in runs if (row := _model_row(run)) is not None]
    return pa.Table.from_pylist(rows, schema=arrow_schema(MODEL_COLUMNS))


def _model_row(run: ModelRun) -> dict[str, Any] | None:
    valid_from = parse_iso(run.until)
    if run.model is None or valid_from is None:
        return None
    return {
        "model": run.label,
        "number": run.number,
        "valid_from": valid_from,
        "valid_from_date": valid_from.date(),
        "algorithm": run.model.algorithm,
        "threshold": run.model.threshold,
        "columns": list(run.model.columns),
        "inputs": list(run.model.inputs),
        "expression": run.model.expression,
    }


def score_rows(models: DataFrame, features: DataFrame, scored_input: ScoredInput) -> DataFrame:
    """Adds `model`, `score` and `threshold` to feature rows; drops rows before the first model.

    Raises:
        ConfigError: MODEL_COLUMN_MISSING, a column that a model reads is missing.
    """
    from pyspark.sql import functions as F

    published = sorted(models.collect(), key=lambda row: (row["valid_from"], row["number"]))
    parts = []
    instant = _instant_expression(features, scored_input) if published else ""
    for number, model in enumerate(published, start=1):
        rows = features.where(f"{instant} >= {_valid_from_seconds(model)}")
        if number < len(published):
            rows = rows.where(f"{instant} < {_valid_from_seconds(published[number])}")
        parts.append(_score_with(rows, model, scored_input))
    if not parts:
        return features.where("false").select(
            "*", *(F.lit(None).cast(kind).alias(name) for name, kind in SCORE_COLUMNS.items())
        )
    return reduce(lambda above, below: above.unionAll(below), parts)


def _instant_expression(features: DataFrame, scored_input: ScoredInput) -> str:
    kind = (
        features.schema[scored_input.time_column].dataType.typeName()
        if scored_input.time_column in features.columns
        else ""
    )
    instant = instant_sql(scored_input.time_column, kind)
    if instant is None:
        raise ConfigError(
            "MODEL_COLUMN_MISSING",
            f"{scored_input.table} has no timestamp or date column {scored_input.time_column!r}.",
            hint="Add it to its SQL, or correct `timestamp` of the model.",
        )
    return instant


def _valid_from_seconds(model: Row) -> int:
    # Rounded up, so that rows of the second in which a model was published are not scored by this model.
    return -int(-model["valid_from"].timestamp() // 1)


def _score_with(rows: DataFrame, model: Row, scored_input: ScoredInput) -> DataFrame:
    from pyspark.sql import functions as F

    missing = [name for name in model["columns"] if name not in rows.columns]
    if missing:
        raise ConfigError(
            "MODEL_COLUMN_MISSING",
            f"{model['model']} takes {', '.join(missing)}, which {scored_input.table} no longer has.",
            hint=f"Bring the columns back, or withdraw the model: delete its folder, models/…/{model['model']}.",
        )
    inputs = (F.expr(value).alias(f"x{index}") for index, value in enumerate(model["inputs"]))
    frame = rows.select("*", *inputs).selectExpr("*", f"{model['expression']} AS score")
    return frame.select(
        *rows.columns, F.lit(model["model"]).alias("model"), "score", F.lit(model["threshold"]).alias("threshold")
    )
