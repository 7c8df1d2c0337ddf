"""A backtest matches the process, can read point in time, and writes nothing."""

from __future__ import annotations

import datetime as dt
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.errors import ConfigError
from deltaworks.rules.backtest import Backtest, backtest, detections, read_incidents, with_overrides
from deltaworks.rules.evaluation import minute_text
from tests.unit.rules.rule_harness import RATE, START, RuleHarness, minute_row, rules_project

BAD, WELL = 0.2, 0.01
LINE = [WELL] * 5 + [BAD] * 6 + [WELL] * 9
WEEKLY = RATE.replace(
    "fire: {above: 0.1}, clear: {above: 0.09}",
    "min_samples: 100, baseline: {kind: hour_of_week}, fire: {above_baseline: 1.5, deviations: 3}, step_minutes: 5, "
    "for_minutes: 10",
)


def tried(
    harness: RuleHarness, *settings: str, minutes: int = 20, since: dt.datetime = START, **more: bool
) -> Backtest:
    (rule,) = harness.catalog.pipeline("shop").rules
    until = since + dt.timedelta(minutes=minutes)
    return backtest(harness.catalog, "shop", with_overrides(rule, settings), since=since, until=until, **more)


def spans(result: Backtest) -> list[tuple[str, str, str | None]]:
    return [
        (minute_text(item.began), minute_text(item.fired), None if item.ended is None else minute_text(item.ended))
        for item in result.episodes
    ]


def test_a_backtest_matches_the_process(tmp_path: Path) -> None:
    harness = RuleHarness(rules_project(tmp_path))
    harness.append_rates([*LINE, WELL])
    for minute in range(len(LINE)):
        harness.evaluate_at(minute + 2.6)
    before = harness.objects.list("")

    result = tried(harness)

    assert spans(result) == [(item.began, item.fired, item.ended) for item in harness.state().episodes]
    assert [(item.kind, item.subject) for item in result.notifications] == harness.sent()
    # Notified when the firing minute is over and its delay has passed.
    assert result.notifications[0].at == START + dt.timedelta(minutes=8, seconds=90)
    assert harness.objects.list("") == before


def test_bounds_can_be_overridden(tmp_path: Path) -> None:
    harness = RuleHarness(rules_project(tmp_path))
    harness.append_rates([*LINE, WELL])

    assert spans(tried(harness, "fire.above=0.3", "clear=null")) == []
    assert spans(tried(harness, "for_minutes=5", "keep_firing_minutes=1"))[0][1] == "2026-03-02T10:09Z"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("fire.abov=0.3", "Extra inputs"),
        ("fires.above=0.3", "there is no key 'fires' to set"),
        ("fire.above", "has no value"),
        ("clear.above=0.5", "is beyond 0.1"),
        ("sql=x", "there is no key 'sql' to set"),
    ],
)
def test_an_invalid_override_is_rejected(tmp_path: Path, setting: str, said: str) -> None:
    with pytest.raises(ConfigError, match="RULE_SETTING_INVALID") as caught:
        tried(RuleHarness(rules_project(tmp_path)), setting)

    assert said in caught.value.message


def test_late_rows_count_unless_read_point_in_time(tmp_path: Path) -> None:
    harness = RuleHarness(rules_project(tmp_path))
    for minute in range(20):
        harness.append_rates([WELL], first=minute)
    # Bad rows of the same minutes arrive later.
    harness.append_rows(minute_row(minute, 0.9, "a", 100_000) for minute in range(5, 11))
    commit_times(
        harness, [START + dt.timedelta(minutes=minute + 1) for minute in range(20)] + [START + dt.timedelta(days=1)]
    )

    today, known = tried(harness), tried(harness, point_in_time=True)

    assert spans(today) == [("2026-03-02T10:05Z", "2026-03-02T10:07Z", "2026-03-02T10:15Z")]
    assert (known.episodes, known.optimistic_until) == ([], None)
    assert [point.value for point in known.points] == [WELL] * 20


def test_a_backtest_reports_versions_that_are_unavailable(tmp_path: Path) -> None:
    harness = RuleHarness(rules_project(tmp_path))
    for minute in range(20):
        harness.append_rates([WELL], first=minute)
    commit_times(harness, [START + dt.timedelta(minutes=minute + 1) for minute in range(20)])
    folder = Path(harness.catalog.environment.lake.prefix) / paths.table("shop", "errors_minute")
    (oldest,) = [action["add"] for action in actions(folder, 0) if "add" in action]
    DeltaTable(folder).optimize.compact()
    (folder / oldest["path"]).unlink()

    known = tried(harness, point_in_time=True)

    # All versions except the compacted one need the deleted file.
    assert known.optimistic_until == START + dt.timedelta(minutes=20, seconds=90)


def actions(folder: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "_delta_log" / f"{version:020d}.json").read_text().splitlines()]


def commit_times(harness: RuleHarness, times: Sequence[dt.datetime]) -> None:
    """Sets the commit times of the table."""
    folder = Path(harness.catalog.environment.lake.prefix) / paths.table("shop", "errors_minute")
    for version, at in enumerate(times):
        written = actions(folder, version)
        for action in written:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] = int(at.timestamp() * 1000)
        text = "\n".join(json.dumps(action) for action in written) + "\n"
        (folder / "_delta_log" / f"{version:020d}.json").write_text(text)


def test_a_baseline_is_the_median_of_the_same_hour_in_past_weeks(tmp_path: Path) -> None:
    harness = RuleHarness(rules_project(tmp_path, WEEKLY))
    weeks = {week: [0.01 * week + 0.0001 * minute for minute in range(60)] for week in (1, 2, 3, 4)}
    for week, line in weeks.items():
        harness.append_rates(line, first=-week * 7 * 24 * 60)
    harness.append_rates([0.02] * 20 + [0.08] * 20 + [0.02] * 30)

    result = tried(harness, minutes=60)

    by_step = [statistics.fmean(line[at : at + 5]) for line in weeks.values() for at in range(0, 60, 5)]
    usual = statistics.median(by_step)
    assert {round(point.baseline or 0, 9) for point in result.points} == {round(usual, 9)}
    assert spans(result) == [("2026-03-02T10:20Z", "2026-03-02T10:25Z", "2026-03-02T10:40Z")]


def test_process_and_backtest_build_the_same_baseline(tmp_path: Path) -> None:
    harness = RuleHarness(rules_project(tmp_path, WEEKLY))
    for week in (1, 2):
        harness.append_rates([0.02 + 0.0001 * minute for minute in range(60)], first=-week * 7 * 24 * 60)
    harness.append_rates([0.02] * 20 + [0.08] * 20 + [0.02] * 31)
    for minute in (5, 30, 60):
        harness.evaluate_at(minute + 7)

    (record,) = [key for key in harness.objects.list("control/") if "/baselines/" in key]
    assert "/rate/2026-03-02-" in record
    live = [(item.began, item.fired, item.ended) for item in harness.state().episodes]
    assert live == spans(tried(harness, minutes=60))
    assert len(live) == 1


def test_a_series_without_history_is_learning(tmp_path: Path) -> None:
    harness = RuleHarness(rules_project(tmp_path, WEEKLY))
    harness.append_rates([0.5] * 30, first=-7 * 24 * 60)
    harness.append_rates([0.9] * 31)
    harness.evaluate_at(28)

    assert harness.phases() == {"a": "learning"}
    assert harness.sent() == []


def test_fired_minutes_are_excluded_from_baselines(tmp_path: Path) -> None:
    rule = RATE.replace("fire: {above: 0.1}, clear: {above: 0.09}", WEEKLY.partition("labels: [cdn], ")[2][:-1])
    rule = rule.replace("hour_of_week", "hour_of_day, weeks: 1").replace(
        "step_minutes: 5, for_minutes: 10", "keep_firing_minutes: 1"
    )
    harness = RuleHarness(rules_project(tmp_path, rule))
    for day in range(2, 9):
        harness.append_rates([0.02 + 0.0001 * (minute % 7) for minute in range(60)], first=-day * 24 * 60)
    # Yesterday and today are bad; tomorrow's baseline must exclude today.
    for day in range(8):
        harness.append_rates([0.09] * 60, first=day * 24 * 60)

    result = tried(harness, minutes=8 * 24 * 60)

    assert len(result.episodes) == 1
    assert result.episodes[0].ended is None


def test_peers_are_the_other_label_sets_weighted_by_samples(tmp_path: Path) -> None:
    rule = RATE.replace(
        "fire: {above: 0.1}, clear: {above: 0.09}",
        "min_samples: 100, baseline: {kind: peers}, fire: {above_baseline: 1.5, min_increase: 0.005}",
    )
    harness = RuleHarness(rules_project(tmp_path, rule))
    for cdn, rate, requests in (("a", 0.03, 1000), ("b", 0.01, 3000), ("c", 0.02, 1000)):
        harness.append_rows(minute_row(minute, rate, cdn, requests) for minute in range(6))

    result = tried(harness, minutes=5)

    usual = {point.labels: point.baseline for point in result.points if point.minute == result.last}
    assert usual == {
        ("a",): pytest.approx((0.01 * 3000 + 0.02 * 1000) / 4000),
        ("b",): pytest.approx(0.025),
        ("c",): pytest.approx((0.03 * 1000 + 0.01 * 3000) / 4000),
    }
    assert [episode.labels for episode in result.episodes] == [("a",)]


def incidents(folder: Path, lines: Sequence[str]) -> Path:
    file = folder / "incidents.csv"
    file.write_text("\n".join(["from,to,cdn", *lines]) + "\n")
    return file


def test_a_backtest_is_compared_with_incidents(tmp_path: Path) -> None:
    harness = RuleHarness(rules_project(tmp_path))
    for cdn in ("a", "b"):
        harness.append_rates([*LINE, WELL], cdn=cdn)
    file = incidents(tmp_path, ["2026-03-02T10:05,2026-03-02T10:11,a", "2026-03-02T12:00,2026-03-02T12:10,"])

    detected, false = detections(tried(harness), read_incidents(file))

    # Notified after four and a half minutes: three to fire, the rest is the delay.
    assert [item.delay_minutes for item in detected] == [4.5, None]
    assert [episode.labels for episode in false] == [("b",)]


@pytest.mark.parametrize("line", ["yesterday,2026-03-02T10:11,a", "2026-03-02T10:11,2026-03-02T10:05,a"])
def test_invalid_incidents_are_rejected_with_their_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match="INCIDENTS_INVALID") as caught:
        read_incidents(incidents(tmp_path, [line]))

    assert "incidents.csv:2:" in caught.value.message
