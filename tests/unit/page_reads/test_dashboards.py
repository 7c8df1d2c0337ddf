"""A dashboard has marks for notes and rule episodes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import assume, given

from deltaworks.charts.drawing import MAX_MARKS, Span
from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.dashboards.answers import QueryLimits
from deltaworks.dashboards.page import dashboard_page
from deltaworks.page_reads.dashboards import load_dashboard, stored_marks
from deltaworks.rules.annotations import annotate
from deltaworks.rules.stored_state import EpisodeRecord, RuleState
from deltaworks.rules.verdicts import Baseline, bound_value, bounds_test
from deltaworks.specs.alert_rule import BoundsSpec
from deltaworks.testing import present
from tests.unit.dashboards.dashboard_harness import ERRORS, SPAN, START, errors, put, shop
from tests.unit.specs.test_dashboards import RULE, RULE_SQL


def at(minutes: int) -> dt.datetime:
    return START + dt.timedelta(minutes=minutes)


def episode(name: str | None, began: int, ended: int | None) -> EpisodeRecord:
    def text(minute: int) -> str:
        return f"{at(minute):%Y-%m-%dT%H:%MZ}"

    times: dict[str, Any] = {"began": text(began), "fired": text(began + 2)}
    return EpisodeRecord(labels=(name,), **times, ended=None if ended is None else text(ended))


def write_rule_state(objects: LocalObjects, rule: str, *episodes: EpisodeRecord) -> None:
    state = RuleState(pipeline="shop", rule=rule, labels=("isp",), episodes=episodes)
    objects.put(paths.rule_state("shop", rule), state.encode())


def test_notes_and_episodes_of_the_pipeline_are_marked_on_its_charts(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    put(catalog, "errors_minute", errors())
    objects = LocalObjects(tmp_path / "lake")
    annotate(objects, "shop", "price change", at=at(3), author="ada")
    annotate(objects, "other", "of another pipeline", at=at(3))
    annotate(objects, "shop", "long ago", at=at(-600))
    write_rule_state(objects, "errors", episode("a", 5, 9), episode("b", 8, 12), episode(None, 20, None))
    write_rule_state(
        objects, "latency", episode("a", -50, -40), *(episode(f"isp{number}", 1, 2) for number in range(5))
    )
    (dashboard,) = catalog.pipelines["shop"].dashboards

    answer = load_dashboard(catalog, "shop", dashboard, SPAN)

    assert [(mark.kind, mark.at, mark.until, mark.text) for mark in answer.marks.items] == [
        ("rule", at(1), at(2), "latency fired: isp isp0; isp isp1; isp isp2 and 2 more"),
        ("note", at(3), None, "price change (ada)"),
        ("rule", at(5), at(12), "errors fired: isp a; isp b"),
        ("rule", at(20), None, "errors fired: isp unknown"),
    ]
    page = dashboard_page(answer)
    assert (page.count('class="fired"'), page.count('<line class="note"')) == (3, 1)


def test_a_panel_of_a_rule_has_its_values_its_band_and_its_own_episodes(tmp_path: Path) -> None:
    panel = "{title: Errors, chart: line, rule: errors_high}"
    catalog = shop(tmp_path, panel, views=RULE, rule=RULE_SQL)
    put(catalog, "errors_minute", errors())
    objects = LocalObjects(tmp_path / "lake")
    write_rule_state(objects, "errors_high", episode("a", 5, 9))
    write_rule_state(objects, "another", episode("a", 11, 12))
    (dashboard,) = catalog.pipelines["shop"].dashboards

    answer = load_dashboard(catalog, "shop", dashboard, SPAN)

    (drawn,) = answer.panels
    assert not drawn.problem
    assert drawn.columns == ("minute", "labels", "value", "low", "high")
    # Each minute has 3 errors and two more than the one before; the rule fires above 5, so the band ends there.
    assert [row[2:] for row in drawn.rows[:3]] == [(3.0, 0.0, 5.0), (5.0, 0.0, 5.0), (7.0, 0.0, 5.0)]
    assert [mark.text for mark in present(drawn.marks).items] == ["errors_high fired: isp a"]
    page = dashboard_page(answer)
    assert (page.count('class="fired"'), page.count('class="band s0"')) == (1, 1)


def test_a_rule_whose_queries_take_too_long_fails_alone(tmp_path: Path) -> None:
    slow = RULE_SQL.replace("GROUP BY", "AND (SELECT max(hash(range)) FROM range(20_000_000_000)) > 0 GROUP BY")
    catalog = shop(tmp_path, "{title: Errors, chart: line, rule: errors_high}", ERRORS, views=RULE, rule=slow)
    put(catalog, "errors_minute", errors())
    (dashboard,) = catalog.pipelines["shop"].dashboards

    limits = QueryLimits(panel_seconds=1)
    drawn, other = load_dashboard(catalog, "shop", dashboard, SPAN, limits=limits).panels

    assert "the query timed out after 1 s" in drawn.problem
    assert (other.problem, len(other.rows)) == ("", 60)


def test_a_rule_without_its_table_is_not_a_failure(tmp_path: Path) -> None:
    catalog = shop(tmp_path, "{title: Errors, chart: line, rule: errors_high}", views=RULE, rule=RULE_SQL)
    (dashboard,) = catalog.pipelines["shop"].dashboards

    (drawn,) = load_dashboard(catalog, "shop", dashboard, SPAN).panels

    assert (drawn.missing_tables, drawn.problem) == (("errors_minute",), "")


@given(
    name=st.sampled_from(["above", "above_baseline", "deviations", "min_increase", "below", "below_baseline"]),
    bounds=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)),
    value=st.floats(-100, 100),
    usual=st.builds(Baseline, st.floats(0.1, 100), st.floats(0, 10)),
)
def test_a_value_crosses_all_bounds_just_if_it_is_beyond_the_bound_value(
    name: str, bounds: tuple[float, float], value: float, usual: Baseline
) -> None:
    first, second = bounds
    declared = BoundsSpec.model_validate({name: first, "below" if "below" in name else "above": second})

    beyond = bound_value(declared, usual)

    assert beyond is not None
    assume(abs(value - beyond) > 1e-6)
    assert bounds_test(declared)(value, usual) == (value > beyond if declared.is_upper else value < beyond)


def test_unreadable_records_do_not_hide_panels(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    annotate(objects, "shop", "price change", at=at(3))
    objects.put(paths.rule_state("shop", "errors"), b"{")
    objects.put(paths.pipeline_annotations("shop", f"{at(4):%Y%m%dT%H%M%S}-x.json"), b"{")
    assert [mark.text for mark in stored_marks(objects, "shop", SPAN).within(SPAN).items] == ["price change"]

    class Away(LocalObjects):
        def list(self, prefix: str) -> list[str]:
            raise ConnectionError("no route")

    marks = stored_marks(Away(tmp_path), "shop", SPAN).within(SPAN)
    assert (marks.items, marks.problem) == ((), "ConnectionError: no route")


def test_the_newest_notes_are_read(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    for number in range(MAX_MARKS + 5):
        annotate(objects, "shop", f"note {number}", at=at(number))
    span = Span(START, at(600))
    marks = stored_marks(objects, "shop", span).within(span)
    assert [mark.text for mark in marks.items] == [f"note {number}" for number in range(5, MAX_MARKS + 5)]
    assert marks.earlier_count == 1
