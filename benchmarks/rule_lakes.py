"""A lake with a gold table of minutes and rules that read it, for the benchmarks of rules."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

#: A Monday. The weeks before it are the baseline of rules that compare with the hour of the week.
START = dt.datetime(2026, 3, 30, tzinfo=dt.UTC)
_PIPELINE = """\
pipeline: delivery
description: Minutes of a network
owner: bench
source: {{kind: s3_sqs, relay: landing, bucket: landing, prefix: delivery/}}
event: {{name: {{constant: request}}, time: {{path: time}}}}
tables:
  - {{name: requests, catch_all: true, columns: [{{name: edge, path: edge, type: string}}]}}
gold:
  tables: [{{name: edge_minute, sql: edge_minute.sql, reads: [requests], partition_by: event_date}}]
rules:
{rules}
"""
_GOLD = "SELECT event_date, event_time AS minute, edge, 0.0 AS latency, 0 AS requests FROM requests\n"
_RULE = """\
  - name: slow_{number}
    reads: [edge_minute]
    sql: slow_{number}.sql
    labels: [edge]
    min_samples: 500
    {baseline}
    fire: {fire}
    for_minutes: 3
"""
_SQL = """\
SELECT minute, edge, latency + {number} / 1000.0 AS value, requests AS samples
FROM edge_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
"""


def rules_lake(folder: Path, *, rules: int, edges: int, minutes: int, learned: bool = False) -> Catalog:
    """Declares the rules and writes `minutes` minutes from START, each with a row for each of `edges` edges.

    Args:
        learned: rules compare with the same hour of past weeks, for which minutes before START are written as well.
    """
    from deltaworks.specs.project import load_catalog

    baseline = "baseline: {kind: hour_of_week}" if learned else ""
    fire = "{above_baseline: 1.1, deviations: 3}" if learned else "{above: 100}"
    declared = "".join(_RULE.format(number=number, baseline=baseline, fire=fire) for number in range(rules))
    files = {
        "environments/local.yaml": f'environment: local\nlake: {{root: "file://{folder}/lake"}}\n'
        f'landing: {{root: "file://{folder}/landing"}}\nmessaging: {{}}\n',
        "relays/landing.yaml": "relay: landing\nqueue_url: http://localhost/queue\nbuckets: [landing]\n",
        "pipelines/delivery/pipeline.yaml": _PIPELINE.format(rules=declared),
        "pipelines/delivery/edge_minute.sql": _GOLD,
    }
    files |= {f"pipelines/delivery/slow_{number}.sql": _SQL.format(number=number) for number in range(rules)}
    for name, text in files.items():
        path = folder / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    catalog = load_catalog("local", root=folder)
    write_minutes(catalog, first=0, minutes=minutes, edges=edges)
    if learned:
        weeks = 28 * 24 * 60
        write_minutes(catalog, first=-weeks - 24 * 60, minutes=weeks + 24 * 60, edges=edges)
    return catalog


def write_minutes(catalog: Catalog, *, first: int, minutes: int, edges: int) -> None:
    """Appends a row per edge for each minute, numbered from START. Latencies are 30 to 72 ms, as a wave over
    the day."""
    import duckdb
    from deltalake import write_deltalake

    from deltaworks.control import paths

    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.execute(
            """
            SELECT minute::DATE AS event_date, minute, 'e' || edge AS edge,
              50 + 20 * sin(epoch(minute) / 13751) + hash(edge, minute) % 1000 / 500.0 AS latency,
              1000 AS requests
            FROM (SELECT ?::TIMESTAMPTZ + to_minutes(number::INT) AS minute FROM range(?, ?) AS steps(number))
            CROSS JOIN range(?) AS edges(edge) ORDER BY minute""",
            [START, first, first + minutes, edges],
        ).to_arrow_table()
    uri = catalog.environment.lake.uri(paths.table("delivery", "edge_minute"))
    write_deltalake(uri, rows, mode="append", partition_by=["event_date"])
