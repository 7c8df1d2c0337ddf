"""A broken table does not stop OPTIMIZE of the others; its error names the file and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.errors import ContractError, DeltaworksError
from deltaworks.maintenance.optimize_night import optimize_tables
from tests.spark.made_pulse import HEAD
from tests.spark.maintenance.test_optimize import append

PULSE = (
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
def pulse(make_project: Callable[..., Any]) -> Any:
    project = make_project({"pulse": (PULSE, {})})
    for table in ("events", "torn", "gone", "plain"):
        for _ in range(5):
            append(project, 0, table=table)
    return project


def first_file(pulse: Any, table: str) -> Path:
    return min(Path(pulse.lake.storage.prefix, paths.table("pulse", table)).glob("event_date=*/*.parquet"))


def test_good_tables_are_optimized_and_the_error_names_the_file(spark: SparkSession, pulse: Any) -> None:
    torn, told = first_file(pulse, "torn"), []
    torn.write_bytes(torn.read_bytes()[:200])

    with pytest.raises(ContractError) as raised:
        optimize_tables(lambda: spark, pulse.catalog, "pulse", report=told.extend)

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


def test_all_failed_tables_are_named_and_nothing_is_retried_in_vain(spark: SparkSession, pulse: Any) -> None:
    torn, gone, told = first_file(pulse, "torn"), first_file(pulse, "gone"), []
    torn.write_bytes(torn.read_bytes()[:200])
    gone.unlink()

    with pytest.raises(DeltaworksError) as raised:
        optimize_tables(lambda: spark, pulse.catalog, "pulse", report=told.extend)

    assert raised.value.condition == "OPTIMIZE_FAILED"
    assert not raised.value.retryable
    message = raised.value.message
    assert message.startswith("2 of 5 tables failed: ")
    assert f"[DATA_FILE_UNREADABLE] pulse.torn: data file event_date=2025-03-01/{torn.name} cannot be read: " in message
    assert f"[DATA_FILE_MISSING] pulse.gone: data file event_date=2025-03-01/{gone.name} is missing" in message
    assert "Py4J" not in message
    assert {each.table for each in told if each.partitions} == {"events", "plain"}
