"""A bronze table and its live table of kind `latest` on local disk, with a slow oracle for the live table's rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deltaworks.control import paths
from deltaworks.engine.keyed.catchup_threads import KeyedTables
from deltaworks.engine.keyed.keyed_catchup import CatchUpResult
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import present
from tests.unit.engine.keyed.keyed_harness import HISTORY, START, KeyedHarness, declared, tick

NOW = "prices_now"
EXPIRE_AFTER_MINUTES = 30


def live_declared(**live: Any) -> PipelineSpec:
    """Ticks by symbol, and the latest price of each; `live` overrides the live table's declaration."""
    mapping = declared().model_dump(mode="json", exclude_unset=True)
    del mapping["tables"][0]["keyed"]
    newest = {"name": NOW, "reads": HISTORY, "kind": "latest", "key": ["symbol"], "keep": ["price", "version"]}
    mapping["live"] = [{**newest, "expire_after_minutes": EXPIRE_AFTER_MINUTES, "trigger_seconds": 5, **live}]
    return PipelineSpec.model_validate(mapping)


@dataclass
class LatestHarness(KeyedHarness):
    """The lake and the bronze table's rows."""

    spec: PipelineSpec = field(default_factory=live_declared)

    def follow(self, tables: KeyedTables | None = None) -> CatchUpResult | None:
        return (tables or self.tables()).catch_up(NOW)

    def latest(self, name: str = NOW) -> list[dict[str, Any]]:
        return super().latest(name)

    @property
    def _keyed(self) -> Any:
        (latest,) = self.spec.latest_tables
        return latest

    def expected(self) -> list[dict[str, Any]]:
        """A loop over current bronze for the latest row of each key within the retention window."""
        rows = present(self.lake.rows(paths.table("market", HISTORY)))
        chosen: dict[Any, dict[str, Any]] = {}
        for row in rows.to_pylist():
            key = row["symbol"]
            if key is not None and (key not in chosen or _order(row) > _order(chosen[key])):
                chosen[key] = row
        newest = max((row["event_time"] for row in rows.to_pylist()), default=START)
        horizon = newest - dt.timedelta(minutes=EXPIRE_AFTER_MINUTES)
        kept = [row for row in chosen.values() if row["event_time"] >= horizon]
        names = self._keyed.types
        return sorted(({name: row[name] for name in names} for row in kept), key=self._key)


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["event_time"], row["_seq"], row["_position"]


def priced(symbol: str | None, minutes: float, version: int = 0, **values: Any) -> dict[str, Any]:
    """One row some minutes after the start; its version identifies it."""
    return tick(symbol, version, event_time=START + dt.timedelta(minutes=minutes), **values)


def versions(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The version of each symbol's row."""
    assert len({row["symbol"] for row in rows}) == len(rows), "one row a key"
    return {row["symbol"]: row["version"] for row in rows}
