"""A model of player churn: the gain of experience features over habit features."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control.records.model import ModelRun
from deltaworks.gold.build import rebuild_gold
from deltaworks.models.training import train_model
from deltaworks.specs.catalog import project_root

pytestmark = pytest.mark.integration
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


def test_experience_features_add_nothing_for_random_churn(
    spark: SparkSession, make_project: Callable[..., Any]
) -> None:
    run = trained(spark, make_project, failures_drive_away=False)

    (fold,) = run.folds
    assert fold.group_gains["experience"].low <= 0
