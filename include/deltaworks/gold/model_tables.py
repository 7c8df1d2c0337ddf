"""Models in gold: a table of those that are published, and the rows of their features with the scores they give.

A model holds from its `valid_from` on, until another one does. So a row is scored by the model that was in force at its
instant, whenever it is built, and by none that was made of later days; a new model changes what is from its date on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaworks.control.clock import parse_iso
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.model import ModelRun, ModelRuns
from deltaworks.errors import ConfigError
from deltaworks.gold.references import ReferenceResult, refresh_references, replace_if_changed
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.models import MODEL_COLUMNS, SCORE_COLUMNS, ModelSpec, instant_sql
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

OPERATION = "refresh_models"
#: Of the rows of this table; with other columns it is made again.
_COLUMNS_JSON = json.dumps(list(MODEL_COLUMNS.items()))


@dataclass(frozen=True, slots=True)
class ScoredInput:
    """The input whose rows a model gives scores to, and the column with their instants."""

    table: str
    time_column: str


def refresh_external_inputs(
    catalog: Catalog, pipeline: str, *, names: Sequence[str] | None = None
) -> list[ReferenceResult]:
    """Make reference tables what their files are, and tables of models what is published. Needs no JVM; idempotent.

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
        results += [_refresh(lake, pipeline, model, runs) for model in models]
    return results


def _refresh(lake: Lake, pipeline: str, model: ModelSpec, runs: ModelRuns) -> ReferenceResult:
    # A record never changes: which there are is all that can.
    numbers = runs.numbers(model.name)
    digest = hashlib.sha256(json.dumps([_COLUMNS_JSON, numbers]).encode()).hexdigest()
    return replace_if_changed(
        lake, pipeline, model.name, digest, lambda: published_models(runs.all(model.name)), operation=OPERATION
    )


def published_models(runs: Sequence[ModelRun]) -> pa.Table:
    """The published ones of trainings, a row each."""
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
    """The rows of features that a model was in force for, each with `model`, `score` and `threshold`.

    Raises:
        ConfigError: MODEL_COLUMN_MISSING, rows lack a column that a model in force takes.
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
            f"{scored_input.table} has no timestamp or date {scored_input.time_column!r}, which says the instant of a row.",
            hint="Add it to its SQL, or mend `at` of the model.",
        )
    return instant


def _valid_from_seconds(model: Row) -> int:
    # Rounded up: a row of the second in which a model came was not scored by it.
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
