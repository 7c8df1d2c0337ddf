"""Lakes of shipped pipelines in which generated events arrive over simulated time, for the benchmark `alert_delay`.

Bronze rows are committed when the stream would commit them: at the first trigger after they can be read, and the
duration of a batch later. Gold is computed by the shipped SQL, translated for DuckDB, and committed after the refresh.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generator.alert_traffic import AlertTraffic, first_bad_time

if TYPE_CHECKING:
    from deltaworks.specs.alert_rule import RuleSpec
    from deltaworks.specs.catalog import Catalog

#: Assumed seconds from a trigger until a batch is committed, and until its gold is: `freshness` measures both.
COMMIT_SECONDS, GOLD_SECONDS = 10.0, 20.0
#: The minutes after a close in which the prices of a session arrive.
SESSION_MINUTES = 5
#: SELECT lists of bronze tables from `batch`, without the columns that the engine adds.
BRONZE = {
    ("games", "events"): "event_time, event_name, session_id, device_id, platform, country, app_version FROM batch",
    ("games", "crash"): "event_time, session_id, device_id, fatal FROM batch WHERE event_name = 'crash'",
    ("games", "purchase"): (
        "event_time, session_id, device_id, platform, app_version, amount FROM batch WHERE event_name = 'purchase'"
    ),
    ("games", "experiment_exposure"): (
        "min(event_time) AS event_time, 'shop' AS experiment, device_id, any_value(variant) AS variant FROM batch "
        "WHERE variant IS NOT NULL GROUP BY device_id"
    ),
    ("video_qos", "player_events"): (
        "event_time, event_name, play_id, media_id, device, isp, played_ms, stalled_ms, after_seek, fatal FROM batch"
    ),
    ("cdn_realtime", "requests"): (
        "event_time, event_id, edge, isp, status, result, uri, first_byte_seconds FROM batch"
    ),
    ("stocks", "prices"): "event_time, ticker, close FROM batch",
    ("engagement", "requests"): "event_time, org_id, op, id FROM batch",
}


def rule_catalog(folder: Path, pipeline: str, rule: str) -> Catalog:
    """Returns the shipped project with a lake in a folder, one pipeline, one rule, and the rules that inhibit it."""
    from deltaworks.specs.storage import StorageSpec

    catalog = _declared_catalog()
    spec = catalog.pipeline(pipeline)
    declared = {item.name: item for item in spec.rules}
    rules = tuple(declared[name] for name in (*declared[rule].inhibited_by, rule))
    lake = StorageSpec.model_validate({"root": f"file://{folder}"})
    return replace(
        catalog,
        environment=catalog.environment.model_copy(update={"lake": lake}),
        pipelines={pipeline: spec.model_copy(update={"rules": rules})},
    )


@cache
def _declared_catalog() -> Catalog:
    """Returns the shipped project in the environment `aws`, which has no shorter triggers than are declared."""
    from deltaworks.specs.catalog import PROJECT_ROOT
    from deltaworks.specs.project import load_catalog

    return load_catalog("aws", root=PROJECT_ROOT)


def rule_of(catalog: Catalog, rule: str) -> RuleSpec:
    """Returns a rule of the only pipeline of a catalog."""
    (spec,) = catalog.pipelines.values()
    return {item.name: item for item in spec.rules}[rule]


@dataclass(slots=True)
class SimulatedLake:
    """The tables that the rules of one pipeline read, and the rows that arrive in them.

    Use it as a context manager. `commits` yields each commit with its time and a function that performs it; events are
    generated when they are due.
    """

    catalog: Catalog
    traffic: AlertTraffic
    connection: Any = field(init=False)
    tables: list[str] = field(init=False)
    gold: list[str] = field(init=False)
    #: The first bad event so far.
    began_at: dt.datetime | None = None
    _generated_until: dt.datetime | None = None
    _seq: int = 0

    def __enter__(self) -> SimulatedLake:
        import duckdb

        from deltaworks.specs.notice_delay import rule_tables

        spec = self.catalog.pipeline(self.traffic.world)
        read = set().union(*(rule_tables(spec, rule) for rule in spec.rules))
        gold = {table.name: table for table in spec.gold.tables if table.name in read and table.name != "eps_known"}
        landed = read | {name for table in gold.values() for name in table.reads}
        self.gold = sorted(gold)
        self.tables = sorted(table.name for table in spec.tables if table.name in landed)
        self.connection = duckdb.connect(":memory:", config={"threads": 2, "memory_limit": "2GB"})
        self.connection.execute("SET TimeZone = 'UTC'")
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def commits(
        self, first: dt.datetime, until: dt.datetime, phase_seconds: float
    ) -> Iterator[tuple[dt.datetime, Any]]:
        """Yields the time of each commit and a function that performs it, in order of time."""
        trigger = dt.timedelta(seconds=self.catalog.pipeline(self.traffic.world).stream.trigger_seconds)
        self._generated_until = first
        tick = first + dt.timedelta(seconds=phase_seconds)
        while tick < until:
            yield tick + dt.timedelta(seconds=COMMIT_SECONDS), partial(self._land_arrived, tick)
            if self.gold:
                yield tick + dt.timedelta(seconds=GOLD_SECONDS), self.build
            tick += trigger

    def _land_arrived(self, until: dt.datetime) -> None:
        minutes = SESSION_MINUTES if self.traffic.world == "stocks" else 1
        while self._generated_until is not None and self._generated_until <= until:
            self.traffic.generate(self.connection, self._generated_until, minutes)
            self.began_at = self.began_at or first_bad_time(self.connection, self.traffic.world)
            self.connection.execute("CREATE TABLE IF NOT EXISTS waiting AS SELECT * FROM traffic LIMIT 0")
            self.connection.execute("INSERT INTO waiting SELECT * FROM traffic WHERE NOT is_removed")
            # A session of shares arrives once.
            is_last = self.traffic.world == "stocks"
            self._generated_until = None if is_last else self._generated_until + dt.timedelta(minutes=minutes)
        self.land("waiting", until)
        self.connection.execute("DELETE FROM waiting WHERE arrives_at <= ?", [until])

    def land(self, rows: str, until: dt.datetime) -> None:
        """Commits the rows of a table of the connection that have arrived by then, in one batch."""
        self.connection.execute(
            f"CREATE OR REPLACE TEMP VIEW batch AS SELECT * FROM {rows} "
            f"WHERE NOT is_removed AND arrives_at <= '{until:%Y-%m-%d %H:%M:%S.%f}+00'"
        )
        self._seq += 1
        for table in self.tables:
            self.append(table, ingested_at=until)

    def append(self, table: str, *, ingested_at: dt.datetime) -> None:
        """Appends the rows of `batch` to a bronze table, and to a table of the connection that gold reads."""
        select = BRONZE[self.traffic.world, table]
        rows = self.connection.execute(
            f"SELECT event_time::DATE AS event_date, *, ?::TIMESTAMPTZ AS _ingested_at, {self._seq}::BIGINT AS _seq, "
            f"0::BIGINT AS _position FROM (SELECT {select})",
            [ingested_at],
        ).to_arrow_table()
        if rows.num_rows:
            self.write(table, rows)
        if self.gold:
            self.connection.register("appended", rows)
            exists = f"INSERT INTO {table}" if self._seq > 1 else f"CREATE OR REPLACE TABLE {table} AS"
            self.connection.execute(f"{exists} SELECT * FROM appended")

    def build(self) -> None:
        """Commits gold of all rows that have landed, in place of its dates."""
        for table in self.gold:
            rows = self.gold_rows(table)
            for date in sorted({str(day) for day in rows.column("event_date").to_pylist()}):
                self.write(table, rows, mode="overwrite", predicate=f"event_date = '{date}'")

    def gold_rows(self, table: str) -> Any:
        """Returns the rows of a gold table, by its SQL over the tables of the connection."""
        import sqlglot

        spec = self.catalog.pipeline(self.traffic.world)
        (declared,) = [item for item in spec.gold.tables if item.name == table]
        text = (self.catalog.folder(spec.pipeline) / declared.sql).read_text(encoding="utf-8")
        (translated,) = sqlglot.transpile(text, read="spark", write="duckdb")
        return self.connection.execute(translated).to_arrow_table()

    def write(self, table: str, rows: Any, **options: Any) -> None:
        """Writes rows to a table of the lake; appends by default."""
        from deltalake import write_deltalake

        from deltaworks.control import paths

        uri = self.catalog.environment.lake.uri(paths.table(self.traffic.world, table))
        partition = {} if table in ("eps_known", "splits") else {"partition_by": ["event_date"]}
        write_deltalake(uri, rows, **{"mode": "append", **partition, **options})
