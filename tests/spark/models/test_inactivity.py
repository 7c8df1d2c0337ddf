"""Models of player churn and of slow CDN edges: published only if their features gain something.

Each protection against leakage is also tested without it.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.alerts.raising import alerts
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.model import ModelRun
from deltaworks.errors import ContractError
from deltaworks.gold.build import rebuild_gold, update_prediction_alerts
from deltaworks.models.evaluation import MODEL
from deltaworks.models.spans import Fold, TrainingSpan
from deltaworks.models.training import repeat_training, train_model
from deltaworks.specs.catalog import project_root
from tests.unit.models.edge_data import HOURS, START, Signal, edge_project, end_of, minutes

SHIPPED = project_root() / "include" / "pipelines" / "games"
FIRST = dt.datetime(2025, 6, 2, 12, tzinfo=dt.UTC)
WEEKS, PLAYERS = 34, 260
COUNTS = ("events", "sessions", "ended_sessions", "levels", "failed_levels", "purchases")
SUMS = ", ".join(COUNTS)
PIPELINE = """\
pipeline: play
description: days of players
owner: tests
source: {{kind: s3_sqs, relay: landing, bucket: landing}}
event: {{name: {{constant: day}}, time: {{path: day}}}}
tables:
  - name: days
    catch_all: true
    columns:
      - {{name: device_id, path: device_id, type: string}}
{columns}
gold:
  tables:
    - {{name: player_days, sql: gold/player_days.sql, reads: [days], partition_by: event_date}}
    - name: player_features
      sql: gold/player_features.sql
      reads: [player_days]
      partition_by: cutoff_date
      affects: {{days: [{affects}]}}
models:
  - name: player_inactivity
    features: player_features
    timestamp: cutoff_date
    entity: device_id
    feature_groups:
      habits: [sessions_7, sessions_28, days_28, recency_days]
      experience: [failures_7, failures_28]
    label: models/player_inactivity.sql
    reads: [player_days]
    predicts: absent
    horizon_days: 28
    folds: {{train_days: 91, test_days: 28, count: 1}}
    algorithms: [logistic]
    alarms_per_day: 0.01
"""


def play_project(make_project: Callable[..., Any]) -> Any:
    columns = "\n".join(f"      - {{name: {name}, path: {name}, type: long}}" for name in COUNTS)
    files = {
        "gold/player_days.sql": f"SELECT event_date, event_date AS arrived_date, device_id, {SUMS} FROM days",
        "gold/player_features.sql": (SHIPPED / "gold" / "player_features.sql").read_text(),
        "models/player_inactivity.sql": (SHIPPED / "models" / "player_inactivity.sql").read_text(),
    }
    text = PIPELINE.format(columns=columns, affects=", ".join(map(str, range(28))))
    return make_project({"play": (text, files)})


def days(*, failures_drive_away: bool, seed: int = 5) -> Iterator[dict[str, Any]]:
    """Days of players who leave after two hard weeks, or at random."""
    chance = random.Random(seed)
    for player in range(PLAYERS):
        hard_weeks = 0
        for week in range(chance.randrange(WEEKS - 2), WEEKS):
            hard = chance.random() < 0.3
            hard_weeks = hard_weeks + 1 if hard else 0
            for day in range(7):
                if chance.random() < 0.5:
                    failed = sum(chance.random() < (0.8 if hard else 0.2) for _ in range(10))
                    counts = dict(zip(COUNTS, (20, 2, 2, 10, failed, 0), strict=True))
                    at = FIRST + dt.timedelta(days=7 * week + day)
                    yield {"event_time": at, "device_id": f"d{player}", **counts}
            leaves = 0.85 if hard_weeks >= 2 else 0.01
            if chance.random() < (leaves if failures_drive_away else 0.1):
                break


def trained(spark: SparkSession, make_project: Callable[..., Any], *, failures_drive_away: bool) -> ModelRun:
    project = play_project(make_project)
    project.append("play", "days", list(days(failures_drive_away=failures_drive_away)))
    rebuild_gold(spark, project.catalog, "play")
    until = FIRST.replace(hour=0) + dt.timedelta(weeks=WEEKS)
    return train_model(spark, project.catalog, "play", "player_inactivity", until=until)


@pytest.mark.integration
def test_experience_features_add_a_gain_where_levels_matter(
    spark: SparkSession, make_project: Callable[..., Any]
) -> None:
    run = trained(spark, make_project, failures_drive_away=True)

    assert run.outcome == "published", run.reason
    (fold,) = run.folds
    assert fold.group_gains["experience"].low > 0
    assert fold.group_gains["experience"].baseline == "habits"
    gap = dt.datetime.fromisoformat(fold.test_from) - dt.datetime.fromisoformat(fold.train_to)
    assert gap == dt.timedelta(days=28)


@pytest.mark.integration
def test_experience_features_add_nothing_for_random_churn(
    spark: SparkSession, make_project: Callable[..., Any]
) -> None:
    run = trained(spark, make_project, failures_drive_away=False)

    (fold,) = run.folds
    assert fold.group_gains["experience"].low <= 0


def built(spark: SparkSession, project: Any, *, signal: Signal, days: int = 10) -> Any:
    project.append("cdn", "minutes", list(minutes(signal=signal, days=days)))
    rebuild_gold(spark, project.catalog, "cdn")
    return project


def trained_edges(spark: SparkSession, project: Any, **options: Any) -> ModelRun:
    return train_model(spark, project.catalog, "cdn", "edge_failure", until=end_of(10), **options)


@dataclass(frozen=True)
class Share:
    """A random row selection, like `randomSplit`."""

    numbers: tuple[int, ...]

    @property
    def condition(self) -> str:
        return f"pmod(xxhash64(_entity, _at), 20) IN ({', '.join(map(str, self.numbers))})"


def random_folds(model: Any, end: int) -> list[Fold]:
    training = TrainingSpan(Share(tuple(range(10))), Share(tuple(range(10, 14))), Share(tuple(range(14))))
    return [Fold(training, Share(tuple(range(14, 20))))]


@pytest.mark.integration
def test_a_model_with_a_signal_is_published_and_repeatable(
    spark: SparkSession, make_project: Callable[..., Any]
) -> None:
    project = built(spark, edge_project(make_project), signal="announced")

    run = trained_edges(spark, project)

    assert run.outcome == "published", run.reason
    assert run.model is not None
    assert run.label == "edge_failure/1"
    for fold in run.folds:
        assert fold.gain is not None
        assert fold.gain.low > 0
        assert (fold.scores[MODEL].pr_auc or 0) > 2 * (fold.test_positive / fold.test_rows)
        assert (fold.scores[MODEL].lead_seconds or 0) > 60
        assert dt.datetime.fromisoformat(fold.train_to) + dt.timedelta(minutes=15) == dt.datetime.fromisoformat(
            fold.test_from
        )
        assert set(fold.scores) == {"level", MODEL, "persistence", "seasonal"}
        assert set(fold.group_gains) == {"usual"}
    assert set(run.versions) == {"edge_features", "edge_arrivals"}

    _scores_what_comes_after_it_alone(spark, project, run)
    _does_the_same_again(spark, project, run)


def _scores_what_comes_after_it_alone(spark: SparkSession, project: Any, run: ModelRun) -> None:
    rebuild_gold(spark, project.catalog, "cdn")
    assert project.rows("cdn", "edge_scores") == []
    later = [row for row in minutes(signal="announced", days=11) if row["event_time"] >= end_of(10)]
    project.append("cdn", "minutes", later)

    result = rebuild_gold(spark, project.catalog, "cdn").table("edge_scores")

    rows = project.rows("cdn", "edge_scores")
    assert {row["model"] for row in rows} == {"edge_failure/1"}
    assert min(row["minute"] for row in rows) >= end_of(10)
    assert len(rows) > HOURS * 60
    assert result.partitions is not None
    assert run.model is not None
    high = max(rows, key=lambda row: row["score"])
    assert high["score"] >= run.model.threshold
    _warns(project, high["minute"])
    whole = rebuild_gold(spark, project.catalog, "cdn", tables=["edge_scores"], full=True).table("edge_scores")
    assert whole.rows == len(rows)


def _warns(project: Any, at: dt.datetime) -> None:
    objects = PipelineHome.open(project.catalog.environment.lake, "cdn").objects

    def standing() -> list[tuple[str, str, bool]]:
        return [(alert.cause, alert.subject, alert.state.is_open) for alert in alerts(objects)]

    update_prediction_alerts(project.catalog, "cdn", tables=["edge_scores"], now=at)
    assert standing() == [("FAILURE_PREDICTED", "cdn.edge_failure", True)]
    (alert,) = alerts(objects)
    assert alert.state.severity == "warning"
    assert "edge_failure/1 expects" in alert.summary
    update_prediction_alerts(project.catalog, "cdn", tables=["edge_scores"], now=end_of(20))
    assert standing() == [("FAILURE_PREDICTED", "cdn.edge_failure", False)]


def _does_the_same_again(spark: SparkSession, project: Any, run: ModelRun) -> None:
    # The tables have new versions; the recorded ones are read.
    repetition = repeat_training(spark, project.catalog, "cdn", "edge_failure", 1)
    assert repetition.differences == ()
    assert repetition.folds == run.folds

    records = PipelineHome.open(project.catalog.environment.lake, "cdn").models
    others = dict.fromkeys(run.versions, 99)
    gone = records.add(run.replace(versions=others))
    with pytest.raises(ContractError, match="TABLE_VERSION_UNAVAILABLE"):
        repeat_training(spark, project.catalog, "cdn", "edge_failure", gone.number)


@pytest.mark.integration
def test_without_a_signal_the_run_succeeds_and_publishes_nothing(
    spark: SparkSession, make_project: Callable[..., Any]
) -> None:
    project = built(
        spark, edge_project(make_project, algorithms="gbt", level="concurrency_60, requests_60, error_5"), signal="none"
    )

    run = trained_edges(spark, project)

    assert (run.outcome, run.model) == ("no_gain", None), run.reason
    # Random rows have neighbours in training that reveal their labels.
    drawn = trained_edges(spark, project, folds=random_folds)
    assert drawn.outcome == "published", drawn.reason
    print(json.dumps({"rolling": areas(run), "random": areas(drawn)}))


@pytest.mark.integration
def test_late_errors_are_no_signal(spark: SparkSession, make_project: Callable[..., Any], tmp_path: Any) -> None:
    project = built(spark, edge_project(make_project), signal="late")
    run = trained_edges(spark, project)
    assert (run.outcome, run.model) == ("no_gain", None), run.reason

    # By event time the errors look available in time, so the model looks good.
    features = project.catalog.folder("cdn") / "gold" / "edge_features.sql"
    honest = features.read_text()
    edge_project(make_project, by_event_time=True)
    assert features.read_text() != honest
    rebuild_gold(spark, project.catalog, "cdn")
    dazzled = trained_edges(spark, project)
    assert dazzled.outcome == "published", dazzled.reason
    print(json.dumps({"by arrival": areas(run), "by event time": areas(dazzled)}))


@pytest.mark.integration
def test_too_few_days_publish_nothing(spark: SparkSession, make_project: Callable[..., Any]) -> None:
    project = built(spark, edge_project(make_project), signal="announced", days=3)

    run = train_model(spark, project.catalog, "cdn", "edge_failure", until=START + dt.timedelta(days=3))

    assert (run.outcome, run.model) == ("too_little", None)
    assert "lack rows of both labels" in run.reason


def areas(run: ModelRun) -> list[dict[str, float | None]]:
    return [{name: figures.pr_auc for name, figures in fold.scores.items()} for fold in run.folds]
