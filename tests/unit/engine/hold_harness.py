"""A pipeline on local disk whose batches are prepared by the test: the full engine without the pass that writes
files."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyarrow import fs

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.generations import CheckpointRecord, Generations
from deltaworks.control.records.prepared import PreparedTable
from deltaworks.engine.batches import BatchProcessor, Ownership
from deltaworks.engine.commit import BatchStores
from deltaworks.engine.ledger import Ledger, owner_step
from deltaworks.engine.progress import BatchReport
from deltaworks.engine.table_set import TableSet
from deltaworks.events.reasons import QUARANTINE_SCHEMA
from deltaworks.sources.base import ObjectSlice
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.files import split_by_partition, write_file
from deltaworks.tables.lake import Lake
from deltaworks.testing import catalog_of, declare_pipeline, declare_table, local_storage, present
from tests.batch_points import call_at_points_of
from tests.unit.engine.batch_records import prepared_batch

TABLES = ("clicks", "orders", "logins")


def declared(**columns: str) -> dict[str, Any]:
    """A declaration of three tables; `columns` changes the type of a table's only column."""
    return declare_pipeline(*[declare_table(name, f"level {columns.get(name, 'int')}", when=name) for name in TABLES])


@dataclass
class Harness:
    """The lake and everything that processes batches."""

    root: Path
    spec: PipelineSpec
    epoch: int = 0

    @classmethod
    def at(cls, root: Path, **columns: str) -> Harness:
        return cls(root, PipelineSpec.model_validate(declared(**columns)))

    @classmethod
    def with_broken_table(cls, root: Path) -> Harness:
        """Processes batches 0 and 1, deletes the rows of batch 0 from `orders`, then processes batches 2 and 3."""
        made = cls.at(root)
        processor = made.processor()
        for batch_id in (0, 1):
            made.land(processor, batch_id)
        table = present(made.lake.open(paths.table("shop", "orders")))
        table.delete("_seq = 0")
        for batch_id in (2, 3):
            made.land(processor, batch_id)
        return made

    def copied_to(self, root: Path) -> Self:
        """Returns the pipeline in another folder with what has landed; landing takes longer than most tests."""
        shutil.copytree(self.root, root, dirs_exist_ok=True)
        return dataclasses.replace(self, root=root)

    def declare(self, **columns: str) -> None:
        """Changes the declaration, like an edit of pipeline.yaml before the next start."""
        self.spec = PipelineSpec.model_validate(declared(**columns))

    @property
    def storage(self) -> StorageSpec:
        return local_storage(self.root / "lake")

    def catalog(self) -> Catalog:
        """The project, with a short lease timeout."""
        fast = self.spec.model_copy(update={"stream": self.spec.stream.model_copy(update={"lease_ttl_seconds": 3})})
        return catalog_of(self.root, fast, lake=self.storage)

    @property
    def lake(self) -> Lake:
        return Lake(self.storage)

    @property
    def objects(self) -> ObjectStore:
        return open_objects(self.storage)

    def processor(
        self,
        *,
        fault: Callable[[str], None] | None = None,
        spark: Any = None,
        takeover: bool = True,
        generation: int = 1,
    ) -> BatchProcessor:
        """Returns a new owner, as in a new process."""
        self.epoch += takeover
        owner = owner_step("shop", self.epoch)
        call_at_points_of(self.epoch, fault)
        tables = TableSet(self.lake, self.spec, spark=spark)
        tables.open()
        tables.fence(owner)
        ledger = Ledger(self.lake, "shop", generation)
        processor = BatchProcessor(
            spark,
            self.spec,
            BatchStores(lake=self.lake, objects=self.objects, ledger=ledger, tables=tables),
            generations=Generations(
                generation=generation, checkpoints=(CheckpointRecord(ordinal=1, first_batch=0, start=None),)
            ),
            ownership=Ownership(owner=f"owner {self.epoch}", step=owner),
        )
        processor._end_offset = lambda generations, batch: {"seq": batch}  # type: ignore[method-assign]
        return processor

    def prepare(
        self,
        batch_id: int,
        tables: tuple[str, ...] = (*TABLES, "quarantine"),
        rows: int = 2,
        seq: int | None = None,
        generation: int = 1,
    ) -> None:
        """Writes and prepares a batch, as a driver that crashes right after.

        Its rows have the file event `seq`, by default the batch id.
        """
        shares = tuple(self._prepared_table(name, batch_id if seq is None else seq, rows) for name in sorted(tables))
        PipelineHome(self.objects, "shop").prepared.get_or_create(
            prepared_batch(batch_id, generation=generation, tables=shares)
        )

    def _prepared_table(self, name: str, seq: int, rows: int) -> PreparedTable:
        if name == "quarantine":
            schema, partition_by = QUARANTINE_SCHEMA, ("quarantine_date",)
        else:
            schema = arrow_schema(self.spec.table(name).column_types())
            partition_by = self.spec.table(name).partition_by
        level = None
        if "level" in schema.names:
            level = {"int": 7, "string": "7", "array<int>": [7]}[self.spec.table(name).column_types()["level"]]
        values = [{"_seq": seq, "_position": position, "level": level, "batch": seq} for position in range(rows)]
        data = pa.Table.from_pylist(
            [{column: value for column, value in row.items() if column in schema.names} for row in values],
            schema=schema,
        )
        root = f"{self.storage.prefix}/{paths.table('shop', name)}"
        files = [
            write_file(fs.LocalFileSystem(), root, part, partition=partition)
            for partition, part in split_by_partition(data, partition_by)
        ]
        return PreparedTable(table=name, writer="fan_out", rows=rows, files=tuple(asdict(file) for file in files))

    def land(self, processor: BatchProcessor, batch_id: int, **options: Any) -> BatchReport | None:
        """Prepares and processes a batch."""
        self.prepare(batch_id, **options)
        return processor.process(ObjectSlice([], [], {}, opener=lambda reference: reference), batch_id)

    def landed(self, name: str) -> Counter[tuple[int, int]]:
        """Counts each row in a table."""
        rows = present(self.lake.rows(paths.table("shop", name), columns=["_seq", "_position"]))
        return Counter((row["_seq"], row["_position"]) for row in rows.to_pylist())

    def expected(self, *batches: int, rows: int = 2) -> Counter[tuple[int, int]]:
        """Every row of these batches once."""
        return Counter((batch, position) for batch in batches for position in range(rows))

    def steps(self, name: str) -> list[tuple[int, str]]:
        """The ledger's steps of a table: batch and outcome, in batch order."""
        rows = present(self.lake.rows(paths.pipeline_control("shop", "batch_metadata_store")))
        found = [(row["batch_id"], row["outcome"]) for row in rows.to_pylist() if row["table_name"] == name]
        return sorted(found, key=lambda step: (step[0], step[1] == "caught_up"))

    def version_of(self, name: str, batch_id: int) -> int:
        """The version of a table committed by a batch, from the ledger."""
        rows = present(self.lake.rows(paths.pipeline_control("shop", "batch_metadata_store")))
        return next(
            int(row["delta_version"])
            for row in rows.to_pylist()
            if (row["table_name"], row["batch_id"]) == (name, batch_id)
        )

    def break_table(self, name: str) -> Callable[[], None]:
        """Makes all commits to a table fail; returns a function that repairs it."""
        log = self.root / "lake" / paths.table("shop", name) / "_delta_log"
        aside = log.with_name("log_aside")
        log.rename(aside)
        log.write_text("no folder")

        def mend() -> None:
            log.unlink()
            aside.rename(log)

        return mend
