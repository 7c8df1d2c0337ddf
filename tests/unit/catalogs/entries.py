"""Entries of tables for tests of catalogs."""

from __future__ import annotations

from typing import Any

from deltaworks.tables.entries import ColumnEntry, TableEntry


def column(name: str, type: str, delta_type: Any = None, **more: Any) -> ColumnEntry:
    return ColumnEntry(name=name, type=type, delta_type=delta_type or type, **more)


COLUMNS = (
    column("event_id", "string", description="Id of the event", personal=True),
    column("amount", "bigint", "long", description="Price in cents"),
    column("price", "decimal(10,2)"),
    column(
        "items",
        "array<struct<id:string,count:int>>",
        {
            "type": "array",
            "containsNull": True,
            "elementType": {
                "type": "struct",
                "fields": [
                    {"name": "id", "type": "string", "nullable": True, "metadata": {}},
                    {"name": "count", "type": "integer", "nullable": True, "metadata": {}},
                ],
            },
        },
    ),
    column("event_date", "date", description="UTC date", partition=0),
)


def entry(name: str = "orders", columns: tuple[ColumnEntry, ...] = COLUMNS, **more: Any) -> TableEntry:
    defaults: dict[str, Any] = {
        "pipeline": "shop",
        "kind": "bronze",
        "description": "Orders of the shop",
        "owner": "shop-team",
        "tags": ("retail", "eu"),
        "location": f"s3://lake/tables/shop/{name}",
        "table_id": "t-1",
        "version": 3,
        "created_at": None,
    }
    return TableEntry(**{**defaults, "name": name, "columns": columns, **more})
