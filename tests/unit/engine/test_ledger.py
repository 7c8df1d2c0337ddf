"""The ledger: complete batches, once each, with their steps."""

from __future__ import annotations

from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.engine.ledger import Ledger, owner_step
from deltaworks.errors import FencedError
from deltaworks.tables.lake import Lake
from tests.unit.engine.batch_records import prepared_batch, step_outcome

OWNER = owner_step("shop", 1)


def batch(batch_id: int, end: dict[str, Any] | None = None) -> PreparedBatch:
    tables = (
        PreparedTable(table="orders", writer="fan_out", rows=5, files=()),
        PreparedTable(table="quarantine", writer="fan_out", rows=2, files=()),
    )
    return prepared_batch(batch_id, offsets={"start": None, "end": end}, tables=tables)


def rows(lake: Lake, name: str) -> list[dict[str, Any]]:
    found = lake.rows(paths.pipeline_control("shop", name))
    assert found is not None
    return found.to_pylist()


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
