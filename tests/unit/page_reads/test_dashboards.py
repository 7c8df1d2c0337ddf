"""A dashboard has marks for notes and rule episodes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from deltaworks.charts.drawing import MAX_MARKS, Span
from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.dashboards.page import dashboard_page
from deltaworks.page_reads.dashboards import load_dashboard, marks_between
from deltaworks.rules.annotations import annotate
from deltaworks.rules.stored_state import EpisodeRecord, RuleState
from tests.unit.dashboards.dashboard_harness import SPAN, START, errors, put, shop


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


def test_unreadable_records_do_not_hide_panels(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    annotate(objects, "shop", "price change", at=at(3))
    objects.put(paths.rule_state("shop", "errors"), b"{")
    objects.put(paths.pipeline_annotations("shop", f"{at(4):%Y%m%dT%H%M%S}-x.json"), b"{")
    assert [mark.text for mark in marks_between(objects, "shop", SPAN).items] == ["price change"]

    class Away(LocalObjects):
        def list(self, prefix: str) -> list[str]:
            raise ConnectionError("no route")

    marks = marks_between(Away(tmp_path), "shop", SPAN)
    assert (marks.items, marks.problem) == ((), "ConnectionError: no route")


def test_the_newest_notes_are_read(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    for number in range(MAX_MARKS + 5):
        annotate(objects, "shop", f"note {number}", at=at(number))
    marks = marks_between(objects, "shop", Span(START, at(600)))
    assert [mark.text for mark in marks.items] == [f"note {number}" for number in range(5, MAX_MARKS + 5)]
    assert marks.earlier_count == 1
