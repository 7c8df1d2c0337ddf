"""The refresh loop: which tables are built when, failures, states of shadow tables, and the dry run of a refresh."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

from deltaworks.cli import app, operations
from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConcurrencyError, ContractError, TransientError
from deltaworks.gold import build as build_module
from deltaworks.gold import refresh as module
from deltaworks.gold import refresh_loop as loop_module
from deltaworks.gold.pinned_inputs import BuiltFrom
from deltaworks.gold.refresh import (
    find_shadows,
    is_behind,
    plan_refresh,
    remove_shadow,
    shadow_state,
)
from deltaworks.gold.refresh_loop import MAX_BACKOFF_SECONDS, GoldRefreshLoop, next_wait_seconds
from deltaworks.gold.table_build import GoldTableResult, TableJob
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import GoldTableSpec
from deltaworks.tables.commit import commit_step
from deltaworks.tables.lake import Lake
from deltaworks.tables.steps import gold_refresh_step
from deltaworks.testing import present
from tests.spark.gold.traffic_data import request
from tests.unit.gold.test_grain import PlannedTraffic
from tests.unit.maintenance.table_data import DAILY, DAILY_SQL, ORDERS, SHOP, make, project

TABLE = "edge_minutes"


class LoopHarness:
    """A pipeline whose refresh loop builds with DuckDB, without a thread."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.traffic = PlannedTraffic(folder)
        self.built: list[str] = []
        self.reports: list[tuple[Mapping[str, Any], ...]] = []
        self.error: Exception | None = None
        self.holds_lease = True
        self.committed = threading.Event()
        monkeypatch.setattr(build_module, "build_table", self._build)
        monkeypatch.setattr(build_module, "InputViews", MagicMock())
        self.loop = self.new_loop()

    def new_loop(self, spark: Any = None) -> GoldRefreshLoop:
        return GoldRefreshLoop(
            spark,
            self.traffic.catalog,
            "traffic",
            pool="gold",
            holds_lease=lambda: self.holds_lease,
            committed=self.committed,
            report_failures=self.reports.append,
        )

    def _build(self, *arguments: Any, **_: Any) -> tuple[TableJob, GoldTableResult]:
        job: TableJob = arguments[3]
        name = job.plan.table.name
        if not job.plan.has_work:
            return job, GoldTableResult(name, True, job.plan.reason, job.built_from)
        if self.error is not None:
            raise self.error
        self.built.append(name)
        self.traffic.build(name)
        return job, GoldTableResult(name, False, job.plan.reason, job.built_from, version=1, rows=1)

    def refresh(self) -> list[str]:
        """Refreshes all tables; returns the built ones."""
        self.built.clear()
        self.loop._next_refresh_at = dict.fromkeys(self.loop._next_refresh_at, 0.0)
        self.loop.refresh_due_tables(None)  # type: ignore[arg-type]
        return list(self.built)

    def redefine(self) -> None:
        """Changes the SQL for both the loop and the DAG."""
        sql = self.traffic.catalog.folder("traffic") / "gold" / "edge_minutes.sql"
        sql.write_text(sql.read_text().replace("count(*) AS requests", "count(*) * 1 AS requests"))


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoopHarness:
    return LoopHarness(tmp_path, monkeypatch)


def test_changed_tables_are_built_when_due(harness: LoopHarness) -> None:
    assert harness.refresh() == [], "no input is there"
    harness.traffic.land([request(1, "a")])

    assert harness.refresh() == [TABLE], "and not edge_trend, which declares no lag"
    harness.traffic.holds(TABLE)
    assert harness.refresh() == []
    harness.traffic.land([request(2, "b")])
    harness.loop.refresh_due_tables(None)  # type: ignore[arg-type]
    assert harness.built == [], "it is not due"
    assert harness.refresh() == [TABLE]
    harness.traffic.holds(TABLE)
    assert harness.reports == []


def test_a_table_without_work_is_recorded_as_fresh(harness: LoopHarness) -> None:
    objects = LocalObjects(Path(harness.traffic.catalog.environment.lake.prefix))
    harness.traffic.land([request(1, "a")])
    harness.traffic.build(TABLE)

    assert harness.refresh() == []
    assert objects.get(paths.gold_state("traffic", TABLE)) is not None


def test_a_failing_build_is_reported_with_backoff_until_it_succeeds(harness: LoopHarness) -> None:
    harness.traffic.land([request(1, "a")])
    harness.error = ContractError("GOLD_CHECK_FAILED", "two rows of a minute", hint="Mend the SQL.")

    assert harness.refresh() == []
    assert harness.refresh() == []
    (failure,) = harness.reports[-1]
    assert {"table": TABLE, "condition": "GOLD_CHECK_FAILED", "hint": "Mend the SQL.", "failures": 2}.items() <= (
        failure.items()
    )
    assert failure["since"] == harness.reports[0][0]["since"]

    harness.error = None
    assert harness.refresh() == [TABLE]
    assert harness.reports[-1] == ()


def test_inputs_are_compacted_periodically_and_a_failure_does_not_affect_gold(
    harness: LoopHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges: list[str] = []

    def merge(
        lake: object, spec: object, tables: Sequence[GoldTableSpec], *, should_continue: Callable[[], bool]
    ) -> int:
        assert should_continue()
        merges.extend(table.name for table in tables)
        raise TransientError("OBJECT_STORE_UNREACHABLE", "no answer", hint="Wait.")

    monkeypatch.setattr(loop_module, "compact_inputs", merge)
    harness.traffic.land([request(1, "a")])

    assert harness.refresh() == [TABLE]
    assert merges == [], "not before the first minute is over"
    harness.loop._next_compaction_at = 0.0
    harness.refresh()
    assert merges == [TABLE]
    harness.refresh()
    assert merges == [TABLE], "a minute apart"
    assert harness.reports == []


def test_the_backoff_is_bounded() -> None:
    waits = [next_wait_seconds(60, failures) for failures in range(6)]

    assert waits == [60, 120, 240, 480, 900, 900]
    assert next_wait_seconds(60, 10_000) == MAX_BACKOFF_SECONDS
    assert next_wait_seconds(3_600, 3) == 3_600


@pytest.mark.parametrize(
    ("built_seconds", "waits"),
    [(0.0, 30.0), (10.0, 20.0), (20.0, 10.0), (24.0, 12.0), (50.0, 25.0), (500.0, 30.0)],
)
def test_rounds_start_at_intervals_and_long_builds_are_followed_by_a_pause(built_seconds: float, waits: float) -> None:
    assert next_wait_seconds(30, 0, built_seconds=built_seconds) == waits


def test_a_shared_failure_is_reported_for_each_table(harness: LoopHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.traffic.land([request(1, "a")])
    gone = ContractError("TABLE_LOG_GAP", "a commit is lost")
    monkeypatch.setattr(build_module, "pin_inputs", MagicMock(side_effect=gone))

    assert harness.refresh() == []

    assert [(failure["table"], failure["condition"]) for failure in harness.reports[-1]] == [(TABLE, "TABLE_LOG_GAP")]


def test_occasional_conflicts_are_no_failure(harness: LoopHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.traffic.land([request(1, "a")])
    contended = ConcurrencyError("REFERENCE_CONTENDED", "another one was faster")
    monkeypatch.setattr("deltaworks.gold.refresh_loop.refresh_external_inputs", MagicMock(side_effect=contended))

    harness.refresh()
    harness.refresh()
    assert harness.reports == []
    harness.refresh()
    assert harness.reports[-1][0]["condition"] == "REFERENCE_CONTENDED"


@pytest.mark.parametrize("protected", [True, False])
def test_a_table_that_another_definition_has_built_since_is_left_alone(
    harness: LoopHarness, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    harness.traffic.land([request(1, "a")])
    assert harness.refresh() == [TABLE]
    # The DAG builds a declaration the stream has not read: SQL that is reverted afterwards.
    sql = harness.traffic.catalog.folder("traffic") / "gold" / "edge_minutes.sql"
    before = sql.read_text()
    harness.redefine()
    harness.traffic.build(TABLE)
    sql.write_text(before)
    if not protected:
        monkeypatch.setattr(GoldRefreshLoop, "_was_built_by_other_definition", lambda *arguments: False)

    assert harness.refresh() == ([] if protected else [TABLE]), "else both would rebuild all of it in turns"
    harness.redefine()
    harness.traffic.land([request(2, "b")])
    assert harness.refresh() == [TABLE], "by the same definition it goes on"


class Context:
    """The Spark context calls of a loop."""

    def __init__(self) -> None:
        self.properties: dict[str, str] = {}
        self.cancelled: list[str] = []

    def setLocalProperty(self, name: str, value: str) -> None:
        self.properties[name] = value

    def setJobGroup(self, group: str, description: str, interruptOnCancel: bool) -> None:
        self.properties["group"] = group

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.append(group)


def running(harness: LoopHarness, monkeypatch: pytest.MonkeyPatch) -> tuple[GoldRefreshLoop, Context]:
    context = Context()
    monkeypatch.setattr("pyspark.InheritableThread", threading.Thread)
    loop = harness.new_loop(SimpleNamespace(sparkContext=context, newSession=lambda: None))
    loop.start()
    return loop, context


def awaited(condition: Callable[[], bool]) -> bool:
    waiter = threading.Event()
    for _ in range(200):
        if condition():
            return True
        waiter.wait(0.05)
    return False


def test_the_loop_builds_as_soon_as_a_batch_is_committed(harness: LoopHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "next_wait_seconds", lambda *_, **__: 0.0)
    monkeypatch.setattr(loop_module, "QUIET_SECONDS", 3_600.0)
    harness.traffic.land([request(1, "a")])
    loop, _ = running(harness, monkeypatch)
    assert awaited(lambda: harness.built == [TABLE])

    harness.traffic.land([request(2, "b")])
    harness.committed.set()

    assert awaited(lambda: harness.built == [TABLE] * 2)
    assert awaited(lambda: not harness.committed.is_set())
    loop.close(wait_seconds=10)


def test_the_loop_builds_in_its_own_pool_until_it_is_closed(
    harness: LoopHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.traffic.land([request(1, "a")])

    loop, context = running(harness, monkeypatch)

    assert awaited(lambda: harness.built == [TABLE])
    loop.close(wait_seconds=10)
    assert loop._thread is not None
    assert not loop._thread.is_alive()
    assert context.properties == {"spark.scheduler.pool": "gold", "group": "gold.traffic"}
    assert set(context.cancelled) <= {"gold.traffic"}


def test_without_the_lease_nothing_is_built(harness: LoopHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.traffic.land([request(1, "a")])
    harness.holds_lease = False

    loop, _ = running(harness, monkeypatch)

    assert loop._thread is not None
    loop._thread.join(10)
    assert not loop._thread.is_alive()
    assert harness.built == []


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return project(tmp_path, shop=SHOP + ORDERS + DAILY, sql=DAILY_SQL)


@pytest.fixture
def lake(catalog: Catalog) -> Lake:
    made = Lake(catalog.environment.lake)
    make(made, "shop", "orders", files=1, days=1)
    make(made, "shop", "daily", files=2, days=1)
    return made


def build_shadow(lake: Lake, ordinal: int) -> str:
    """Creates a shadow with a row and its recorded inputs."""
    key = paths.gold_shadow("shop", "daily", ordinal)
    make(lake, "shop", "made", files=1, days=1)
    source = Path(lake.storage.prefix, paths.table("shop", "made"))
    Path(lake.storage.prefix, key).parent.mkdir(parents=True, exist_ok=True)
    source.rename(Path(lake.storage.prefix, key))
    table = present(lake.open(key))
    made = user_metadata(pipeline="shop", batch="", operation="rebuild_gold", built_from={"orders": 7}, fingerprint="f")
    commit_step(table, [], step=gold_refresh_step("shop", "built", 1), user_metadata=made)
    return key


def swap(lake: Lake, ordinal: int) -> None:
    """Commits the transaction of a swap to the gold table."""
    table = present(lake.open(paths.table("shop", "daily")))
    commit_step(table, [], step=gold_refresh_step("shop", "daily", ordinal), user_metadata="{}")


def test_the_table_log_shows_which_shadow_was_swapped_in(lake: Lake) -> None:
    assert not find_shadows(lake, "shop", "daily").is_in_progress
    key = build_shadow(lake, 1)

    begun = find_shadows(lake, "shop", "daily")
    assert (begun.is_in_progress, begun.next_key, begun.swapped_key, begun.orphaned_keys) == (True, key, None, [])

    swap(lake, 1)

    swapped = find_shadows(lake, "shop", "daily")
    assert (swapped.is_in_progress, swapped.swapped_key) == (False, key)
    assert swapped.next_key == paths.gold_shadow("shop", "daily", 2)


def test_shadows_of_a_recreated_table_are_orphaned(lake: Lake) -> None:
    old = build_shadow(lake, 5)

    assert find_shadows(lake, "shop", "daily").orphaned_keys == [old]


def test_a_shadow_is_deleted_log_first(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, objects = build_shadow(lake, 1), LocalObjects(tmp_path / "lake")
    swap(lake, 1)
    folder = Path(lake.storage.prefix, key)
    assert shadow_state(lake, objects, key) is not None
    remove = module.remove_folder

    def killed_after_the_first(storage: object, prefix: str) -> None:
        remove(storage, prefix)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "remove_folder", killed_after_the_first)
    with pytest.raises(KeyboardInterrupt):
        remove_shadow(lake, key)
    assert list(folder.rglob("*.parquet"))
    assert shadow_state(lake, objects, key) is None
    assert find_shadows(lake, "shop", "daily").swapped_key == key, "it is found again"

    monkeypatch.undo()
    remove_shadow(lake, key)

    assert not folder.exists()
    assert find_shadows(lake, "shop", "daily").swapped_key is None


def test_a_dry_run_describes_the_refresh_and_changes_nothing(
    lake: Lake, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "catalog", lambda: catalog)
    monkeypatch.setenv("COLUMNS", "240")

    def said() -> str:
        return CliRunner().invoke(app, ["gold", "refresh", "shop", "daily"], catch_exceptions=False).output

    assert "would be built, checked and swapped in" in said()
    (found,) = plan_refresh(catalog, "shop")
    assert (found.dry_run, found.rows_before, found.swapped, found.shadow) == (True, 20, False, "")
    assert found.built_from == {"orders": 1}

    key = build_shadow(lake, 1)
    assert "continues with the shadow of {'orders': 7}" in said()
    assert plan_refresh(catalog, "shop")[0].shadow == key

    swap(lake, 1)
    assert "already swapped in" in said()

    table = present(lake.open(paths.table("shop", "daily")))
    version = table.version()
    table.alter.set_table_properties({"delta.appendOnly": "true"})
    assert "cannot: delta.appendOnly" in said()
    assert table.version() == version + 1


def test_a_shadow_is_behind_if_any_input_is_newer() -> None:
    shadow = BuiltFrom({"a": 3, "b": 5}, "f")

    assert not is_behind(shadow, BuiltFrom({"a": 3, "b": 5}, "f"))
    assert not is_behind(shadow, BuiltFrom({"a": 2, "b": 5}, "f"))
    assert is_behind(shadow, BuiltFrom({"a": 4, "b": 1}, "f"))
    assert is_behind(BuiltFrom({"a": 3}, "f"), BuiltFrom({"a": 3, "b": 0}, "f")), "an input that has come to be"
    assert not is_behind(shadow, BuiltFrom({"a": 9}, "other")), "another definition is about to be replaced"
    assert not is_behind(shadow, BuiltFrom({}, "", "it was restored"))
