"""OPTIMIZE of tables without date partitions, and of a mutable table under its write turn."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.locks.write_turn import TurnRecord, write_turn
from deltaworks.errors import ConcurrencyError
from deltaworks.maintenance import optimize_night
from deltaworks.maintenance.optimize import TableOptimizer
from deltaworks.maintenance.optimize_night import optimize_tables
from deltaworks.maintenance.partition_choice import OptimizePolicy
from deltaworks.maintenance.table_health.measure import file_sizes_by_partition
from tests.spark.mutations.mutation_harness import DATA, PIPELINE, START, MutationHarness, declared


def land(stage: MutationHarness, *orgs: str) -> None:
    days = (0, 1)
    stage.land(
        rows=[
            {"org_id": org, "event_id": f"{org}{day}", "id": "a", "time": START + dt.timedelta(days=day)}
            for org in orgs
            for day in days
        ]
    )


def files(stage: MutationHarness) -> dict[str, int]:
    found = file_sizes_by_partition(stage.lake, paths.table(PIPELINE, DATA))
    return {"/".join(str(value) for _, value in sorted(place)): len(sizes) for place, sizes in found.items()}


def turn(stage: MutationHarness) -> TurnRecord | None:
    found = stage.objects.get(paths.turn_request(PIPELINE, DATA))
    return None if found is None else TurnRecord.decode_or_none(found.data)


def test_changed_partitions_are_rewritten_under_the_write_turn(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = MutationHarness(tmp_path, declared(partition_by=("event_date", "org_id")))
    for orgs in (("acme", "o'neil"), ("o'neil",)):
        land(stage, *orgs)
    command, held = TableOptimizer._run_optimize, []

    def looked_at(*arguments: object) -> None:
        held.append(turn(stage))
        command(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TableOptimizer, "_run_optimize", looked_at)
    policy = OptimizePolicy(zorder_from_bytes=0)
    (result,) = optimize_tables(lambda: spark, stage.catalog, PIPELINE, tables=[DATA], policy=policy)

    assert (result.partitions, result.files_before, result.files_after) == (2, 4, 2)
    assert files(stage) == {f"2026-01-0{day}/{org}": 1 for day in (1, 2) for org in ("acme", "o'neil")}
    assert [record and record.state for record in held] == ["granted"]
    after = turn(stage)
    assert after is not None
    assert after.state == "released"
    (again,) = optimize_tables(lambda: spark, stage.catalog, PIPELINE, tables=[DATA], policy=policy)
    assert again.reason == "nothing to do: 4 partitions of one file"


def test_a_table_with_another_jobs_write_turn_is_skipped(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = MutationHarness(tmp_path)
    land(stage, "acme")
    land(stage, "acme")
    before = stage.version()
    plain = optimize_night.write_turn
    monkeypatch.setattr(optimize_night, "write_turn", lambda *given, **named: plain(*given, **named, wait_seconds=1.0))

    held = write_turn(stage.objects, PIPELINE, DATA, by="a merge", wait_seconds=5)
    tomorrow, every = utc_now() + dt.timedelta(days=1), OptimizePolicy(min_small_files=2)
    with held, pytest.raises(ConcurrencyError, match="TURN_NOT_GRANTED"):
        optimize_tables(lambda: spark, stage.catalog, PIPELINE, tables=[DATA], now=tomorrow, policy=every)

    assert stage.version() == before
