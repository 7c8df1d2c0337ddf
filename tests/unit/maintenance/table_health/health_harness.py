"""A shop with an unhealthy table, a healthy one, and a missing one."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from tests.unit.maintenance.table_data import SHOP, make, project

TABLES = """\
tables:
  - {name: orders, catch_all: true, zorder_by: [event_name]}
  - {name: items, when: {name: item}}
  - {name: none_yet, when: {name: none}}
"""
NOW = dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC)


def declared_shop(folder: Path, more: str = "") -> Catalog:
    """Declares the shop without creating tables; `more` are further keys of the pipeline."""
    return project(folder, shop=SHOP + TABLES + more)


def made_shop(catalog: Catalog) -> Lake:
    """Creates its tables: `orders` with small files, `items` with one file per day."""
    lake = Lake(catalog.environment.lake)
    columns = {"event_date": "date", "event_name": "string", "value": "long"}
    make(lake, "shop", "orders", files=6, days=3, columns=columns)
    make(lake, "shop", "items", files=1, days=2, columns=columns)
    return lake
