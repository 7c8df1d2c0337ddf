"""A mutable table and its notifications, written directly as a stream and a mutation batch would leave them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.mutations.read_changes import Changes, read_changes
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.mutation import REQUEST_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import AwsSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.testing import declare_table, local_storage, pipeline_spec, present

PIPELINE, DATA, TOLD = "engagement", "activities", "notifications"
NAME = f"{PIPELINE}.{DATA}"
DAY = dt.date(2026, 3, 1)
_NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def _declared() -> PipelineSpec:
    columns = {"org_id": "string", "contact_id": "string", "origin_contact_id": "string", "engagement_date": "date"}
    return pipeline_spec(
        declare_table(
            DATA,
            *(f"{name} {kind} from {name.removeprefix('origin_')}" for name, kind in columns.items()),
            when={"kind": "activity"},
            partition_by=["org_id"],
            zorder_by=["engagement_date"],
            mutable={"id": "contact_id", "origin": "origin_contact_id"},
        ),
        declare_table(
            "requests", *(f"{name} {kind}" for name, kind in REQUEST_COLUMNS.items()), when={"kind": "request"}
        ),
        declare_table(
            TOLD,
            "org_id string",
            "engagement_date date",
            announces={"table": DATA},
            partition_by=["org_id", "ingested_date"],
        ),
        pipeline=PIPELINE,
        event={"name": {"path": "kind"}, "time": {"path": "time"}, "id": "id"},
        mutations={"requests": "requests", "notifications": TOLD},
    )


class TrackedLake:
    """One lake with the two tables. Rows are (event id, organisation, contact, days after DAY)."""

    def __init__(self, root: Path, spark: SparkSession | None, properties: Mapping[str, str] | None = None) -> None:
        here = local_storage(root)
        self.spec = _declared()
        environment = EnvironmentSpec(environment="tests", lake=here, landing=here, messaging=AwsSpec())
        self.catalog = Catalog(environment=environment, pipelines={PIPELINE: self.spec}, relays={}, root=root)
        self.lake = Lake(here)
        self.data_key, self.told_key = paths.table(PIPELINE, DATA), paths.table(PIPELINE, TOLD)
        self._spark = spark
        self._properties = dict(properties or {})

    def land(self, batch: int, rows: Sequence[tuple[str, str, str, int]], *, told: bool = True) -> Callable[[], None]:
        """Writes a stream's batch of rows and, if `told`, its notifications; otherwise returns a function that writes
        them.
        """
        filled = [
            {
                "event_id": event_id,
                "event_name": "activity",
                "event_time": _NOW,
                "event_date": DAY,
                "_ingested_at": _NOW,
                "_batch_id": batch,
                "_seq": batch,
                "_position": position,
                "org_id": org,
                "contact_id": contact,
                "origin_contact_id": contact,
                "engagement_date": DAY + dt.timedelta(days=day),
            }
            for position, (event_id, org, contact, day) in enumerate(rows)
        ]
        self._append(DATA, self.data_key, filled, batch)
        return self._tell(batch, "stream", "insert", filled, told=told)

    def mutate(self, number: int, where: str, updates: Mapping[str, str], *, told: bool = True) -> Callable[[], None]:
        """Writes a mutation batch: rewritten rows with its number, then its notifications."""
        opened = present(self.lake.open(self.data_key))
        opened.update(updates={**updates, "_mutation": str(number)}, predicate=where)
        rows = [row for row in self.rows() if row["_mutation"] == number]
        change = "delete" if updates.get("_deleted") == "true" else "rename"
        return self._tell(number, "mutation", change, rows, told=told)

    def rows(self) -> list[dict[str, Any]]:
        """Returns all rows, including deleted ones."""
        found = self.lake.rows(self.data_key)
        return [] if found is None else found.to_pylist()

    def changes(self, since: Any = None, **options: Any) -> Changes:
        """Calls `read_changes` of the table."""
        assert self._spark is not None
        return read_changes(self._spark, NAME, since, catalog=self.catalog, **options)

    def _tell(
        self, batch: int, kind: str, change: str, rows: Sequence[Mapping[str, Any]], *, told: bool
    ) -> Callable[[], None]:
        gathered: dict[tuple[Any, Any], list[str]] = {}
        for row in rows:
            gathered.setdefault((row["org_id"], row["engagement_date"]), []).append(row["event_id"])
        notifications = [
            {
                "org_id": org,
                "engagement_date": date,
                "ingested_at": _NOW,
                "ingested_date": _NOW.date(),
                "change": change,
                "keys": keys,
                "batch": batch,
                "batch_kind": kind,
                "data_version": None,
            }
            for (org, date), keys in gathered.items()
        ]

        def tell() -> None:
            self._append(TOLD, self.told_key, notifications, batch, kind)

        if told:
            tell()
        return tell

    def _append(self, name: str, key: str, rows: list[dict[str, Any]], batch: int, kind: str = "stream") -> None:
        table = self.spec.table(name)
        schema = arrow_schema(table.column_types())
        made = user_metadata(pipeline=PIPELINE, batch=batch, operation="ingest")
        opened = self.lake.ensure(
            key,
            schema,
            user_metadata=made,
            partition_by=list(table.partition_by),
            properties=self._properties if name == DATA else None,
        )
        data = pa.Table.from_pylist(rows, schema=schema)
        self.lake.append(opened, key, data, step=Step(f"{kind}/{name}", batch), user_metadata=made)


def states(changes: Changes) -> list[tuple[str, str, bool]]:
    """Returns event, contact and whether it is deleted for every row read."""
    found = changes.rows.select("event_id", "contact_id", "_deleted").collect()
    return sorted((row["event_id"], row["contact_id"], bool(row["_deleted"])) for row in found)
