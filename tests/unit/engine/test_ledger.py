"""The ledger: complete batches, once each, with their steps, and the history of batches from the records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltaworks.control import paths
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.engine.batch_history import held_tables_by_batch
from deltaworks.engine.ledger import Ledger, owner_step
from deltaworks.errors import ConfigError, FencedError
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.unit.engine.batch_records import prepared_batch, step_outcome
from tests.unit.engine.ledger_harness import Harness

OWNER = owner_step("shop", 1)


def batch(batch_id: int, end: dict[str, Any] | None = None) -> PreparedBatch:
    tables = (
        PreparedTable(table="orders", writer="fan_out", rows=5, files=()),
        PreparedTable(table="quarantine", writer="fan_out", rows=2, files=()),
    )
    return prepared_batch(batch_id, offsets={"start": None, "end": end}, tables=tables)


def rows(lake: Lake, name: str) -> list[dict[str, Any]]:
    return present(lake.rows(paths.pipeline_control("shop", name))).to_pylist()


def test_a_new_ledger_has_no_batch(lake: Lake) -> None:
    assert Ledger(lake, "shop", 1).last_completed() is None


def test_a_complete_batch_is_the_last_one_and_has_its_end_offset(lake: Lake) -> None:
    ledger = Ledger(lake, "shop", 1)

    for number in range(3):
        ledger.complete(batch(number, {"seq": number * 10}), [step_outcome("orders")], owner=OWNER)

    assert ledger.last_completed() == 2
    assert Ledger(lake, "shop", 1).last_completed() == 2
    assert ledger.end_offset(1) == {"seq": 10}
    assert ledger.end_offset(9) is None


def test_an_unknown_offset_is_none(lake: Lake) -> None:
    ledger = Ledger(lake, "shop", 1)
    ledger.complete(batch(0), [], owner=OWNER)

    assert ledger.end_offset(0) is None


def test_completing_again_changes_nothing(lake: Lake) -> None:
    for _ in range(2):
        Ledger(lake, "shop", 1).complete(batch(0), [step_outcome("orders"), step_outcome("quarantine")], owner=OWNER)

    assert [(row["batch_id"], row["rows"], row["quarantined"]) for row in rows(lake, "checkpoint_store")] == [(0, 5, 2)]
    assert sorted(row["table_name"] for row in rows(lake, "batch_metadata_store")) == ["orders", "quarantine"]


def test_a_batch_is_complete_only_once_its_steps_are_recorded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(lake, "shop", 1)
    append = lake.append

    def fails_at_the_second(table: Any, key: str, *arguments: Any, **options: Any) -> Any:
        if key.endswith("checkpoint_store"):
            raise ConnectionError
        return append(table, key, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(lake, "append", fails_at_the_second)
        with pytest.raises(ConnectionError):
            ledger.complete(batch(0), [step_outcome("orders")], owner=OWNER)
    assert ledger.last_completed() is None

    ledger.complete(batch(0), [step_outcome("orders")], owner=OWNER)

    assert ledger.last_completed() == 0
    assert len(rows(lake, "batch_metadata_store")) == 1


def test_generations_are_numbered_separately(lake: Lake) -> None:
    Ledger(lake, "shop", 1).complete(batch(7), [], owner=OWNER)

    assert Ledger(lake, "shop", 2).last_completed() is None


def test_a_fenced_owner_completes_nothing(lake: Lake) -> None:
    Ledger(lake, "shop", 1).complete(batch(0), [], owner=owner_step("shop", 2))

    with pytest.raises(FencedError):
        Ledger(lake, "shop", 1).complete(batch(1), [step_outcome("orders")], owner=OWNER)

    assert [row["batch_id"] for row in rows(lake, "checkpoint_store")] == [0]


@pytest.fixture
def harness(tmp_path: Path, make_spec: Callable[..., PipelineSpec]) -> Harness:
    return Harness(tmp_path, make_spec())


def test_a_pipeline_without_batches_has_an_empty_history(harness: Harness) -> None:
    assert harness.history().recent() == []
    assert harness.history().completed() == []
    with pytest.raises(ConfigError, match="BATCH_UNKNOWN"):
        harness.history().detail(0)


def test_the_newest_batches_include_a_prepared_one(harness: Harness) -> None:
    for batch_id in range(3):
        harness.complete(batch_id)
    harness.prepare(3)

    found = harness.history().recent(3)

    assert [(each.batch_id, each.state) for each in found] == [(1, "complete"), (2, "complete"), (3, "prepared")]
    assert [each.batch_id for each in harness.history().completed(first=1)] == [1, 2]
    assert (found[0].rows, found[0].quarantined, found[0].owner_epoch, found[0].run) == (5, 2, 4, "shop__stream/1")
    assert (found[0].start_offset, found[0].end_offset) == ({"seq": 2}, {"seq": 4})
    assert found[0].seconds is not None
    assert (found[2].seconds, found[2].rows, found[2].end_offset) == (None, 5, {"seq": 8})


def test_a_batch_is_shown_with_its_steps_and_source_objects(harness: Harness) -> None:
    harness.complete(0)
    harness.complete(1)

    detail = harness.history().detail(1)

    assert [(file.seq, file.key, file.size) for file in detail.files] == [(3, "day/3.json", 3), (4, "day/4.json", 4)]
    assert [(step.table_name, step.outcome, step.files, step.delta_version) for step in detail.steps] == [
        ("orders", "committed", 1, 3),
        ("quarantine", "committed", 1, 3),
    ]
    assert (detail.spec_fingerprint, detail.code_version, detail.checkpoint) == ("abc", "0.1", 1)


def test_objects_of_another_bucket_are_not_shown(harness: Harness) -> None:
    harness.complete(0)
    harness.complete(1)
    harness.complete(2)

    assert [(file.seq, file.key) for file in harness.history().detail(2).files] == [(6, "day/5.json")]


def test_an_incomplete_batch_shows_its_committed_steps(harness: Harness) -> None:
    harness.prepare(0)
    table = harness.lake.ensure(
        paths.table("shop", "orders"), pa.schema([pa.field("a", pa.int64())]), user_metadata="{}"
    )
    harness.lake.append(
        table,
        paths.table("shop", "orders"),
        pa.table({"a": [1]}),
        step=Step("shop/g1/orders", 0),
        user_metadata="{}",
    )

    detail = harness.history().detail(0)

    assert {step.table_name: step.outcome for step in detail.steps} == {"orders": "landed", "quarantine": "pending"}
    assert detail.summary.state == "prepared"
    assert sum(step.bytes for step in detail.steps) == 14


def test_a_table_that_is_held_is_named(harness: Harness) -> None:
    harness.complete(0, outcome="held")
    harness.complete(1)

    assert [each.held for each in harness.history().recent()] == [("orders",), ()]
    assert harness.history().detail(0).summary.held == ("orders",)


def test_a_table_that_caught_up_with_one_batch_may_still_wait_for_the_next() -> None:
    rows = [
        {"batch_id": 0, "table_name": "orders", "outcome": "held"},
        {"batch_id": 0, "table_name": "orders", "outcome": "caught_up"},
        {"batch_id": 1, "table_name": "orders", "outcome": "held"},
    ]
    assert held_tables_by_batch(rows) == {1: ("orders",)}
