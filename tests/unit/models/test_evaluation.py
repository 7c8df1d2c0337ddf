"""What makes a fold speak for a model, what its groups are, and which blocks are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from deltaworks.control.records.model import FoldReport, Gain
from deltaworks.models.baselines import LabelledRows
from deltaworks.models.evaluation import bootstrap_blocks, group_columns, shortfall_reason
from deltaworks.models.spans import DAY_SECONDS
from deltaworks.specs.models import ModelSpec


def model(**more: object) -> ModelSpec:
    declared: dict[str, object] = {
        "name": "slow",
        "features": "hours",
        "timestamp": "hour",
        "entity": "shop",
        "feature_groups": {"level": ["orders"], "trend": ["slope"], "usual": ["over"]},
        "label": "models/slow.sql",
        "reads": ["hours"],
        "horizon_minutes": 60,
    }
    return ModelSpec.model_validate(declared | more)


def fold(value: float, low: float) -> FoldReport:
    spans = dict.fromkeys(("train_from", "train_to", "test_from", "test_to"), "")
    counts = dict.fromkeys(("train_rows", "train_positive", "test_rows", "test_positive"), 1)
    return FoldReport(**spans, **counts, gain=Gain(baseline="seasonal", value=value, low=low, high=1.0))  # type: ignore[arg-type]


def test_groups_are_laid_on_one_another_and_all_of_them_are_the_model() -> None:
    assert group_columns(model()) == {
        "level": ("orders",),
        "trend": ("orders", "slope"),
        "model": ("orders", "slope", "over"),
    }
    assert group_columns(model(feature_groups={"level": ["orders"]})) == {"model": ("orders",)}


@pytest.mark.parametrize(
    ("value", "low", "reason"),
    [
        (0.05, 0.01, ""),
        (0.02, 0.001, ""),
        (0.019, 0.01, "less than 0.02"),
        (0.3, 0.0, "not significant"),
        (-0.1, -0.2, "less than 0.02"),
        (float("nan"), float("nan"), "less than 0.02"),
    ],
)
def test_a_fold_speaks_for_a_model_by_a_gain_that_is_large_enough_and_not_chance(
    value: float, low: float, reason: str
) -> None:
    said = shortfall_reason(fold(value, low), gain=0.02)

    assert (reason in said) if reason else said == ""


def test_blocks_are_days_and_entities_where_a_horizon_is_longer_than_a_day() -> None:
    rows = LabelledRows(
        np.asarray([7, 8]), np.asarray([5, DAY_SECONDS + 5]), np.ones(2, dtype=bool), np.zeros(2), np.zeros(2)
    )

    assert bootstrap_blocks(rows, model()).tolist() == [0, 1]
    assert bootstrap_blocks(rows, model(horizon_minutes=None, horizon_days=14)).tolist() == [7, 8]
