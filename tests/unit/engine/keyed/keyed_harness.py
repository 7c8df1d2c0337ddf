"""A history and its keyed table on local disk, with a slow oracle for the keyed table's rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.engine.keyed.catchup_threads import KeyedTables
from deltaworks.engine.keyed.keyed_catchup import CatchUpResult
from deltaworks.engine.ledger import owner_step
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.testing import declare_columns, declare_pipeline, declare_table, local_lake, present, table_rows

HISTORY, LATEST = "ticks", "latest_ticks"
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def declared(*, mutable: bool = False, partition_by: Sequence[str] = ("event_date",), **keyed: Any) -> PipelineSpec:
    """Ticks by symbol and day; `keyed` overrides the declaration of `keyed`."""
    columns = declare_columns(
        "org_id string from org",
        "symbol string",
        "origin_symbol string from symbol",
        "day date",
        "version long",
        "price decimal(12,4)",
        "op string",
        "tags array<struct<name: string, size: int>>",
    )
    table: dict[str, Any] = declare_table(
        HISTORY,
        columns=columns,
        partition_by=list(partition_by),
        keyed={"by": ["symbol", "day"], "newest_by": "version", **keyed},
    )
    made: dict[str, Any] = declare_pipeline(
        table, pipeline="market", event={"name": {"constant": "tick"}, "time": {"path": "time"}}
    )
    if mutable:
        requests = {"op": "string", "id": "string", "new_id": "string", "name": "string", "seq": "long"}
        requests |= {"org_id": "string", "fields": "map<string,string>"}
        table["mutable"] = {"id": "symbol", "origin": "origin_symbol"}
        made["tables"].append(declare_table("requests", *(f"{name} {kind}" for name, kind in requests.items())))
        made["mutations"] = {"requests": "requests"}
    return PipelineSpec.model_validate(made)


@dataclass
class KeyedHarness:
    """The lake and the history's rows."""

    root: Path
    spec: PipelineSpec = field(default_factory=declared)
    epoch: int = 1
    batches: int = 0

    @property
    def lake(self) -> Lake:
        return local_lake(self.root)

    def tables(self, *, spark: Any = None, takeover: bool = True) -> KeyedTables:
        """Returns the keyed tables of a new owner."""
        self.epoch += takeover
        return KeyedTables(spark, self.lake, self.spec, owner=owner_step("market", self.epoch))

    def follow(self, tables: KeyedTables | None = None) -> CatchUpResult | None:
        return (tables or self.tables()).catch_up(LATEST)

    def append(self, rows: Sequence[Mapping[str, Any]], *, batch: int | None = None) -> int:
        """Appends a batch; returns its number. A given number is appended again."""
        number = self.batches if batch is None else batch
        self.batches = max(self.batches, number + 1)
        schema = arrow_schema(self.spec.table(HISTORY).column_types())
        key = paths.table("market", HISTORY)
        opened = self.lake.ensure(key, schema, user_metadata="{}", partition_by=self.spec.table(HISTORY).partition_by)
        envelope = {"event_time": START, "event_date": START.date(), "_ingested_at": START, "_batch_id": number}
        complete = [
            {**envelope, "_seq": number, "_position": position, "origin_symbol": row.get("symbol"), **row}
            for position, row in enumerate(rows)
        ]
        data = pa.Table.from_pylist(complete, schema=schema)
        self.lake.append(opened, key, data, step=Step("market/g1/ticks", number), user_metadata="{}")
        return number

    def history(self) -> DeltaTable:
        return present(self.lake.open(paths.table("market", HISTORY)))

    def latest_table(self, name: str = LATEST) -> DeltaTable:
        return present(self.lake.open(paths.table("market", name)))

    def latest(self, name: str = LATEST) -> list[dict[str, Any]]:
        """The keyed table's rows in key order."""
        rows = self.lake.rows(paths.table("market", name))
        return [] if rows is None else sorted(rows.to_pylist(), key=self._key)

    def _key(self, row: Mapping[str, Any]) -> str:
        return repr([row[name] for name in self._keyed.by])

    @property
    def _keyed(self) -> Any:
        (keyed,) = self.spec.keyed_tables
        return keyed

    def expected(self) -> list[dict[str, Any]]:
        """The slow oracle: a loop over the current history for the latest row of each key."""
        chosen: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in table_rows(self.lake, "market", HISTORY):
            key = tuple(row[name] for name in self._keyed.by)
            if None in key or row.get("_deleted"):
                continue
            if key not in chosen or _order(self._keyed.newest_by)(row) > _order(self._keyed.newest_by)(chosen[key]):
                chosen[key] = row
        says = self._keyed.deleted_when
        if says:
            for row in chosen.values():
                row["_deleted"] = all(row[name] in values for name, values in says.items())
        return sorted(chosen.values(), key=self._key)


def _order(newest_by: Sequence[str]) -> Callable[[Mapping[str, Any]], list[Any]]:
    def order(row: Mapping[str, Any]) -> list[Any]:
        values = [row[name] for name in (*newest_by, "_seq", "_position")]
        return [(value is not None, value if value is not None else 0) for value in values]

    return order


def tick(symbol: str | None, version: int | None, **values: Any) -> dict[str, Any]:
    """One row; its price identifies it."""
    return {"symbol": symbol, "day": START.date(), "version": version, "org_id": "o", **values}
