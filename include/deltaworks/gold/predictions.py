"""Alerts for models whose newest scores reach the threshold, with the names of the entities."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Any

import pyarrow.compute as pc

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.models import ModelSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake

CAUSE = "FAILURE_PREDICTED"
_MAX_NAMED_ROWS = 10
_EXPECTATIONS = {"begins": "to begin", "absent": "to stay away"}


def update_prediction_alerts(
    catalog: Catalog, pipeline: str, *, tables: Collection[str], now: dt.datetime | None = None
) -> None:
    """Raises or resolves the alert of each model from the newest rows of these gold tables.

    A score is valid for the model's horizon. Idempotent. The severity is always warning.
    """
    spec = catalog.pipeline(pipeline)
    for model in spec.models:
        if model.warnings in tables:
            _update_alert(catalog, spec, model, now or utc_now())


def _update_alert(catalog: Catalog, spec: PipelineSpec, model: ModelSpec, now: dt.datetime) -> None:
    objects = PipelineHome.open(catalog.environment.lake, spec.pipeline).objects
    subject = f"{spec.pipeline}.{model.name}"
    rows = _rows_above_threshold(Lake(catalog.environment.lake), spec, model, now)
    if not rows:
        resolve_alert(objects, cause=CAUSE, subject=subject, summary=f"{subject} no longer predicts anything.", now=now)
        return
    names = [f"{'/'.join(str(row[name]) for name in model.entity)} {row['score']:.2f}" for row in rows]
    more = f" and {len(names) - _MAX_NAMED_ROWS} more" if len(names) > _MAX_NAMED_ROWS else ""
    raise_alert(
        objects,
        cause=CAUSE,
        subject=subject,
        summary=(
            f"{rows[0]['model']} expects the state in {model.label} {_EXPECTATIONS[model.predicts]} within "
            f"{_describe_horizon(model)} for {', '.join(names[:_MAX_NAMED_ROWS])}{more}."
        ),
        severity="warning",
        detail={
            "model": rows[0]["model"],
            "threshold": rows[0]["threshold"],
            "rows": [
                {name: str(row[name]) for name in (*model.entity, model.timestamp, "score")}
                for row in rows[:_MAX_NAMED_ROWS]
            ],
        },
        now=now,
    )


def _rows_above_threshold(lake: Lake, spec: PipelineSpec, model: ModelSpec, now: dt.datetime) -> list[dict[str, Any]]:
    """Returns the newest row of each entity within the horizon whose score reaches the threshold, highest score
    first."""
    declared = {table.name: table for table in spec.gold.tables}[str(model.warnings)]
    horizon = dt.timedelta(seconds=model.horizon_seconds)
    columns = [*model.entity, model.timestamp, "model", "score", "threshold"]
    since = (now - horizon).date() - dt.timedelta(days=1)
    filters = pc.field(declared.partition_by) >= since if declared.is_partitioned_by_date else None
    table = lake.rows(paths.table(spec.pipeline, declared.name), columns=columns, filters=filters)
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in [] if table is None else table.to_pylist():
        at = _row_instant(row[model.timestamp])
        if at is None or not now - horizon < at <= now:
            continue
        entity = tuple(row[name] for name in model.entity)
        if entity not in newest or at > newest[entity]["_at"]:
            newest[entity] = {**row, "_at": at}
    rows = [row for row in newest.values() if row["score"] is not None and row["score"] >= row["threshold"]]
    return sorted(rows, key=lambda row: -row["score"])


def _row_instant(value: Any) -> dt.datetime | None:
    """Returns the timestamp of a row; for a date, its end."""
    if isinstance(value, dt.datetime):
        return value if value.tzinfo else value.replace(tzinfo=dt.UTC)
    if isinstance(value, dt.date):
        return dt.datetime.combine(value + dt.timedelta(days=1), dt.time(), dt.UTC)
    return None


def _describe_horizon(model: ModelSpec) -> str:
    return f"{model.horizon_minutes} minutes" if model.horizon_minutes is not None else f"{model.horizon_days} days"
