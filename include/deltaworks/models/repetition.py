"""Repeats a training from its recorded manifest and reports differences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltaworks.control.home import PipelineHome
from deltaworks.control.records.model import FoldReport, ModelRun
from deltaworks.errors import ConfigError
from deltaworks.models.training import code_digest, evaluate_model
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltaworks.specs.catalog import Catalog

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
