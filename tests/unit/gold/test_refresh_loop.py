"""Gold beside a stream: what is built when, what becomes of failures, and whom a table is left to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConcurrencyError, ContractError, TransientError
from deltaworks.gold import build as build_module
from deltaworks.gold import refresh_loop as loop_module
from deltaworks.gold.refresh_loop import MAX_BACKOFF_SECONDS, GoldRefreshLoop, next_wait_seconds
from deltaworks.gold.table_build import GoldTableResult, TableJob
from deltaworks.specs.gold import GoldTableSpec
from tests.spark.gold.traffic_data import request
from tests.unit.gold.test_grain import PlannedTraffic

TABLE = "edge_minutes"


class Stage:
    """A pipeline whose gold loop builds by DuckDB, without a thread, whenever it is told to look."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.traffic = PlannedTraffic(folder)
        self.built: list[str] = []
        self.reports: list[tuple[Mapping[str, Any], ...]] = []
        self.error: Exception | None = None
        self.holds_lease = True
        monkeypatch.setattr(build_module, "build_table", self._build)
        monkeypatch.setattr(build_module, "InputViews", MagicMock())
        self.loop = self.opened()

    def opened(self, spark: Any = None) -> GoldRefreshLoop:
        return GoldRefreshLoop(
            spark,
            self.traffic.catalog,
            "traffic",
            pool="gold",
            holds_lease=lambda: self.holds_lease,
            report_failures=self.reports.append,
        )

    def _build(self, spark: Any, lake: Any, spec: Any, job: TableJob, views: Any) -> GoldTableResult:
        name = job.plan.table.name
        if not job.plan.has_work:
            return GoldTableResult(name, True, job.plan.reason, job.built_from)
        if self.error is not None:
            raise self.error
        self.built.append(name)
        self.traffic.build(name)
        return GoldTableResult(name, False, job.plan.reason, job.built_from, version=1, rows=1)

    def look(self) -> list[str]:
        """Look as if every table were due; what was built."""
        self.built.clear()
        self.loop._next_refresh_at = dict.fromkeys(self.loop._next_refresh_at, 0.0)
        self.loop.refresh_due_tables(None)  # type: ignore[arg-type]
        return list(self.built)

    def redefine(self) -> None:
        """Change the SQL, as an edit that both the loop and the DAG see."""
        sql = self.traffic.catalog.folder("traffic") / "gold" / "edge_minutes.sql"
        sql.write_text(sql.read_text().replace("count(*) AS requests", "count(*) * 1 AS requests"))


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def test_what_changed_is_built_where_it_is_declared_and_due(stage: Stage) -> None:
    assert stage.look() == [], "no input is there"
    stage.traffic.land([request(1, "a")])

    assert stage.look() == [TABLE], "and not edge_trend, which declares no refresh_seconds"
    stage.traffic.holds(TABLE)
    assert stage.look() == []
    stage.traffic.land([request(2, "b")])
    stage.loop.refresh_due_tables(None)  # type: ignore[arg-type]
    assert stage.built == [], "it is not due"
    assert stage.look() == [TABLE]
    stage.traffic.holds(TABLE)
    assert stage.reports == []


def test_a_table_without_work_is_noted_as_fresh(stage: Stage) -> None:
    objects = LocalObjects(Path(stage.traffic.catalog.environment.lake.prefix))
    stage.traffic.land([request(1, "a")])
    stage.traffic.build(TABLE)

    assert stage.look() == []
    assert objects.get(paths.gold_state("traffic", TABLE)) is not None


def test_a_failing_build_is_reported_tried_less_often_and_forgotten_once_it_succeeds(stage: Stage) -> None:
    stage.traffic.land([request(1, "a")])
    stage.error = ContractError("GOLD_CHECK_FAILED", "two rows of a minute", hint="Mend the SQL.")

    assert stage.look() == []
    assert stage.look() == []
    (failure,) = stage.reports[-1]
    assert {"table": TABLE, "condition": "GOLD_CHECK_FAILED", "hint": "Mend the SQL.", "failures": 2}.items() <= (
        failure.items()
    )
    assert failure["since"] == stage.reports[0][0]["since"]

    stage.error = None
    assert stage.look() == [TABLE]
    assert stage.reports[-1] == ()


def test_small_files_of_inputs_are_merged_now_and_then_and_a_failure_of_that_is_none_of_the_gold(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges: list[str] = []

    def merge(
        lake: object, spec: object, tables: Sequence[GoldTableSpec], *, should_continue: Callable[[], bool]
    ) -> int:
        assert should_continue()
        merges.extend(table.name for table in tables)
        raise TransientError("OBJECT_STORE_UNREACHABLE", "no answer", hint="Wait.")

    monkeypatch.setattr(loop_module, "compact_inputs", merge)
    stage.traffic.land([request(1, "a")])

    assert stage.look() == [TABLE]
    assert merges == [], "not before the first minute is over"
    stage.loop._next_compaction_at = 0.0
    stage.look()
    assert merges == [TABLE]
    stage.look()
    assert merges == [TABLE], "a minute apart"
    assert stage.reports == []


def test_tries_become_rarer_and_never_stop() -> None:
    waits = [next_wait_seconds(60, failures) for failures in range(6)]

    assert waits == [60, 120, 240, 480, 900, 900]
    assert next_wait_seconds(60, 10_000) == MAX_BACKOFF_SECONDS
    assert next_wait_seconds(3_600, 3) == 3_600


@pytest.mark.parametrize(
    ("built_seconds", "waits"),
    [(0.0, 30.0), (10.0, 20.0), (20.0, 10.0), (24.0, 12.0), (50.0, 25.0), (500.0, 30.0)],
)
def test_tables_are_due_by_the_beginning_of_their_last_look_and_long_builds_leave_the_stream_room(
    built_seconds: float, waits: float
) -> None:
    assert next_wait_seconds(30, 0, built_seconds=built_seconds) == waits


def test_what_all_tables_share_and_cannot_be_had_is_a_failure_of_each(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.traffic.land([request(1, "a")])
    gone = ContractError("TABLE_LOG_GAP", "a commit is lost")
    monkeypatch.setattr(build_module, "pin_inputs", MagicMock(side_effect=gone))

    assert stage.look() == []

    assert [(failure["table"], failure["condition"]) for failure in stage.reports[-1]] == [(TABLE, "TABLE_LOG_GAP")]


def test_who_is_overtaken_now_and_then_has_not_failed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.traffic.land([request(1, "a")])
    contended = ConcurrencyError("REFERENCE_CONTENDED", "another one was faster")
    monkeypatch.setattr("deltaworks.gold.refresh_loop.refresh_external_inputs", MagicMock(side_effect=contended))

    stage.look()
    stage.look()
    assert stage.reports == []
    stage.look()
    assert stage.reports[-1][0]["condition"] == "REFERENCE_CONTENDED"


@pytest.mark.parametrize("protected", [True, False])
def test_a_table_that_another_definition_has_built_since_is_left_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    stage.traffic.land([request(1, "a")])
    assert stage.look() == [TABLE]
    # The DAG builds by a declaration that the stream has not read: here by SQL that is put back then.
    sql = stage.traffic.catalog.folder("traffic") / "gold" / "edge_minutes.sql"
    before = sql.read_text()
    stage.redefine()
    stage.traffic.build(TABLE)
    sql.write_text(before)
    if not protected:
        monkeypatch.setattr(GoldRefreshLoop, "_was_built_by_other_definition", lambda *arguments: False)

    assert stage.look() == ([] if protected else [TABLE]), "else both would rebuild all of it in turns"
    stage.redefine()
    stage.traffic.land([request(2, "b")])
    assert stage.look() == [TABLE], "by the same definition it goes on"


class Context:
    """What a loop asks of Spark besides builds."""

    def __init__(self) -> None:
        self.properties: dict[str, str] = {}
        self.cancelled: list[str] = []

    def setLocalProperty(self, name: str, value: str) -> None:
        self.properties[name] = value

    def setJobGroup(self, group: str, description: str, interruptOnCancel: bool) -> None:
        self.properties["group"] = group

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.append(group)


def running(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> tuple[GoldRefreshLoop, Context]:
    context = Context()
    monkeypatch.setattr("pyspark.InheritableThread", threading.Thread)
    loop = stage.opened(SimpleNamespace(sparkContext=context, newSession=lambda: None))
    loop.start()
    return loop, context


def awaited(condition: Callable[[], bool]) -> bool:
    waiter = threading.Event()
    for _ in range(200):
        if condition():
            return True
        waiter.wait(0.05)
    return False


def test_the_loop_builds_in_its_own_pool_until_it_is_closed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.traffic.land([request(1, "a")])

    loop, context = running(stage, monkeypatch)

    assert awaited(lambda: stage.built == [TABLE])
    loop.close(wait_seconds=10)
    assert loop._thread is not None
    assert not loop._thread.is_alive()
    assert context.properties == {"spark.scheduler.pool": "gold", "group": "gold.traffic"}
    assert set(context.cancelled) <= {"gold.traffic"}


def test_without_the_lease_nothing_is_built_any_more(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.traffic.land([request(1, "a")])
    stage.holds_lease = False

    loop, _ = running(stage, monkeypatch)

    assert loop._thread is not None
    loop._thread.join(10)
    assert not loop._thread.is_alive()
    assert stage.built == []
