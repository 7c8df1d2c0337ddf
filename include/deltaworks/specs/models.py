"""Specs of prediction models: target, features, evaluation and training schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from deltaworks.specs.base import KeyPath, Name, Problem, Spec, as_tuple, raise_problems
from deltaworks.specs.gold import GoldInput
from deltaworks.specs.schedules import Schedule

if TYPE_CHECKING:
    pass

Algorithm = Literal["logistic", "gbt"]
BaselineName = Literal["persistence", "seasonal"]
#: Columns of the table with a published model. Gold reads it by the model's name.
MODEL_COLUMNS: Final[dict[str, str]] = {
    "model": "string",
    "number": "int",
    "valid_from": "timestamp",
    "valid_from_date": "date",
    "algorithm": "string",
    "threshold": "double",
    "columns": "array<string>",
    "inputs": "array<string>",
    "expression": "string",
}
#: Columns that gold reads in addition to the features.
SCORE_COLUMNS: Final = {"model": "string", "score": "double", "threshold": "double"}
_MINUTES_A_DAY = 1_440


class FoldsSpec(Spec):
    """Backtest folds: each fold trains a model on some days and evaluates it on the days after."""

    train_days: int = Field(default=28, ge=1, le=3_650)
    test_days: int = Field(default=7, ge=1, le=3_650)
    count: int = Field(default=4, ge=1, le=26)


class PublishSpec(Spec):
    """How much better a model must be to be published.

    In each fold, its area under the precision-recall curve must exceed that of the better baseline by this much.
    """

    gain: float = Field(default=0.02, ge=0, lt=1)


class ModelSpec(Spec):
    """A model that predicts for each feature row whether a state of the entity begins within the horizon (`begins`), or
    never holds (`absent`).

    The label is SQL in Spark's dialect over gold tables. Its result has the `entity` columns, the `timestamp` column
    and
    `holds`: whether the state held at that time. In features and labels, a date means the end of that date.
    """

    name: Name
    description: str = ""
    features: Name = Field(description="gold table of the pipeline with a row per entity and time")
    timestamp: Name = Field(description="its timestamp or date, by which the values of a row were known")
    entity: Annotated[tuple[Name, ...], BeforeValidator(as_tuple)] = Field(
        min_length=1, description="columns that identify an entity"
    )
    feature_groups: Mapping[Name, tuple[Name, ...]] = Field(
        min_length=1,
        description=("feature columns by group; the gain of each group over the previous ones is reported"),
    )
    label: str = Field(description="file with the SQL of the label")
    reads: tuple[GoldInput, ...] = Field(min_length=1, description="gold tables that the label reads")
    predicts: Literal["begins", "absent"] = "begins"
    horizon_minutes: int | None = Field(default=None, ge=1, le=7 * _MINUTES_A_DAY)
    horizon_days: int | None = Field(default=None, ge=1, le=366)
    folds: FoldsSpec = FoldsSpec.defaults()
    algorithms: tuple[Algorithm, ...] = Field(default=("logistic", "gbt"), min_length=1)
    baselines: tuple[BaselineName, ...] = Field(default=("persistence", "seasonal"), min_length=1)
    alarms_per_day: float = Field(
        default=1, gt=0, description="maximum number of alarms per entity and day, which sets the threshold"
    )
    publish: PublishSpec = PublishSpec.defaults()
    warnings: Name | None = Field(
        default=None, description="gold table of its scores; the newest rows above the threshold raise a warning"
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        raise_problems([*self._consistency_problems()])
        return self

    @property
    def horizon_seconds(self) -> int:
        """The horizon in seconds."""
        return (self.horizon_minutes or 0) * 60 + (self.horizon_days or 0) * _MINUTES_A_DAY * 60

    @property
    def columns(self) -> tuple[str, ...]:
        """All feature columns, grouped as in `feature_groups`."""
        return tuple(column for columns in self.feature_groups.values() for column in columns)

    def _consistency_problems(self) -> Iterator[Problem]:
        if (self.horizon_minutes is None) == (self.horizon_days is None):
            yield ("horizon_minutes",), "give either horizon_minutes or horizon_days"
            return
        if self.folds.train_days * 86_400 < 2 * self.horizon_seconds:
            yield (
                ("horizon_days" if self.horizon_days is not None else "horizon_minutes",),
                f"training must be at least twice as long as the horizon; write folds: "
                f"{{train_days: {-(-2 * self.horizon_seconds // 86_400)}}} "
                "or more",
            )
        first: dict[str, KeyPath] = {}
        for group, columns in self.feature_groups.items():
            for index, column in enumerate(columns):
                key_path = ("feature_groups", group, index)
                if column in first:
                    yield key_path, f"{column!r} is named twice; keep it in one group", (first[column],)
                elif column in (*self.entity, self.timestamp):
                    yield key_path, f"{column!r} identifies the row and cannot be a feature; remove it"
                first.setdefault(column, key_path)
        for key in ("algorithms", "baselines"):
            names = getattr(self, key)
            if len(set(names)) < len(names):
                yield (key,), f"a name is listed twice; write [{', '.join(dict.fromkeys(names))}]"


class TrainingSpec(Spec):
    """When the models of a pipeline are trained."""

    schedule: Schedule | None = Field(default="0 4 * * 0", description="null: only manually")


def instant_sql(column: str, kind: str) -> str | None:
    """Returns a Spark SQL expression for a row's time in epoch seconds, by the column's type; None for unsupported
    types.

    A date means the end of that date, because only then all its data are known.
    """
    if kind == "timestamp":
        return f"unix_seconds({column})"
    return f"CAST(unix_date({column}) + 1 AS BIGINT) * 86400" if kind == "date" else None
