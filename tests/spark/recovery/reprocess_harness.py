"""A shop whose objects are in a file event log and landed in batches, for tests of reprocessing.

Batches are read in the process of the test: what Spark's tasks write is tested in `tests/spark/engine`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.recovery.reprocess.plan import ReprocessRequest
from deltaworks.recovery.reprocess.replace_rows import MAX_DIRECT_BYTES
from deltaworks.recovery.reprocess.run import Reprocess, ReprocessResult
from deltaworks.recovery.reprocess.selection import Selection
from deltaworks.sources.objects.file_event_log import event_time_us
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.payloads import FileReference
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake
from deltaworks.testing import declare_table
from tests.crashes import crash_at
from tests.spark.engine.conftest import DECLARED, Shop, SliceReadHere

EVENTS = {"name": "events", "catch_all": True}
ORDERS: dict[str, Any] = declare_table("orders", "amount int required", when="order")
BY_SPARK: dict[str, Any] = {**ORDERS, "name": "orders_by_spark", "writer": "spark"}
MENDED = {**ORDERS, "columns": [{"name": "amount", "path": "amount", "type": "int"}]}
MENDED_BY_SPARK = {**MENDED, "name": "orders_by_spark", "writer": "spark"}
REFUNDS: dict[str, Any] = {"name": "refunds", "when": {"name": "refund"}}
BIG: dict[str, Any] = {"name": "big", "when": {"name": "order", "size": "big"}, "partition_by": []}
Row = tuple[str, int, int]


def content(seq: int) -> bytes:
    """Returns orders of three days, one without an amount, a refund and a malformed event."""
    orders = [
        {"name": "order", "id": f"o{seq}-{n}", "time": 1_700_000_000 + (n + seq) % 3 * 86_400, "amount": n}
        for n in range(4)
    ]
    orders[2]["size"] = "big"
    lacking = {"name": "order", "id": f"l{seq}", "time": 1_700_000_000}
    refund = {"name": "refund", "id": f"r{seq}", "time": 1_700_000_000}
    return "\n".join(json.dumps(event) for event in [*orders, lacking, refund]).encode() + b'\n{"broken"'


def made_at(seq: int) -> datetime:
    """Returns the object's creation time in the store: objects are two days apart."""
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=2 * seq)


class ReprocessHarness:
    """A shop whose announced objects are landed in batches of two."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.landing = shop.root / "landing"
        self.landing.mkdir(exist_ok=True)
        self.log = FileEventLogWriter(Lake(shop.environment.lake), "landing", epoch=1)
        self.landed_seqs: list[int] = []
        self.batches = 0
        self.processor = shop.processor()
        #: 0: Spark does everything.
        self.direct_bytes = MAX_DIRECT_BYTES
        self.sessions = 0
        self.note_spec()

    def note_spec(self) -> None:
        PipelineHome(self.shop.objects, "shop").specs.record_start(self.shop.spec, owner_epoch=self.shop.epoch)

    def land(self, objects: int = 2) -> None:
        """Lands one more batch, like the stream."""
        seqs = [len(self.landed_seqs) + 1 + at for at in range(objects)]
        events, sizes, references = [], [], []
        for seq in seqs:
            data = content(seq)
            (self.landing / f"f{seq}.json").write_bytes(data)
            tag = hashlib.md5(data).hexdigest()
            at = made_at(seq)
            event = FileEvent("landing", f"f{seq}.json", len(data), tag, None, at, "ObjectCreated:Put", None)
            events.append(ReceivedEvent(event, "m", at))
            sizes.append(len(data))
            references.append(FileReference(seq, f"f{seq}.json", tag, None, event_time_us(at)))
        self.log.append(events)
        self.shop.keep_checkpoint(self.batches, seqs[-1])
        facts = {"files": objects, "bytes": sum(sizes), "first_seq": seqs[0], "last_seq": seqs[-1]}
        slice_of_batch = SliceReadHere(references, sizes, facts, self.shop.opener())
        assert self.processor.process(slice_of_batch, self.batches) is not None
        self.batches += 1
        self.landed_seqs += seqs

    def redeclare(self, *tables: dict[str, Any]) -> None:
        """Edits the pipeline and restarts its stream."""
        self.shop.spec = PipelineSpec.model_validate(DECLARED | {"tables": list(tables)})
        self.processor = self.shop.processor()
        self.note_spec()

    def catalog(self) -> Catalog:
        return Catalog(
            environment=self.shop.environment, relays={}, pipelines={"shop": self.shop.spec}, root=self.shop.root
        )

    def reprocess(self, name: str = "r1", *, fault: str = "", **options: Any) -> ReprocessResult:
        asked = ReprocessRequest(**({"selection": Selection(from_start=True)} | options))
        return self.job(fault=crash_at(fault)).run(name, asked)

    def job(self, **settings: Any) -> Reprocess:
        """Returns a reprocess of the shop in this harness's mode."""
        return Reprocess(self.spark, self.catalog(), "shop", **({"direct_bytes": self.direct_bytes} | settings))

    def spark(self) -> SparkSession:
        """Returns the session and counts its uses."""
        self.sessions += 1
        return self.shop.spark

    def landed(self) -> Counter[Row]:
        return self.shop.landed()

    def expected(self, spec: PipelineSpec | None = None, seqs: list[int] | None = None) -> Counter[Row]:
        """Returns the rows from parsing all objects with this declaration."""
        chosen = self.landed_seqs if seqs is None else seqs
        payloads = [Payload(seq, f"f{seq}.json", content(seq)) for seq in chosen]
        return Counter(
            (name, row["_seq"], row["_position"])
            for name, rows in Parser(spec or self.shop.spec).parse(payloads, BatchMetadata(0, 0, ""))
            for row in rows.to_pylist()
        )

    def stamps(self) -> set[tuple[int, int, Any]]:
        names = [*(table.name for table in self.shop.spec.tables), "quarantine"]
        columns = ["_seq", "_batch_id", "_ingested_at"]
        return {tuple(row.values()) for name in names for row in self.shop.table(name).select(columns).to_pylist()}  # type: ignore[misc]

    def versions(self) -> dict[str, int]:
        names = [*(table.name for table in self.shop.spec.tables), "quarantine"]
        return {name: self.shop.lake.open(paths.table("shop", name)).version() for name in names}  # type: ignore[union-attr]


def stage_of(shop: Shop) -> ReprocessHarness:
    """Lands three batches of two objects; orders without an amount, and refunds, are in quarantine."""
    made = ReprocessHarness(shop)
    for _ in range(3):
        made.land()
    assert made.landed() == made.expected()
    return made
