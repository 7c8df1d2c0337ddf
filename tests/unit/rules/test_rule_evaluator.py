"""A rule is judged minute by minute, each once, whoever judges and however often it is interrupted."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.alerts.raising import read_alert
from deltaworks.errors import ConcurrencyError
from deltaworks.rules import delivery, rule_evaluator
from deltaworks.rules.annotations import annotate
from deltaworks.rules.stored_state import RuleState
from tests.unit.rules.rule_harness import RATE, START, RuleStage, minute_row, rules_project

BAD, WELL = 0.2, 0.01
#: Well for five minutes, bad for six, well again.
LINE = [WELL] * 5 + [BAD] * 6 + [WELL] * 9
LAG = 2.6


@pytest.fixture
def stage(tmp_path: Path) -> RuleStage:
    return RuleStage(rules_project(tmp_path))


def watched(stage: RuleStage, line: list[float], *, looks: list[int] | None = None) -> RuleState:
    """The state after the line was judged, a look a minute or at the times that are named."""
    stage.rates([*line, WELL])
    for minute in looks if looks is not None else range(len(line)):
        stage.look(minute + LAG)
    return stage.state()


def episodes(state: RuleState) -> list[tuple[str, str, str | None]]:
    return [(item.began[11:16], item.fired[11:16], item.ended and item.ended[11:16]) for item in state.episodes]


def test_an_episode_is_told_when_it_fires_and_when_it_is_over(stage: RuleStage) -> None:
    state = watched(stage, LINE)

    assert episodes(state) == [("10:05", "10:07", "10:15")]
    assert stage.told() == [("raised", "shop.rate{cdn=a}"), ("resolved", "shop.rate{cdn=a}")]
    raised = stage.notifications()[0]
    assert raised.detail["episode"] == "shop.rate{cdn=a}@2026-03-02T10:07Z"
    assert (raised.detail["value"], raised.detail["samples"], raised.detail["labels"]) == (BAD, None, {"cdn": "a"})
    assert (raised.detail["began"], raised.detail["fired"]) == ("2026-03-02T10:05Z", "2026-03-02T10:07Z")
    assert raised.detail["reads"] == ["errors_minute (gold)"]
    assert stage.notifications()[1].detail["episode"] == raised.detail["episode"]


def test_an_outage_of_twenty_minutes_changes_no_episode_and_no_notice(tmp_path: Path) -> None:
    one, other = (RuleStage(rules_project(tmp_path / name)) for name in ("one", "other"))
    always = watched(one, LINE * 2)
    away = watched(other, LINE * 2, looks=[0, 1, 2, 23, 24, *range(25, 40)])

    assert episodes(away) == episodes(always)
    assert other.told() == one.told()
    assert len(always.episodes) == 2
    # By the clock of this machine the second begins and ends within the cooldown of the first.
    assert [kind for kind, _ in one.told()] == ["raised", "resolved"]


def test_two_who_judge_at_once_tell_once(stage: RuleStage) -> None:
    other = stage.another()
    stage.rates([*LINE, WELL])
    for minute in range(len(LINE)):
        stage.look(minute + LAG)
        stage.look(minute + LAG, other)

    assert episodes(stage.state()) == [("10:05", "10:07", "10:15")]
    assert [kind for kind, _ in stage.told()] == ["raised", "resolved"]


def test_whoever_is_second_writes_nothing(stage: RuleStage) -> None:
    other = stage.another()
    stage.rates([*LINE, WELL])
    for judge in (stage.judge, other):
        stage.look(LAG, judge)
    (second,) = other.evaluators
    stage.look(8 + LAG)
    before = stage.state()

    with pytest.raises(ConcurrencyError, match="RULE_EVALUATED_ELSEWHERE"):
        second._write(second.state.replace(problem="of the second one"))
    assert stage.state() == before
    assert second.state == before


@pytest.mark.parametrize("protected", [True, False])
def test_one_that_stood_still_takes_no_minute_back(
    stage: RuleStage, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    """It goes on in the minute in which it stopped, when another process has judged all that followed."""
    still = stage.another()
    stage.rates([*LINE, WELL])
    stage.look(4 + LAG, still)
    for minute in range(len(LINE)):
        stage.look(minute + LAG)
    if not protected:
        monkeypatch.setattr(rule_evaluator.RuleEvaluator, "_write", _write_over)

    stage.look(8 + LAG, still)

    # Without it what is over would be shown as firing again.
    assert episodes(stage.state()) == [("10:05", "10:07", "10:15" if protected else None)]


def _write_over(judge: rule_evaluator.RuleEvaluator, state: RuleState) -> None:
    """Write a state over whatever is there."""
    judge._objects.put(judge._key, state.encode())
    judge._state = state


@pytest.mark.parametrize("dies_after", ["state", "alert"])
def test_one_that_dies_between_writing_and_telling_is_followed_by_one_that_tells(
    stage: RuleStage, monkeypatch: pytest.MonkeyPatch, dies_after: str
) -> None:
    stage.rates([*LINE, WELL])
    stage.look(LAG)

    def killed(objects: object, outbox: object) -> None:
        if dies_after == "alert":
            delivery.deliver(objects, outbox)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rule_evaluator, "deliver", killed)
        with pytest.raises(KeyboardInterrupt):
            stage.look(19 + LAG)
    assert len(stage.state().outbox) == 2

    stage.look(19 + LAG, stage.another())

    assert [kind for kind, _ in stage.told()] == ["raised", "resolved"]
    assert stage.state().outbox == ()
    assert stage.open() == []


def test_an_episode_that_was_told_to_its_end_is_not_raised_again_after_the_cooldown(stage: RuleStage) -> None:
    watched(stage, LINE)
    (judge,) = stage.judge.evaluators
    subject = "shop.rate{cdn=a}"
    stored = read_alert(stage.objects, cause="RULE_FIRING", subject=subject)
    assert stored is not None
    long_ago = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    state = dataclasses.replace(stored.state, last_notified_at=long_ago, notification_times=())
    stage.objects.put(
        next(key for key in stage.objects.list("") if "/state/RULE_FIRING/" in key),
        dataclasses.replace(stored, state=state).encode(),
    )
    again = [item.replace(kind=kind) for kind, item in (("raise", _telling(stored)), ("resolve", _telling(stored)))]

    delivery.deliver(stage.objects, again)

    assert [kind for kind, _ in stage.told()] == ["raised", "resolved"]
    assert judge.state.outbox == ()


def _telling(stored: object) -> rule_evaluator.AlertEvent:
    return rule_evaluator.AlertEvent(
        kind="raise",
        cause="RULE_FIRING",
        subject=stored.subject,  # type: ignore[attr-defined]
        severity="warning",
        summary="again",
        detail=dict(stored.detail),  # type: ignore[attr-defined]
    )


def test_a_table_that_stops_is_unknown_and_then_told(stage: RuleStage) -> None:
    stage.rates([WELL] * 6)
    for minute in range(6):
        stage.look(minute + LAG)
    told: Callable[[], list[tuple[str, str]]] = lambda: stage.told("RULE_UNKNOWN")  # noqa: E731

    # Settling takes 90 s and a minute, and it counts after three more.
    stage.look(9)
    assert told() == []
    stage.look(11)
    assert told() == [("raised", "shop.rate")]
    assert "are from 2026-03-02 10:05Z" in stage.notifications("RULE_UNKNOWN")[0].summary

    stage.rates([WELL] * 8, first=6)
    stage.look(13 + LAG)
    assert told() == [("raised", "shop.rate"), ("resolved", "shop.rate")]
    assert stage.state().last_minute == "2026-03-02T10:12Z"


def test_minutes_of_a_table_that_stopped_are_judged_when_they_come(stage: RuleStage) -> None:
    stage.rates([WELL] * 5)
    for minute in range(30):
        stage.look(minute + LAG)
    stage.rates([*LINE[5:], WELL], first=5)
    stage.look(30 + LAG)

    assert episodes(stage.state()) == [("10:05", "10:07", "10:15")]


def test_flapping_around_the_bound_for_an_hour_is_one_episode(stage: RuleStage) -> None:
    # Above 0.1 and between both bounds, in turn, after three minutes beyond: it never comes below 0.09.
    line = [WELL, 0.11, 0.11, 0.11, *[0.095, 0.11, 0.095] * 19, *[WELL] * 8]
    state = watched(stage, line, looks=[*range(0, len(line), 5), len(line) - 1])

    assert episodes(state) == [("10:01", "10:03", "11:05")]
    assert len(stage.told()) <= 6


def test_without_a_second_bound_the_same_hour_is_many_episodes(tmp_path: Path) -> None:
    rule = RATE.replace(", clear: {above: 0.09}", ", for_minutes: 1, keep_firing_minutes: 1")
    stage = RuleStage(rules_project(tmp_path, rule))
    state = watched(stage, [WELL, *[0.095, 0.11, 0.095] * 20, WELL], looks=[*range(0, 60, 5), 61])

    assert len(state.episodes) == 20
    assert len(stage.told()) <= 6


def test_after_a_long_outage_nobody_knows_of_the_minutes_that_lie_too_far_back(stage: RuleStage) -> None:
    stage.rates([WELL] * 3)
    stage.look(1 + LAG)
    stage.rates([WELL] * 500, first=3)
    stage.look(500)

    assert stage.told("RULE_UNKNOWN") == [("raised", "shop.rate")]
    assert (
        "was not evaluated from 2026-03-02T10:01Z to 2026-03-02T12:17Z" in stage.notifications("RULE_UNKNOWN")[0].summary
    )
    stage.look(502)
    assert [kind for kind, _ in stage.told("RULE_UNKNOWN")] == ["raised", "resolved"]


def test_sql_that_fails_is_told_and_its_minutes_are_judged_once_it_is_mended(tmp_path: Path) -> None:
    catalog = rules_project(tmp_path)
    stage = RuleStage(catalog)
    stage.rates([*LINE, WELL])
    for minute in range(5):
        stage.look(minute + LAG)
    file = catalog.folder("shop") / "rules/rate.sql"
    right = file.read_text()
    file.write_text("SELECT minute, cdn, rate / requests_ AS value FROM errors_minute WHERE minute >= $from")
    broken = stage.another()
    stage.look(12 + LAG, broken)

    assert stage.told("RULE_BROKEN") == [("raised", "shop.rate")]
    assert "requests_" in stage.notifications("RULE_BROKEN")[0].summary
    assert stage.state().last_minute == "2026-03-02T10:04Z"

    file.write_text(right)
    stage.look(19 + LAG, stage.another())
    assert [kind for kind, _ in stage.told("RULE_BROKEN")] == ["raised", "resolved"]
    assert episodes(stage.state()) == [("10:05", "10:07", "10:15")]


def test_many_at_once_are_told_as_one(tmp_path: Path) -> None:
    rule = RATE.replace("labels: [cdn]", "labels: [cdn], grouping: {min_alerts: 5}")
    stage = RuleStage(rules_project(tmp_path, rule))
    for number in range(8):
        stage.rates([*LINE, WELL], cdn=f"c{number}")
    for minute in range(len(LINE)):
        stage.look(minute + LAG)

    assert stage.told() == [("raised", "shop.rate"), ("resolved", "shop.rate")]
    raised = stage.notifications()[0]
    assert raised.detail["label_sets_count"] == 8
    assert raised.detail["label_sets"][:2] == [{"cdn": "c0"}, {"cdn": "c1"}]


def test_a_rule_is_held_back_while_another_one_fires_for_the_same_labels(tmp_path: Path) -> None:
    first = RATE.replace("name: rate", "name: origin")
    second = RATE.replace("fire: ", "inhibited_by: [origin], fire: ").replace(
        "above: 0.1}", "above: 0.1}, keep_firing_minutes: 12"
    )
    stage = RuleStage(rules_project(tmp_path, first, second))
    for cdn, line in (("a", LINE), ("b", [WELL] * 20)):
        stage.rates([*line, WELL], cdn=cdn)
    for minute in range(len(LINE)):
        stage.look(minute + LAG)

    # The other one is over before this one, of which people are told then.
    assert stage.told()[0] == ("raised", "shop.origin{cdn=a}")
    (episode,) = stage.state("rate").episodes
    assert episode.inhibited_by == "origin"
    assert stage.told() == [
        ("raised", "shop.origin{cdn=a}"),
        ("resolved", "shop.origin{cdn=a}"),
        ("raised", "shop.rate{cdn=a}"),
    ]


def test_more_than_a_thousand_label_sets_are_too_many(stage: RuleStage) -> None:
    stage.put(minute_row(minute, WELL, f"c{number}", 10_000 - number) for minute in (0, 1) for number in range(1_001))
    stage.look(LAG)

    assert stage.told("RULE_TOO_MANY_SERIES") == [("raised", "shop.rate")]
    assert len(stage.state().series) == 1_000


def test_a_notice_says_what_was_changed_before(stage: RuleStage) -> None:
    annotate(stage.objects, "shop", "price change", at=START - dt.timedelta(hours=2), author="sales")
    annotate(stage.objects, "shop", "too long ago", at=START - dt.timedelta(days=2))
    watched(stage, LINE)

    assert stage.notifications()[0].detail["annotations"] == ["2026-03-02 08:00Z price change (sales)"]


def test_a_rule_that_is_gone_ends_what_it_told(tmp_path: Path) -> None:
    catalog = rules_project(tmp_path)
    stage = RuleStage(catalog)
    watched(stage, LINE[:9])
    assert stage.open() == ["shop.rate{cdn=a}"]

    other = RuleStage(rules_project(tmp_path, RATE.replace("name: rate", "name: other")))
    other.judge.resolve_removed_rules()

    assert other.open() == []


def test_a_rule_with_other_labels_begins_anew(tmp_path: Path) -> None:
    stage = RuleStage(rules_project(tmp_path))
    watched(stage, LINE[:9])

    other = RuleStage(rules_project(tmp_path, RATE.replace("labels: [cdn]", "labels: []")))
    other.rates([WELL] * 3, first=10)
    other.look(11 + LAG)

    assert other.open() == []
    assert other.phases() == {"": "ok"}
