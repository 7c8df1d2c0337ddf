"""`minute_gold`: refreshing per-minute gold by changed hours, against rebuilding the complete date.

`--events` requests of one date land in one file per ten minutes, as a stream lands them. The default of a million is
twelve per second; with far fewer, both measure only the fixed cost of a build. Each repetition lands one minute's
requests in the last hour of the date and refreshes two gold tables with the same SQL, one by hours and one by dates.

- `hours_vs_date`: seconds of both refreshes, without dedupe.
- `hours_vs_date_with_copies`: the same with duplicates up to an hour apart (a date apart for the table by dates).
- `over_reach`: hours that are rebuilt, against hours that differ, if one request in a hundred is late by an
  exponentially distributed delay with a mean of one hour. Planned for every minute of two hours and summed; nothing is
  built.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure, single_result

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from deltaworks.specs.catalog import Catalog

FIRST = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
FILES = 24 * 6
EDGES = 20
LATE_SHARE = 0.01
LATE_HOURS = 1.0
#: Number of minutes for which `over_reach` is planned.
REFRESHES = 120
_DAY_MINUTES = 24 * 60
_SQL = """
    SELECT event_date, date_trunc('MINUTE', event_time) AS minute, edge, count(*) AS requests,
        count_if(status >= 500) AS errors, sum(bytes) AS bytes, percentile(latency, 0.95) AS p95
    FROM requests GROUP BY event_date, date_trunc('MINUTE', event_time), edge
"""
_COLUMNS = {"edge": "string", "status": "int", "bytes": "long", "latency": "double"}
_BY_HOURS = {"name": "by_hours", "grain": {"column": "minute", "part": "hour"}}
_BY_DATE = {"name": "by_date"}


def run(options: Options) -> list[Result]:
    """Measures the comparisons."""
    from benchmarks import sides
    from benchmarks.scratch_folders import scratch_folder

    spark = sides.session()
    try:
        with scratch_folder("minute-gold") as folder:
            plain = _BuiltTraffic(folder / "plain", spark, options, dedupe=None)
            copies = _BuiltTraffic(folder / "copies", spark, options, dedupe={"within_days": 1, "within_hours": 1})
            comparisons = [
                Comparison(
                    metric=f"hours_vs_date{suffix}",
                    ours=Side(f"by_hours{suffix}", traffic.refreshing("by_hours")),
                    other=Side(f"by_date{suffix}", traffic.refreshing("by_date")),
                    sizes={"events": options.events, "edges": EDGES},
                )
                for suffix, traffic in (("", plain), ("_with_copies", copies))
            ]
            results = measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
            for traffic in (plain, copies):
                traffic.compare()
            return [*results, _excess_rebuilds(_Traffic(folder / "late"), options)]
    finally:
        spark.stop()


class _Traffic:
    """A pipeline in a temporary folder in which requests land."""

    def __init__(self, folder: Path, *, dedupe: dict[str, Any] | None = None) -> None:
        from deltaworks.tables.lake import Lake

        self.catalog = _declared(folder, dedupe)
        self.lake = Lake(self.catalog.environment.lake)
        self._chosen, self._batches = random.Random(7), 0

    def land(self, minutes: list[float]) -> int:
        """Lands requests at these minutes of the day in one commit; returns its version."""
        from deltaworks.control import paths
        from deltaworks.tables.commit import Step

        self._batches += 1
        rows, key = self._rows(minutes), paths.table("traffic", "requests")
        opened = self.lake.ensure(key, rows.schema, user_metadata="{}", partition_by=["event_date"])
        step = Step("traffic/1/requests", self._batches)
        return self.lake.append(opened, key, rows, step=step, user_metadata="{}").version

    def _rows(self, minutes: list[float]) -> pa.Table:
        import pyarrow as pa

        from deltaworks.tables.arrow_types import arrow_schema

        count, chosen = len(minutes), self._chosen
        times = [FIRST + dt.timedelta(minutes=minute) for minute in minutes]
        values: dict[str, Any] = {
            "event_id": [f"{self._batches}-{number}" for number in range(count)],
            "event_name": ["request"] * count,
            "event_time": times,
            "event_date": [time.date() for time in times],
            "_ingested_at": times,
            "_batch_id": [self._batches] * count,
            "_seq": [self._batches] * count,
            "_position": range(count),
            "edge": [f"edge{chosen.randrange(EDGES)}" for _ in minutes],
            "status": [chosen.choice((200, 200, 200, 304, 404, 503)) for _ in minutes],
            "bytes": [chosen.randrange(1 << 20) for _ in minutes],
            "latency": [chosen.lognormvariate(4, 0.8) for _ in minutes],
        }
        schema = arrow_schema(self.catalog.pipeline("traffic").table("requests").column_types())
        return pa.table({field.name: values.get(field.name, [None] * count) for field in schema}, schema=schema)


class _BuiltTraffic(_Traffic):
    """The pipeline with a day of requests, and its gold tables by hours and by dates."""

    def __init__(self, folder: Path, spark: SparkSession, options: Options, *, dedupe: dict[str, Any] | None) -> None:
        from deltaworks.gold.build import rebuild_gold

        super().__init__(folder, dedupe=dedupe)
        self._spark, self._a_minute = spark, max(1, options.events // _DAY_MINUTES)
        for number in range(FILES):
            self.land([self._chosen.uniform(10 * number, 10 * number + 10) for _ in range(options.events // FILES)])
        rebuild_gold(spark, self.catalog, "traffic")
        options.progress(f"{BENCHMARK.name}: landed {options.events:,} requests and built gold in {folder.name}")

    def refreshing(self, table: str) -> Callable[[Clock], None]:
        """Returns a repetition that lands one minute of the last hour, then measures the refresh of `table`."""
        from deltaworks.gold.build import rebuild_gold

        def run_side(clock: Clock) -> None:
            start = 23 * 60 + self._chosen.randrange(59)
            self.land([start + self._chosen.random() for _ in range(self._a_minute)])
            with clock:
                (result,) = rebuild_gold(self._spark, self.catalog, "traffic", tables=[table]).tables
            clock.record(rows=result.rows, parts=len(result.partitions or ()))

        return run_side

    def compare(self) -> None:
        """Refreshes both gold tables and compares them.

        Raises:
            RuntimeError: the tables differ.
        """
        from deltaworks.control import paths
        from deltaworks.gold.build import rebuild_gold

        rebuild_gold(self._spark, self.catalog, "traffic")
        answers = [self.lake.rows(paths.table("traffic", name)) for name in ("by_hours", "by_date")]
        order = [("minute", "ascending"), ("edge", "ascending")]
        hours, dates = (rows.sort_by(order).to_pylist() for rows in answers if rows is not None)
        if hours != dates:
            raise RuntimeError("the gold tables by hours and by dates differ")


def _declared(folder: Path, dedupe: dict[str, Any] | None) -> Catalog:
    from benchmarks.project import declare_project

    shared = {"sql": "minutes.sql", "reads": ["requests"], "partition_by": "event_date"}
    columns = [{"name": name, "path": name, "type": kind} for name, kind in _COLUMNS.items()]
    sql = folder / "include" / "pipelines" / "traffic" / "minutes.sql"
    sql.parent.mkdir(parents=True)
    sql.write_text(_SQL)
    return declare_project(
        folder,
        {
            "pipeline": "traffic",
            "description": "requests of edges",
            "event": {"name": {"path": "name"}, "time": {"path": "time"}, "id": "id"},
            "tables": [{"name": "requests", "catch_all": True, "columns": columns}],
            "gold": {"tables": [shared | _BY_HOURS, shared | _BY_DATE], "dedupe": dedupe},
        },
        landing=folder / "landing",
    )


def _excess_rebuilds(traffic: _Traffic, options: Options) -> Result:
    """Compares the hours that each refresh would rebuild with the hours that contain new requests."""
    from deltaworks.control import paths
    from deltaworks.gold.plan import plan_rebuild
    from deltaworks.tables.changed_hours import changed_hours

    key, (table, _) = paths.table("traffic", "requests"), traffic.catalog.pipeline("traffic").gold.tables
    before = traffic.land([0.0])
    rebuilt = differing = spanned = 0
    for minutes in _refreshes(options):
        version = traffic.land(minutes)
        changes = changed_hours(
            traffic.lake, key, time_column="event_time", after_version=before, up_to_version=version
        )
        part = plan_rebuild(table, {"requests": changes}, None).output
        rebuilt += len(part.hours or ()) + 24 * len(part.values or ())
        differing += len({int(minute // 60) for minute in minutes})
        spanned += 24 * len({int(minute // _DAY_MINUTES) for minute in minutes})
        before = version
    return single_result(
        BENCHMARK.name,
        "over_reach",
        (rebuilt, differing),
        other_name="hours that differ",
        unit="hours",
        sizes={"refreshes": REFRESHES, "events": options.events, "late_share": LATE_SHARE, "late_hours": LATE_HOURS},
        parts={"hours_of_touched_dates": spanned},
    )


def _refreshes(options: Options) -> Iterator[list[float]]:
    """Yields, for each refresh, the minutes of the day of its new requests."""
    chosen = random.Random(11)
    for number in range(REFRESHES):
        now = 21.0 * 60 + number
        minutes = [now + chosen.random() for _ in range(max(1, options.events // _DAY_MINUTES))]
        yield [
            max(0.0, minute - chosen.expovariate(1 / (60 * LATE_HOURS))) if chosen.random() < LATE_SHARE else minute
            for minute in minutes
        ]


BENCHMARK = Benchmark(
    name="minute_gold",
    summary="refreshing per-minute gold by changed hours, against rebuilding complete dates",
    run=run,
    tiny=TinySize(constants={"FILES": 6, "REFRESHES": 3}),
)
