"""A lake and a vault with personal data, and a simulated clock for their files."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.privacy.erasure.erasure_run import ErasureResult, ErasureRun
from deltaworks.privacy.erasure.requests import Namespace, open_namespace
from deltaworks.privacy.tokens.envelope_encryption import token
from deltaworks.privacy.vault.tables import IDENTITIES, LINKS
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.files import split_by_partition, write_file
from deltaworks.tables.lake import Lake, arrow_path
from tests.unit.maintenance.table_data import project

SHOP = """\
pipeline: shop
description: a shop
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: landing}
event: {name: {path: name}, time: {path: time}}
privacy:
  namespace: players
  subject: [player, device]
  fields:
    - {path: player, action: token, as: player}
    - {path: device, action: token, as: device}
    - {path: email, action: vault, as: email}
tables:
  - name: orders
    when: {name: order}
    columns:
      - {name: player, path: player, type: string}
      - {name: device, path: device, type: string}
      - {name: email, path: email, type: string}
      - {name: amount, path: amount, type: long}
  - name: invoices
    when: {name: invoice}
    erase: keep
    erase_reason: invoices are kept for ten years
    columns: [{name: player, path: player, type: string}]
"""
ORDERS = pa.schema(
    [
        ("event_date", pa.date32()),
        ("player", pa.string()),
        ("device", pa.string()),
        ("email", pa.string()),
        ("amount", pa.int64()),
    ]
)
QUARANTINE = pa.schema([("quarantine_date", pa.date32()), ("reason", pa.string()), ("raw", pa.string())])
INVOICES = pa.schema([("event_date", pa.date32()), ("player", pa.string())])
DAY = dt.date(2026, 3, 1)


class PeopleLake:
    """The lake and the vault of one project, and what a test puts into them.

    Args:
        pipeline: another declaration than SHOP.
        sql: of gold tables, by the path in the pipeline's folder.
    """

    def __init__(self, root: Path, pipeline: str = SHOP, *, sql: Mapping[str, str] | None = None) -> None:
        self.root = root
        privacy = (
            f"privacy:\n  keys: {{kind: keyring, folder: {root}/keys}}\n  vault: {{root: 'file://{root}/vault'}}\n"
        )
        self.catalog: Catalog = project(root, sql=sql, shop=pipeline, more_environment=privacy)
        self.now = dt.datetime.now(dt.UTC)
        self.passed = dt.timedelta()

    @property
    def namespace(self) -> Namespace:
        """What erasures work with, opened anew as each run opens it."""
        return open_namespace(self.catalog, "players")

    def token(self, kind: str, value: str) -> str:
        """The token of an identifier."""
        return token(self.namespace.token_key, kind=kind, value=value)

    def add(self, table: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema = ORDERS) -> None:
        """Append rows as one commit."""
        lake = Lake(self.catalog.environment.lake)
        add_rows(lake, paths.table("shop", table), rows, schema)

    def orders(self, *rows: tuple[str | None, str | None, str | None, int]) -> None:
        """Orders of player, device, email and amount; identifiers become tokens."""
        kinds = ("player", "device", "email")
        self.add(
            "orders",
            [
                {"event_date": DAY, "amount": amount}
                | {kind: value and self.token(kind, value) for kind, value in zip(kinds, values, strict=True)}
                for *values, amount in rows
            ],
        )

    def amounts(self, table: str = "orders") -> list[int]:
        """The amounts of all orders, which tell them apart."""
        rows = Lake(self.catalog.environment.lake).rows(paths.table("shop", table), columns=["amount"])
        return [] if rows is None else sorted(rows.column("amount").to_pylist())

    def identities(self, *rows: tuple[str, str, str]) -> None:
        """Rows of the vault: subject, kind and token."""
        seen = {"value": b"sealed", "key_version": 1, "first_seen": self.now, "last_seen": self.now}
        made = [{"namespace": "players", "subject": row[0], "kind": row[1], "token": row[2], **seen} for row in rows]
        self.namespace.vault.tables.merge_identities(pa.Table.from_pylist(made, IDENTITIES))

    def links(self, *rows: tuple[str, str]) -> None:
        """Links of the vault: subject and token."""
        made = [
            {"namespace": "players", "subject": subject, "kind": "device", "token": linked, "first_seen": self.now}
            for subject, linked in rows
        ]
        self.namespace.vault.tables.merge_links(pa.Table.from_pylist(made, LINKS))

    def advance(self, **options: Any) -> list[ErasureResult]:
        """One run, now."""
        return ErasureRun(self.namespace, now=dt.datetime.now(dt.UTC), **options).run()

    def pass_time(self, days: float) -> None:
        """Let all that lies in the lake and the vault have been written so many days earlier."""
        seconds = days * 86_400
        for folder in ("lake", "vault"):
            for path in sorted((self.root / folder).rglob("*")):
                if path.is_file():
                    stat = path.stat()
                    if path.parent.name == "_delta_log" and path.suffix == ".json":
                        path.write_text(_earlier(path.read_text(), int(seconds * 1000)))
                    elif "/windows/" in str(path) and path.suffix == ".json":
                        path.write_text(_purged_earlier(path.read_text(), int(seconds * 1000)))
                    os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))


def add_rows(
    lake: Lake,
    key: str,
    rows: Sequence[Mapping[str, Any]],
    schema: pa.Schema,
    *,
    partition_by: Sequence[str] | None = None,
) -> None:
    """Append rows to a table, which is made where there is none, partitioned by the first column."""
    columns = [schema.names[0]] if partition_by is None else list(partition_by)
    made = user_metadata(pipeline="shop", batch=0, operation="create_table")
    table = lake.ensure(key, schema, user_metadata=made, partition_by=columns)
    root = arrow_path(lake.storage, key)
    parts = split_by_partition(pa.Table.from_pylist([dict(row) for row in rows], schema), columns)
    files = [write_file(lake.filesystem, root, part, partition=values) for values, part in parts]
    table.create_write_transaction(
        [file.add_action() for file in files], mode="append", schema=table.schema(), partition_by=columns
    )


def _earlier(text: str, by_ms: int) -> str:
    actions = [json.loads(line) for line in text.splitlines() if line.strip()]
    for action in actions:
        for kind, name in (
            ("commitInfo", "timestamp"),
            ("remove", "deletionTimestamp"),
            ("metaData", "createdTime"),
            ("add", "modificationTime"),
        ):
            if kind in action and action[kind].get(name):
                action[kind][name] -= by_ms
    return "".join(json.dumps(action) + "\n" for action in actions)


def _purged_earlier(text: str, by_ms: int) -> str:
    record = json.loads(text)
    if record.get("at_ms"):
        record["at_ms"] -= by_ms
    return json.dumps(record)
