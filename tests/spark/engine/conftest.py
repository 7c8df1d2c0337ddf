"""A pipeline on local disk whose batches are processed one at a time, by any number of owners."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.generations import Generations
from deltaworks.engine.batches import BatchProcessor, Ownership
from deltaworks.engine.commit import BatchStores
from deltaworks.engine.ledger import Ledger, owner_step
from deltaworks.engine.table_set import TableSet
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.sources.base import ObjectSlice, Task, split_balanced, useful_task_count
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.sources.task_isolation import TaskOutput, sort_by_task
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import AwsSpec
from deltaworks.tables.lake import Lake
from deltaworks.testing import declare_pipeline, declare_table, local_storage, present, write_files
from tests.batch_points import call_at_points_of

RICH_COLUMNS = [
    {"name": "amount", "path": "params.amount", "type": "decimal(12,2)", "required": True},
    {"name": "level", "path": "params.level", "type": "int"},
    {"name": "score", "path": "params.score", "type": "double"},
    {"name": "bought_at", "path": "params.at", "type": "timestamp", "unit": "epoch_millis"},
    {"name": "born", "path": "params.born", "type": "date"},
    {"name": "is_gift", "path": "params.gift", "type": "boolean"},
    {"name": "tags", "path": "params.tags", "type": "array<string>"},
    {"name": "counts", "path": "params.counts", "type": "map<string,long>"},
    {"name": "items", "path": "params.items", "type": "array<struct<sku: string, price: decimal(9,4)>>"},
    {"name": "device", "path": "device", "type": "struct<os: string, screen: struct<width: int, ratio: float>>"},
]
DECLARED = declare_pipeline(
    {"name": "events", "catch_all": True},
    {"name": "orders", "when": {"name": "order"}, "columns": RICH_COLUMNS},
    {"name": "orders_by_spark", "when": {"name": "order"}, "columns": RICH_COLUMNS, "writer": "spark"},
    declare_table("logins", "country string", when="login", partition_by=["event_date", "country"]),
    event={"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}, "id": "id"},
)
DAY = 86_400


def order(number: int, **params: Any) -> dict[str, Any]:
    """One order; every third lacks its optional values."""
    full: dict[str, Any] = {
        "amount": number + 0.99,
        "level": number,
        "score": number / 7,
        "at": 1_700_000_000_123 + number,
        "born": "1985-10-26",
        "gift": number % 2 == 0,
        "tags": ["a", None, f"ü{number}"],
        "counts": {"x": number, "y z": None},
        "items": [{"sku": "s", "price": 1.2345}, {"sku": None}, None],
    }
    kept = {"amount": full["amount"]} if number % 3 == 0 else full
    device = {"os": "x", "screen": {"width": 7, "ratio": 0.1}} if number % 5 else None
    time = 1_700_000_000 + number % 3 * DAY
    return {"name": "order", "id": f"o{number}", "time": time, "device": device, "params": kept | params}


def login(number: int) -> dict[str, Any]:
    """One login; the countries contain special characters."""
    country = ["de", None, "a/b", "c=d %é"][number % 4]
    return {"name": "login", "id": f"l{number}", "time": 1_700_000_000, "country": country}


def payload(seq: int) -> bytes:
    """Orders and logins in turn, including an invalid event, an unknown event and broken bytes."""
    good = [order(seq * 100 + number) for number in range(9)] + [login(number) for number in range(4)]
    bad = [order(1, amount="much"), {"name": "unknown", "id": "u", "time": 1}]
    return "".join(json.dumps(event, ensure_ascii=False) for event in good + bad).encode() + b'{"broken"'


class SliceReadHere(ObjectSlice):
    """Objects read in this process by the functions that otherwise run in Spark's tasks, in as many shares.

    For tests of what happens to files that tasks have written; test_batches.py and its neighbours read in tasks.
    """

    def read(self, spark: SparkSession, task: Task, *, tasks: int) -> list[TaskOutput]:
        shares = split_balanced(self.references, self.sizes, useful_task_count(self.sizes, tasks))
        encoded = [replace(task(map(self.opener, share)), task=number).encode() for number, share in enumerate(shares)]
        return sort_by_task(map(TaskOutput.decode, encoded))


@dataclass
class Shop:
    """The pipeline's folders and everything needed to process batches in them."""

    spark: SparkSession
    root: Path
    spec: PipelineSpec
    environment: EnvironmentSpec
    epoch: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    #: How the objects of a batch are read: by default in Spark's tasks.
    slice_type: type[ObjectSlice] = ObjectSlice

    @property
    def lake(self) -> Lake:
        return Lake(self.environment.lake)

    @property
    def objects(self) -> ObjectStore:
        return open_objects(self.environment.lake)

    def opener(self) -> FileOpener:
        """Opens landed objects inside a task."""
        return FileOpener(self.environment.landing, compression="auto")

    def land_files(self, *seqs: int) -> ObjectSlice:
        """Writes one object per seq to the landing folder, and returns the batch's file events."""
        for seq in seqs:
            path = self.root / "landing" / f"f{seq}.json"
            write_files(self.root, {f"landing/f{seq}.json": payload(seq)})
            self.sizes[seq] = path.stat().st_size
        references = [FileReference(seq, f"f{seq}.json", "") for seq in seqs]
        sizes = [self.sizes[seq] for seq in seqs]
        return self.slice_type(references, sizes, {"files": len(seqs), "bytes": sum(sizes)}, self.opener())

    def generations(self) -> Generations:
        ledger = Ledger(self.lake, "shop", 1)
        last = ledger.last_completed()
        end = None if last is None else ledger.end_offset(last)
        return PipelineHome(self.objects, "shop").generations.current_checkpoint(last_completed=last, end_offset=end)

    def keep_checkpoint(self, spark_batch_id: int, seq: int) -> None:
        """Writes Spark's checkpoint files as they are before a batch is processed."""
        folder = paths.checkpoint("shop", 1, self.generations().current.ordinal)
        self.objects.put(f"{folder}/offsets/{spark_batch_id}", f'v1\n{{}}\n{{"seq":{seq}}}\n'.encode())

    def end_of(self, generations: Generations, spark_batch_id: int) -> dict[str, Any]:
        """Returns the end offset of Spark's offset log; a constant if the test keeps none."""
        folder = paths.checkpoint("shop", 1, generations.current.ordinal)
        if self.objects.get(f"{folder}/offsets/{spark_batch_id}") is None:
            return {"seq": 1_000 + spark_batch_id}
        return PipelineHome(self.objects, "shop").generations.end_offset(generations, spark_batch_id)

    def processor(
        self,
        *,
        fault: Callable[[str], None] | None = None,
        takeover: bool = True,
        generations: Generations | None = None,
        predecessor_crashed: bool = False,
    ) -> BatchProcessor:
        """Returns a new owner, as in a new process: tables opened and fenced."""
        if generations is None:
            generations = self.generations()
            started = paths.checkpoint("shop", generations.generation, generations.current.ordinal)
            self.objects.put(f"{started}/metadata", b"{}")  # what Spark writes first
        self.epoch += takeover
        owner = owner_step("shop", self.epoch)
        call_at_points_of(self.epoch, fault)
        tables = TableSet(self.lake, self.spec, spark=self.spark)
        tables.open()
        if takeover:
            tables.fence(owner)
        ledger = Ledger(self.lake, "shop", 1)
        processor = BatchProcessor(
            self.spark,
            self.spec,
            BatchStores(lake=self.lake, objects=self.objects, ledger=ledger, tables=tables),
            generations=generations,
            ownership=Ownership(owner=f"owner {self.epoch}", step=owner),
            predecessor_crashed=predecessor_crashed,
        )
        processor._end_offset = self.end_of  # type: ignore[method-assign]
        return processor

    def table(self, name: str) -> pa.Table:
        """Reads a table's rows through deltalake."""
        return present(self.lake.rows(paths.table("shop", name)))

    def landed(self) -> Counter[tuple[str, int, int]]:
        """Counts each event in each table."""
        names = [*(table.name for table in self.spec.tables), "quarantine"]
        return Counter(
            (name, row["_seq"], row["_position"])
            for name in names
            for row in self.table(name).select(["_seq", "_position"]).to_pylist()
        )

    def expected(self, *seqs: int) -> Counter[tuple[str, int, int]]:
        """Returns the same counts from parsing the files."""
        payloads = [Payload(seq, f"f{seq}.json", payload(seq)) for seq in seqs]
        return Counter(
            (name, row["_seq"], row["_position"])
            for name, rows in Parser(self.spec).parse(payloads, BatchMetadata(0, 0, ""))
            for row in rows.to_pylist()
        )

    def ledger(self, name: str) -> list[dict[str, Any]]:
        """Reads a ledger table."""
        rows = present(self.lake.rows(paths.pipeline_control("shop", name)))
        return sorted(rows.to_pylist(), key=lambda row: (row["batch_id"], row.get("table_name", "")))


def shop_at(spark: SparkSession, root: Path, **changes: Any) -> Shop:
    """Creates the pipeline in this folder, with changes to its declaration."""
    environment = EnvironmentSpec(
        environment="tests",
        lake=local_storage(root / "lake"),
        landing=local_storage(root / "landing"),
        messaging=AwsSpec(),
    )
    return Shop(spark, root, PipelineSpec.model_validate(DECLARED | changes), environment)


@pytest.fixture
def make_shop(spark: SparkSession, tmp_path: Path) -> Callable[..., Shop]:
    """Creates the pipeline in a temporary folder; `make_shop(tables=[...])` changes its declaration."""
    return partial(shop_at, spark, tmp_path)


@pytest.fixture
def shop(make_shop: Callable[..., Shop]) -> Shop:
    return make_shop()


@pytest.fixture
def make_stage(make_shop: Callable[..., Shop]) -> Callable[..., Any]:
    """Makes a `reprocess_harness.ReprocessHarness` with these tables: `make_stage(EVENTS, ORDERS)`."""
    from tests.spark.recovery.reprocess_harness import stage_of

    return lambda *tables: stage_of(make_shop(tables=list(tables)))
