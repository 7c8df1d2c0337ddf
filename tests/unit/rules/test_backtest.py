"""A backtest says what the process said, reads what was known then where it is asked to, and writes nothing."""

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
from deltaworks.rules.backtest import Backtest, backtest
from deltaworks.rules.incidents import detections, read_incidents
from deltaworks.rules.minutes import minute_text
from deltaworks.rules.overrides import with_overrides
from tests.unit.rules.rule_harness import RATE, START, RuleStage, minute_row, rules_project

BAD, WELL = 0.2, 0.01
LINE = [WELL] * 5 + [BAD] * 6 + [WELL] * 9
WEEKLY = RATE.replace(
    "fire: {above: 0.1}, clear: {above: 0.09}",
    "min_samples: 100, baseline: {kind: hour_of_week}, fire: {above_baseline: 1.5, deviations: 3}, step_minutes: 5, "
    "for_minutes: 10",
)


def tried(stage: RuleStage, *settings: str, minutes: int = 20, since: dt.datetime = START, **more: bool) -> Backtest:
    (rule,) = stage.catalog.pipeline("shop").rules
    until = since + dt.timedelta(minutes=minutes)
    return backtest(stage.catalog, "shop", with_overrides(rule, settings), since=since, until=until, **more)


def spans(result: Backtest) -> list[tuple[str, str, str | None]]:
    return [
        (minute_text(item.began), minute_text(item.fired), None if item.ended is None else minute_text(item.ended))
        for item in result.episodes
    ]


def test_a_backtest_gives_the_episodes_and_notices_that_the_process_gave(tmp_path: Path) -> None:
    stage = RuleStage(rules_project(tmp_path))
    stage.rates([*LINE, WELL])
    for minute in range(len(LINE)):
        stage.look(minute + 2.6)
    before = stage.objects.list("")

    result = tried(stage)

    assert spans(result) == [(item.began, item.fired, item.ended) for item in stage.state().episodes]
    assert [(item.kind, item.subject) for item in result.notifications] == stage.told()
    # Told when the minute that fired is over and settled.
    assert result.notifications[0].at == START + dt.timedelta(minutes=8, seconds=90)
    assert stage.objects.list("") == before


def test_other_bounds_are_tried_without_being_declared(tmp_path: Path) -> None:
    stage = RuleStage(rules_project(tmp_path))
    stage.rates([*LINE, WELL])

    assert spans(tried(stage, "fire.above=0.3", "clear=null")) == []
    assert spans(tried(stage, "for_minutes=5", "keep_firing_minutes=1"))[0][1] == "2026-03-02T10:09Z"


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
def test_a_setting_that_no_rule_has_is_refused(tmp_path: Path, setting: str, said: str) -> None:
    with pytest.raises(ConfigError, match="RULE_SETTING_INVALID") as caught:
        tried(RuleStage(rules_project(tmp_path)), setting)

    assert said in caught.value.message


def test_late_rows_are_in_it_unless_only_what_was_known_is_read(tmp_path: Path) -> None:
    stage = RuleStage(rules_project(tmp_path))
    for minute in range(20):
        stage.rates([WELL], first=minute)
    # Bad rows of the same minutes come when all is over.
    stage.put(minute_row(minute, 0.9, "a", 100_000) for minute in range(5, 11))
    commit_times(
        stage, [START + dt.timedelta(minutes=minute + 1) for minute in range(20)] + [START + dt.timedelta(days=1)]
    )

    today, known = tried(stage), tried(stage, point_in_time=True)

    assert spans(today) == [("2026-03-02T10:05Z", "2026-03-02T10:07Z", "2026-03-02T10:15Z")]
    assert (known.episodes, known.optimistic_until) == ([], None)
    assert [point.value for point in known.points] == [WELL] * 20


def test_where_the_log_does_not_reach_back_it_says_so(tmp_path: Path) -> None:
    stage = RuleStage(rules_project(tmp_path))
    for minute in range(20):
        stage.rates([WELL], first=minute)
    commit_times(stage, [START + dt.timedelta(minutes=minute + 1) for minute in range(20)])
    folder = Path(stage.catalog.environment.lake.prefix) / paths.table("shop", "errors_minute")
    (oldest,) = [action["add"] for action in actions(folder, 0) if "add" in action]
    DeltaTable(folder).optimize.compact()
    (folder / oldest["path"]).unlink()

    known = tried(stage, point_in_time=True)

    # All versions but the compacted one need the file that is gone.
    assert known.optimistic_until == START + dt.timedelta(minutes=20, seconds=90)


def actions(folder: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "_delta_log" / f"{version:020d}.json").read_text().splitlines()]


def commit_times(stage: RuleStage, times: Sequence[dt.datetime]) -> None:
    """Have the commits of the table say that they are of these times."""
    folder = Path(stage.catalog.environment.lake.prefix) / paths.table("shop", "errors_minute")
    for version, at in enumerate(times):
        written = actions(folder, version)
        for action in written:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] = int(at.timestamp() * 1000)
        text = "\n".join(json.dumps(action) for action in written) + "\n"
        (folder / "_delta_log" / f"{version:020d}.json").write_text(text)


def test_what_is_usual_is_the_median_of_the_same_hour_of_the_weeks_before(tmp_path: Path) -> None:
    stage = RuleStage(rules_project(tmp_path, WEEKLY))
    weeks = {week: [0.01 * week + 0.0001 * minute for minute in range(60)] for week in (1, 2, 3, 4)}
    for week, line in weeks.items():
        stage.rates(line, first=-week * 7 * 24 * 60)
    stage.rates([0.02] * 20 + [0.08] * 20 + [0.02] * 30)

    result = tried(stage, minutes=60)

    by_step = [statistics.fmean(line[at : at + 5]) for line in weeks.values() for at in range(0, 60, 5)]
    usual = statistics.median(by_step)
    assert {round(point.baseline or 0, 9) for point in result.points} == {round(usual, 9)}
    assert spans(result) == [("2026-03-02T10:20Z", "2026-03-02T10:25Z", "2026-03-02T10:40Z")]


def test_the_process_learns_what_the_backtest_does_and_fixes_it_for_the_date(tmp_path: Path) -> None:
    stage = RuleStage(rules_project(tmp_path, WEEKLY))
    for week in (1, 2):
        stage.rates([0.02 + 0.0001 * minute for minute in range(60)], first=-week * 7 * 24 * 60)
    stage.rates([0.02] * 20 + [0.08] * 20 + [0.02] * 31)
    for minute in (5, 30, 60):
        stage.look(minute + 7)

    (record,) = [key for key in stage.objects.list("control/") if "/baselines/" in key]
    assert "/rate/2026-03-02-" in record
    live = [(item.began, item.fired, item.ended) for item in stage.state().episodes]
    assert live == spans(tried(stage, minutes=60))
    assert len(live) == 1


def test_a_figure_without_a_past_is_learning(tmp_path: Path) -> None:
    stage = RuleStage(rules_project(tmp_path, WEEKLY))
    stage.rates([0.5] * 30, first=-7 * 24 * 60)
    stage.rates([0.9] * 31)
    stage.look(28)

    assert stage.phases() == {"a": "learning"}
    assert stage.told() == []


def test_minutes_that_fired_are_left_out_of_what_is_usual(tmp_path: Path) -> None:
    rule = RATE.replace("fire: {above: 0.1}, clear: {above: 0.09}", WEEKLY.partition("labels: [cdn], ")[2][:-1])
    rule = rule.replace("hour_of_week", "hour_of_day, weeks: 1").replace(
        "step_minutes: 5, for_minutes: 10", "keep_firing_minutes: 1"
    )
    stage = RuleStage(rules_project(tmp_path, rule))
    for day in range(2, 9):
        stage.rates([0.02 + 0.0001 * (minute % 7) for minute in range(60)], first=-day * 24 * 60)
    # Yesterday and today are bad; tomorrow's baseline must not have today for usual.
    for day in range(8):
        stage.rates([0.09] * 60, first=day * 24 * 60)

    result = tried(stage, minutes=8 * 24 * 60)

    assert len(result.episodes) == 1
    assert result.episodes[0].ended is None


def test_peers_are_the_others_of_the_same_minute_by_their_samples(tmp_path: Path) -> None:
    rule = RATE.replace(
        "fire: {above: 0.1}, clear: {above: 0.09}",
        "min_samples: 100, baseline: {kind: peers}, fire: {above_baseline: 1.5, min_increase: 0.005}",
    )
    stage = RuleStage(rules_project(tmp_path, rule))
    for cdn, rate, requests in (("a", 0.03, 1000), ("b", 0.01, 3000), ("c", 0.02, 1000)):
        stage.put(minute_row(minute, rate, cdn, requests) for minute in range(6))

    result = tried(stage, minutes=5)

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


def test_a_backtest_is_held_against_incidents(tmp_path: Path) -> None:
    stage = RuleStage(rules_project(tmp_path))
    for cdn in ("a", "b"):
        stage.rates([*LINE, WELL], cdn=cdn)
    file = incidents(tmp_path, ["2026-03-02T10:05,2026-03-02T10:11,a", "2026-03-02T12:00,2026-03-02T12:10,"])

    told, false = detections(tried(stage), read_incidents(file))

    # It is told four minutes and a half after it began: three to fire, the rest to settle.
    assert [item.delay_minutes for item in told] == [4.5, None]
    assert [episode.labels for episode in false] == [("b",)]


@pytest.mark.parametrize("line", ["yesterday,2026-03-02T10:11,a", "2026-03-02T10:11,2026-03-02T10:05,a"])
def test_incidents_that_cannot_be_read_are_refused_with_their_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match="INCIDENTS_INVALID") as caught:
        read_incidents(incidents(tmp_path, [line]))

    assert "incidents.csv:2:" in caught.value.message
