"""Answers committed without Spark leave the expected rows; a small build overtaken before its commit plans again.

Tables, plans and commits are those of the product; only Spark's answers come from DuckDB.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pyarrow as pa
import pyarrow.parquet
import pytest
from deltalake import Schema
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConcurrencyError
from deltaworks.gold import build, table_build, table_commit
from deltaworks.gold.build import GoldBuildResult, rebuild_gold
from deltaworks.gold.file_scan import FileScan, file_paths
from deltaworks.gold.parts import Part, hours_of_dates, part_from_hours
from deltaworks.gold.pinned_inputs import PinnedInput, pin_inputs, read_built_from
from deltaworks.gold.plan import GoldPlan
from deltaworks.gold.table_build import GoldTableResult, build_table
from deltaworks.gold.table_commit import write_small_answer
from deltaworks.specs.gold import DedupeSpec, GoldTableSpec
from deltaworks.tables import files_commit
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import read_commits, state_at
from deltaworks.tables.rewrite import ReplaceOutcome
from deltaworks.testing import append_rows, local_lake, present
from tests.spark.gold.traffic_data import FIRST, request
from tests.unit.gold.gold_planning import planned_answer
from tests.unit.gold.test_grain import PlannedTraffic
from tests.unit.tables.log_model import drop_statistics

KEY, DATES = "gold/minutes", [dt.date(2026, 3, 1), dt.date(2026, 3, 2)]
SCHEMA = pa.schema(
    [("event_date", pa.date32()), ("minute", pa.timestamp("us", tz="UTC")), ("edge", pa.string()), ("n", pa.int64())]
)
TABLE = GoldTableSpec.model_validate(
    {"name": "minutes", "sql": "-", "reads": ["r"], "partition_by": "event_date", "grain": {"column": "minute"}}
)
#: By minute and edge.
Rows = dict[tuple[dt.datetime, str], int]


class Minutes:
    """A gold table of minutes, and its expected rows."""

    def __init__(self, folder: Path) -> None:
        self.lake = local_lake(folder)
        self.expected: Rows = {}
        self._builds = 0

    def arrow(self, rows: Rows) -> pa.Table:
        listed = [{"event_date": at.date(), "minute": at, "edge": edge, "n": n} for (at, edge), n in rows.items()]
        return pa.Table.from_pylist(listed, schema=SCHEMA)

    def append(self, rows: Rows) -> None:
        """Writes a file per date, like a full build."""
        self._builds += 1
        append_rows(self.lake, KEY, self.arrow(rows), number=self._builds, partition_by=["event_date"])
        self.expected |= rows

    def build(self, part: Part, rows: Rows, *, step: int | None = None, state: Any = None) -> ReplaceOutcome | None:
        self._builds += 1
        outcome = write_small_answer(
            answered(self.arrow(rows)),
            self.lake,
            state or self.state(),
            TABLE,
            part,
            predicate=part.condition("event_date", "minute"),
            step=Step("builds", step or self._builds),
            user_metadata="{}",
        )
        if outcome is not None and outcome.version is not None:
            self.expected = {at: n for at, n in self.expected.items() if not within(at[0], part)} | rows
        return outcome

    def state(self) -> Any:
        return state_at(self.lake, LocalObjects(Path(self.lake.storage.prefix)), KEY)

    def rows(self) -> Rows:
        listed = present(self.lake.rows(KEY)).to_pylist()
        rows = {(row["minute"], row["edge"]): row["n"] for row in listed}
        assert len(rows) == len(listed), "a row is there twice"
        return rows


def answered(rows: pa.Table) -> Any:
    """A stand-in for Spark's frame."""
    return SimpleNamespace(limit=lambda most: SimpleNamespace(toArrow=lambda: rows.slice(0, most)))


def within(at: dt.datetime, part: Part) -> bool:
    """Oracle: the rows of a part: its dates, its open range, and its hours."""
    since = part.since is not None and at.date() >= part.since
    return at.date() in (part.values or ()) or since or at.replace(minute=0) in (part.hours or ())


def some_rows(chosen: random.Random, part: Part | None = None) -> Rows:
    hours = sorted(hours_of_dates(DATES))
    times = [chosen.choice(hours) + dt.timedelta(minutes=chosen.randrange(60)) for _ in range(40)]
    return {(at, chosen.choice("ab")): chosen.randrange(99) for at in times if part is None or within(at, part)}


def some_part(chosen: random.Random) -> Part:
    hours = chosen.sample(sorted(hours_of_dates(DATES)), chosen.choice((1, 1, 2, 5)))
    whole = hours_of_dates([chosen.choice(DATES)]) if chosen.random() < 0.2 else set()
    return part_from_hours("event_date", {*hours, *whole}, DATES[1] if chosen.random() < 0.1 else None)


@pytest.fixture
def minutes(tmp_path: Path) -> Minutes:
    return Minutes(tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_rows_match_full_overwrites(minutes: Minutes, seed: int) -> None:
    chosen = random.Random(seed)
    minutes.append(some_rows(chosen))
    for turn in range(10):
        part = some_part(chosen)
        assert minutes.build(part, some_rows(chosen, part)) is not None
        assert minutes.rows() == minutes.expected, (seed, turn, part)
        assert minutes.state().rows == len(minutes.expected)
        if turn == 5:
            opened = present(minutes.lake.open(KEY))
            opened.optimize.compact()


def test_an_hour_with_its_own_file_is_replaced_without_reading(minutes: Minutes) -> None:
    chosen = random.Random(1)
    minutes.append(some_rows(chosen))
    hour = dt.datetime(2026, 3, 2, 5, tzinfo=dt.UTC)
    part = part_from_hours("event_date", [hour])
    first = minutes.build(part, {(hour, "a"): 1})
    second = minutes.build(part, {(hour, "a"): 2, (hour, "b"): 3})

    assert first is not None
    assert second is not None
    assert first.copied_rows > 0, "the date's only file was divided"
    assert (second.rows, second.copied_rows) == (2, 0)
    ((_, actions),) = read_commits(minutes.lake, KEY, [second.version or 0])
    assert sum("remove" in action for action in actions or ()) == 1
    assert minutes.rows() == minutes.expected


def test_concurrent_commits_stay_and_a_build_with_the_same_number_fails(
    minutes: Minutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = dt.datetime(2026, 3, 2, 5, tzinfo=dt.UTC)
    part = part_from_hours("event_date", [hour])
    minutes.append({(hour, "a"): 1})
    older = minutes.state()
    minutes.append({(hour + dt.timedelta(hours=1), "b"): 7})
    assert minutes.build(part, {(hour, "a"): 2}, step=5, state=older) is not None
    assert minutes.rows() == minutes.expected, "appended between the reading and the commit"

    newest = minutes.rows()
    late = minutes.build(part, {(hour, "a"): 1}, step=5, state=older)
    assert late == ReplaceOutcome(None)
    assert minutes.rows() == newest

    # Without the number an older answer overwrites a newer one.
    monkeypatch.setattr(files_commit, "is_step_committed", lambda state, step: False)
    minutes.build(part, {(hour, "a"): 1}, step=5, state=older)
    assert minutes.rows() != newest


def test_a_table_replaced_concurrently_is_not_changed(minutes: Minutes, monkeypatch: pytest.MonkeyPatch) -> None:
    hour = dt.datetime(2026, 3, 2, 5, tzinfo=dt.UTC)
    minutes.append({(hour, "a"): 1})
    older = minutes.state()
    opened = present(minutes.lake.open(KEY))
    opened.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})

    assert minutes.build(part_from_hours("event_date", [hour]), {(hour, "a"): 2}) is None, "Spark writes its changes"
    monkeypatch.setattr(table_commit, "accepts_file_commits", lambda *arguments: True)
    assert minutes.build(part_from_hours("event_date", [hour]), {(hour, "a"): 2}, state=older) == ReplaceOutcome(None)
    assert minutes.rows() == {(hour, "a"): 1}


def test_large_answers_are_left_to_spark(minutes: Minutes, monkeypatch: pytest.MonkeyPatch) -> None:
    hour = dt.datetime(2026, 3, 2, 5, tzinfo=dt.UTC)
    minutes.append({(hour, "a"): 1})
    monkeypatch.setattr(table_commit, "MAX_COLLECTED_ROWS", 1)

    assert minutes.build(part_from_hours("event_date", [hour]), {(hour, "a"): 2, (hour, "b"): 2}) is None
    assert minutes.rows() == {(hour, "a"): 1}


@pytest.mark.parametrize("seed", range(3))
def test_all_files_that_may_contain_rows_are_read(minutes: Minutes, seed: int) -> None:
    chosen = random.Random(seed)
    for _ in range(12):
        part = some_part(chosen)
        minutes.append(some_rows(chosen, part) or {(dt.datetime(2026, 3, 1, tzinfo=dt.UTC), "z"): 1})
    opened = present(minutes.lake.open(KEY))
    root, fewer = Path(minutes.lake.storage.prefix) / KEY, 0
    paths = [added["path"] for added in minutes.state().files.values()]
    for _ in range(10):
        part = some_part(chosen)
        scan = FileScan(KEY, opened.version(), part, "event_date", "minute")
        taken = set(file_paths(opened, scan))
        needed = {
            path
            for path in paths
            if any(within(at, part) for at in pa.parquet.read_table(root / path).column("minute").to_pylist())
        }
        assert needed <= taken <= set(paths)
        fewer += len(taken) < len(paths)
    assert fewer, "some files were left out"


def test_rows_beside_files_of_unknown_length_are_written_by_spark(minutes: Minutes) -> None:
    chosen = random.Random(1)
    minutes.append(some_rows(chosen))
    drop_statistics(minutes.lake, KEY)

    assert minutes.build(some_part(chosen), {}) is None


MINUTES, TREND = "edge_minutes", "edge_trend"
NO_SPARK = cast(SparkSession, None)
Pinned = dict[str, PinnedInput]


class Views:
    """The inputs of a build, without a Spark session."""

    def __init__(
        self, spark: SparkSession, lake: Lake, inputs: Mapping[str, PinnedInput], dedupe: DedupeSpec | None
    ) -> None:
        self.lake, self.inputs, self.dedupe = lake, inputs, dedupe

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def prepare(self, plans: object) -> None: ...

    def count_duplicates(self, names: object, part: object) -> int:
        return 0


class TheirViews(Views):
    """The inputs of the other builder."""


class Overtaken:
    """Traffic with outdated gold: requests came in two more commits, `older` and `newest`.

    `meanwhile` is called at each build once its answer is computed, before the commit.
    """

    def __init__(self, folder: Path) -> None:
        self.traffic = PlannedTraffic(folder)
        self.traffic.land([request(hour, f"old {hour}") for hour in range(4)])
        for table in (MINUTES, TREND):
            self.traffic.build(table)
        self.traffic.land([request(2.5, "older")])
        self.older = self.pinned()
        self.traffic.land([request(2.75, "newest")])
        self.meanwhile: Callable[[], object] = lambda: None
        self.answers = 0

    def pinned(self) -> Pinned:
        return pin_inputs(self.traffic.lake, self.traffic.catalog.pipeline("traffic"), ["requests"])

    def answer(self, spark: Any, plan: GoldPlan, views: Any, *, sql: str, sql_path: Path) -> Any:
        """In place of Spark's answer: a frame with columns and rows."""
        rows = planned_answer(views.lake, plan, sql, views.inputs, views.dedupe)
        if not isinstance(views, TheirViews):
            self.answers += 1
            self.meanwhile()
        return SimpleNamespace(
            schema=StructType.fromJson(json.loads(Schema.from_arrow(rows.schema).to_json())),
            limit=lambda most: SimpleNamespace(toArrow=lambda: rows.slice(0, most)),
        )

    def other_builds(self, pinned: Pinned, table: str = MINUTES, **options: Any) -> GoldTableResult:
        """Runs another builder's build with its pinned inputs."""
        traffic = self.traffic
        spec = traffic.catalog.pipeline("traffic")
        job = traffic.plan(table, pinned=pinned, **options)
        views = cast(Any, TheirViews(NO_SPARK, traffic.lake, pinned, spec.gold.dedupe))
        return build_table(NO_SPARK, traffic.lake, spec, job, views)[1]

    def build(self, table: str = MINUTES, **options: Any) -> GoldTableResult:
        result: GoldBuildResult = rebuild_gold(NO_SPARK, self.traffic.catalog, "traffic", tables=[table], **options)
        return result.table(table)

    @property
    def is_fresh(self) -> bool:
        """Whether the table was recorded as up to date."""
        return self.traffic.lake.objects.get(paths.gold_state("traffic", MINUTES)) is not None


@pytest.fixture
def gold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Overtaken:
    gold = Overtaken(tmp_path)
    monkeypatch.setattr(build, "InputViews", Views)
    monkeypatch.setattr(table_build, "compute_answer", gold.answer)
    return gold


def once(work: Callable[[], object]) -> Callable[[], None]:
    left = [work]

    def run() -> None:
        if left:
            left.pop()()

    return run


def test_a_build_overtaken_by_older_inputs_plans_again_and_commits(gold: Overtaken) -> None:
    gold.meanwhile = once(lambda: gold.other_builds(gold.older))

    result = gold.build()

    gold.traffic.holds(MINUTES)
    assert gold.answers == 2
    assert not result.skipped
    assert result.built_from == {"requests": gold.traffic.version()}
    assert read_built_from(gold.traffic.lake, paths.table("traffic", MINUTES)).versions == result.built_from
    assert gold.is_fresh


def test_without_planning_again_rows_would_be_missing(gold: Overtaken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_MAX_REPLANS", 0)
    gold.meanwhile = once(lambda: gold.other_builds(gold.older))

    result = gold.build()

    assert result.skipped
    assert not gold.is_fresh, "nobody is told that it is up to date"
    with pytest.raises(AssertionError):
        gold.traffic.holds(MINUTES)


def test_a_build_overtaken_by_newer_inputs_keeps_the_newer_answer(gold: Overtaken) -> None:
    def overtake() -> None:
        gold.traffic.land([request(3.25, "newer still")])
        gold.other_builds(gold.pinned())

    gold.meanwhile = once(overtake)

    result = gold.build()

    gold.traffic.holds(MINUTES)
    assert (gold.answers, result.skipped) == (1, True)
    assert "with newer versions of requests" in result.reason
    assert gold.is_fresh


def test_a_build_that_is_always_overtaken_gives_up_with_a_reason(gold: Overtaken) -> None:
    gold.meanwhile = lambda: gold.other_builds(gold.older, dates=frozenset([FIRST.date()]))

    result = gold.build()

    assert gold.answers == 4, "the build and three more"
    assert result.skipped
    assert result.reason == build._OVERTAKEN_REASON
    assert not gold.is_fresh
    gold.meanwhile = lambda: None
    assert not gold.build().skipped, "the next one goes on from there"
    gold.traffic.holds(MINUTES)


@pytest.mark.parametrize(
    ("table", "options"),
    [
        pytest.param(TREND, {}, id="that the stream does not build"),
        pytest.param(MINUTES, {"dates": frozenset([FIRST.date()])}, id="of dates that were asked for"),
    ],
)
def test_a_requested_build_fails_if_overtaken(
    gold: Overtaken, table: str, options: dict[str, frozenset[dt.date]]
) -> None:
    gold.meanwhile = lambda: gold.other_builds(gold.older, table)

    with pytest.raises(ConcurrencyError, match="GOLD_OVERTAKEN"):
        gold.build(table, **options)
    gold.meanwhile = lambda: None
    gold.build(table)
    gold.traffic.holds(table)


@pytest.mark.parametrize(
    "text",
    [
        "io.delta.exceptions.ConcurrentTransactionException: [DELTA_CONCURRENT_TRANSACTION] a concurrent update",
        "io.delta.exceptions.ConcurrentAppendException: [DELTA_CONCURRENT_APPEND] Files were added to partition",
        "io.delta.exceptions.MetadataChangedException: [DELTA_METADATA_CHANGED]",
        "io.delta.exceptions.ProtocolChangedException: [DELTA_PROTOCOL_CHANGED]",
    ],
)
def test_a_conflict_that_sparks_writer_reports_is_an_overtaken_build(
    gold: Overtaken, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def conflict(*arguments: object, **options: object) -> None:
        raise RuntimeError(f"An error occurred while calling o12.save.\n: {text}\n\tat org.apache.spark.sql…")

    monkeypatch.setattr(table_commit, "write_small_answer", lambda *arguments, **options: None)
    monkeypatch.setattr(table_commit, "_write", conflict)

    with pytest.raises(ConcurrencyError, match="GOLD_OVERTAKEN"):
        gold.build(TREND)
