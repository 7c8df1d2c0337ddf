"""What became of batches is read back from their records, while they are under way and afterwards."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.control.prepared import PreparedBatch, PreparedTable, prepare
from deltaworks.errors import ConfigError
from deltaworks.sources.file_events.log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.file_events.messages import FileEvent
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.streaming.history import BatchHistory, held_tables
from deltaworks.streaming.ledger import Ledger, StepOutcome, owner_step
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Stage:
    """A lake with a ledger, a file event log of ten objects, and batches of two objects each."""

    def __init__(self, root: Path, spec: PipelineSpec) -> None:
        self.storage = StorageSpec(root=f"file://{root}")
        self.lake, self.spec = Lake(self.storage), spec
        self.objects = open_objects(self.storage)
        self.ledger = Ledger(self.lake, "shop", 1)
        events = [
            ReceivedEvent(
                FileEvent(bucket, f"day/{number}.json", number, "e", None, NOW, "ObjectCreated:Put", None), "m", NOW
            )
            for number in range(1, 11)
            for bucket in (("landing", "foreign") if number == 4 else ("landing",))
        ]
        FileEventLogWriter(self.lake, "landing", epoch=1).append(events)

    def prepared(self, batch_id: int) -> PreparedBatch:
        shares = tuple(
            PreparedTable(table=name, writer="fan_out", rows=rows, files=({"size": 7},))
            for name, rows in (("orders", 5), ("quarantine", 2))
        )
        first = 2 * batch_id + 1
        return PreparedBatch(
            pipeline="shop",
            generation=1,
            batch_id=batch_id,
            spark_batch_id=batch_id,
            checkpoint=1,
            owner="o",
            owner_epoch=4,
            run="stream__shop/1",
            prepared_at="2026-01-01T00:00:00.000+00:00",
            ingested_at_us=0,
            spec_fingerprint="abc",
            code_version="0.1",
            offsets={"start": {"seq": first - 1} if batch_id else None, "end": {"seq": first + 1}},
            source={"files": 2, "first_seq": first, "last_seq": first + 1},
            tables=shares,
        )

    def prepare(self, batch_id: int) -> PreparedBatch:
        return prepare(self.objects, self.prepared(batch_id))

    def complete(self, batch_id: int, *, outcome: str = "committed") -> None:
        batch = self.prepare(batch_id)
        steps = [
            StepOutcome(
                step=f"shop/g1/{share.table}",
                table_name=share.table,
                writer="fan_out",
                outcome=outcome if share.table == "orders" else "committed",
                rows=share.rows,
                files=1,
                bytes=7,
                delta_version=3,
                seconds=0.1,
            )
            for share in batch.tables
        ]
        self.ledger.complete(batch, steps, owner=owner_step("shop", 4))

    def history(self) -> BatchHistory:
        return BatchHistory(self.lake, self.objects, self.spec)


@pytest.fixture
def stage(tmp_path: Path, make_spec: Callable[..., PipelineSpec]) -> Stage:
    return Stage(tmp_path, make_spec())


def test_a_pipeline_without_batches_has_an_empty_history(stage: Stage) -> None:
    assert stage.history().recent() == []
    assert stage.history().complete() == []
    with pytest.raises(ConfigError, match="BATCH_UNKNOWN"):
        stage.history().detail(0)


def test_the_newest_batches_come_with_one_that_is_prepared_and_not_complete(stage: Stage) -> None:
    for batch_id in range(3):
        stage.complete(batch_id)
    stage.prepare(3)

    found = stage.history().recent(3)

    assert [(each.batch_id, each.state) for each in found] == [(1, "complete"), (2, "complete"), (3, "prepared")]
    assert [each.batch_id for each in stage.history().complete(first=1)] == [1, 2]
    assert (found[0].rows, found[0].quarantined, found[0].owner_epoch, found[0].run) == (5, 2, 4, "stream__shop/1")
    assert (found[0].start_offset, found[0].end_offset) == ({"seq": 2}, {"seq": 4})
    assert found[0].seconds is not None
    assert (found[2].seconds, found[2].rows, found[2].end_offset) == (None, 5, {"seq": 8})


def test_one_batch_is_shown_with_its_steps_and_the_objects_it_read(stage: Stage) -> None:
    stage.complete(0)
    stage.complete(1)

    detail = stage.history().detail(1)

    assert [(file.seq, file.key, file.size) for file in detail.files] == [(3, "day/3.json", 3), (4, "day/4.json", 4)]
    assert [(step.table_name, step.outcome, step.files, step.delta_version) for step in detail.steps] == [
        ("orders", "committed", 1, 3),
        ("quarantine", "committed", 1, 3),
    ]
    assert (detail.spec_fingerprint, detail.code_version, detail.checkpoint) == ("abc", "0.1", 1)


def test_objects_of_another_bucket_between_are_not_shown(stage: Stage) -> None:
    stage.complete(0)
    stage.complete(1)
    stage.complete(2)

    assert [(file.seq, file.key) for file in stage.history().detail(2).files] == [(6, "day/5.json")]


def test_a_batch_that_is_not_complete_says_which_steps_have_landed(stage: Stage) -> None:
    stage.prepare(0)
    table = stage.lake.ensure(paths.table("shop", "orders"), pa.schema([pa.field("a", pa.int64())]), user_metadata="{}")
    stage.lake.append(
        table,
        paths.table("shop", "orders"),
        pa.table({"a": [1]}),
        step=Step("shop/g1/orders", 0),
        user_metadata="{}",
    )

    detail = stage.history().detail(0)

    assert {step.table_name: step.outcome for step in detail.steps} == {"orders": "landed", "quarantine": "pending"}
    assert detail.summary.state == "prepared"
    assert sum(step.bytes for step in detail.steps) == 14


def test_a_table_that_is_held_is_named(stage: Stage) -> None:
    stage.complete(0, outcome="held")
    stage.complete(1)

    assert [each.held for each in stage.history().recent()] == [("orders",), ()]
    assert stage.history().detail(0).summary.held == ("orders",)


def test_a_table_that_caught_up_with_one_batch_may_still_wait_for_the_next() -> None:
    rows = [
        {"batch_id": 0, "table_name": "orders", "outcome": "held"},
        {"batch_id": 0, "table_name": "orders", "outcome": "caught_up"},
        {"batch_id": 1, "table_name": "orders", "outcome": "held"},
    ]
    assert held_tables(rows) == {1: ("orders",)}
