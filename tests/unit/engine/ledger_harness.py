"""A lake with a ledger, a file event log of eleven objects, and batches of two objects each."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.engine.batch_history import BatchHistory
from deltaworks.engine.ledger import Ledger, owner_step
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake
from deltaworks.testing import local_storage
from tests.unit.engine.batch_records import prepared_batch, step_outcome

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Harness:
    """Objects day/1.json to day/10.json; one of another bucket lies between the fourth and the fifth."""

    def __init__(self, root: Path, spec: PipelineSpec) -> None:
        self.storage = local_storage(root)
        self.lake, self.spec = Lake(self.storage), spec
        self.objects = open_objects(self.storage)
        self.ledger = Ledger(self.lake, "shop", 1)
        events = [
            ReceivedEvent(
                FileEvent(bucket, f"day/{number}.json", number, "", None, NOW, "ObjectCreated:Put", None), "m", NOW
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
        return prepared_batch(
            batch_id,
            owner_epoch=4,
            run="shop__stream/1",
            prepared_at="2026-01-01T00:00:00.000+00:00",
            spec_fingerprint="abc",
            code_version="0.1",
            offsets={"start": {"seq": first - 1} if batch_id else None, "end": {"seq": first + 1}},
            source={"files": 2, "first_seq": first, "last_seq": first + 1},
            tables=shares,
        )

    def prepare(self, batch_id: int) -> PreparedBatch:
        return PipelineHome(self.objects, "shop").prepared.get_or_create(self.prepared(batch_id))

    def complete(self, batch_id: int, *, outcome: str = "committed") -> None:
        batch = self.prepare(batch_id)
        steps = [
            step_outcome(
                share.table,
                outcome=outcome if share.table == "orders" else "committed",
                rows=share.rows,
                bytes=7,
            )
            for share in batch.tables
        ]
        self.ledger.complete(batch, steps, owner=owner_step("shop", 4))

    def history(self) -> BatchHistory:
        return BatchHistory(self.lake, self.objects, self.spec)
