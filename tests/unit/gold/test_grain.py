"""Hourly and onwards plans rebuild all differing hours and dates after late, duplicate and unstatistical rows."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.errors import ConcurrencyError
from deltaworks.gold import plan as plan_module
from deltaworks.gold import table_build
from deltaworks.gold.parts import DATE_COLUMN, Part, part_from_hours
from deltaworks.gold.pinned_inputs import pin_inputs
from deltaworks.gold.plan import GoldPlan, dated_plan, plan_rebuild
from deltaworks.gold.table_build import TableJob, plan_job
from deltaworks.specs.gold import DedupeSpec, GoldTableSpec
from deltaworks.tables import changed_hours
from deltaworks.tables import changes as changes_module
from deltaworks.tables.changes import Changes, Partition
from deltaworks.testing import load_project
from tests.examples import examples
from tests.spark.gold.traffic_data import (
    FIRST,
    SQL,
    TABLES,
    TRAFFIC,
    Row,
    Traffic,
    deduplicated,
    expected,
    live_through,
    request,
)
from tests.unit.gold.gold_planning import build_planned, empty_database

HOUR = dt.timedelta(hours=1)


class PlannedTraffic(Traffic):
    """Traffic whose gold is planned by the product and built by DuckDB."""

    def __init__(self, folder: Path) -> None:
        files = {f"pipelines/traffic/{name}": sql for name, sql in SQL.items()}
        super().__init__(load_project(folder / "project", TRAFFIC, lake=folder, files=files))

    def plan(self, table: str, *, pinned: Any = None, **options: Any) -> TableJob:
        spec = self.catalog.pipeline("traffic")
        declared = next(one for one in spec.gold.tables if one.name == table)
        pinned = pinned or pin_inputs(self.lake, spec, declared.reads)
        key = paths.table("traffic", table)
        return plan_job(self.catalog, spec, self.lake, declared, pinned, key=key, **options)

    def build(self, table: str) -> tuple[str, ...] | None:
        job = self.plan(table)
        if not job.plan.has_work:
            return ()
        build_planned(self.lake, "traffic", job, self.catalog.pipeline("traffic").gold.dedupe)
        return job.plan.output.labels


def test_hourly_gold_is_exact_after_late_duplicate_and_restored_rows(tmp_path: Path) -> None:
    traffic = PlannedTraffic(tmp_path)

    live_through(traffic)

    assert traffic.answer("edge_trend") == expected(traffic.requests(), trend=True)


note_hours = changed_hours.record_hours


def no_removals(hours: Any, actions: Iterable[Any], column: str) -> None:
    for action in actions:
        if "remove" in action:
            hours.setdefault(tuple(sorted(action["remove"]["partitionValues"].items())), frozenset())
    note_hours(hours, [action for action in actions if "add" in action], column)


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        pytest.param(changed_hours, "hours_of", lambda added, column: frozenset(), id="no statistics, no hours"),
        pytest.param(changed_hours, "record_hours", no_removals, id="removed files touch nothing"),
        pytest.param(changes_module, "data_change_actions", None, id="OPTIMIZE counts as a change"),
        pytest.param(plan_module, "shift_hours", lambda hours, offsets: set(hours), id="copies widen nothing"),
    ],
)
def test_without_a_protection_hourly_gold_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, instead: Callable[..., Any] | None
) -> None:
    def every(actions: Any) -> Any:
        return [action.get("add") or action.get("remove") for action in actions if {"add", "remove"} & {*action}]

    monkeypatch.setattr(module, name, instead or every)

    with pytest.raises(AssertionError):
        live_through(PlannedTraffic(tmp_path))


# Steps on the table: rows at minutes from FIRST with ids, or other changes.
LANDED = st.lists(st.tuples(st.integers(-90, 60 * 49), st.sampled_from("abcdef")), min_size=1, max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("land"), LANDED),
        st.tuples(st.just("without statistics"), LANDED),
        st.tuples(st.sampled_from(["optimize", "delete", "restore"]), st.integers(0, 9)),
    ),
    min_size=1,
    max_size=4,
)


def happen(traffic: Traffic, kind: str, detail: Any) -> None:
    if kind in ("land", "without statistics"):
        rows = [request(minutes / 60, event_id) for minutes, event_id in detail]
        traffic.land(rows, statistics=kind == "land")
    elif kind == "optimize":
        traffic._opened().optimize.compact()
    elif kind == "restore":
        if traffic.version() > 1:
            traffic.restore(1 + detail % (traffic.version() - 1))
    elif rows := traffic.requests():
        traffic.delete(rows[detail % len(rows)]["event_id"])


@settings(max_examples=examples(15), deadline=None)
@given(first=LANDED, steps=STEPS)
@example(first=[(0, "a"), (90, "a")], steps=[("land", [(45, "a")])])
@example(first=[(1439, "a")], steps=[("land", [(1441, "a")]), ("delete", 0)])
def test_changed_hours_cover_all_differences(first: Any, steps: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        traffic = PlannedTraffic(Path(folder))
        happen(traffic, "land", first)
        for table in TABLES:
            traffic.build(table)
        before = traffic.requests()
        for kind, detail in steps:
            happen(traffic, kind, detail)
        after = traffic.requests()

        for table in TABLES:
            part = traffic.plan(table).plan.output
            differing = differing_hours(before, after, trend=table == "edge_trend")
            assert all(part.contains(hour) for hour in differing), (table, part, differing)
            traffic.build(table)
            traffic.holds(table)


def differing_hours(before: list[Row], after: list[Row], *, trend: bool) -> set[dt.datetime]:
    """Slow oracle: the hours of all minutes that differ between two full answers."""
    one, other = expected(before, trend=trend), expected(after, trend=trend)
    differing = {place for place in {*one, *other} if one.get(place) != other.get(place)}
    return {minute.replace(minute=0) for minute, _ in differing}


GRAINED = GoldTableSpec.model_validate(
    {
        "name": "minutes",
        "sql": "x.sql",
        "reads": ["events", "daily", "names"],
        "partition_by": "event_date",
        "grain": {"column": "minute"},
        "affects": {"events": {"hours": [0, -1]}, "daily": {"days": [0]}, "names": "onwards"},
    }
)
COLUMNS = {"events": "event_date", "daily": "day", "names": "valid_from"}


def at(number: int) -> dt.datetime:
    return FIRST + HOUR * number


def changed(column: str, *days: int, hours: Iterable[int] | None = None) -> Changes:
    places: list[Partition] = [((column, (FIRST + 24 * HOUR * day).date().isoformat()),) for day in days]
    exact = {} if hours is None else {places[0]: frozenset(map(at, hours))}
    return Changes(frozenset(places), hours=exact)


def planned(dedupe: DedupeSpec | None = None, **changes: Changes) -> GoldPlan:
    return plan_rebuild(GRAINED, changes, dedupe, COLUMNS)


def test_a_changed_hour_affects_and_reads_hours() -> None:
    plan = planned(events=changed("event_date", 0, hours=[5]))

    assert plan.output == Part("event_date", frozenset(), None, frozenset([at(4), at(5)]))
    assert plan.output.labels == ("2025-03-02T04", "2025-03-02T05")
    assert plan.input_of("events") == Part(DATE_COLUMN, frozenset(), None, frozenset([at(4), at(5), at(6)]))
    assert plan.input_of("daily") == Part(DATE_COLUMN, frozenset([FIRST.date()]), None, frozenset())
    assert plan.input_of("names") == Part(DATE_COLUMN, None, None, frozenset())
    assert plan.reason == "1 hour(s) of its inputs changed"


def test_the_dedupe_window_widens_hours_and_full_dates() -> None:
    dedupe = DedupeSpec(within_hours=2)

    assert planned(dedupe, events=changed("event_date", 0, hours=[5])).output.hours == {*map(at, range(2, 8))}
    whole = planned(dedupe, events=changed("event_date", 0)).output
    assert (whole.values, whole.hours) == ({FIRST.date()}, {at(-3), at(-2), at(-1), at(24), at(25)})
    assert planned(dedupe, daily=changed("day", 1)).output == Part(
        "event_date", frozenset([at(24).date()]), None, frozenset()
    )


def test_an_onwards_change_rebuilds_full_dates_from_its_date() -> None:
    plan = planned(names=changed("valid_from", 1), events=changed("event_date", 0, hours=[0, 23]))

    assert plan.output == Part("event_date", frozenset(), at(24).date(), frozenset([at(-1), at(0), at(22), at(23)]))
    assert plan.input_of("events").since == at(24).date()
    assert (plan.output.labels or ())[-1:] == ("2025-03-03..",)


def test_hours_outside_their_date_fall_back_to_the_date() -> None:
    assert planned(events=changed("event_date", 0, hours=[30])).output.values == {FIRST.date()}


def test_undated_changes_rebuild_everything_and_no_changes_nothing() -> None:
    assert planned(events=Changes(is_unbounded=True, reason="the log is gone")).full
    assert planned(events=Changes(frozenset([(("event_date", None),)]))).full
    assert planned(events=Changes(frozenset([(("org_id", "a"),)]))).full
    assert not planned(events=Changes(), daily=Changes()).has_work


def test_requested_dates_read_the_hours_they_need() -> None:
    plan = dated_plan(GRAINED, frozenset([FIRST.date()]))

    assert plan.output == Part("event_date", frozenset([FIRST.date()]), None, frozenset())
    assert plan.input_of("events") == Part(DATE_COLUMN, frozenset([FIRST.date()]), None, frozenset([at(24)]))


PARTS = st.builds(
    lambda hours, since: part_from_hours("d", map(at, hours), None if since is None else at(24 * since).date()),
    st.one_of(
        st.sets(st.integers(-5, 60), max_size=6),
        st.integers(0, 2).map(lambda day: set(range(24 * day, 24 * day + 24))),
    ),
    st.none() | st.integers(0, 2),
)


@given(one=PARTS, other=PARTS, across=st.integers(0, 3))
def test_part_operations_match_sets_of_hours(one: Part, other: Part, across: int) -> None:
    every = [at(number) for number in range(-12, 96)]

    def hours(part: Part) -> set[dt.datetime]:
        return {hour for hour in every if part.contains(hour)}

    assert hours(one.union(other)) == hours(one) | hours(other)
    assert not one.covers(other) or hours(other) <= hours(one)
    around = {hour + HOUR * shift for hour in hours(one) for shift in range(-across, across + 1)}
    assert around & {*every} <= hours(one.widen_hours(across))
    assert one.since is not None or hours(one.widen_hours(across)) == around & {*every}
    assert hours(one) <= hours(one.without_hours())

    values = ", ".join(f"(TIMESTAMP '{hour:%F %T}' + INTERVAL 59 MINUTE)" for hour in every)
    sql = f"SELECT t FROM (SELECT t, t::DATE AS d FROM (VALUES {values}) v(t)) WHERE {one.condition('d', 't')}"
    with empty_database() as connection:
        selected = connection.execute(sql.replace("`", "").replace("DATE'", "DATE '").replace("P'", "P '")).fetchall()
    assert {row[0].replace(minute=0, tzinfo=dt.UTC) for row in selected} == hours(one)


def test_a_build_of_older_inputs_never_overwrites_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = PlannedTraffic(tmp_path)
    traffic.land([request(1, "a")])
    spec = traffic.catalog.pipeline("traffic")
    older = pin_inputs(traffic.lake, spec, ["requests"])
    traffic.land([request(2, "b")])
    assert traffic.build("edge_minutes") is None  # another builder with the newer version

    job = traffic.plan("edge_minutes", pinned=older)

    assert not job.plan.has_work
    assert job.plan.reason == "another build has committed with newer versions of requests"
    for options in ({"full": True}, {"dates": frozenset([FIRST.date()])}):
        with pytest.raises(ConcurrencyError, match="GOLD_OVERTAKEN"):
            traffic.plan("edge_minutes", pinned=older, **options)
    monkeypatch.setattr(table_build, "_inputs_ahead", lambda *arguments: [])
    assert traffic.plan("edge_minutes", pinned=older).plan.full, "else the older answer would win"


def test_an_input_that_lost_commits_causes_a_rebuild(tmp_path: Path) -> None:
    traffic = PlannedTraffic(tmp_path)
    for number in range(3):
        traffic.land([request(number, str(number))])
    traffic.build("edge_minutes")
    log = Path(traffic.lake.storage.prefix) / paths.table("traffic", "requests") / "_delta_log"
    max(log.glob("*.json")).unlink()

    assert traffic.plan("edge_minutes").plan.full
    assert len(deduplicated(traffic.requests())) == 2


START = dt.date(2025, 3, 20)
PRICED = GoldTableSpec.model_validate(
    {
        "name": "price_with_eps",
        "sql": "x.sql",
        "reads": ["prices", "eps_known", "splits"],
        "partition_by": "price_date",
        "affects": {"prices": {"days": [0]}, "eps_known": "onwards", "splits": "all"},
    }
)
PRICE_COLUMNS = {"prices": "event_date", "eps_known": "valid_from", "splits": ""}


def day(number: int) -> dt.date:
    return START + dt.timedelta(days=number)


def changed_days(column: str, *days: int) -> Changes:
    return Changes(frozenset(((column, day(number).isoformat()),) for number in days))


def planned_prices(dedupe: DedupeSpec | None = None, **changes: Changes) -> GoldPlan:
    return plan_rebuild(PRICED, changes, dedupe, PRICE_COLUMNS)


def test_an_onwards_change_rebuilds_every_date_from_its_date() -> None:
    plan = planned_prices(prices=changed_days("event_date", 2, 9), eps_known=changed_days("valid_from", 5, 7))

    assert plan.output == Part("price_date", frozenset([day(2)]), day(5))
    assert plan.output.labels == ("2025-03-22", "2025-03-25..")
    assert plan.input_of("prices") == Part("event_date", frozenset([day(2)]), day(5))
    assert plan.input_of("eps_known") == plan.input_of("splits") == Part("event_date", None)
    assert plan.has_work
    assert not plan.full
    assert "every date from 2025-03-25 on" in plan.reason


def test_a_change_of_one_input_affects_only_its_dates() -> None:
    assert planned_prices(prices=changed_days("event_date", 2)).output == Part("price_date", frozenset([day(2)]))
    assert planned_prices(eps_known=changed_days("valid_from", 5)).output == Part("price_date", frozenset(), day(5))
    assert planned_prices(splits=Changes(frozenset([()]))).full
    assert not planned_prices(prices=Changes(), eps_known=Changes(), splits=Changes()).has_work


def test_undated_changes_rebuild_everything() -> None:
    unknown = planned_prices(eps_known=Changes(is_unbounded=True, reason="its files are gone"))
    undated = planned_prices(
        prices=changed_days("event_date", 1), eps_known=Changes(frozenset([(("valid_from", None),)]))
    )

    assert (unknown.full, unknown.reason) == (True, "eps_known: its files are gone")
    assert undated.full
    assert undated.input_of("prices") == Part("event_date", None)


def test_the_dedupe_window_widens_events_but_not_intervals() -> None:
    plan = planned_prices(
        DedupeSpec(within_days=1), prices=changed_days("event_date", 2), eps_known=changed_days("valid_from", 5)
    )

    assert plan.output == Part("price_date", frozenset([day(1), day(2), day(3)]), day(5))


def test_requested_dates_read_the_dates_they_need() -> None:
    plan = dated_plan(PRICED, frozenset([day(4)]))

    assert (plan.output, plan.input_of("prices")) == (
        Part("price_date", frozenset([day(4)])),
        Part("event_date", frozenset([day(4)])),
    )
    assert plan.input_of("eps_known").values is None


Facts = dict[tuple[str, int], int]
FACTS = st.dictionaries(st.tuples(st.sampled_from("AB"), st.integers(0, 12)), st.integers(1, 4), max_size=6)
PRICES = st.sets(st.tuples(st.sampled_from("AB"), st.integers(0, 14)), max_size=8)


def intervals(facts: Facts) -> set[tuple[str, int, int | None, int]]:
    """Returns the intervals of each company."""
    rows = set()
    for company in "AB":
        days = sorted(number for name, number in facts if name == company)
        for start, end in zip(days, [*days[1:], None], strict=False):
            rows.add((company, start, end, facts[company, start]))
    return rows


def answer(prices: set[tuple[str, int]], facts: Facts) -> dict[int, set[Any]]:
    """Returns each price with the value known at its time and its interval, by date."""
    rows: dict[int, set[Any]] = {}
    for company, date in prices:
        known = [row for row in intervals(facts) if row[0] == company and row[1] <= date < (row[2] or 99)]
        rows.setdefault(date, set()).add((company, *known))
    return rows


@given(prices=st.tuples(PRICES, PRICES), facts=st.tuples(FACTS, FACTS))
@example(prices=({("A", 5)}, {("A", 5)}), facts=({("A", 1): 1}, {("A", 1): 1, ("A", 3): 2}))
def test_dates_that_are_not_rebuilt_match_a_full_rebuild(
    prices: tuple[set[tuple[str, int]], set[tuple[str, int]]], facts: tuple[Facts, Facts]
) -> None:
    differing = sorted(start for _, start, _, _ in intervals(facts[0]) ^ intervals(facts[1]))
    plan = planned_prices(
        prices=changed_days("event_date", *{date for _, date in prices[0] ^ prices[1]}),
        eps_known=changed_days("valid_from", *differing[:1]),
    )
    before, after = answer(prices[0], facts[0]), answer(prices[1], facts[1])

    for date in range(15):
        if not plan.output.contains(day(date)):
            assert before.get(date) == after.get(date), date
        else:
            assert plan.input_of("prices").contains(day(date))


@given(
    st.lists(
        st.builds(
            lambda dates, since: Part("d", None if dates is None else frozenset(map(day, dates)), since),
            st.none() | st.sets(st.integers(0, 9), max_size=3),
            st.none() | st.integers(0, 9).map(day),
        ),
        min_size=2,
        max_size=2,
    ),
    st.integers(0, 2),
)
def test_part_operations_match_sets_of_dates(parts: list[Part], days: int) -> None:
    one, other = parts
    every = [day(number) for number in range(-3, 30)]

    def dates(part: Part) -> set[dt.date]:
        return {date for date in every if part.contains(date)}

    assert dates(one.union(other)) == dates(one) | dates(other)
    assert not one.covers(other) or dates(other) <= dates(one)
    around = {date + dt.timedelta(days=shift) for date in dates(one) for shift in range(-days, days + 1)}
    assert dates(one.widen_days(days)) == around & {*every}
