"""Gold kept up by partial sums equals the SQL over all rows, whatever happens to the input between two looks."""

from __future__ import annotations

import datetime as dt
import re
import tempfile
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.errors import TransientError
from deltaworks.gold import incremental as module
from deltaworks.gold.incremental import IncrementalGold
from deltaworks.gold.pinned_inputs import pin_inputs
from deltaworks.gold.plan import GoldPlan
from deltaworks.gold.table_build import TableJob
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.compaction import compact_partitions
from deltaworks.testing import append_rows, declare_columns, declare_table, local_lake, pipeline_spec, present
from tests.examples import examples

DATES = [dt.date(2026, 3, day) for day in range(1, 6)]
QUERIES = {
    "per_hour": """
        SELECT event_date, date_trunc('HOUR', event_time) AS hour, platform, count(*) AS events, max(level) AS best
        FROM events GROUP BY event_date, date_trunc('HOUR', event_time), platform""",
    "users": "SELECT event_date, count(DISTINCT device_id) AS users FROM events GROUP BY event_date",
    "by_platform": """
        SELECT event_date, platform, count(DISTINCT device_id) AS users, count(DISTINCT level) AS levels,
          count(level) AS leveled, count(*) AS events
        FROM events GROUP BY 1, 2""",
    "bookings": """
        SELECT e.event_date, CAST(sum(amount) AS DECIMAL(18, 2)) AS bookings, min(amount) AS least,
          coalesce(sum(level), 0) AS levels, count_if(platform = 'ios' AND level > 1) AS high
        FROM events AS e WHERE amount IS NOT NULL GROUP BY e.event_date""",
}


def shop(*, within_days: int | None = 1) -> PipelineSpec:
    columns = declare_columns("device_id string", "platform string", "amount decimal(12,2)", "level int")
    tables = [
        {"name": name, "sql": f"gold/{name}.sql", "reads": ["events"], "partition_by": "event_date"} for name in QUERIES
    ]
    dedupe = {} if within_days is None else {"dedupe": {"by": "event_id", "within_days": within_days}}
    return pipeline_spec(declare_table("events", *columns, catch_all=True), gold={"tables": tables, **dedupe})


class Shop:
    """A lake with a table of events, gold that is held from look to look, and the slow answer."""

    def __init__(self, folder: Path, *, within_days: int | None = 1) -> None:
        self.spec = shop(within_days=within_days)
        self.lake, self.key = local_lake(folder), paths.table("shop", "events")
        self.within_days = within_days
        self.held = IncrementalGold(self.lake, self.spec)
        self._seq, self._commits = 100, 0
        self.schema = arrow_schema(self.spec.table("events").column_types())

    def land(self, events: Iterable[tuple[int, str | None, str | None, int | None]], *, seq: int | None = None) -> None:
        """Appends events: the number of their date, id, device and level."""
        self._seq += 1
        self._commits += 1
        rows = [
            {
                "event_date": DATES[day],
                "event_time": dt.datetime.combine(DATES[day], dt.time(place % 3), dt.UTC),
                "event_id": event_id,
                "_seq": self._seq if seq is None else seq,
                "_position": place + 1000 * self._commits if seq is not None else place,
                "device_id": device,
                "platform": None if device is None else ("ios" if device < "c" else "android|1:"),
                "amount": None if level is None else Decimal(level) / 4,
                "level": level,
            }
            for place, (day, event_id, device, level) in enumerate(events)
        ]
        append_rows(self.lake, self.key, rows, number=self._commits, schema=self.schema, partition_by=["event_date"])

    def compact(self) -> None:
        compact_partitions(
            self.lake, self.lake.objects, self.key, None, below_bytes=1 << 20, min_files=2, user_metadata="{}"
        )

    def delete(self, device: str) -> None:
        present(self.lake.open(self.key)).delete(f"device_id = '{device}'")

    def restore(self, versions_back: int) -> None:
        table = present(self.lake.open(self.key))
        table.restore(max(0, table.version() - versions_back))

    def look(self, name: str, days: Sequence[int], engine: IncrementalGold) -> list[dict[str, Any]] | None:
        dates = frozenset(DATES[day] for day in days)
        table = next(table for table in self.spec.gold.tables if table.name == name)
        job = TableJob(
            step=Step("gold", 1),
            plan=GoldPlan(table, dates, dates, "test"),
            key=paths.table("shop", name),
            sql=QUERIES[name],
            sql_path=Path("query.sql"),
            fingerprint="1",
            inputs=pin_inputs(self.lake, self.spec, ["events"]),
        )
        answer = engine.answers([job]).get(name)
        return None if answer is None else ([] if answer.rows is None else answer.rows.to_pylist())

    def slow(self, name: str, days: Sequence[int]) -> list[dict[str, Any]]:
        """Returns the answer of the SQL over all rows that arrived first within the window."""
        rows = present(self.lake.rows(self.key)).to_pylist()
        firsts = [row for row in rows if not any(self._is_before(other, row) for other in rows)]
        chosen = [row for row in firsts if row["event_date"] in {DATES[day] for day in days}]
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("events", pa.Table.from_pylist(chosen, self.schema))
            # DuckDB's count_if of no row is null, Spark's is 0.
            sql = re.sub(r"count_if\((.*?)\)", r"count(*) FILTER (WHERE \1)", QUERIES[name])
            return connection.sql(sql).to_arrow_table().to_pylist()

    def _is_before(self, other: dict[str, Any], row: dict[str, Any]) -> bool:
        if self.within_days is None or row["event_id"] is None or other["event_id"] != row["event_id"]:
            return False
        is_near = abs((other["event_date"] - row["event_date"]).days) <= self.within_days
        return is_near and (other["_seq"], other["_position"]) < (row["_seq"], row["_position"])

    def require_equal(self, name: str, days: Sequence[int], *engines: IncrementalGold) -> None:
        expected = in_order(self.slow(name, days))
        for engine in engines or (self.held, IncrementalGold(self.lake, self.spec)):
            assert in_order(present(self.look(name, days, engine))) == expected


def in_order(rows: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Returns comparable rows: times in UTC, numbers without trailing zeros."""
    return sorted([_text(value) for value in row.values()] for row in rows)


def _text(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)).isoformat()
    return f"{value.normalize():f}" if isinstance(value, Decimal) else str(value)


EVENTS = st.lists(
    st.tuples(
        st.integers(0, len(DATES) - 1),
        st.one_of(st.none(), st.sampled_from([f"id{number}" for number in range(12)])),
        st.sampled_from([None, "a", "b", "c", "d"]),
        st.one_of(st.none(), st.integers(-2, 5)),
    ),
    min_size=1,
    max_size=8,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("land"), EVENTS),
        st.tuples(st.just("replay"), EVENTS, st.integers(1, 110)),
        st.tuples(st.just("compact")),
        st.tuples(st.just("delete"), st.sampled_from("abcd")),
        st.tuples(st.just("restore"), st.integers(1, 4)),
        st.tuples(
            st.just("look"),
            st.sampled_from(sorted(QUERIES)),
            st.sets(st.integers(0, len(DATES) - 1), min_size=1, max_size=3),
        ),
    ),
    min_size=2,
    max_size=14,
)


@settings(deadline=None, max_examples=examples(60, slow=True))
@given(steps=STEPS, within_days=st.sampled_from([None, 0, 1, 2]), max_ids=st.sampled_from([5, 10**9]))
def test_held_answers_equal_the_sql_over_all_rows(
    steps: Sequence[tuple[Any, ...]], within_days: int | None, max_ids: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, patch.object(module, "MAX_IDS", max_ids):
        events = Shop(Path(folder), within_days=within_days)
        events.land([(0, "id0", "a", 1)])
        for step in steps:
            match step:
                case ("land", rows):
                    events.land(rows)
                case ("replay", rows, seq):
                    events.land(rows, seq=seq)
                case ("look", name, days):
                    events.require_equal(name, sorted(days), events.held)
                case (verb, *arguments):
                    getattr(events, verb)(*arguments)
        for name in QUERIES:
            events.require_equal(name, range(len(DATES)))


def test_a_look_reads_the_new_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = Shop(tmp_path)
    events.land([(day, f"id{number}", "a", number) for day in (1, 2) for number in range(20)])
    events.require_equal("users", [1, 2], events.held)
    read: list[str] = []
    original = module._Input._read
    monkeypatch.setattr(
        module._Input, "_read", lambda self, file, names: read.append(file.path) or original(self, file, names)
    )

    events.land([(1, "new", "z", 1), (1, "id3", "y", 1)])
    events.compact()
    events.require_equal("users", [1, 2], events.held)

    assert len(read) == 1


def test_an_input_that_cannot_be_read_is_left_to_spark(tmp_path: Path) -> None:
    events = Shop(tmp_path)
    events.land([(1, "id1", "a", 1)])
    for file in tmp_path.rglob("*.parquet"):
        file.write_bytes(b"broken")

    assert events.look("users", [1], events.held) is None


def test_a_column_that_the_table_does_not_have_yet_is_left_to_spark(tmp_path: Path) -> None:
    events = Shop(tmp_path)
    events.schema = pa.schema([field for field in events.schema if field.name != "device_id"])
    events.land([(1, "id1", "a", 1)])

    assert events.look("users", [1], events.held) is None


def test_an_outage_of_the_storage_ends_the_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = Shop(tmp_path)
    events.land([(1, "id1", "a", 1)])
    outage = TransientError("STORAGE_UNREACHABLE", "no answer", hint="Wait.")
    monkeypatch.setattr(module._Input, "advance", Mock(side_effect=outage))

    with pytest.raises(TransientError):
        events.look("users", [1], events.held)
