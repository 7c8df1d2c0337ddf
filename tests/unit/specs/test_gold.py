"""Gold tables: build order, cycles, inputs from other pipelines, and rebuilds by hours."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltaworks.errors import ConfigError
from deltaworks.gold.pinned_inputs import fingerprint
from deltaworks.specs.checks.gold_sql import gold_sql_errors
from deltaworks.specs.gold import AffectsSpec, DedupeSpec, GoldTableSpec, GrainSpec, build_order, names_read
from deltaworks.specs.loading import read_declaration
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.testing import pipeline_spec, write_files
from tests.unit.specs.conftest import PIPELINE


def table(name: str, *reads: str) -> GoldTableSpec:
    return GoldTableSpec(name=name, sql=f"{name}.sql", reads=reads, partition_by="event_date")


def test_tables_are_in_dependency_order_otherwise_as_declared() -> None:
    declared = [table("c", "b"), table("a", "events"), table("b", "a", "events"), table("d", "events")]

    order = [item.name for item in build_order(declared)]

    assert order.index("a") < order.index("b") < order.index("c")
    assert [item.name for item in build_order([table("y", "events"), table("x", "events")])] == ["y", "x"]


@pytest.mark.parametrize(
    "tables", [[table("a", "b"), table("b", "c"), table("c", "a")], [table("a", "a")]], ids=["three", "itself"]
)
def test_a_cycle_is_rejected_with_its_names(tables: list[GoldTableSpec]) -> None:
    with pytest.raises(ValueError, match="form a cycle: ") as rejection:
        build_order(tables)

    assert all(item.name in str(rejection.value) for item in tables)


def declared(**gold: object) -> PipelineSpec:
    return pipeline_spec(
        {"name": "events", "catch_all": True}, event={"name": {"path": "name"}, "time": {"path": "time"}}, gold=gold
    )


def test_gold_tables_can_read_each_other_without_a_cycle() -> None:
    daily, busiest = table("daily", "events"), table("busiest", "daily")

    assert declared(tables=[busiest.model_dump(), daily.model_dump()]).gold.tables
    with pytest.raises(ValueError, match="form a cycle: "):
        declared(tables=[table("daily", "busiest").model_dump(), busiest.model_dump()])
    with pytest.raises(ValueError, match="reads unknown table"):
        declared(tables=[table("daily", "weekly").model_dump()])


FACTS = {"name": "facts", "sql": "f.sql", "reads": ["orders"], "partition_by": "valid_year", "affects": "all"}
INTERVALS = {"intervals": {"by": "ticker", "from": "valid_from", "to": "valid_to"}}
REFERENCE = {"name": "splits", "file": "splits.csv", "key": "d", "columns": [{"name": "d", "type": "date"}]}


def as_of(affects: object, *, facts: dict[str, object] | None = None, dated: bool = True) -> PipelineSpec:
    reads = ["orders", "facts", "splits"]
    known = {"name": "known", "sql": "k.sql", "reads": reads, "partition_by": "event_date", "affects": affects}
    reference = REFERENCE | ({"effective_date": "d"} if dated else {})
    gold = {"tables": [FACTS | {"checks": INTERVALS} | (facts or {}), known]}
    plain = declared().model_dump(mode="json")
    orders = {"name": "orders", "when": {"name": "order"}}
    return PipelineSpec.model_validate(plain | {"tables": [orders], "gold": gold, "references": [reference]})


EACH = {"orders": {"days": [0]}, "facts": "onwards", "splits": "onwards"}


def test_effects_can_be_declared_per_input() -> None:
    spec = as_of(EACH)

    known = spec.gold.tables[1]
    assert known.is_partitioned_by_date
    assert [known.affects_for_input(name) for name in known.reads] == [AffectsSpec(), "onwards", "onwards"]
    assert PipelineSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert spec.gold.tables[0].checks.model_dump(mode="json")["intervals"] == {
        "by": ["ticker"],
        "from": "valid_from",
        "to": "valid_to",
    }


def test_onwards_needs_a_date_or_intervals() -> None:
    with pytest.raises(ValueError, match=r"declare `checks\.intervals` of that table"):
        as_of(EACH, facts={"checks": {}})
    with pytest.raises(ValueError, match="declare `effective_date` of the reference"):
        as_of(EACH, dated=False)
    with pytest.raises(ValueError, match="'splits' is not partitioned by date"):
        as_of(EACH | {"splits": {"days": [0]}})
    as_of(EACH | {"splits": "all"}, dated=False)


def test_effects_cover_exactly_the_inputs() -> None:
    with pytest.raises(ValueError, match="'splits' is missing"):
        as_of({"orders": {"days": [0]}, "facts": "onwards"})
    with pytest.raises(ValueError, match="does not read 'fact'; did you mean 'facts'"):
        as_of(EACH | {"fact": "onwards"})


def test_intervals_need_a_complete_rebuild() -> None:
    with pytest.raises(ValueError, match="intervals cannot be checked because"):
        as_of(EACH, facts={"affects": {"days": [0]}})


def declare(root: Path, name: str, *reads: str, affects: str = "{days: [0]}", partition_by: str = "event_date") -> None:
    """A pipeline whose one gold table, `daily`, reads these."""
    sql = f"SELECT {partition_by} FROM {reads[0].replace('.', '__')}"
    table = (
        f"name: daily, sql: daily.sql, reads: [{', '.join(reads)}], partition_by: {partition_by}, affects: {affects}"
    )
    gold = f"gold:\n  tables: [{{{table}}}]\n"
    text = PIPELINE.replace("pipeline: shop", f"pipeline: {name}") + gold
    write_files(root / "include/pipelines" / name, {"daily.sql": sql, "pipeline.yaml": text})


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    root = make_project()
    declare(root, "shop", "orders")
    return root


def rejection_of(root: Path) -> str:
    with pytest.raises(ConfigError) as rejection:
        load_catalog("local", root=root)
    return str(rejection.value)


def test_a_table_of_another_pipeline_is_read_by_its_full_name(root: Path) -> None:
    declare(root, "board", "shop.daily", "orders")

    gold = load_catalog("local", root=root).pipeline("board").gold

    assert gold.cross_pipeline_inputs == (("shop", "daily"),)


@pytest.mark.parametrize(
    ("read", "messages"),
    [
        ("shpo.daily", "there is no pipeline 'shpo'; did you mean 'shop'?"),
        ("shop.dayly", "the pipeline 'shop' has no gold table of that name; did you mean 'daily'?"),
        ("shop.orders", "the pipeline 'shop' has no gold table of that name"),
        ("board.daily", "omit the name of the pipeline itself: write daily"),
        ("lake.shop.daily", "write the name of a table, or pipeline.table for a gold table of another pipeline"),
    ],
)
def test_unknown_names_are_rejected_with_line_and_closest_name(root: Path, read: str, messages: str) -> None:
    declare(root, "board", read)

    rejection = rejection_of(root)

    assert messages in rejection
    assert "board/pipeline.yaml:" in rejection
    assert "gold.tables" in rejection


def test_tables_that_change_by_value_share_the_column_of_their_values(root: Path) -> None:
    declare(root, "board", "shop.daily", affects="same", partition_by="country")

    assert "requires that it is partitioned by 'country' too" in rejection_of(root)


def test_cycles_of_pipelines_are_rejected_across_tables(root: Path) -> None:
    declare(root, "board", "shop.daily")
    declare(root, "report", "board.daily")
    declare(root, "shop", "report.daily")

    rejection = rejection_of(root)

    assert "gold of board reads gold of shop reads gold of report reads gold of board" in rejection


def test_a_pipeline_that_others_read_can_be_deselected(root: Path) -> None:
    declare(root, "board", "shop.daily")

    assert list(load_catalog("local", root=root, only=["board"]).pipelines) == ["board"]


MINUTES = {
    "name": "minutes",
    "sql": "m.sql",
    "reads": ["requests"],
    "partition_by": "event_date",
    "grain": {"column": "minute", "part": "hour"},
}
DEDUPE = {"by": "event_id", "within_hours": 1}


def hourly(*, dedupe: Any = DEDUPE, **changes: Any) -> PipelineSpec:
    return pipeline_spec(
        {"name": "requests", "catch_all": True},
        pipeline="traffic",
        event={"name": {"path": "name"}, "time": {"path": "time"}},
        gold={"dedupe": dedupe, "tables": [MINUTES | changes]},
    )


def test_an_hour_affects_itself_by_default() -> None:
    spec = hourly(lag="60s")
    (table,) = spec.gold.tables

    assert (table.grain, table.affects) == (GrainSpec(column="minute"), AffectsSpec(hours=(0,)))
    assert spec.gold.stream_refreshed_tables == (table,)
    assert PipelineSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert hourly(affects={"hours": [0, -1]}).gold.tables[0].affects == AffectsSpec(hours=(0, -1))
    assert hourly(dedupe=None).gold.stream_refreshed_tables == ()


@pytest.mark.parametrize(
    ("changes", "rejection_of"),
    [
        ({"grain": {"column": "event_date"}}, "'event_date' is the partition date of 'minutes'; use a time"),
        ({"affects": "all"}, "`affects: all` does not rebuild by hours; remove `grain`, or write hours"),
        ({"affects": "same"}, "`affects: same` does not rebuild by hours"),
        ({"affects": {"days": [0]}}, r"complete dates would be rebuilt despite `grain`; write hours: \[0\]"),
        ({"affects": {"days": [-1], "hours": [0]}}, r"either hours or days; write days as hours: \[-24\]"),
        ({"affects": {"requests": {"days": [-1], "hours": [0]}}}, "either hours or days"),
        ({"grain": None, "affects": {"hours": [0]}}, "'minutes' is rebuilt by dates; write days"),
        ({"grain": None, "affects": {"requests": {"hours": [0]}}}, "'minutes' is rebuilt by dates; write days"),
        (
            {"dedupe": {"by": "event_id"}},
            "duplicates that are dates apart would rebuild complete dates",
        ),
        ({"grain": {"column": "minute", "part": "day"}}, "Input should be 'hour'"),
        ({"lag": "4s"}, "write at least 5s"),
        ({"lag": 60}, "write a duration with its unit"),
        ({"dedupe": {"by": "event_id", "within_hours": -1}}, "greater than or equal to 0"),
    ],
)
def test_conflicts_with_a_grain_are_rejected_with_advice(changes: dict[str, Any], rejection_of: str) -> None:
    with pytest.raises(ValueError, match=rejection_of):
        hourly(**changes)


def test_a_missing_grain_column_is_found_in_the_sql(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text("pipeline: traffic\ngold:\n  tables:\n    - name: minutes\n      grain: {column: minute}\n")
    (tmp_path / "m.sql").write_text("SELECT event_date, date_trunc('MINUTE', event_time) AS minutes FROM requests")

    (spec_error,) = gold_sql_errors(hourly(), read_declaration(path))

    assert spec_error.text.startswith("the result of m.sql has no column 'minute'; did you mean 'minutes'?")
    assert (spec_error.key, spec_error.line) == ("gold.tables.0.grain.column", 5)


def test_fingerprints_do_not_depend_on_the_refresh_interval_or_the_unused_dedupe_window() -> None:
    daily = GoldTableSpec(name="daily", sql="d.sql", reads=("requests",), partition_by="event_date")
    minutes = GoldTableSpec.model_validate(MINUTES)

    def digest(table: GoldTableSpec, **dedupe: int) -> str:
        return fingerprint(table, "SELECT 1", DedupeSpec(**dedupe), {})

    assert digest(daily) == digest(daily, within_hours=3) != digest(daily, within_days=2)
    assert digest(minutes, within_hours=1) == digest(minutes, within_hours=1, within_days=2) != digest(minutes)
    often = minutes.model_copy(update={"lag": dt.timedelta(minutes=1)})
    assert digest(often, within_hours=1) == digest(minutes, within_hours=1)


def lags_of(**lags: str | None) -> PipelineSpec:
    """A pipeline whose gold tables each read the one before; the first reads events."""
    names = ["requests", *lags]
    tables = [
        {"name": name, "sql": "x.sql", "reads": [names[number]], "partition_by": "event_date"}
        | ({} if lag is None else {"lag": lag})
        for number, (name, lag) in enumerate(lags.items())
    ]
    return pipeline_spec({"name": "requests", "catch_all": True}, gold={"lag": "15m", "tables": tables})


def test_inputs_of_gold_inherit_the_smallest_lag_of_their_readers() -> None:
    gold = lags_of(first="1h", second=None, third="10s", fourth="1d").gold

    assert {name: gold.lag_of(name) for name in ("first", "second", "third", "fourth")} == {
        "first": dt.timedelta(seconds=10),
        "second": dt.timedelta(seconds=10),
        "third": dt.timedelta(seconds=10),
        "fourth": dt.timedelta(days=1),
    }
    assert [table.name for table in gold.stream_refreshed_tables] == ["first", "second", "third"]
    assert gold.schedule == "0 3 * * *"


@pytest.mark.parametrize(
    ("lag", "schedule"),
    [
        ("5m", "*/5 * * * *"),
        ("7m", "*/6 * * * *"),
        ("15m", "*/15 * * * *"),
        ("45m", "*/30 * * * *"),
        ("1h", "0 */1 * * *"),
        ("5h", "0 */4 * * *"),
        ("30h", "0 3 * * *"),
        ("10s", "*/15 * * * *"),
    ],
)
def test_the_gold_dag_runs_at_least_as_often_as_the_smallest_lag_beyond_the_streams(lag: str, schedule: str) -> None:
    assert lags_of(only=lag).gold.schedule == schedule


def test_gold_without_a_lag_has_no_schedule_and_is_left_to_no_stream() -> None:
    spec = hourly()

    assert (spec.gold.schedule, spec.gold.lag_of("minutes"), spec.gold.stream_refreshed_tables) == (None, None, ())


PERSONAL_WIDGET = """\
pipeline: games
description: games
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: deltaworks-landing, prefix: games/}
event: {name: {path: name}, time: {path: time}}
private: [{path: address, keep: network}]
tables:
  - name: plays
    when: {name: play}
    columns: [{name: title, path: title, type: string}, {name: home, path: address, type: string}]
views:
  - {name: popular, sql: popular.sql, reads: [plays], widget: {}}
"""


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT title, count(*) AS n FROM plays GROUP BY title", ""),
        ("SELECT title, count(DISTINCT home) AS homes FROM plays GROUP BY title", ""),
        ("SELECT title, home FROM plays", "popular.sql has the personal column 'home'"),
        ("SELECT * FROM plays", "personal column"),
    ],
)
def test_a_widget_shows_no_personal_columns(tmp_path: Path, sql: str, message: str) -> None:
    (tmp_path / "pipeline.yaml").write_text(PERSONAL_WIDGET)
    (tmp_path / "popular.sql").write_text(sql)

    declaration = read_declaration(tmp_path / "pipeline.yaml")

    errors = [*gold_sql_errors(PipelineSpec.model_validate(declaration.data), declaration)]

    assert [error.key for error in errors] == ["views.0.widget"] * (len(errors) if message else 0)
    assert any(message in error.text for error in errors) == bool(message)


def test_names_are_followed_by_those_that_their_views_read_each_once() -> None:
    views = {"upper": ("lower", "clicks"), "lower": ("clicks", "orders"), "unused": ("visits",)}

    assert names_read(views, ["upper", "people"]) == ["upper", "people", "lower", "clicks", "orders"]
    assert names_read({"one": ("two",), "two": ("one",)}, ["one"]) == ["one", "two"]
