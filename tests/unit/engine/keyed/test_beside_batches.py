"""Keyed tables beside the batches of a stream: merged in a thread of their own, suspended and lent as others are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
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
from tests.unit.engine.hold_stage import Stage, declared
from tests.waiting import eventually

LATEST = "latest_orders"


def keyed_stage(root: Path) -> Stage:
    mapping = declared()
    mapping["tables"][1]["keyed"] = {"by": ["level"], "newest_by": ["_batch_id"]}
    return Stage(root, PipelineSpec.model_validate(mapping))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return keyed_stage(tmp_path)


def merged(stage: Stage) -> list[tuple[Any, Any]]:
    """Key, and where the row came from."""
    rows = stage.lake.rows(paths.table("shop", LATEST))
    return [] if rows is None else [(row["level"], row["_seq"]) for row in rows.to_pylist()]


def ask(stage: Stage, record: TurnRecord) -> None:
    stage.objects.put(paths.turn_request("shop", LATEST), record.encode())


def turn_state(stage: Stage) -> str:
    stored = stage.objects.get(paths.turn_request("shop", LATEST))
    record = TurnRecord.decode(stored.data) if stored else None
    return record.state if record else ""


def test_every_batch_wakes_the_thread_that_merges(stage: Stage) -> None:
    processor = stage.processor()
    processor.keyed.start()
    stage.land(processor, 0)
    eventually(lambda: merged(stage) == [(7, 0)], "the first batch is merged")
    stage.land(processor, 1)
    eventually(lambda: merged(stage) == [(7, 1)], "the second batch is merged")
    stage.land(processor, 2)
    processor.keyed.close(wait_seconds=None)

    assert merged(stage) == [(7, 2)]


def test_a_batch_that_was_not_merged_is_merged_by_the_next_owner(stage: Stage) -> None:
    stage.land(stage.processor(), 0)
    assert merged(stage) == []

    stage.processor().keyed.catch_up_all()
    assert merged(stage) == [(7, 0)]


@pytest.mark.parametrize("point", ["committed:orders", f"merging:{LATEST}", f"merged:{LATEST}"])
def test_a_process_killed_between_the_history_and_its_keyed_table_leaves_no_key_behind(
    stage: Stage, point: str
) -> None:
    processor = stage.processor()
    stage.land(processor, 0)
    processor.keyed.catch_up_all()
    killed = subprocess.run(
        [sys.executable, "-m", "tests.unit.engine.keyed.killed_process", str(stage.root), point],
        cwd=PROJECT_ROOT,
        env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT / "include")},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert merged(stage) == [(7, 1 if point.startswith("merged") else 0)]

    stage.epoch = 2
    successor = stage.processor()
    successor.complete_prepared()
    successor.keyed.catch_up_all()
    assert merged(stage) == [(7, 1)]
    assert stage.landed("orders") == stage.expected(0, 1)


def test_a_table_that_cannot_be_merged_is_suspended_and_goes_on_once_it_is_resumed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = stage.processor()
    stage.land(processor, 0)

    def fails(self: KeyedTableCatchUp) -> None:
        raise ContractError("TABLE_SCHEMA_DIFFERS", "another type")

    with monkeypatch.context() as patched:
        patched.setattr(KeyedTableCatchUp, "follow", fails)
        processor.keyed.catch_up_all()
    report = stage.land(processor, 1)
    assert report is not None
    (held,) = processor.held
    assert (held.table, held.reason, held.condition) == (LATEST, "suspended", "TABLE_SCHEMA_DIFFERS")
    assert processor.keyed.catch_up_all() == []

    PipelineHome(stage.objects, "shop").held.request_resume(LATEST, by="ada")
    processor.serve_requests()
    processor.keyed.catch_up_all()
    assert processor.held == []
    assert merged(stage) == [(7, 1)]


def test_a_failure_that_may_pass_is_tried_again_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = stage.processor()
    stage.land(processor, 0)
    monkeypatch.setattr(keyed_tables, "RETRY_SECONDS", (0.0, 0.0))
    original, failures = KeyedTableCatchUp.catch_up, [OSError("away"), OSError("away")]

    def fails_twice(self: KeyedTableCatchUp) -> Any:
        if failures:
            raise failures.pop()
        return original(self)

    monkeypatch.setattr(KeyedTableCatchUp, "follow", fails_twice)
    processor.keyed.catch_up_all()
    processor.serve_requests()

    assert processor.held == []
    assert merged(stage) == [(7, 0)]


def test_a_job_has_the_table_for_itself_while_it_has_the_turn(stage: Stage) -> None:
    processor = stage.processor()
    stage.land(processor, 0)
    processor.keyed.catch_up_all()
    ask(stage, asked_turn(LATEST))
    stage.land(processor, 1)
    assert turn_state(stage) == "granted"
    assert processor.keyed.catch_up_all() == []
    assert merged(stage) == [(7, 0)]

    ask(stage, replace(asked_turn(LATEST), state="released"))
    processor.serve_requests()
    processor.keyed.catch_up_all()
    assert merged(stage) == [(7, 1)]


def test_a_turn_is_granted_after_the_merge_that_is_under_way(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = stage.processor()
    stage.land(processor, 0)
    original, states = KeyedTableCatchUp.catch_up, []

    def merging(self: KeyedTableCatchUp) -> Any:
        ask(stage, asked_turn(LATEST))
        processor.serve_requests()
        states.append(turn_state(stage))
        return original(self)

    monkeypatch.setattr(KeyedTableCatchUp, "follow", merging)
    processor.keyed.catch_up_all()
    processor.serve_requests()

    assert [*states, turn_state(stage)] == ["asked", "granted"]
    assert merged(stage) == [(7, 0)]


def test_a_stream_without_keyed_tables_starts_no_thread(tmp_path: Path) -> None:
    stage = Stage.at(tmp_path)
    processor = stage.processor()
    processor.keyed.start()
    stage.land(processor, 0)

    assert processor.keyed.catch_up_all() == []
    assert not processor.keyed.is_running
    processor.keyed.close(wait_seconds=None)
