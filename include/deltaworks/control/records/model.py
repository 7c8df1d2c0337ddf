"""Records of model training: inputs, evaluation against baselines, and the model if it is published.

A training run is one object, created once at its end; a crashed run leaves nothing. Of two concurrent runs the second
takes the next number.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore

_KIND = RecordKind(
    noun="manifest of a model",
    unreadable_condition="MODEL_UNREADABLE",
    hint="Restore it from the storage's versions, run the release that wrote it, or delete its folder.",
)
#: `published`: gold scores rows with it. `no_gain`: it does not improve enough on the better baseline. `too_little`:
#: part of a fold has rows of only one label, or none.
Outcome = Literal["published", "no_gain", "too_little"]


class ModelMetrics(RecordPart):
    """Evaluation metrics of scores on test rows; None if undefined.

    Args:
        pr_auc: area under the precision-recall curve.
        alarm_precision: share of correct alarms among those the threshold raises.
        lead_seconds: median time from a correct alarm to the predicted event.
        calibration: rows, mean score and share of positive rows per bin, from the lowest score up.
    """

    pr_auc: float | None
    brier_score: float | None
    threshold: float | None = None
    alarms: int = 0
    alarm_precision: float | None = None
    lead_seconds: float | None = None
    calibration: tuple[tuple[int, float, float], ...] = ()


class Gain(RecordPart):
    """Difference of two areas, with its 95 % interval over bootstrap draws of blocks."""

    baseline: str
    value: float
    low: float
    high: float


class FoldReport(RecordPart):
    """Evaluation of one fold.

    Spans are ISO 8601 in UTC, half-open. The keys of `scores` are `model`, feature-group prefixes and baselines. The
    gain of each feature group over the previous groups is in `group_gains`.
    """

    train_from: str
    train_to: str
    test_from: str
    test_to: str
    train_rows: int
    train_positive: int
    test_rows: int
    test_positive: int
    algorithm: str = ""
    scores: dict[str, ModelMetrics] = Field(default_factory=dict)
    gain: Gain | None = None
    group_gains: dict[str, Gain] = Field(default_factory=dict)


class PublishedModel(RecordPart):
    """The published model: an SQL expression over `x0`, `x1`, …, the values of `inputs`, one per column."""

    algorithm: str
    columns: tuple[str, ...]
    inputs: tuple[str, ...]
    expression: str
    threshold: float


class ModelRun(Record):
    """A training run. The model is valid from `until` on, the training time; later data were ignored.

    Args:
        versions: versions of the Delta tables it read, by their names in `reads`.
        declared: the model's spec, with which the training can be repeated.
        label_sql: the label's query.
        code: digest of the training code.
    """

    kind: ClassVar[RecordKind] = _KIND
    indent: ClassVar[int | None] = 1

    pipeline: str
    name: str
    number: int
    outcome: Outcome
    reason: str
    until: str
    versions: dict[str, int]
    declared: dict[str, Any]
    label_sql: str
    folds: tuple[FoldReport, ...]
    model: PublishedModel | None = None
    code: str
    code_version: str
    run: str
    at: str

    @property
    def label(self) -> str:
        """The name of the model and its run in scored rows, such as `edge_failure/3`."""
        return f"{self.name}/{self.number}"


class ModelRuns:
    """The training runs of a pipeline's models, by name and number, from 1 on."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, ModelRun)

    def numbers(self, name: str) -> list[int]:
        """Returns the existing numbers, ascending. One listing."""
        folder = paths.model_runs(self._pipeline, name)
        texts = {key.removeprefix(folder).partition("/")[0] for key in self._objects.list(folder)}
        return sorted(int(text) for text in texts if text.isdigit())

    def read(self, name: str, number: int) -> ModelRun | None:
        """Reads one run; None if it does not exist.

        Raises:
            ContractError: MODEL_UNREADABLE.
        """
        return self._records.read(paths.model_runs(self._pipeline, name, number))

    def all(self, name: str) -> list[ModelRun]:
        """Returns every run of a model, oldest first.

        Raises:
            ContractError: MODEL_UNREADABLE.
        """
        runs = (self.read(name, number) for number in self.numbers(name))
        return [run for run in runs if run is not None]

    def add(self, run: ModelRun) -> ModelRun:
        """Stores the run under the next free number; returns it with that number."""
        number = max(self.numbers(run.name), default=0) + 1
        while True:
            candidate = run.replace(number=number)
            if self._records.create(paths.model_runs(self._pipeline, run.name, number), candidate):
                return candidate
            number += 1
