"""OPTIMIZE rewrites partitions it improves, clusters once, keeps rows, and names the file of a broken table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from deltaworks.alerts.raising import alerts
from deltaworks.control import paths
from deltaworks.control.locks.exclusive import maintenance_lock
from deltaworks.control.locks.write_turn import uncontested_turn
from deltaworks.control.objects import LocalObjects
from deltaworks.engine.table_set import TableSet
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError, DeltaworksError
from deltaworks.maintenance import optimize, optimize_night, partition_choice
from deltaworks.maintenance import vacuum as maintenance_alerts
from deltaworks.maintenance.optimize import TableOptimizer
from deltaworks.maintenance.optimize_night import optimize_partition, optimize_tables
from deltaworks.maintenance.partition_choice import OptimizePolicy
from deltaworks.maintenance.table_health.measure import table_health
from deltaworks.maintenance.zorder_ledger import DEFAULT_RATES, LedgerState, ZOrderLedger
from deltaworks.tables.log import commit_history
from tests.spark.made_pulse import HEAD
from tests.unit.maintenance.table_data import IN_NEED, NIGHT, fill_hundred, hundred_tables

PULSE = (
    HEAD
    + """\
tables:
  - {name: events, catch_all: true, zorder_by: [event_name]}
  - {name: plain, when: {name: plain}}
  - {name: never, when: {name: never}, zorder_by: [event_name]}
maintenance: {zorder_from_bytes: 0}
"""
)
START = dt.datetime(2025, 3, 1, 12, tzinfo=dt.UTC)
KEY = paths.table("pulse", "events")


@pytest.fixture
def pulse(make_project: Callable[..., Any]) -> Any:
    return make_project({"pulse": (PULSE, {})})


def append(pulse: Any, *days: int, table: str = "events", rows: int = 1) -> None:
    made = [
        {
            "event_time": START + dt.timedelta(days=day),
            "event_id": f"e{day}-{number}",
            "event_name": f"n{number * 31 % 97}",
        }
        for day in days
        for number in range(rows)
    ]
    pulse.append("pulse", table, made)


def ids(pulse: Any) -> list[str]:
    return sorted(row["event_id"] for row in pulse.rows("pulse", "events"))


def files(pulse: Any, table: str = "events") -> int:
    health = table_health(pulse.lake, paths.table("pulse", table))
    return health.files if health else 0


def run(spark: SparkSession, pulse: Any, **given: Any) -> dict[str, Any]:
    """Runs a night of a pipeline that declares an order from any size on."""
    return {result.table: result for result in optimize_tables(lambda: spark, pulse.catalog, "pulse", **given)}


def test_a_night_orders_and_merges_and_then_has_nothing_to_do(spark: SparkSession, pulse: Any) -> None:
    for days in ((0, 1), (0, 2), (0, 2)):
        append(pulse, *days)
    for _ in range(4):
        append(pulse, 0, table="plain")
    before = ids(pulse)

    first, second = run(spark, pulse), run(spark, pulse)

    taken = first["events"]
    assert (taken.zordered, taken.compacted, taken.files_before, taken.files_after) == (2, 0, 5, 2)
    assert (first["plain"].compacted, first["plain"].files_before, first["plain"].files_after) == (1, 4, 1)
    assert taken.engine == "Spark: 2 partitions Z-ordered"
    assert first["plain"].engine == "this process: 1 partition compacted (at most 32 MiB of small files each)"
    assert (files(pulse), files(pulse, "plain"), ids(pulse)) == (3, 1, before)
    assert first["never"].reason == "it does not exist yet"
    assert [second[name].skipped for name in ("events", "plain", "never")] == [True, True, True]
    assert second["events"].reason == "nothing to do: 3 partitions of one file"
    newest = next(commit_history(pulse.lake, KEY, newest=pulse.lake.open(KEY).version()))
    assert (newest.operation, newest.metadata["operation"]) == ("OPTIMIZE", "optimize")
    rows = pulse.lake.rows(paths.pipeline_control("pulse", "zorder_ledger")).to_pylist()
    assert sorted((row["table_name"], row["action"], row["files_before"], row["files"]) for row in rows) == [
        ("events", "zorder", 2, 1),
        ("events", "zorder", 3, 1),
        ("plain", "compact_small", 4, 1),
    ]
    assert all(row["seconds"] > 0 for row in rows)


@pytest.mark.parametrize("protected", [True, pytest.param(False, marks=pytest.mark.integration)])
def test_ordered_files_are_not_rewritten_when_late_rows_are_merged(
    spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    for _ in range(2):
        append(pulse, 0, rows=30_000)
    size = table_health(pulse.lake, KEY).bytes
    policy = OptimizePolicy(target_file_bytes=size // 5, unordered_share=0.5, zorder_from_bytes=0)
    night = partial(run, spark, pulse, tables=["events"], policy=policy)
    first = night()["events"]
    ordered = set(pulse.lake.open(KEY).file_uris())
    assert first.files_after > 1, "several files, or the ledger would not be asked"
    if not protected:
        nothing = LedgerState(ordered={}, rates=DEFAULT_RATES)
        monkeypatch.setattr(optimize_night, "select_partitions", _with(optimize_night.select_partitions, order=nothing))
        assert night()["events"].files_before == first.files_after
        return

    assert night()["events"].reason == "nothing to do: 1 partition in order"

    for _ in range(5):
        append(pulse, 0)
    monkeypatch.setattr(optimize, "SMALL_FILE_BYTES", size // 15)
    late = night()["events"]
    assert (late.compacted, late.zordered, late.files_before, late.files_after) == (1, 0, 5, 1)
    assert ordered < set(pulse.lake.open(KEY).file_uris())


def _with(function: Callable[..., Any], **given: Any) -> Callable[..., Any]:
    return lambda *arguments, **named: function(*arguments, **named, **given)


def test_rows_that_arrive_during_planning_are_handled_next_time(
    spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(pulse, 0, 1)
    append(pulse, 0, 1)
    command = TableOptimizer._run_optimize

    def append_then_run(*arguments: Any) -> None:
        append(pulse, 3)
        append(pulse, 3)
        command(*arguments)
        append(pulse, 1)

    monkeypatch.setattr(TableOptimizer, "_run_optimize", append_then_run)
    run(spark, pulse, tables=["events"])
    monkeypatch.undo()

    result = run(spark, pulse, tables=["events"])["events"]

    assert (result.partitions, result.files_before, files(pulse)) == (2, 4, 3)


def test_conflicts_are_retried_and_counted(spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        append(pulse, 0, 1)
    command, tries = TableOptimizer._run_optimize, []

    def meets_a_delete_halfway(self: TableOptimizer, session: Any, group: Any, partitions: Any) -> None:
        tries.append(len(partitions))
        command(self, session, group, partitions[:1])
        if len(tries) == 1:
            raise ConcurrencyError("DELTA_CONFLICT", "A delete has taken rows of it.", hint="Run it again.")

    monkeypatch.setattr(TableOptimizer, "_run_optimize", meets_a_delete_halfway)

    done = run(spark, pulse, tables=["events"])["events"]

    assert tries == [2, 1]
    assert (done.partitions, done.files_before, done.files_after, done.error, files(pulse)) == (2, 4, 2, "", 2)
    monkeypatch.undo()
    assert run(spark, pulse, tables=["events"])["events"].skipped


@pytest.mark.parametrize("point", ["between groups", "before its row"])
def test_an_interrupted_run_is_continued(
    spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    for _ in range(2):
        append(pulse, 0, 1)
    monkeypatch.setattr(optimize, "BYTES_PER_GROUP", 1)
    broken = (TableOptimizer, "_run_optimize") if point == "between groups" else (ZOrderLedger, "record")
    works, calls = getattr(*broken), []

    def die_at_the_second(*arguments: Any, **named: Any) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        works(*arguments, **named)

    monkeypatch.setattr(*broken, die_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        run(spark, pulse, tables=["events"])
    monkeypatch.setattr(*broken, works)

    again = run(spark, pulse, tables=["events"])["events"]

    assert (again.partitions, files(pulse)) == (1 if point == "between groups" else 0, 2)
    rows = pulse.lake.rows(paths.pipeline_control("pulse", "zorder_ledger")).to_pylist()
    assert len({row["partition"] for row in rows}) == len(rows) == 2


def test_a_killed_command_keeps_its_commits(spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        append(pulse, 0, 1, 2)
    monkeypatch.setattr(optimize, "BYTES_PER_COMMIT", 1)
    before = pulse.lake.open(KEY).version()

    result = run(spark, pulse, tables=["events"])["events"]

    assert result.zordered == 3
    assert pulse.lake.open(KEY).version() == before + 3


def test_a_second_run_is_rejected_by_the_lock(spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    append(pulse, 0)
    append(pulse, 0)
    objects = LocalObjects(Path(pulse.lake.storage.prefix))
    before = pulse.lake.open(KEY).version()
    quick = _with(maintenance_lock, ttl_seconds=1.5, poll_seconds=0.05)
    monkeypatch.setattr(maintenance_alerts, "maintenance_lock", quick)

    with quick(objects, "pulse", work="VACUUM"):
        with pytest.raises(ConcurrencyError, match="MAINTENANCE_RUNNING"):
            run(spark, pulse, tables=["events"])
        assert pulse.lake.open(KEY).version() == before
        assert [(each.cause, each.subject) for each in alerts(objects)] == [("MAINTENANCE_OVERLAP", "pulse")]
        monkeypatch.setattr(maintenance_alerts, "maintenance_lock", lambda *_, **__: uncontested_turn("events"))
        run(spark, pulse, tables=["events"])
        assert pulse.lake.open(KEY).version() == before + 1


def test_rows_of_an_ordered_file_are_in_order_and_readers_skip_row_groups(
    spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimize, "ORDERED_BLOCK_BYTES", 64 << 10)
    for _ in range(2):
        append(pulse, 0, rows=30_000)

    assert run(spark, pulse, tables=["events"])["events"].zordered == 1

    (file,) = pulse.lake.open(KEY).file_uris()
    metadata = pq.ParquetFile(file.removeprefix("file://")).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    (at,) = [column for column in range(groups[0].num_columns) if metadata.schema.names[column] == "event_name"]
    statistics = [group.column(at).statistics for group in groups]
    assert len(groups) > 5
    assert sum(one.min <= "n50" <= one.max for one in statistics) <= 3


def test_a_large_single_file_is_ordered_once(spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_choice, "ORDERED_ROW_GROUP_BYTES", 1_000)
    append(pulse, 0, rows=1_000)

    first, second = run(spark, pulse, tables=["events"])["events"], run(spark, pulse, tables=["events"])["events"]

    assert (first.zordered, first.files_before, first.files_after) == (1, 1, 1)
    assert second.reason == "nothing to do: 1 partition of one file"


def test_one_partition_is_rewritten_by_force(spark: SparkSession, pulse: Any) -> None:
    append(pulse, 0, 1)
    append(pulse, 0, 1)
    append(pulse, 0, table="plain")
    append(pulse, 0, table="plain")
    optimize_tables(lambda: spark, pulse.catalog, "pulse", tables=["events"])
    done = [
        result
        for table in ("events", "plain")
        for result in optimize_partition(lambda: spark, pulse.catalog, "pulse", table, "event_date=2025-03-01")
    ]

    assert [(each.table, each.round, each.zordered, each.compacted, each.files_after) for each in done] == [
        ("events", "forced", 1, 0, 1),
        ("plain", "forced", 0, 1, 1),
    ]
    newest = next(commit_history(pulse.lake, KEY, newest=pulse.lake.open(KEY).version()))
    assert newest.operation == "OPTIMIZE"
    with pytest.raises(ConfigError, match=r"OPTIMIZE_PARTITION_INVALID.*no partition event_date=2025-04-01"):
        optimize_partition(lambda: spark, pulse.catalog, "pulse", "events", "event_date=2025-04-01")


def test_a_failing_table_does_not_stop_others(spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        append(pulse, 0, 1)
        append(pulse, 0, table="plain")
    command, told = TableOptimizer._run_optimize, []

    def fails(self: Any, session: Any, group: Any, partitions: Any) -> None:
        if group.table == "events":
            raise RuntimeError("an executor is gone")
        command(self, session, group, partitions)

    monkeypatch.setattr(TableOptimizer, "_run_optimize", fails)
    with pytest.raises(DeltaworksError, match="OPTIMIZE_FAILED") as raised:
        run(spark, pulse, report=told.extend)

    assert raised.value.retryable
    assert {each.table: (each.partitions, each.error) for each in told} == {
        "events": (0, "[OPTIMIZE_FAILED] events: RuntimeError: an executor is gone"),
        "plain": (1, ""),
        "never": (0, ""),
        "quarantine": (0, ""),
    }


def test_an_unknown_table_is_a_configuration_error(spark: SparkSession, pulse: Any) -> None:
    with pytest.raises(ConfigError, match="TABLE_UNKNOWN"):
        optimize_tables(lambda: spark, pulse.catalog, "pulse", tables=["evnts"])


@pytest.mark.integration
def test_a_night_rewrites_only_tables_that_need_it(spark: SparkSession, make_project: Callable[..., Any]) -> None:
    project = make_project({"shop": (hundred_tables(), {})})
    spec = project.spec("shop")
    fill_hundred(project.lake, LocalObjects(Path(project.lake.storage.prefix)), spec.tables[0].column_types())

    def versions() -> dict[str, int | None]:
        opened = {table.name: project.lake.open(paths.table("shop", table.name)) for table in spec.tables}
        return {name: None if table is None else table.version() for name, table in opened.items()}

    before = versions()
    results = optimize_tables(lambda: spark, project.catalog, "shop", now=NIGHT)
    after = versions()

    assert {name for name in before if before[name] != after[name]} == set(IN_NEED)
    assert {each.table for each in results if not each.skipped} == set(IN_NEED)
    assert all(each.reason for each in results)
    again = optimize_tables(lambda: spark, project.catalog, "shop", now=NIGHT)
    assert all(each.skipped for each in again)
    assert versions() == after


CLUSTERED = (
    HEAD
    + """\
tables:
  - {name: events, catch_all: true, cluster_by: [event_name, event_time], writer: spark}
"""
)


@pytest.mark.integration
def test_a_new_clustered_table_is_clustered_once(spark: SparkSession, make_project: Callable[..., Any]) -> None:
    project = make_project({"pulse": (CLUSTERED, {})})
    tables = TableSet(project.lake, project.spec("pulse"), spark=spark)
    tables.open()
    assert tables.problems == {}
    handle = tables.handles["events"]
    assert "clustering" in (handle.protocol().writer_features or [])
    assert handle.metadata().configuration["delta.checkpointInterval"] == "50"

    uri = project.lake.storage.spark_uri(KEY)
    for day in range(3):
        row = {"event_time": START + dt.timedelta(days=day), "event_id": f"e{day}", "event_name": "a"}
        frame = spark.createDataFrame([row], "event_time timestamp, event_id string, event_name string")
        frame.write.format("delta").mode("append").save(uri)
    (first,) = optimize_tables(lambda: spark, project.catalog, "pulse", tables=["events"])
    (second,) = optimize_tables(lambda: spark, project.catalog, "pulse", tables=["events"])

    assert (first.zordered, first.files_before, first.files_after) == (1, 3, 1)
    assert second.skipped
    newest = next(commit_history(project.lake, KEY, newest=project.lake.open(KEY).version()))
    assert newest.operation == "OPTIMIZE"
    assert sorted(row["event_id"] for row in project.rows("pulse", "events")) == ["e0", "e1", "e2"]


TWO_TABLES = (
    HEAD
    + """\
tables:
  - {name: events, catch_all: true, zorder_by: [event_name]}
  - {name: torn, when: {name: torn}, zorder_by: [event_name]}
  - {name: gone, when: {name: gone}}
  - {name: plain, when: {name: plain}}
maintenance: {zorder_from_bytes: 0}
"""
)


@pytest.fixture
def two_tables(make_project: Callable[..., Any]) -> Any:
    project = make_project({"pulse": (TWO_TABLES, {})})
    for table in ("events", "torn", "gone", "plain"):
        for _ in range(5):
            append(project, 0, table=table)
    return project


def first_file(two_tables: Any, table: str) -> Path:
    return min(Path(two_tables.lake.storage.prefix, paths.table("pulse", table)).glob("event_date=*/*.parquet"))


def test_good_tables_are_optimized_and_the_error_names_the_file(spark: SparkSession, two_tables: Any) -> None:
    torn, told = first_file(two_tables, "torn"), []
    torn.write_bytes(torn.read_bytes()[:200])

    with pytest.raises(ContractError) as raised:
        optimize_tables(lambda: spark, two_tables.catalog, "pulse", report=told.extend)

    assert raised.value.condition == "DATA_FILE_UNREADABLE"
    assert not raised.value.retryable
    assert raised.value.message.startswith(f"pulse.torn: data file event_date=2025-03-01/{torn.name} cannot be read: ")
    assert "`deltaworks recover files pulse torn`" in raised.value.hint
    results = {each.table: each for each in told}
    assert {name: (each.partitions, bool(each.error)) for name, each in results.items()} == {
        "events": (1, False),
        "torn": (0, True),
        "gone": (1, False),
        "plain": (1, False),
        "quarantine": (0, False),
    }
    assert results["torn"].error == f"[DATA_FILE_UNREADABLE] {raised.value.message}"


def test_all_failed_tables_are_named_and_nothing_is_retried_in_vain(spark: SparkSession, two_tables: Any) -> None:
    torn, gone, told = first_file(two_tables, "torn"), first_file(two_tables, "gone"), []
    torn.write_bytes(torn.read_bytes()[:200])
    gone.unlink()

    with pytest.raises(DeltaworksError) as raised:
        optimize_tables(lambda: spark, two_tables.catalog, "pulse", report=told.extend)

    assert raised.value.condition == "OPTIMIZE_FAILED"
    assert not raised.value.retryable
    message = raised.value.message
    assert message.startswith("2 of 5 tables failed: ")
    assert f"[DATA_FILE_UNREADABLE] pulse.torn: data file event_date=2025-03-01/{torn.name} cannot be read: " in message
    assert f"[DATA_FILE_MISSING] pulse.gone: data file event_date=2025-03-01/{gone.name} is missing" in message
    assert "Py4J" not in message
    assert {each.table for each in told if each.partitions} == {"events", "plain"}
