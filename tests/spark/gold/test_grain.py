"""Hourly gold built by Spark is exact, also with a concurrent loop and DAG."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.errors import ConcurrencyError, ConfigError, DeltaworksError
from deltaworks.gold import event_keys, table_commit
from deltaworks.gold.build import rebuild_gold
from deltaworks.gold.input_views import InputViews
from deltaworks.gold.parts import Part
from deltaworks.gold.pinned_inputs import BUILT_FROM, pin_inputs
from deltaworks.gold.refresh_loop import GoldRefreshLoop
from deltaworks.gold.table_build import build_table, plan_job
from deltaworks.specs.gold import view_name
from deltaworks.tables import files_commit
from deltaworks.tables.log import commit_history, read_commits
from tests.spark.gold.traffic_data import SQL, TRAFFIC, Traffic, expected, hours_named, live_through, request

MINUTES = "edge_minutes"
KEY = paths.table("traffic", MINUTES)


class SparkTraffic(Traffic):
    """Traffic whose gold is built by Spark."""

    def __init__(self, spark: SparkSession, project: Any) -> None:
        super().__init__(project.catalog)
        self._spark, self.root = spark, project.root

    def build(self, table: str) -> tuple[str, ...] | None:
        return rebuild_gold(self._spark, self.catalog, "traffic", tables=[table]).table(table).partitions

    def declare(self, sql: str) -> None:
        (self.catalog.folder("traffic") / "gold" / "edge_minutes.sql").write_text(sql)


@pytest.fixture
def traffic(spark: SparkSession, make_project: Callable[..., Any]) -> SparkTraffic:
    return SparkTraffic(spark, make_project({"traffic": (TRAFFIC, SQL)}))


@pytest.mark.integration
def test_hourly_gold_is_exact_after_late_duplicate_and_restored_rows(traffic: SparkTraffic) -> None:
    live_through(traffic)

    assert traffic.answer("edge_trend") == expected(traffic.requests(), trend=True)


@pytest.mark.parametrize("most_keys", [event_keys.MAX_KEYS, 0], ids=["driver", "spark"])
def test_a_build_replaces_only_its_hours_and_counts_their_duplicates(
    spark: SparkSession, traffic: SparkTraffic, monkeypatch: pytest.MonkeyPatch, most_keys: int
) -> None:
    monkeypatch.setattr(event_keys, "MAX_KEYS", most_keys)
    traffic.land([request(hour + 0.5, str(hour)) for hour in range(24)])
    traffic.build(MINUTES)
    traffic.land([request(5.2, "late"), request(5.3, "late"), request(5.4, "5")])

    result = rebuild_gold(spark, traffic.catalog, "traffic", tables=[MINUTES]).table(MINUTES)

    assert (result.partitions, result.rows, result.duplicates_dropped) == (hours_named(4, 5, 6), 4, 2)
    ((_, actions),) = read_commits(traffic.lake, KEY, [result.version])
    (info,) = [action["commitInfo"] for action in actions or () if "commitInfo" in action]
    assert "2025-03-02 04:00:00" in info["operationParameters"]["predicate"]
    traffic.holds(MINUTES)


@pytest.mark.parametrize(
    ("minute", "condition"),
    [
        ("date_format(event_time, 'HH:mm')", "GOLD_GRAIN_NOT_TIME"),
        ("event_date", "GOLD_GRAIN_NOT_TIME"),
        ("date_trunc('MINUTE', event_time) + INTERVAL '1' DAY", "GOLD_GRAIN_OUTSIDE_DATE"),
        ("CASE WHEN edge = 'FRA' THEN event_time END", "GOLD_GRAIN_OUTSIDE_DATE"),
    ],
)
def test_rows_outside_their_date_are_rejected(traffic: SparkTraffic, minute: str, condition: str) -> None:
    traffic.land([request(1, "a")])
    traffic.build(MINUTES)
    traffic.land([request(3, "b"), request(3, "c", edge="BOM")])
    traffic.declare(f"SELECT event_date, edge, {minute} AS minute, 1L AS requests FROM requests")

    with pytest.raises(ConfigError) as refused:
        traffic.build(MINUTES)

    assert refused.value.condition == condition
    assert len(traffic.answer(MINUTES)) == 1, "readers have what was there before"


def planned(traffic: SparkTraffic) -> Any:
    spec = traffic.catalog.pipeline("traffic")
    declared = next(table for table in spec.gold.tables if table.name == MINUTES)
    pinned = pin_inputs(traffic.lake, spec, declared.reads)
    return plan_job(traffic.catalog, spec, traffic.lake, declared, pinned, key=KEY)


@pytest.mark.parametrize("numbered", [pytest.param(True, marks=pytest.mark.integration), False])
def test_a_build_planned_before_another_commit_fails(
    spark: SparkSession, traffic: SparkTraffic, monkeypatch: pytest.MonkeyPatch, numbered: bool
) -> None:
    traffic.land([request(1, "a")])
    traffic.build(MINUTES)
    traffic.land([request(1.1, "b")])
    slow = planned(traffic)
    traffic.land([request(1.2, "c")])
    traffic.build(MINUTES)
    newer = traffic.answer(MINUTES)
    if not numbered:
        monkeypatch.setattr(files_commit, "is_step_committed", lambda state, step: False)

    spec = traffic.catalog.pipeline("traffic")
    with InputViews(spark, traffic.lake, slow.inputs, spec.gold.dedupe) as views:
        if numbered:
            with pytest.raises(ConcurrencyError, match="GOLD_OVERTAKEN"):
                build_table(spark, traffic.lake, spec, slow, views)
        else:
            build_table(spark, traffic.lake, spec, slow, views)

    assert (traffic.answer(MINUTES) == newer) is numbered


@pytest.mark.parametrize("exists", [True, False])
def test_of_two_builds_at_once_by_sparks_writer_one_is_overtaken(
    spark: SparkSession, traffic: SparkTraffic, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    traffic.land([request(1, "a")])
    if exists:
        traffic.build(MINUTES)
        traffic.land([request(1.1, "b")])
    write, both = table_commit._write, threading.Barrier(2)

    def write_together(*arguments: Any, **options: Any) -> None:
        both.wait(60)
        write(*arguments, **options)

    monkeypatch.setattr(table_commit, "write_small_answer", lambda *arguments, **options: None)
    monkeypatch.setattr(table_commit, "create_small_table", lambda *arguments, **options: None)
    monkeypatch.setattr(table_commit, "_write", write_together)
    errors: list[DeltaworksError] = []

    def build(session: SparkSession) -> None:
        try:
            rebuild_gold(session, traffic.catalog, "traffic", tables=[MINUTES], full=True)
        except DeltaworksError as error:
            errors.append(error)

    builders = [threading.Thread(target=build, args=(session,)) for session in (spark, spark.newSession())]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()

    assert [error.condition for error in errors] == ["GOLD_OVERTAKEN"]
    traffic.holds(MINUTES)


def test_a_repinned_input_is_read_again(spark: SparkSession, traffic: SparkTraffic) -> None:
    spec, everything = traffic.catalog.pipeline("traffic"), Part("event_date", None)
    traffic.land([request(1, "a")])
    with InputViews(spark, traffic.lake, pin_inputs(traffic.lake, spec, ["requests"]), spec.gold.dedupe) as views:
        views.register(["requests"], everything)
        before = spark.table(view_name("requests")).count()
        traffic.land([request(2, "b")])
        views.add_inputs(pin_inputs(traffic.lake, spec, ["requests"]))
        views.register(["requests"], everything)

        assert (before, spark.table(view_name("requests")).count()) == (1, 2)


def test_concurrent_loop_and_dag_builds_give_the_same_result(spark: SparkSession, traffic: SparkTraffic) -> None:
    traffic.land([request(0.5, "first")])
    reports: list[Any] = []
    loop = GoldRefreshLoop(
        spark,
        traffic.catalog,
        "traffic",
        pool="gold",
        holds_lease=lambda: True,
        committed=threading.Event(),
        report_failures=reports.append,
    )
    errors: list[str] = []
    session = spark.newSession()

    def dag() -> None:
        for _ in range(4):
            try:
                rebuild_gold(session, traffic.catalog, "traffic", tables=[MINUTES])
            except Exception as error:
                errors.append(str(error))

    loop.start()
    builder = threading.Thread(target=dag)
    builder.start()
    for number in range(6):
        traffic.land([request(number, f"n{number}")])
        loop._next_refresh_at[MINUTES] = 0.0
        builder.join(1.0)
    builder.join()
    loop.close(wait_seconds=60)

    assert errors == []
    assert reports == []
    versions = [
        commit.metadata[BUILT_FROM]["requests"]
        for commit in commit_history(traffic.lake, KEY, newest=traffic.lake.open(KEY).version())  # type: ignore[union-attr]
    ]
    assert versions == sorted(versions, reverse=True), "no older answer over a newer one"
    traffic.build(MINUTES)
    traffic.holds(MINUTES)
    assert FIRST_HOUR in {minute for minute, _ in traffic.answer(MINUTES)}


FIRST_HOUR = dt.datetime(2025, 3, 2, 0, 30, tzinfo=dt.UTC)
