"""Keyed tables during a stream: merged in a thread, suspended, and held for write turns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.write_turn import TurnRecord
from deltaworks.engine.keyed import catchup_threads as keyed_tables
from deltaworks.engine.keyed.keyed_catchup import KeyedTableCatchUp
from deltaworks.errors import ContractError
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.pipeline import PipelineSpec
from tests.unit.engine.batch_records import asked_turn
from tests.unit.engine.hold_harness import Harness, declared
from tests.waiting import eventually

LATEST = "latest_orders"


def keyed_stage(root: Path) -> Harness:
    mapping = declared()
    mapping["tables"][1]["keyed"] = {"by": ["level"], "newest_by": ["_batch_id"]}
    return Harness(root, PipelineSpec.model_validate(mapping))


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return keyed_stage(tmp_path)


def merged(harness: Harness) -> list[tuple[Any, Any]]:
    """Key and position of each row."""
    rows = harness.lake.rows(paths.table("shop", LATEST))
    return [] if rows is None else [(row["level"], row["_seq"]) for row in rows.to_pylist()]


def ask(harness: Harness, record: TurnRecord) -> None:
    harness.objects.put(paths.turn_request("shop", LATEST), record.encode())


def turn_state(harness: Harness) -> str:
    stored = harness.objects.get(paths.turn_request("shop", LATEST))
    record = TurnRecord.decode_or_none(stored.data) if stored else None
    return record.state if record else ""


def test_every_batch_wakes_the_thread_that_merges(harness: Harness) -> None:
    processor = harness.processor()
    processor.keyed.start()
    harness.land(processor, 0)
    eventually(lambda: merged(harness) == [(7, 0)], "the first batch is merged")
    harness.land(processor, 1)
    eventually(lambda: merged(harness) == [(7, 1)], "the second batch is merged")
    harness.land(processor, 2)
    processor.keyed.close(wait_seconds=None)

    assert merged(harness) == [(7, 2)]


def test_a_batch_that_was_not_merged_is_merged_by_the_next_owner(harness: Harness) -> None:
    harness.land(harness.processor(), 0)
    assert merged(harness) == []

    harness.processor().keyed.catch_up_all()
    assert merged(harness) == [(7, 0)]


@pytest.mark.parametrize("point", ["committed:orders", f"merging:{LATEST}", f"merged:{LATEST}"])
def test_a_process_killed_between_history_and_keyed_table_loses_no_key(harness: Harness, point: str) -> None:
    processor = harness.processor()
    harness.land(processor, 0)
    processor.keyed.catch_up_all()
    killed = subprocess.run(
        [sys.executable, "-m", "tests.unit.engine.keyed.killed_process", str(harness.root), point],
        cwd=PROJECT_ROOT,
        env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT / "include")},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert merged(harness) == [(7, 1 if point.startswith("merged") else 0)]

    harness.epoch = 2
    successor = harness.processor()
    successor.complete_prepared()
    successor.keyed.catch_up_all()
    assert merged(harness) == [(7, 1)]
    assert harness.landed("orders") == harness.expected(0, 1)


def test_a_table_that_cannot_be_merged_is_suspended_and_continues_once_resumed(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = harness.processor()
    harness.land(processor, 0)

    def fails(self: KeyedTableCatchUp) -> None:
        raise ContractError("TABLE_SCHEMA_DIFFERS", "another type")

    with monkeypatch.context() as patched:
        patched.setattr(KeyedTableCatchUp, "catch_up", fails)
        processor.keyed.catch_up_all()
    report = harness.land(processor, 1)
    assert report is not None
    (held,) = processor.held
    assert (held.table, held.reason, held.condition) == (LATEST, "suspended", "TABLE_SCHEMA_DIFFERS")
    assert processor.keyed.catch_up_all() == []

    PipelineHome(harness.objects, "shop").held.request_resume(LATEST, by="ada")
    processor.serve_requests()
    processor.keyed.catch_up_all()
    assert processor.held == []
    assert merged(harness) == [(7, 1)]


def test_a_retryable_failure_is_retried_immediately(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = harness.processor()
    harness.land(processor, 0)
    monkeypatch.setattr(keyed_tables, "RETRY_SECONDS", (0.0, 0.0))
    original, failures = KeyedTableCatchUp.catch_up, [OSError("away"), OSError("away")]

    def fails_twice(self: KeyedTableCatchUp) -> Any:
        if failures:
            raise failures.pop()
        return original(self)

    monkeypatch.setattr(KeyedTableCatchUp, "catch_up", fails_twice)
    processor.keyed.catch_up_all()
    processor.serve_requests()

    assert processor.held == []
    assert merged(harness) == [(7, 0)]


def test_a_job_has_the_table_for_itself_while_it_has_the_turn(harness: Harness) -> None:
    processor = harness.processor()
    harness.land(processor, 0)
    processor.keyed.catch_up_all()
    ask(harness, asked_turn(LATEST))
    harness.land(processor, 1)
    assert turn_state(harness) == "granted"
    assert processor.keyed.catch_up_all() == []
    assert merged(harness) == [(7, 0)]

    ask(harness, asked_turn(LATEST).replace(state="released"))
    processor.serve_requests()
    processor.keyed.catch_up_all()
    assert merged(harness) == [(7, 1)]


def test_a_turn_is_granted_after_the_running_merge(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = harness.processor()
    harness.land(processor, 0)
    original, states = KeyedTableCatchUp.catch_up, []

    def merging(self: KeyedTableCatchUp) -> Any:
        ask(harness, asked_turn(LATEST))
        processor.serve_requests()
        states.append(turn_state(harness))
        return original(self)

    monkeypatch.setattr(KeyedTableCatchUp, "catch_up", merging)
    processor.keyed.catch_up_all()
    processor.serve_requests()

    assert [*states, turn_state(harness)] == ["requested", "granted"]
    assert merged(harness) == [(7, 0)]


def test_a_stream_without_keyed_tables_starts_no_thread(tmp_path: Path) -> None:
    harness = Harness.at(tmp_path)
    processor = harness.processor()
    processor.keyed.start()
    harness.land(processor, 0)

    assert processor.keyed.catch_up_all() == []
    assert not processor.keyed.is_running
    processor.keyed.close(wait_seconds=None)
