"""`sql_door`: the SQL server against DuckDB in process: a million rows over the wire, small queries, twenty clients.

The server is a process of its own, as a DAG runs it; the client is ADBC's driver for Flight SQL. The other side runs
the same statement on the views of `deltaworks sql`, on one open connection. Both read one local Delta table.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure, single_result
from deltaworks.control import paths
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect
from deltaworks.testing import append_rows, declare_pipeline, declare_table, write_project

ROWS, SMALL_QUERIES, CLIENTS = 1_000_000, 100, 20
#: The time of a small query that the server must reach.
MAX_P95_SECONDS = 0.060
_ALL = "SELECT * FROM shop.orders"
_SMALL = "SELECT shop, count(*) AS n, sum(amount) AS total FROM shop.daily WHERE day > {} GROUP BY shop ORDER BY shop"
_READY = "Serving SQL at "


def write_lake(root: Path, rows: int) -> None:
    """Writes a project with a large table, and a small one as gold is."""
    columns = ("id long", "name string", "amount decimal(12,2)", "at timestamp", "shop int")
    pipeline = declare_pipeline(
        declare_table("orders", *columns, when="order"),
        declare_table("daily", "day long", "shop string", "amount double", when="day"),
    )
    write_project(root, pipeline)
    lake = Lake(load_catalog("local", root=root).environment.lake)
    orders = duckdb.sql(
        f"SELECT i AS id, 'order number ' || i AS name, (i % 10000)::DECIMAL(12,2) AS amount, "
        f"TIMESTAMPTZ '2026-01-01' + INTERVAL (i) SECOND AS at, (i % 7)::INT AS shop FROM range({rows}) AS r(i)"
    ).to_arrow_table()
    append_rows(lake, paths.table("shop", "orders"), orders)
    daily = [{"day": one // 10, "shop": f"shop {one % 10}", "amount": float(one)} for one in range(10_000)]
    append_rows(lake, paths.table("shop", "daily"), daily)


@contextmanager
def serving(root: Path) -> Iterator[tuple[str, str]]:
    """Runs `deltaworks sql --serve` in a process of its own. Yields its URL and the password of its user."""
    environment = {"DELTAWORKS_PROJECT": str(root), "DELTAWORKS_ENVIRONMENT": "local"}
    process = subprocess.Popen(
        [sys.executable, "-m", "deltaworks.cli", "sql", "--serve", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stderr is not None
        line = next((line for line in process.stderr if line.startswith(_READY)), "")
        if not line:
            raise RuntimeError("the SQL server did not start")
        words = line.removeprefix(_READY).split()
        yield words[0], words[-1]
    finally:
        process.terminate()
        process.wait(timeout=60)


def _login(url: str, password: str) -> Any:
    from adbc_driver_flightsql import dbapi

    return dbapi.connect(url, db_kwargs={"username": "deltaworks", "password": password}, autocommit=True)


def _read(connection: Any, text: str) -> pa.Table:
    with connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetch_arrow_table()


def run(options: Options) -> list[Result]:
    """Measures the server and DuckDB alternately, then small queries, then twenty clients."""
    rows = ROWS
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_lake(root, rows)
        catalog = load_catalog("local", root=root)
        with serving(root) as (url, password), _login(url, password) as client:
            return [*_million(options, catalog, client, rows), *_small(catalog, client), *_many(url, password, client)]


def _million(options: Options, catalog: Catalog, client: Any, rows: int) -> list[Result]:
    connection, _ = connect(catalog)

    def over_the_wire(clock: Clock) -> None:
        with clock:
            rows_read = _read(client, _ALL)
        _check(rows_read.num_rows, rows)

    def in_process(clock: Clock) -> None:
        with clock:
            rows_read = connection.sql(_ALL).to_arrow_table()
        _check(rows_read.num_rows, rows)

    comparison = Comparison(
        metric="a million rows over Flight SQL",
        ours=Side("SQL server", over_the_wire),
        other=Side("DuckDB in process", in_process),
        sizes={"rows": rows},
    )
    results = measure("sql_door", [comparison], repeats=options.repeats, progress=options.progress)
    connection.close()
    return results


def _small(catalog: Catalog, client: Any) -> list[Result]:
    connection, _ = connect(catalog)
    sides: dict[str, list[float]] = {"ours": [], "other": []}
    runs: dict[str, Callable[[str], Any]] = {
        "ours": lambda text: _read(client, text),
        "other": lambda text: connection.sql(text).to_arrow_table(),
    }
    for number in range(SMALL_QUERIES + 10):
        for name, read in runs.items():
            began = time.perf_counter()
            _check(read(_SMALL.format(number)).num_rows, 10)
            sides[name].append(time.perf_counter() - began)
    connection.close()
    # The first ten warm up.
    ours, other = (sorted(sides[name][10:]) for name in ("ours", "other"))
    at = round(0.95 * SMALL_QUERIES) - 1
    parts = {"median_seconds": round(statistics.median(ours), 4), "bar_seconds": MAX_P95_SECONDS}
    return [
        single_result(
            "sql_door",
            "p95 of a small query",
            (ours[at], other[at]),
            other_name="DuckDB in process",
            sizes={"queries": SMALL_QUERIES},
            digits=4,
            parts=parts,
        )
    ]


def _many(url: str, password: str, client: Any) -> list[Result]:
    """Measures small queries of twenty clients at once, compared with one client that sends as many."""
    seconds, failures = list[float](), list[Exception]()
    queries = 10

    def read() -> None:
        try:
            with _login(url, password) as own:
                for number in range(queries):
                    began = time.perf_counter()
                    _check(_read(own, _SMALL.format(number)).num_rows, 10)
                    seconds.append(time.perf_counter() - began)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(CLIENTS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = time.perf_counter() - began
    if failures:
        raise failures[0]
    began = time.perf_counter()
    for number in range(CLIENTS * queries):
        _check(_read(client, _SMALL.format(number % queries)).num_rows, 10)
    alone = time.perf_counter() - began
    ordered = sorted(seconds)
    parts = {"p95_seconds": round(ordered[round(0.95 * len(ordered)) - 1], 4), "queries": float(len(ordered))}
    return [
        single_result(
            "sql_door",
            f"{CLIENTS} clients at once",
            (together, alone),
            other_name="one client",
            sizes={"clients": CLIENTS},
            digits=3,
            parts=parts,
        )
    ]


def _check(rows_read: int, expected: int) -> None:
    if rows_read != expected:
        raise RuntimeError(f"a query returned {rows_read} rows instead of {expected}")


BENCHMARK = Benchmark(
    name="sql_door",
    summary="SQL over Flight SQL, against DuckDB in process: a million rows, small queries, twenty clients at once",
    run=run,
    tiny=TinySize(constants={"ROWS": 1_000, "SMALL_QUERIES": 10, "CLIENTS": 2}),
)
