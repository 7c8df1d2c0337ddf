"""Test data of CDN edges that become slow, with or without preceding errors, and a project that reads them.

Minutes have the columns of `edge_arrivals`; the SQL is that of the shipped pipeline `cdn_logs`.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from typing import Any, Literal

from deltaworks.specs.catalog import project_root

#: `announced`: errors for twelve minutes before an edge is slow. `late`: the same, but they arrive afterwards. `none`:
#: as many errors at random times.
Signal = Literal["announced", "late", "none"]
START = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
HOURS = 4
MINUTE = dt.timedelta(minutes=1)
SLOW_MINUTES, WARNED_MINUTES, LATE_MINUTES = 12, 12, 40
SUMS = ("requests", "answered", "errors", "cacheable", "hits", "timed_hits", "first_byte_ms", "seconds")
SHIPPED = project_root() / "include" / "pipelines" / "cdn_logs"

PIPELINE = """\
pipeline: cdn
description: minutes of edges
owner: tests
source: {{kind: s3_sqs, relay: landing, bucket: landing}}
event: {{name: {{constant: minute}}, time: {{path: minute}}}}
tables:
  - name: minutes
    catch_all: true
    columns:
      - {{name: arrived_at, path: arrived_at, type: timestamp}}
      - {{name: cdn, path: cdn, type: string}}
      - {{name: edge, path: edge, type: string}}
{columns}
gold:
  tables:
    - {{name: edge_arrivals, sql: gold/edge_arrivals.sql, reads: [minutes], partition_by: event_date}}
    - name: edge_features
      sql: gold/edge_features.sql
      reads: [edge_arrivals]
      partition_by: event_date
      affects: {{days: [0, 1, 2, 3, 4, 5, 6, 7]}}
      checks: {{unique: [minute, cdn, edge]}}
    - name: edge_scores
      sql: gold/edge_scores.sql
      reads: [edge_features, edge_failure]
      partition_by: event_date
      affects: {{edge_features: {{days: [0]}}, edge_failure: onwards}}
models:
  - name: edge_failure
    features: edge_features
    timestamp: minute
    entity: [cdn, edge]
    feature_groups:
      level: [{level}]
      usual: [error_over]
    label: models/edge_failure.sql
    reads: [edge_arrivals]
    horizon_minutes: 15
    folds: {{train_days: 4, test_days: 2, count: 2}}
    algorithms: [{algorithms}]
    warnings: edge_scores
"""
#: Without latency, whose first slow minutes reveal the label.
LEVEL = "error_1, error_5, error_15, requests_60, concurrency_60, error_slope"
#: Selects rows by event time, as if they had arrived at once: without the protection.
BY_EVENT_TIME = {
    "greatest(arrived_at, minute + INTERVAL 1 MINUTE)": "minute + INTERVAL 1 MINUTE",
    "WHERE arrived_at <= minute + INTERVAL 60 MINUTES\n": "WHERE true\n",
    "max(arrived_at) > seen_at": "max(minute + INTERVAL 1 MINUTE) > seen_at",
}


def edge_project(
    make_project: Any, *, by_event_time: bool = False, algorithms: str = "logistic", level: str = LEVEL
) -> Any:
    """Returns the project with an empty bronze table."""
    features = (SHIPPED / "gold" / "edge_features.sql").read_text()
    for written, instead in BY_EVENT_TIME.items():
        assert written in features
        features = features.replace(written, instead) if by_event_time else features
    columns = "\n".join(f"      - {{name: {name}, path: {name}, type: double}}" for name in SUMS)
    arrivals = f"SELECT event_date, event_time AS minute, arrived_at, cdn, edge, {', '.join(SUMS)} FROM minutes"
    files = {
        "gold/edge_arrivals.sql": arrivals,
        "gold/edge_features.sql": features,
        "gold/edge_scores.sql": (SHIPPED / "gold" / "edge_scores.sql").read_text(),
        "models/edge_failure.sql": (SHIPPED / "models" / "edge_failure.sql").read_text(),
    }
    text = PIPELINE.format(columns=columns, algorithms=algorithms, level=level)
    return make_project({"cdn": (text, files)})


def minutes(*, signal: Signal, days: int = 10, edges: int = 3, seed: int = 7) -> Iterator[dict[str, Any]]:
    """Returns rows of `minutes`: some hours a day, no slow edge on the first day, then one every two hours."""
    chance = random.Random(seed)
    for edge in range(edges):
        load = demand = 0.0
        for day in range(days):
            begin = START + dt.timedelta(days=day)
            slow, warned = _incidents(chance, day=day, signal=signal)
            for number in range(HOURS * 60):
                load, demand = 0.995 * load + chance.gauss(0, 1), 0.995 * demand + chance.gauss(0, 1)
                at, edge_name = begin + number * MINUTE, f"E{edge}"
                latency = chance.gauss(165, 6) if number in slow else chance.gauss(100, 6)
                usual, more = chance.randint(0, 2), chance.randint(4, 7) if number in warned else 0
                errors = usual if signal == "late" else usual + more
                yield {
                    **_named(at, MINUTE, edge_name),
                    "requests": 100.0 + demand,
                    "answered": 100.0,
                    "errors": float(errors),
                    "cacheable": 80.0,
                    "hits": 60.0,
                    "timed_hits": 60.0,
                    "first_byte_ms": 60.0 * latency,
                    "seconds": 60.0 + load,
                }
                if signal == "late" and more:
                    counts = dict.fromkeys(SUMS, 0.0) | {"answered": float(more), "errors": float(more)}
                    yield {**_named(at, LATE_MINUTES * MINUTE, edge_name), **counts}


def _incidents(chance: random.Random, *, day: int, signal: Signal) -> tuple[set[int], set[int]]:
    """Returns the minutes of a day with a slow edge, and those with more errors."""
    slow: set[int] = set()
    warned: set[int] = set()
    for part in range(HOURS // 2 if day else 0):
        begun = part * 120 + chance.randint(20, 120 - SLOW_MINUTES)
        slow |= set(range(begun, begun + SLOW_MINUTES))
        before = begun if signal != "none" else part * 120 + chance.randint(WARNED_MINUTES, 119)
        warned |= set(range(before - WARNED_MINUTES, before))
    return slow, warned


def _named(at: dt.datetime, on_the_way: dt.timedelta, edge: str) -> dict[str, Any]:
    return {"event_time": at, "arrived_at": at + on_the_way, "cdn": "a", "edge": edge}


def end_of(days: int) -> dt.datetime:
    """Returns the midnight after some days."""
    return START + dt.timedelta(days=days)
