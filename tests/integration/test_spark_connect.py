"""The Spark Connect server as its job, with remote sessions in processes of their own."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag, read_heartbeat
from deltaworks.control.health.report import check_subject, subjects
from deltaworks.control.locks.lease import LeaseRecord
from deltaworks.control.objects import open_objects
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.mutation import REQUEST_COLUMNS
from deltaworks.tables.lake import Lake
from deltaworks.testing import append_rows, declare_pipeline, declare_table, load_project, present
from tests.integration.test_prometheus import free_port
from tests.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
TOKEN = "a-token-that-only-this-test-has"
SHOP = declare_pipeline(
    declare_table("orders", "id long", "amount decimal(12,2)", when="order"),
    declare_table("later", "id long", when="later"),
    declare_table(
        "visits", "org_id string from org", "contact_id string from contact", "origin string from contact",
        when="visit", partition_by=["org_id"], mutable={"id": "contact_id", "origin": "origin"},
    ),
    declare_table("requests", *(f"{name} {kind}" for name, kind in REQUEST_COLUMNS.items()), when="request"),
    mutations={"requests": "requests"},
    gold={"tables": [{"name": "per_day", "sql": "per_day.sql", "reads": ["orders"], "partition_by": "event_date"}]},
    views=[
        {"name": "large_orders", "sql": "large.sql", "reads": ["orders"]},
        {"name": "rounded", "sql": "rounded.sql", "reads": ["orders"]},
    ],
)  # fmt: skip
FILES = {
    "pipelines/shop/per_day.sql": "SELECT event_date, count(*) AS orders FROM orders GROUP BY event_date",
    "pipelines/shop/large.sql": "SELECT id, amount / 8 AS eighth FROM orders WHERE amount > 50",
    "pipelines/shop/rounded.sql": "SELECT id, round(amount) AS amount FROM orders",
}
DOCUMENTED_URL = "sc://localhost:15002/;token=TOKEN"
#: Runs the statements of its arguments in a remote session, and prints the rows of each as JSON.
CLIENT = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
for statement in sys.argv[2:]:
    rows = [list(row) for row in spark.sql(statement).collect()]
    print(json.dumps(rows, default=str), flush=True)
"""
#: Runs a function of the client on the server.
FUNCTION = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
for row in spark.range(3).select(udf(lambda number: number * 2, "long")("id")).collect():
    print(row[0])
"""


def shop(root: Path, port: int) -> Catalog:
    """Returns a project with a server on this port, and its lake."""
    section = {"listen": {"port": port}, "token": "env:SHOP_CONNECT_TOKEN"}
    environment = {"spark_connect": section, "spark": {"conf": {"spark.sql.warehouse.dir": f"file://{root}/warehouse"}}}
    catalog = load_project(root, SHOP, environment=environment, files=FILES)
    for name in ("include/jars", "include/spark"):
        (root / name).symlink_to(PROJECT_ROOT / name)
    append_orders(catalog, "orders", range(100))
    append(catalog, "per_day", [{"event_date": dt.date(2026, 3, 1), "orders": 100}])
    visits = [{"org_id": "o", "contact_id": one, "_deleted": deleted} for one, deleted in [("a", None), ("b", True)]]
    append(catalog, "visits", visits)
    return catalog


def documented_client() -> str:
    """Returns the code of the docs, for the tables of this project."""
    page = (PROJECT_ROOT / "docs/how-to/query-with-spark-connect.md").read_text()
    (code,) = re.findall(r"<!-- client -->\n```python\n(.*?)```", page, re.DOTALL)
    assert DOCUMENTED_URL in code
    return str(code).replace("games.events", "shop.orders").replace("IN games", "IN shop")


def append(catalog: Catalog, table: str, rows: list[dict[str, Any]]) -> None:
    append_rows(Lake(catalog.environment.lake), paths.table("shop", table), rows)


def append_orders(catalog: Catalog, table: str, ids: range) -> None:
    schema = pa.schema([("id", pa.int64()), ("amount", pa.decimal128(12, 2))])
    rows = pa.Table.from_pylist([{"id": one, "amount": one} for one in ids], schema)
    append_rows(Lake(catalog.environment.lake), paths.table("shop", table), rows)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Prints the seconds that the block takes."""
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.1f} s")


@dataclass
class Server:
    """The job's process, its project and its log."""

    process: subprocess.Popen[bytes]
    catalog: Catalog
    port: int
    log: Path

    def query(self, *statements: str, token: str | None = TOKEN) -> list[Any]:
        """Returns the rows of each statement in a new remote session, or raises with the client's error."""
        return [json.loads(line) for line in self.run(CLIENT, *statements, token=token).splitlines()]

    def run(self, code: str, *statements: str, token: str | None = TOKEN) -> str:
        """Runs a client's code with the address of the server and statements as arguments; returns what it prints."""
        url = f"sc://localhost:{self.port}/" + ("" if token is None else f";token={token}")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        command = [sys.executable, "-c", code.replace(DOCUMENTED_URL, url), url, *statements]
        with timed(f"a session with {len(statements)} statements"):
            done = subprocess.run(command, capture_output=True, text=True, env=clean, timeout=300, check=False)
        if done.returncode:
            raise PermissionError(done.stderr)
        return done.stdout

    @property
    def objects(self) -> Any:
        return open_objects(self.catalog.environment.lake)

    def beat(self) -> str:
        found = read_heartbeat(self.objects, paths.heartbeat(paths.spark_connect_control()))
        return "" if found is None else found.state


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    port = free_port()
    catalog = shop(tmp_path / "project", port)
    variables = {
        "DELTAWORKS_PROJECT": str(catalog.root),
        "DELTAWORKS_SPARK_MASTER": "local[2]",
        "PYTHONPATH": str(PROJECT_ROOT / "include"),
        "SHOP_CONNECT_TOKEN": TOKEN,
    }
    log = tmp_path / "log"
    with log.open("wb") as out:
        command = [sys.executable, str(PROJECT_ROOT / "spark_jobs" / "serve_spark_connect.py")]
        process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | variables, cwd=tmp_path)
    server = Server(process, catalog, port, log)
    try:
        with timed("the server starts"):
            eventually(lambda: process.poll() is not None or server.beat() == "idle", "it serves", seconds=240)
        assert process.poll() is None, log.read_text()
        yield server
    finally:
        process.terminate()
        process.wait(60)


def test_remote_sessions_read_tables_and_views_by_name_until_it_is_stopped(server: Server) -> None:
    tables, *counts = server.query(
        "SHOW TABLES IN shop",
        "SELECT count(*) FROM shop.orders",
        "SELECT orders FROM shop.per_day",
        "SELECT count(*), max(eighth) FROM shop.large_orders",
        "SELECT contact_id FROM shop.visits",
        "SELECT contact_name FROM shop.visits_named",
    )

    names = {row[1] for row in tables}
    assert names == {"orders", "per_day", "visits", "visits_named", "large_orders"}
    assert counts == [[[100]], [[100]], [[49, 12.375]], [["a"]], [["a"]]]
    assert "shop.rounded is excluded: Spark has no equal of ROUND(amount)" in server.log.read_text()

    assert server.run(documented_client()).splitlines()[-1] == "100"
    assert server.run(FUNCTION).split() == ["0", "2", "4"]

    server.query("DROP TABLE shop.orders")
    append_orders(server.catalog, "later", range(7))
    with timed("a new table appears"):
        eventually(lambda: {"later", "orders"} <= {row[1] for row in server.query("SHOW TABLES IN shop")[0]}, "both")
    assert server.query("SELECT count(*) FROM shop.later", "SELECT count(*) FROM shop.orders") == [[[7]], [[100]]]

    (subject,) = [item for item in subjects(server.catalog) if item.kind == "spark_connect"]
    assert subject.dag_id == "deltaworks__spark_connect"
    assert check_subject(subject, server.objects).verdict.state == "healthy"
    StopFlag(server.objects, paths.stop_request(paths.spark_connect_control())).set(by="me", reason="over")
    assert server.process.wait(120) == 0, server.log.read_text()
    assert server.beat() == "ended"


def test_a_session_without_the_token_is_refused_and_a_lost_lease_ends_the_server(server: Server) -> None:
    for token in (None, "another-token"):
        with pytest.raises(PermissionError, match="UNAUTHENTICATED"):
            server.query("SELECT 1", token=token)
    assert server.query("SELECT 1") == [[[1]]]
    assert TOKEN not in server.log.read_text()

    key = paths.lease(paths.spark_connect_control())
    held = LeaseRecord.model_validate_json(present(server.objects.get(key)).data)
    successor = held.replace(owner="a successor", epoch=held.epoch + 1)
    server.objects.put(key, successor.model_dump_json().encode())

    assert server.process.wait(120) != 0
    assert "LEASE_LOST" in server.log.read_text()
