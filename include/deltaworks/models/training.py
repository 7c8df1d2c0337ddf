"""Trains a pipeline's models: evaluates each on rolling folds and publishes it if every fold supports it.

A training reads pinned table versions and writes one manifest at the end. It can run at any time. A failed run writes
nothing. A training can be repeated from its manifest, to report differences.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltaworks import __version__
from deltaworks.control.clock import iso_now, parse_iso, utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.provenance import current_run
from deltaworks.control.records.model import FoldReport, ModelRun, Outcome, PublishedModel
from deltaworks.errors import ConfigError
from deltaworks.models.evaluation import SelectedModel, evaluate_fold, iso_time, select_model, shortfall_reason
from deltaworks.models.frames import LabelledFrame, build_labelled_frame, pinned_versions
from deltaworks.models.spans import Fold, end_of_labels, rolling_folds, training_span
from deltaworks.specs.catalog import find_by_name
from deltaworks.specs.models import ModelSpec
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltaworks.specs.catalog import Catalog

log = logging.getLogger(__name__)
#: Returns the folds of a model, given the time up to which rows have labels.
FoldFactory = Callable[[ModelSpec, int], Sequence[Fold]]


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """The result of a training run."""

    outcome: Outcome
    reason: str
    folds: tuple[FoldReport, ...]
    model: PublishedModel | None = None


def declared_folds(model: ModelSpec, end: int) -> Sequence[Fold]:
    """Returns the declared folds. The last fold ends where the labels end."""
    return rolling_folds(
        end=end,
        train_days=model.folds.train_days,
        test_days=model.folds.test_days,
        count=model.folds.count,
        gap_seconds=model.horizon_seconds,
    )


def train_model(
    spark: SparkSession,
    catalog: Catalog,
    pipeline: str,
    name: str,
    *,
    until: dt.datetime | None = None,
    folds: FoldFactory = declared_folds,
) -> ModelRun:
    """Trains a model and records the result. A model with too little gain is recorded, not published; this is no
    failure.

    Args:
        until: the training time; by default now. Later data are ignored, and the model is valid from this time.
        folds: replaces the declared folds, for experiments.

    Raises:
        ConfigError: MODEL_UNKNOWN, MODEL_SQL_INVALID, MODEL_COLUMN_MISSING.
        ContractError: MODEL_INPUT_MISSING, MODEL_UNREADABLE.
    """
    model = declared_model(catalog, pipeline, name)
    lake = Lake(catalog.environment.lake)
    instant = until or utc_now()
    draft = ModelRun(
        pipeline=pipeline,
        name=name,
        number=0,
        outcome="too_little",
        reason="",
        until=instant.astimezone(dt.UTC).isoformat(timespec="seconds"),
        versions=pinned_versions(lake, pipeline, model),
        declared=model.model_dump(mode="json"),
        label_sql=(catalog.folder(pipeline) / model.label).read_text(encoding="utf-8"),
        folds=(),
        code=code_digest(),
        code_version=__version__,
        run=current_run(),
        at=iso_now(),
    )
    outcome = evaluate_model(spark, lake, draft, folds=folds)
    run = draft.replace(outcome=outcome.outcome, reason=outcome.reason, folds=outcome.folds, model=outcome.model)
    return PipelineHome.open(catalog.environment.lake, pipeline).models.add(run)


def evaluate_model(
    spark: SparkSession, lake: Lake, run: ModelRun, *, folds: FoldFactory = declared_folds
) -> TrainingOutcome:
    """Evaluates a training from the versions and declaration in its record. Writes nothing.

    Raises:
        ContractError: TABLE_VERSION_UNAVAILABLE.
    """
    model = ModelSpec.model_validate(run.declared)
    until = parse_iso(run.until) or utc_now()
    frame = build_labelled_frame(
        spark,
        lake,
        run.pipeline,
        model,
        versions=run.versions,
        label_sql=run.label_sql,
        until=int(until.timestamp()),
    )
    try:
        end = end_of_labels(frame.known_until, model.horizon_seconds)
        reports = []
        for number, fold in enumerate(folds(model, end), start=1):
            reports.append(evaluate_fold(frame, fold, model))
            log.info("pipeline=%s model=%s fold=%d %s", run.pipeline, run.name, number, _describe_fold(reports[-1]))
        return _decide_outcome(frame, model, tuple(reports), end)
    finally:
        frame.frame.unpersist()


def _decide_outcome(frame: LabelledFrame, model: ModelSpec, folds: tuple[FoldReport, ...], end: int) -> TrainingOutcome:
    incomplete = [fold for fold in folds if fold.gain is None]
    if incomplete:
        first = incomplete[0]
        reason = (
            f"{len(incomplete)} of {len(folds)} folds lack rows of both labels; the first, from {first.train_from} to "
            f"{first.test_to}, has {first.train_rows} training rows ({first.train_positive} positive) and "
            f"{first.test_rows} test rows ({first.test_positive} positive)"
        )
        return TrainingOutcome("too_little", reason, folds)
    shortfalls = [
        (number, shortfall_reason(fold, gain=model.publish.gain)) for number, fold in enumerate(folds, start=1)
    ]
    texts = [f"fold {number} {text}" for number, text in shortfalls if text]
    if texts:
        return TrainingOutcome("no_gain", "; ".join(texts), folds)
    span = training_span(end=end, train_days=model.folds.train_days, gap_seconds=model.horizon_seconds)
    final = select_model(frame, span, model, model.columns)
    if final is None:
        return TrainingOutcome("too_little", f"the days up to {iso_time(end)} lack rows of both labels", folds)
    gains = ", ".join(f"{fold.gain.value:.3f}" for fold in folds if fold.gain is not None)
    return TrainingOutcome("published", f"gains {gains} over the better baseline", folds, _to_published_model(final))


def _to_published_model(selected: SelectedModel) -> PublishedModel:
    fitted = selected.model
    return PublishedModel(
        algorithm=fitted.algorithm,
        columns=fitted.columns,
        inputs=fitted.inputs,
        expression=fitted.expression,
        threshold=selected.threshold,
    )


def _describe_fold(fold: FoldReport) -> str:
    areas = ", ".join(f"{name} {metrics.pr_auc}" for name, metrics in fold.scores.items())
    counts = f"{fold.test_rows} rows, {fold.test_positive} positive"
    return f"tested from {fold.test_from}: {counts}; {areas or 'not evaluated'}"


def declared_model(catalog: Catalog, pipeline: str, name: str) -> ModelSpec:
    """Returns a declared model.

    Raises:
        ConfigError: MODEL_UNKNOWN.
    """
    return find_by_name(name, {model.name: model for model in catalog.pipeline(pipeline).models}, "model")


@functools.cache
def code_digest() -> str:
    """Returns a digest of the training code. Results may differ if the digest changes."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


#: Tolerance, since sums over several partitions may differ in their last digits.
TOLERANCE: Final = 1e-4
_MAX_DIFFERENCES: Final = 5


@dataclass(frozen=True, slots=True)
class Repetition:
    """A repeated training: the original record, the new folds, and the differences."""

    run: ModelRun
    folds: tuple[FoldReport, ...]
    differences: tuple[str, ...]
    has_other_code: bool


def repeat_training(spark: SparkSession, catalog: Catalog, pipeline: str, name: str, number: int) -> Repetition:
    """Repeats a recorded training with the same versions, declaration and label SQL. Writes nothing.

    Raises:
        ConfigError: MODEL_RUN_UNKNOWN.
        ContractError: TABLE_VERSION_UNAVAILABLE, TABLE_VERSION_VACUUMED or MODEL_UNREADABLE.
    """
    runs = PipelineHome.open(catalog.environment.lake, pipeline).models
    run = runs.read(name, number)
    if run is None:
        numbers = ", ".join(map(str, runs.numbers(name))) or "none"
        raise ConfigError(
            "MODEL_RUN_UNKNOWN", f"Training {name}/{number} does not exist.", hint=f"Its trainings are {numbers}."
        )
    outcome = evaluate_model(spark, Lake(catalog.environment.lake), run)
    before: dict[str, Any] = {"outcome": run.outcome, "folds": [fold.model_dump(mode="json") for fold in run.folds]}
    after: dict[str, Any] = {
        "outcome": outcome.outcome,
        "folds": [fold.model_dump(mode="json") for fold in outcome.folds],
    }
    if run.model is not None and outcome.model is not None:
        before["model"], after["model"] = run.model.threshold, outcome.model.threshold
    differing = tuple(find_differences(before, after))[:_MAX_DIFFERENCES]
    return Repetition(run, outcome.folds, differing, has_other_code=run.code != code_digest())


def find_differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yields the differences between two nested structures of plain data that exceed the tolerance."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from find_differences(before.get(key), after.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from find_differences(*pair, f"{path}[{index}]")
    elif isinstance(before, int | float) and isinstance(after, int | float):
        if not abs(before - after) <= TOLERANCE * max(1.0, abs(before)):
            yield f"{path} was {before} and is {after}"
    elif before != after:
        yield f"{path} was {before} and is {after}"
