"""A lake of two pipelines, one with personal data, and a SQL server over it for users with different roles."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from adbc_driver_flightsql import dbapi

from deltaworks.control import paths
from deltaworks.specs.catalog import Catalog
from deltaworks.sql_server.process import OpenServer, open_server
from deltaworks.sql_server.users import hash_password
from deltaworks.tables.lake import Lake
from deltaworks.testing import append_rows, declare_pipeline, declare_table, load_project, present

PASSWORD = "correct horse"
#: Hashing takes long, so all users have the same password.
HASH = hash_password(PASSWORD)
TOKEN = "p1_" + "a" * 26
ROLES = {
    "seller": {"pipelines": ["shop"]},
    "privacy": {"pipelines": ["people"], "personal": True},
    "analyst": {"pipelines": "*", "query_log": True},
}
USERS = {"sam": ["seller"], "pia": ["privacy"], "ana": ["analyst"]}
PEOPLE = declare_pipeline(
    declare_table("visits", "person string from person", "page string", "at timestamp", when="visit"),
    pipeline="people",
    privacy={
        "namespace": "people",
        "subject": "person",
        "fields": [{"path": "person", "action": "token", "as": "person"}],
    },
    gold={
        "tables": [
            {
                "name": "visitors",
                "sql": "gold/visitors.sql",
                "reads": ["visits"],
                "partition_by": "who",
                "affects": "all",
            }
        ]
    },
)
SHOP = declare_pipeline(
    declare_table("orders", "id long", "amount decimal(12,2)", "shop string", "sold_at timestamp", when="order"),
    declare_table("refunds", "id long", when="refund"),
    views=[{"name": "large_orders", "sql": "views/large_orders.sql", "reads": ["orders"]}],
)
ORDERS = pa.schema(
    [
        ("id", pa.int64()),
        ("amount", pa.decimal128(12, 2)),
        ("shop", pa.string()),
        ("sold_at", pa.timestamp("us", "UTC")),
    ]
)


def write_users(root: Path, users: dict[str, list[str]] | None = None, *, password: str = HASH) -> Path:
    """Writes the file of users; returns its path."""
    declared = {name: {"password": password, "roles": roles} for name, roles in (users or USERS).items()}
    file = root / "users.yaml"
    file.write_text(yaml.safe_dump({"users": declared}))
    return file


def sql_project(root: Path, **sections: Any) -> Catalog:
    """Writes a project with a SQL server, whose section may be changed, and its lake; returns the project."""
    section = {
        "listen": {"port": 0},
        "users": str(write_users(root)),
        "roles": ROLES,
        "fresh_seconds": 0,
        **sections,
    }
    environment = {
        "sql_server": section,
        "privacy": {
            "keys": {"kind": "keyring", "folder": str(root / "keyring")},
            "vault": {"root": f"file://{root}/vault"},
        },
    }
    files = {
        "pipelines/shop/views/large_orders.sql": "SELECT * FROM orders WHERE amount > 50",
        "pipelines/people/gold/visitors.sql": "SELECT person AS who, count(*) AS visits FROM visits GROUP BY person",
    }
    catalog = load_project(root, SHOP, PEOPLE, environment=environment, files=files)
    lake = Lake(catalog.environment.lake)
    append_orders(catalog, range(100))
    visits = [{"person": TOKEN, "page": "/home", "at": dt.datetime(2026, 3, 1, tzinfo=dt.UTC)}]
    append_rows(lake, paths.table("people", "visits"), visits)
    append_rows(lake, paths.table("people", "visitors"), [{"who": TOKEN, "visits": 1, "note": f"is {TOKEN}."}])
    raw = [
        {
            "quarantine_date": dt.date(2026, 3, 1),
            "object_key": "a",
            "reasons": [{"code": "missing", "detail": "person"}],
            "raw": TOKEN,
            "_ingested_at": dt.datetime(2026, 3, 1, tzinfo=dt.UTC),
            "_batch_id": 1,
            "_seq": 1,
            "_position": -1,
        }
    ]
    append_rows(lake, paths.table("people", "quarantine"), raw)
    return catalog


def append_orders(catalog: Catalog, ids: range, *, number: int = 1) -> None:
    """Appends orders with these ids: amount as the id, shops a and b in turn."""
    began = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    rows = [
        {"id": one, "amount": one, "shop": "ab"[one % 2], "sold_at": began + dt.timedelta(minutes=one)} for one in ids
    ]  # fmt: skip
    append_rows(Lake(catalog.environment.lake), paths.table("shop", "orders"), rows, schema=ORDERS, number=number)


@contextmanager
def serving(catalog: Catalog) -> Iterator[OpenServer]:
    """Runs the declared server in this process."""
    opened = open_server(catalog, present(catalog.environment.sql_server))
    try:
        yield opened
    finally:
        opened.close()


def connect(server: OpenServer, user: str = "sam", password: str = PASSWORD, **options: str) -> dbapi.Connection:
    """Logs in with ADBC's driver."""
    return dbapi.connect(server.url, db_kwargs={"username": user, "password": password, **options}, autocommit=True)


def query(server: OpenServer, text: str, *, user: str = "sam", parameters: list[Any] | None = None) -> pa.Table:
    """Returns the rows of a statement."""
    with connect(server, user) as connection, connection.cursor() as cursor:
        cursor.execute(text, parameters)
        return cursor.fetch_arrow_table()
