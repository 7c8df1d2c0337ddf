"""Specs of models: errors have file, line, key, closest name and advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.specs.checks.project import check_project
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.specs.spec_diff import classify_changes
from deltaworks.testing import write_files
from tests.unit.specs.conftest import PIPELINE, write_project

GOLD = """\
gold:
  tables:
    - {name: hours, sql: gold/hours.sql, reads: [orders], partition_by: event_date}
    - name: scores
      sql: gold/scores.sql
      reads: [hours, slow]
      partition_by: event_date
      affects: {hours: {days: [0]}, slow: onwards}
"""
MODEL = """\
models:
  - name: slow
    features: hours
    timestamp: hour
    entity: shop
    feature_groups:
      level: [orders, amount]
      trend: [slope]
    label: models/slow.sql
    reads: [hours]
    horizon_minutes: 60
    warnings: scores
"""
SQL = {
    "gold/hours.sql": "SELECT event_date, date_trunc('HOUR', event_time) AS hour, event_name AS shop, 1 AS orders, "
    "2 AS amount, 3 AS slope FROM orders",
    "gold/scores.sql": "SELECT event_date, hour, shop, model, score, threshold FROM slow",
    "models/slow.sql": "SELECT shop, hour, amount > 5 AS holds FROM hours",
}


def project(root: Path, *, old: str = "", new: str = "", **sql: str) -> Path:
    """A project with a model, in whose declaration one text is replaced by another."""
    text = PIPELINE + GOLD + MODEL
    assert old in text
    written = write_project(root, pipeline=text.replace(old, new, 1))
    files = SQL | {f"{folder}/{name}.sql": value for key, value in sql.items() for folder, name in [key.split("__")]}
    write_files(written / "include" / "pipelines" / "shop", files)
    return written


def reported_errors(root: Path) -> list[str]:
    return [str(spec_error) for spec_error in check_project("local", root=root).errors]


def test_a_model_has_defaults(tmp_path: Path) -> None:
    root = project(tmp_path)

    assert reported_errors(root) == []
    (model,) = load_catalog("local", root=root).pipelines["shop"].models
    assert (model.entity, model.columns) == (("shop",), ("orders", "amount", "slope"))
    assert (model.horizon_seconds, model.predicts, model.alarms_per_day) == (3_600, "begins", 1)
    assert (model.folds.train_days, model.folds.test_days, model.folds.count) == (28, 7, 4)
    assert (model.algorithms, model.baselines) == (("logistic", "gbt"), ("persistence", "seasonal"))
    assert load_catalog("local", root=root).pipelines["shop"].training.schedule == "0 4 * * 0"


WRONG = [
    ("features: hours", "features: hour", "models.0.features", "did you mean 'hours'?"),
    ("    reads: [hours]\n", "    reads: [orders]\n", "models.0.reads.0", "'slow' reads unknown gold table 'orders'"),
    ("timestamp: hour\n", "timestamp: hout\n", "models.0.timestamp", "did you mean 'hour'?"),
    ("entity: shop", "entity: shp", "models.0.entity", "did you mean 'shop'?"),
    ("[orders, amount]", "[orders, amont]", "models.0.feature_groups.level.1", "did you mean 'amount'?"),
    (
        "trend: [slope]",
        "trend: [amount]",
        "models.0.feature_groups.trend.0",
        "'amount' is named twice; keep it in one group",
    ),
    (
        "trend: [slope]",
        "trend: [shop]",
        "models.0.feature_groups.trend.0",
        "identifies the row and cannot be a feature",
    ),
    ("models/slow.sql", "models/slo.sql", "models.0.label", "did you mean 'models/slow.sql'?"),
    ("    horizon_minutes: 60\n", "", "models.0", "give either horizon_minutes or horizon_days"),
    ("horizon_minutes: 60", "horizon_days: 28", "models.0.horizon_days", "train_days: 56"),
    ("warnings: scores", "warnings: score", "models.0.warnings", "did you mean 'scores'?"),
    (
        "horizon_minutes: 60",
        "horizon_minutes: 60\n    algorithms: [forest]",
        "models.0.algorithms.0",
        "logistic or gbt",
    ),
    (
        "horizon_minutes: 60",
        "horizon_minutes: 60\n    baselines: [seasonal, seasonal]",
        "models.0.baselines",
        "write [seasonal]",
    ),
    ("horizon_minutes: 60", "horizon_minute: 60", "models.0.horizon_minute", "horizon_minutes"),
    ("horizon_minutes: 60", "horizon_minutes: 60\n    publish: {gain: 1}", "models.0.publish.gain", "less than 1"),
    ("reads: [hours, slow]", "reads: [slow]", "gold.tables.1.reads.0", "write reads: [hours, slow]"),
    ("slow: onwards", "slow: {days: [0]}", "gold.tables.1.affects.slow", "write slow: onwards"),
    ("- name: slow", "- name: hours", "models.0.name", "declared twice"),
    ("models:\n", "training: {schedule: weekly}\nmodels:\n", "training.schedule", "0 3 * * 0"),
]


@pytest.mark.parametrize(("old", "new", "key", "advice"), WRONG, ids=[f"{case[2]} {case[3][:24]}" for case in WRONG])
def test_an_error_has_its_key_path_and_advice(tmp_path: Path, old: str, new: str, key: str, advice: str) -> None:
    listed = reported_errors(project(tmp_path, old=old, new=new))

    (line,) = [line for line in listed if f" {key}:" in line or f"{key} " in line] or [f"none of {listed}"]
    assert line.startswith("include/pipelines/shop/pipeline.yaml:")
    assert advice in line


def test_features_and_labels_cannot_depend_on_scores_of_the_model(tmp_path: Path) -> None:
    (line,) = reported_errors(project(tmp_path, old="    reads: [hours]\n", new="    reads: [scores]\n"))

    assert "and cannot be its label" in line


def test_label_sql_is_checked_like_gold_sql(tmp_path: Path) -> None:
    (unknown,) = reported_errors(
        project(tmp_path / "a", models__slow="SELECT shop, hour, amont > 5 AS holds FROM hours")
    )
    (absent,) = reported_errors(
        project(tmp_path / "b", models__slow="SELECT shop, hour, amount > 5 AS held FROM hours")
    )
    (scored,) = reported_errors(project(tmp_path / "c", gold__scores="SELECT event_date, scor FROM slow"))

    assert "models/slow.sql:1" in unknown
    assert "'amount'" in unknown
    assert "has no column 'holds'" in absent
    assert "'score'" in scored


def test_an_edit_of_a_model_stops_no_stream(tmp_path: Path) -> None:
    with_model = load_catalog("local", root=project(tmp_path / "a")).pipelines["shop"]
    edited = load_catalog("local", root=project(tmp_path / "b", old="[slope]", new="[]")).pipelines["shop"]

    assert [(change.field, change.effect) for change in classify_changes(with_model, edited)] == [
        ("models", Effect.SAFE)
    ]
    assert PipelineSpec.model_validate(with_model.to_dict()) == with_model
