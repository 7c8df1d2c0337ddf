"""A pipeline with mutable rows in a temporary folder; tests append rows and requests like a stream does."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.provenance import user_metadata
from deltaworks.control.records.mutation import MutationBatches
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.mutation import REQUEST_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import AwsSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.testing import declare_table, local_storage, pipeline_spec, present, table_rows

PIPELINE = "crm"
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
FIELDS = "fgh"
DATA, REQUESTS, TOLD = "activities", "requests", "notifications"


def declared(
    *, partition_by: Sequence[str] = ("org_id",), deletion_vectors: bool | None = None, **mutations: Any
) -> PipelineSpec:
    """Returns the pipeline's declaration; `mutations` overrides that section. Batches are applied by Spark."""
    columns = ["org_id", "contact_id", "origin_contact_id", *FIELDS, *(f"origin_{name}" for name in FIELDS)]
    source = {name: name.removeprefix("origin_") for name in columns}
    return pipeline_spec(
        declare_table(
            DATA,
            *(f"{name} string from {path}" for name, path in source.items()),
            when={"kind": "activity"},
            partition_by=list(partition_by),
            zorder_by=["event_time"],
            mutable={
                "id": "contact_id",
                "origin": "origin_contact_id",
                "fields": {name: f"origin_{name}" for name in FIELDS},
                "deletion_vectors": deletion_vectors,
            },
        ),
        declare_table(
            REQUESTS, *(f"{name} {kind}" for name, kind in REQUEST_COLUMNS.items()), when={"kind": "request"}
        ),
        declare_table(TOLD, "org_id string", announces={"table": DATA}, partition_by=["org_id", "ingested_date"]),
        pipeline=PIPELINE,
        event={"name": {"path": "kind"}, "time": {"path": "time"}, "id": "id"},
        mutations={"requests": REQUESTS, "notifications": TOLD, "small_batch_requests": 0, **mutations},
    )


@dataclass
class MutationHarness:
    """One lake with one pipeline."""

    root: Path
    spec: PipelineSpec = field(default_factory=declared)
    _batches: Iterable[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        here = local_storage(self.root)
        environment = EnvironmentSpec(environment="tests", lake=here, landing=here, messaging=AwsSpec())
        self.catalog = Catalog(environment, {}, {PIPELINE: self.spec}, self.root)
        self.lake = Lake(here)
        self._next = iter(self._batches)

    @property
    def objects(self) -> ObjectStore:
        return open_objects(self.lake.storage)

    @property
    def batches(self) -> MutationBatches:
        return PipelineHome(self.objects, PIPELINE).mutations

    def land(self, *, rows: Sequence[Mapping[str, Any]] = (), requests: Sequence[Mapping[str, Any]] = ()) -> None:
        """Appends rows (`org_id`, `id`, `time` and fields) and requests (`time`, `op`, ...) as one batch."""
        batch = next(self._next)
        self._append(DATA, [_activity(row) for row in rows], batch)
        self._append(REQUESTS, [{**row, "event_name": "request"} for row in requests], batch)
        self._append(TOLD, [], batch)

    def _append(self, table: str, rows: list[dict[str, Any]], batch: int) -> None:
        declared_table = self.spec.table(table)
        schema, key = arrow_schema(declared_table.column_types()), paths.table(PIPELINE, table)
        made = user_metadata(pipeline=PIPELINE, batch=batch, operation="ingest")
        opened = self.lake.ensure(key, schema, user_metadata=made, partition_by=list(declared_table.partition_by))
        if rows:
            filled = [_envelope(row, batch, position) for position, row in enumerate(rows)]
            step = Step(f"{PIPELINE}/g1/{table}", batch)
            data = pa.Table.from_pylist(filled, schema=schema)
            self.lake.append(opened, key, data, step=step, user_metadata=made)

    def rows(self, table: str = DATA) -> list[dict[str, Any]]:
        """Returns a table's rows, read without Spark."""
        return table_rows(self.lake, PIPELINE, table)

    def version(self, table: str = DATA) -> int:
        """Returns the version of a table."""
        return present(self.lake.open(paths.table(PIPELINE, table))).version()


def _activity(row: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: row.get(name, f"{name}0") for name in FIELDS}
    return {
        "event_name": "activity",
        "event_id": row["event_id"],
        "time": row["time"],
        "org_id": row["org_id"],
        "contact_id": row["id"],
        "origin_contact_id": row["id"],
        **values,
        **{f"origin_{name}": value for name, value in values.items()},
    }


def _envelope(row: Mapping[str, Any], batch: int, position: int) -> dict[str, Any]:
    time: dt.datetime = row["time"]
    return {
        "event_time": time,
        "event_date": time.date(),
        "_ingested_at": START,
        "_batch_id": batch,
        "_seq": batch,
        "_position": position,
        **row,
    }
