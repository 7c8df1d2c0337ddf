"""Publishing criteria of folds, feature groups, and bootstrap blocks."""

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


def test_feature_groups_are_cumulative() -> None:
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
def test_a_fold_needs_a_large_and_significant_gain(value: float, low: float, reason: str) -> None:
    said = shortfall_reason(fold(value, low), gain=0.02)

    assert (reason in said) if reason else said == ""


def test_bootstrap_blocks_are_days_or_entities_for_long_horizons() -> None:
    rows = LabelledRows(
        np.asarray([7, 8]), np.asarray([5, DAY_SECONDS + 5]), np.ones(2, dtype=bool), np.zeros(2), np.zeros(2)
    )

    assert bootstrap_blocks(rows, model()).tolist() == [0, 1]
    assert bootstrap_blocks(rows, model(horizon_minutes=None, horizon_days=14)).tolist() == [7, 8]
