"""As-of joins are exact: real plans over real tables, run by DuckDB."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from deltaworks.control import paths
from deltaworks.gold import table_build
from deltaworks.gold.parts import DATE_COLUMN
from deltaworks.gold.pinned_inputs import pin_inputs
from deltaworks.gold.references import refresh_references
from deltaworks.gold.table_build import plan_job
from deltaworks.specs.gold import build_order
from deltaworks.tables.changes import Changes
from deltaworks.tables.lake import Lake
from deltaworks.testing import load_project, present
from tests.shared_data import SHARED_DATA
from tests.spark.gold.market_data import (
    EPS_KNOWN,
    MARKET,
    PRICE_WITH_EPS,
    SPLITS,
    Answer,
    Fact,
    Rows,
    answer_of,
    facts_of,
    live_through,
    open_market,
)
from tests.unit.gold.gold_planning import build_planned

pytestmark = pytest.mark.skipif(
    not SHARED_DATA.is_dir(), reason=f"no real data at {SHARED_DATA}; name its folder in DELTAWORKS_SHARED_DATA"
)


class PlannedMarket:
    """A market whose gold is planned by the product and built by DuckDB."""

    def __init__(self, folder: Path) -> None:
        files = {
            "pipelines/market/gold/eps_known.sql": EPS_KNOWN,
            "pipelines/market/gold/price_with_eps.sql": PRICE_WITH_EPS,
            "pipelines/market/reference/splits.csv": SPLITS,
        }
        self._catalog = load_project(folder / "project", MARKET, lake=folder, files=files)
        self._lake = Lake(self._catalog.environment.lake)
        self.rows = Rows()

    def land(self, *, prices: Sequence[dict[str, Any]] = (), facts: Sequence[Fact] = ()) -> None:
        for name, rows in (("prices", prices), ("facts", facts)):
            if rows:
                dated = [row | {DATE_COLUMN: row["event_time"].date()} for row in rows]
                write_deltalake(self._uri(name), pa.Table.from_pylist(dated), mode="append", partition_by=[DATE_COLUMN])
                getattr(self.rows, name).extend(rows)

    def split(self, line: str) -> None:
        self.rows.splits += line
        (self._catalog.folder("market") / "reference" / "splits.csv").write_text(self.rows.splits)

    def build(self) -> tuple[str, ...] | None:
        refresh_references(self._catalog, "market")
        spec, job = self._catalog.pipeline("market"), None
        for table in build_order(spec.gold.tables):
            pinned, key = pin_inputs(self._lake, spec, table.reads), paths.table("market", table.name)
            job = plan_job(self._catalog, spec, self._lake, table, pinned, key=key)
            if job.plan.has_work:
                build_planned(self._lake, "market", job)
        assert job is not None
        return job.plan.output.labels if job.plan.has_work else ()

    def answer(self) -> Answer:
        return answer_of(present(self._lake.rows(paths.table("market", "price_with_eps"))).to_pylist())

    def _uri(self, name: str) -> str:
        return self._lake.storage.uri(paths.table("market", name)).removeprefix("file://")


def test_an_as_of_join_is_exact_after_late_and_restated_rows(tmp_path: Path) -> None:
    market = PlannedMarket(tmp_path)

    open_market(market)
    priced = {day: row[3] for (day, _), row in market.answer().items() if row[3] is not None}

    assert min(priced) == dt.date(2010, 10, 28)
    assert round(priced[min(priced)], 4) == 19.8079
    assert len(priced) == 277
    assert (round(min(priced.values()), 4), round(max(priced.values()), 4)) == (19.5003, 27.4004)
    assert round(sum(priced.values()) / len(priced), 4) == 22.9791

    live_through(market)

    assert facts_of(market.answer()) == facts_of(market.rows.oracle())


def test_changed_partitions_alone_would_miss_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def first_alone(*arguments: Any, **options: Any) -> Changes:
        """The date of a change as one that changes itself alone."""
        return Changes()

    market = PlannedMarket(tmp_path)
    open_market(market, every=6)
    monkeypatch.setattr(table_build, "changes_by_row_diff", first_alone)

    with pytest.raises(AssertionError):
        live_through(market)
