"""A small build overtaken between plan and commit plans again, and its rows are committed.

Tables, plans and commits are those of the product; only Spark's answers come from DuckDB.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
from deltalake import Schema
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from deltaworks.control import paths
from deltaworks.errors import ConcurrencyError
from deltaworks.gold import build, table_build
from deltaworks.gold.build import GoldBuildResult, rebuild_gold
from deltaworks.gold.input_views import PinnedInput, pin_inputs, read_built_from
from deltaworks.gold.plan import GoldPlan
from deltaworks.gold.table_build import GoldTableResult, build_table
from deltaworks.specs.gold import DedupeSpec
from deltaworks.tables.lake import Lake
from tests.spark.gold.traffic_data import FIRST, request
from tests.unit.gold.gold_planning import planned_answer
from tests.unit.gold.test_grain import PlannedTraffic

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
        return build_table(NO_SPARK, traffic.lake, spec, job, views)

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

    monkeypatch.setattr(table_build, "write_small_answer", lambda *arguments, **options: None)
    monkeypatch.setattr(table_build, "_write", conflict)

    with pytest.raises(ConcurrencyError, match="GOLD_OVERTAKEN"):
        gold.build(TREND)
