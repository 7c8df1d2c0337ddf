"""The record of a training: what a model was made of, how it and its baselines did, and the model if it is published.

A training is one object, created once when all of it is done: one that died leaves nothing. Of two at once the second
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
#: `published`: gold scores rows by it. `no_gain`: it adds too little to the better baseline. `too_little`: a part of a
#: fold has rows of one label alone, or none.
Outcome = Literal["published", "no_gain", "too_little"]


class ModelMetrics(RecordPart):
    """How scores did on the rows of a test; what there is nothing to take of is None.

    Args:
        area: under precision and recall.
        alarm_precision: of the alarms that the threshold raises, how many were right.
        lead_seconds: the median time from a right alarm to what it announced.
        calibration: rows, mean score and share of positive rows of bins from the lowest score up.
    """

    pr_auc: float | None
    brier_score: float | None
    threshold: float | None = None
    alarms: int = 0
    alarm_precision: float | None = None
    lead_seconds: float | None = None
    calibration: tuple[tuple[int, float, float], ...] = ()


class Gain(RecordPart):
    """By how much an area is larger than another, and where that lies in 95 of 100 draws of blocks."""

    baseline: str
    value: float
    low: float
    high: float


class FoldReport(RecordPart):
    """One fold: spans as ISO 8601 in UTC, half-open; `scores` by `model`, the group prefixes and the baselines.

    `adds` is what each group adds to those before it.
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
    """What gold scores rows by: an SQL expression over `x0`, `x1`, …, the values of `inputs`, one of each column."""

    algorithm: str
    columns: tuple[str, ...]
    inputs: tuple[str, ...]
    expression: str
    threshold: float


class ModelRun(Record):
    """A training. `until` is the instant as of which it was made, and from which on its model holds.

    Args:
        versions: of the Delta tables it read, by their names in `reads`.
        declared: the model's declaration, with which a repetition trains.
        label_sql: the text of the label's query.
        code: digest of the code that trained.
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
        """What rows it scored say: `edge_failure/3`."""
        return f"{self.name}/{self.number}"


class ModelRuns:
    """The trainings of a pipeline's models, by name and number, from 1 on."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, ModelRun)

    def numbers(self, name: str) -> list[int]:
        """The numbers there are, ascending. One listing."""
        folder = paths.model_runs(self._pipeline, name)
        texts = {key.removeprefix(folder).partition("/")[0] for key in self._objects.list(folder)}
        return sorted(int(text) for text in texts if text.isdigit())

    def read(self, name: str, number: int) -> ModelRun | None:
        """One training; None where there is none.

        Raises:
            ContractError: MODEL_UNREADABLE.
        """
        return self._records.read(paths.model_runs(self._pipeline, name, number))

    def all(self, name: str) -> list[ModelRun]:
        """Every training of a model, oldest first.

        Raises:
            ContractError: MODEL_UNREADABLE.
        """
        runs = (self.read(name, number) for number in self.numbers(name))
        return [run for run in runs if run is not None]

    def add(self, run: ModelRun) -> ModelRun:
        """Create the record under the next number that is free; the record with that number."""
        number = max(self.numbers(run.name), default=0) + 1
        while True:
            numbered = run.replace(number=number)
            if self._records.create(paths.model_runs(self._pipeline, run.name, number), numbered):
                return numbered
            number += 1
