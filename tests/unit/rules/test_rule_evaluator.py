"""Each minute of a rule is evaluated once, despite interruptions and concurrent processes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.alerts.raising import alerts, read_alert
from deltaworks.control import paths
from deltaworks.errors import ConcurrencyError
from deltaworks.rules import rule_alerts, rule_evaluator
from deltaworks.rules.annotations import annotate
from deltaworks.rules.messages import format_number
from deltaworks.rules.stored_state import RuleState
from deltaworks.tables.lake import Lake
from tests.unit.rules.rule_harness import RATE, START, RuleHarness, minute_row, rules_project

BAD, WELL = 0.2, 0.01
#: Five good minutes, six bad ones, then good again.
LINE = [WELL] * 5 + [BAD] * 6 + [WELL] * 9
LAG = 2.6


@pytest.fixture
def harness(tmp_path: Path) -> RuleHarness:
    return RuleHarness(rules_project(tmp_path))


def evaluated(harness: RuleHarness, line: list[float], *, minutes: list[int] | None = None) -> RuleState:
    """Returns the state after evaluating a series, every minute or at the given times."""
    harness.append_rates([*line, WELL])
    for minute in minutes if minutes is not None else range(len(line)):
        harness.evaluate_at(minute + LAG)
    return harness.state()


def episodes(state: RuleState) -> list[tuple[str, str, str | None]]:
    return [(item.began[11:16], item.fired[11:16], item.ended and item.ended[11:16]) for item in state.episodes]


def test_an_episode_notifies_when_it_fires_and_ends(harness: RuleHarness) -> None:
    state = evaluated(harness, LINE)

    assert episodes(state) == [("10:05", "10:07", "10:15")]
    assert harness.sent() == [("raised", "shop.rate{cdn=a}"), ("resolved", "shop.rate{cdn=a}")]
    raised = harness.notifications()[0]
    assert raised.detail["episode"] == "shop.rate{cdn=a}@2026-03-02T10:07Z"
    assert (raised.detail["value"], raised.detail["samples"], raised.detail["labels"]) == (BAD, None, {"cdn": "a"})
    assert (raised.detail["began"], raised.detail["fired"]) == ("2026-03-02T10:05Z", "2026-03-02T10:07Z")
    assert raised.detail["reads"] == ["errors_minute (gold)"]
    assert harness.notifications()[1].detail["episode"] == raised.detail["episode"]


def test_the_text_of_an_alert_is_renewed_while_it_fires_without_a_notification(harness: RuleHarness) -> None:
    harness.append_rates([WELL] * 5 + [BAD] * 4)
    for minute in range(9):
        harness.evaluate_at(minute + LAG)

    def told() -> tuple[str, str]:
        (alert,) = [alert for alert in alerts(harness.objects) if alert.cause == "RULE_FIRING"]
        assert alert.state.is_open
        return alert.summary, str(alert.detail["minute"])

    first, _ = told()
    harness.append_rates([3 * BAD] * 7, first=9)
    for minute in range(9, 16):
        harness.evaluate_at(minute + LAG)
    renewed, minute_told = told()

    assert f"at {format_number(BAD)}" in first
    assert f"at {format_number(3 * BAD)}" in renewed
    assert "Out of bounds since 2026-03-02T10:05Z" in renewed
    assert minute_told == "2026-03-02T10:10Z"
    assert harness.sent() == [("raised", "shop.rate{cdn=a}")]
    harness.append_rates([WELL] * 10, first=16)
    harness.evaluate_at(25 + LAG)
    assert [kind for kind, _ in harness.sent()] == ["raised", "resolved"]


def test_an_outage_of_twenty_minutes_changes_no_episode(tmp_path: Path) -> None:
    one, other = (RuleHarness(rules_project(tmp_path / name)) for name in ("one", "other"))
    always = evaluated(one, LINE * 2)
    away = evaluated(other, LINE * 2, minutes=[0, 1, 2, 23, 24, *range(25, 40)])

    assert episodes(away) == episodes(always)
    assert other.sent() == one.sent()
    assert len(always.episodes) == 2
    # By wall clock the second episode is within the first one's cooldown.
    assert [kind for kind, _ in one.sent()] == ["raised", "resolved"]


def test_concurrent_evaluators_notify_once(harness: RuleHarness) -> None:
    other = harness.new_evaluator()
    harness.append_rates([*LINE, WELL])
    for minute in range(len(LINE)):
        harness.evaluate_at(minute + LAG)
        harness.evaluate_at(minute + LAG, other)

    assert episodes(harness.state()) == [("10:05", "10:07", "10:15")]
    assert [kind for kind, _ in harness.sent()] == ["raised", "resolved"]


def test_the_second_writer_fails(harness: RuleHarness) -> None:
    other = harness.new_evaluator()
    harness.append_rates([*LINE, WELL])
    for evaluator in (harness.evaluator, other):
        harness.evaluate_at(LAG, evaluator)
    (second,) = other.evaluators
    harness.evaluate_at(8 + LAG)
    before = harness.state()

    with pytest.raises(ConcurrencyError, match="RULE_EVALUATED_ELSEWHERE"):
        second._write(second.state.replace(problem="of the second one"))
    assert harness.state() == before
    assert second.state == before


@pytest.mark.parametrize("protected", [True, False])
def test_a_stalled_evaluator_does_not_revert_minutes(
    harness: RuleHarness, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    """It continues where it stopped after another process has evaluated the following minutes."""
    still = harness.new_evaluator()
    harness.append_rates([*LINE, WELL])
    harness.evaluate_at(4 + LAG, still)
    for minute in range(len(LINE)):
        harness.evaluate_at(minute + LAG)
    if not protected:
        monkeypatch.setattr(rule_evaluator.RuleEvaluator, "_write", _write_over)

    harness.evaluate_at(8 + LAG, still)

    # Without it an ended episode would be firing again.
    assert episodes(harness.state()) == [("10:05", "10:07", "10:15" if protected else None)]


def _write_over(evaluator: rule_evaluator.RuleEvaluator, state: RuleState) -> None:
    """Overwrites the state unconditionally."""
    evaluator._objects.put(evaluator._key, state.encode())
    evaluator._state = state


@pytest.mark.parametrize("dies_after", ["state", "alert"])
def test_an_undelivered_outbox_is_delivered_by_the_next_process(
    harness: RuleHarness, monkeypatch: pytest.MonkeyPatch, dies_after: str
) -> None:
    harness.append_rates([*LINE, WELL])
    harness.evaluate_at(LAG)

    def killed(objects: object, outbox: object) -> None:
        if dies_after == "alert":
            rule_alerts.deliver(objects, outbox)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rule_evaluator, "deliver", killed)
        with pytest.raises(KeyboardInterrupt):
            harness.evaluate_at(19 + LAG)
    assert len(harness.state().outbox) == 2

    harness.evaluate_at(19 + LAG, harness.new_evaluator())

    assert [kind for kind, _ in harness.sent()] == ["raised", "resolved"]
    assert harness.state().outbox == ()
    assert harness.open_subjects() == []


def test_a_resolved_episode_is_not_raised_again(harness: RuleHarness) -> None:
    evaluated(harness, LINE)
    (evaluator,) = harness.evaluator.evaluators
    subject = "shop.rate{cdn=a}"
    stored = read_alert(harness.objects, cause="RULE_FIRING", subject=subject)
    assert stored is not None
    long_ago = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    state = stored.state.replace(last_notified_at=long_ago, notification_times=())
    harness.objects.put(
        next(key for key in harness.objects.list("") if "/state/RULE_FIRING/" in key),
        stored.replace(state=state).encode(),
    )
    again = [item.replace(kind=kind) for kind, item in (("raise", _telling(stored)), ("resolve", _telling(stored)))]

    rule_alerts.deliver(harness.objects, again)

    assert [kind for kind, _ in harness.sent()] == ["raised", "resolved"]
    assert evaluator.state.outbox == ()


def _telling(stored: object) -> rule_evaluator.AlertEvent:
    return rule_evaluator.AlertEvent(
        kind="raise",
        cause="RULE_FIRING",
        subject=stored.subject,  # type: ignore[attr-defined]
        severity="warning",
        summary="again",
        detail=dict(stored.detail),  # type: ignore[attr-defined]
    )


def test_a_rule_waits_silently_for_the_first_row_of_its_table(harness: RuleHarness) -> None:
    harness.append_rows([])
    for minute in (0, 60, 10_000):
        harness.evaluate_at(minute)

    assert harness.sent("RULE_UNKNOWN") == []
    assert harness.state().problem == "shop.errors_minute has no rows"

    harness.append_rates([WELL] * 6, first=10_000)
    harness.evaluate_at(10_005 + LAG)
    assert harness.state().problem == ""
    harness.evaluate_at(10_020)
    assert harness.sent("RULE_UNKNOWN") == [("raised", "shop.rate")]


def test_a_table_that_lost_its_rows_raises_rule_unknown(harness: RuleHarness) -> None:
    harness.append_rates([WELL] * 6)
    harness.evaluate_at(5 + LAG)
    table = Lake(harness.catalog.environment.lake).open(paths.table("shop", "errors_minute"))
    assert table is not None
    table.delete()

    harness.evaluate_at(30)

    assert harness.sent("RULE_UNKNOWN") == [("raised", "shop.rate")]


def test_a_table_without_new_rows_raises_rule_unknown(harness: RuleHarness) -> None:
    harness.append_rates([WELL] * 6)
    for minute in range(6):
        harness.evaluate_at(minute + LAG)
    sent: Callable[[], list[tuple[str, str]]] = lambda: harness.sent("RULE_UNKNOWN")  # noqa: E731

    # The delay is 90 s plus a minute, and it takes three more minutes to fire.
    harness.evaluate_at(9)
    assert sent() == []
    harness.evaluate_at(11)
    assert sent() == [("raised", "shop.rate")]
    assert (
        "shop.errors_minute has no rows newer than 2026-03-02 10:05Z (limit 6 min)"
        in harness.notifications("RULE_UNKNOWN")[0].summary
    )

    harness.append_rates([WELL] * 8, first=6)
    harness.evaluate_at(13 + LAG)
    assert sent() == [("raised", "shop.rate"), ("resolved", "shop.rate")]
    assert harness.state().last_minute == "2026-03-02T10:12Z"


def test_late_minutes_are_evaluated_when_they_arrive(harness: RuleHarness) -> None:
    harness.append_rates([WELL] * 5)
    for minute in range(30):
        harness.evaluate_at(minute + LAG)
    harness.append_rates([*LINE[5:], WELL], first=5)
    harness.evaluate_at(30 + LAG)

    assert episodes(harness.state()) == [("10:05", "10:07", "10:15")]


def test_flapping_around_the_bound_for_an_hour_is_one_episode(harness: RuleHarness) -> None:
    # Alternates above 0.1 and between the bounds; never below 0.09.
    line = [WELL, 0.11, 0.11, 0.11, *[0.095, 0.11, 0.095] * 19, *[WELL] * 8]
    state = evaluated(harness, line, minutes=[*range(0, len(line), 5), len(line) - 1])

    assert episodes(state) == [("10:01", "10:03", "11:05")]
    assert len(harness.sent()) <= 6


def test_without_a_second_bound_the_same_hour_is_many_episodes(tmp_path: Path) -> None:
    rule = RATE.replace(", clear: {above: 0.09}", ", for_minutes: 1, keep_firing_minutes: 1")
    harness = RuleHarness(rules_project(tmp_path, rule))
    state = evaluated(harness, [WELL, *[0.095, 0.11, 0.095] * 20, WELL], minutes=[*range(0, 60, 5), 61])

    assert len(state.episodes) == 20
    assert len(harness.sent()) <= 6


def test_minutes_too_old_to_catch_up_are_unknown(harness: RuleHarness) -> None:
    harness.append_rates([WELL] * 3)
    harness.evaluate_at(1 + LAG)
    harness.append_rates([WELL] * 500, first=3)
    harness.evaluate_at(500)

    assert harness.sent("RULE_UNKNOWN") == [("raised", "shop.rate")]
    assert (
        "was not evaluated from 2026-03-02T10:01Z to 2026-03-02T12:17Z"
        in harness.notifications("RULE_UNKNOWN")[0].summary
    )
    harness.evaluate_at(502)
    assert [kind for kind, _ in harness.sent("RULE_UNKNOWN")] == ["raised", "resolved"]


def test_failing_sql_raises_an_alert_and_minutes_are_caught_up_after_the_fix(tmp_path: Path) -> None:
    catalog = rules_project(tmp_path)
    harness = RuleHarness(catalog)
    harness.append_rates([*LINE, WELL])
    for minute in range(5):
        harness.evaluate_at(minute + LAG)
    file = catalog.folder("shop") / "rules/rate.sql"
    right = file.read_text()
    file.write_text("SELECT minute, cdn, rate / requests_ AS value FROM errors_minute WHERE minute >= $from")
    broken = harness.new_evaluator()
    harness.evaluate_at(12 + LAG, broken)

    assert harness.sent("RULE_BROKEN") == [("raised", "shop.rate")]
    assert "requests_" in harness.notifications("RULE_BROKEN")[0].summary
    assert harness.state().last_minute == "2026-03-02T10:04Z"

    file.write_text(right)
    harness.evaluate_at(19 + LAG, harness.new_evaluator())
    assert [kind for kind, _ in harness.sent("RULE_BROKEN")] == ["raised", "resolved"]
    assert episodes(harness.state()) == [("10:05", "10:07", "10:15")]


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"\1" * 3_000)], ids=["gone", "torn"])
def test_a_damaged_file_is_told_with_its_repair_and_ends_no_evaluation(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    harness = RuleHarness(rules_project(tmp_path))
    harness.append_rates([*LINE, WELL])
    folder = Path(harness.catalog.environment.lake.prefix, paths.table("shop", "errors_minute"))
    file = min(folder.rglob("*.parquet"))
    content = file.read_bytes()
    damage(file)

    harness.evaluate_at(5 + LAG)

    assert harness.sent("RULE_BROKEN") == [("raised", "shop.rate")]
    told = harness.notifications("RULE_BROKEN")[0]
    assert f"shop.errors_minute: data file {file.name} " in told.summary
    assert "`deltaworks recover files shop errors_minute" in str(told.detail["next_step"])
    assert told.summary.endswith(f" Next: {told.detail['next_step']}")
    assert "SQL" not in str(told.detail["next_step"])

    file.write_bytes(content)
    harness.evaluate_at(8 + LAG)
    assert [kind for kind, _ in harness.sent("RULE_BROKEN")] == ["raised", "resolved"]


def test_a_storm_raises_one_alert(tmp_path: Path) -> None:
    rule = RATE.replace("labels: [cdn]", "labels: [cdn], grouping: {min_alerts: 5}")
    harness = RuleHarness(rules_project(tmp_path, rule))
    for number in range(8):
        harness.append_rates([*LINE, WELL], cdn=f"c{number}")
    for minute in range(len(LINE)):
        harness.evaluate_at(minute + LAG)

    assert harness.sent() == [("raised", "shop.rate"), ("resolved", "shop.rate")]
    raised = harness.notifications()[0]
    assert raised.detail["label_sets_count"] == 8
    assert raised.detail["label_sets"][:2] == [{"cdn": "c0"}, {"cdn": "c1"}]


def test_a_rule_is_inhibited_while_another_fires_for_the_same_labels(tmp_path: Path) -> None:
    first = RATE.replace("name: rate", "name: origin")
    second = RATE.replace("fire: ", "inhibited_by: [origin], fire: ").replace(
        "above: 0.1}", "above: 0.1}, keep_firing_minutes: 12"
    )
    harness = RuleHarness(rules_project(tmp_path, first, second))
    for cdn, line in (("a", LINE), ("b", [WELL] * 20)):
        harness.append_rates([*line, WELL], cdn=cdn)
    for minute in range(len(LINE)):
        harness.evaluate_at(minute + LAG)

    # The other rule ends first; then this one notifies.
    assert harness.sent()[0] == ("raised", "shop.origin{cdn=a}")
    (episode,) = harness.state("rate").episodes
    assert episode.inhibited_by == "origin"
    assert harness.sent() == [
        ("raised", "shop.origin{cdn=a}"),
        ("resolved", "shop.origin{cdn=a}"),
        ("raised", "shop.rate{cdn=a}"),
    ]


def test_more_than_a_thousand_label_sets_are_too_many(harness: RuleHarness) -> None:
    harness.append_rows(
        minute_row(minute, WELL, f"c{number}", 10_000 - number) for minute in (0, 1) for number in range(1_001)
    )
    harness.evaluate_at(LAG)

    assert harness.sent("RULE_TOO_MANY_SERIES") == [("raised", "shop.rate")]
    assert len(harness.state().series) == 1_000


def test_a_notification_contains_recent_annotations(harness: RuleHarness) -> None:
    annotate(harness.objects, "shop", "price change", at=START - dt.timedelta(hours=2), author="sales")
    annotate(harness.objects, "shop", "too long ago", at=START - dt.timedelta(days=2))
    evaluated(harness, LINE)

    assert harness.notifications()[0].detail["annotations"] == ["2026-03-02 08:00Z price change (sales)"]


def test_a_removed_rule_resolves_its_alerts(tmp_path: Path) -> None:
    catalog = rules_project(tmp_path)
    harness = RuleHarness(catalog)
    evaluated(harness, LINE[:9])
    assert harness.open_subjects() == ["shop.rate{cdn=a}"]

    other = RuleHarness(rules_project(tmp_path, RATE.replace("name: rate", "name: other")))
    other.evaluator.resolve_removed_rules()

    assert other.open_subjects() == []


def test_a_rule_with_changed_labels_starts_over(tmp_path: Path) -> None:
    harness = RuleHarness(rules_project(tmp_path))
    evaluated(harness, LINE[:9])

    other = RuleHarness(rules_project(tmp_path, RATE.replace("labels: [cdn]", "labels: []")))
    other.append_rates([WELL] * 3, first=10)
    other.evaluate_at(11 + LAG)

    assert other.open_subjects() == []
    assert other.phases() == {"": "ok"}


def waiting_rules(harness: RuleHarness) -> tuple[bool, str, list[str], list[str]]:
    """Returns whether the rule waits, for what, and the open alerts of it."""
    state = harness.state()
    return state.waiting, state.problem, harness.open_subjects(), harness.open_subjects("RULE_UNKNOWN")


@pytest.mark.parametrize("hours_old", [0.5, 7, 24 * 30, 24 * 365 * 2])
def test_a_rule_judges_data_of_the_past_silently(harness: RuleHarness, hours_old: float) -> None:
    """The bad minutes of a backfill call for no action."""
    now = hours_old * 60
    harness.append_rates([*LINE[:9], BAD, BAD])
    for minute in range(3):
        harness.evaluate_at(now + minute)

    problem = "shop.errors_minute has no rows newer than 2026-03-02 10:10Z (limit 6 min)"
    assert waiting_rules(harness) == (True, problem, [], [])
    assert harness.sent() == harness.sent("RULE_UNKNOWN") == []
    assert harness.state().last_minute is not None, "they are judged"


def test_an_episode_of_the_past_that_lasts_is_raised_with_the_first_recent_row(harness: RuleHarness) -> None:
    harness.append_rates([*LINE[:9], BAD, BAD])
    harness.evaluate_at(60)
    assert waiting_rules(harness)[2:] == ([], [])

    harness.append_rates([BAD] * 50, first=11)
    harness.evaluate_at(60 + LAG)

    assert waiting_rules(harness) == (False, "", ["shop.rate{cdn=a}"], [])
    assert [kind for kind, _ in harness.sent()] == ["raised"]


def test_recent_rows_after_a_backfill_are_not_called_an_outage_of_the_process(harness: RuleHarness) -> None:
    harness.append_rates([WELL] * 6)
    harness.evaluate_at(5_000)
    harness.append_rates([WELL] * 6, first=5_000)
    harness.evaluate_at(5_005 + LAG)

    assert waiting_rules(harness) == (False, "", [], [])
    assert harness.sent("RULE_UNKNOWN") == []


def test_each_alert_of_a_rule_has_the_next_step_of_its_own_reason_and_its_last_text(tmp_path: Path) -> None:
    rule = RATE.replace("labels:", 'runbook: "Stop the roll-out of that version.", labels:')
    harness = RuleHarness(rules_project(tmp_path, rule))
    harness.append_rates([WELL] * 6)
    for minute in range(6):
        harness.evaluate_at(minute + LAG)

    def told() -> tuple[str, str]:
        alert = read_alert(harness.objects, cause="RULE_UNKNOWN", subject="shop.rate")
        assert alert is not None
        assert alert.state.is_open
        return alert.summary, str(alert.detail["next_step"])

    harness.evaluate_at(30)
    first, next_step = told()
    assert first.endswith("10:05Z (limit 6 min).")
    assert "why shop.errors_minute gets no rows" in next_step
    harness.append_rates([WELL] * 4, first=6)
    harness.evaluate_at(40)
    second, _ = told()
    assert second.endswith("10:09Z (limit 6 min).")
    table = Lake(harness.catalog.environment.lake).open(paths.table("shop", "errors_minute"))
    assert table is not None
    table.delete()
    harness.evaluate_at(41)
    third, next_step = told()
    assert third == "rate cannot be judged: shop.errors_minute has no rows."
    assert "roll-out" not in next_step
    assert [kind for kind, _ in harness.sent("RULE_UNKNOWN")] == ["raised"], "a new text is not a new notification"


def test_a_table_that_lost_its_rows_has_the_grace_of_the_rule(harness: RuleHarness) -> None:
    harness.append_rates([WELL] * 6)
    harness.evaluate_at(5 + LAG)
    table = Lake(harness.catalog.environment.lake).open(paths.table("shop", "errors_minute"))
    assert table is not None
    table.delete()

    harness.evaluate_at(9)
    assert waiting_rules(harness) == (True, "shop.errors_minute has no rows", [], [])
    harness.evaluate_at(12)
    assert waiting_rules(harness)[3] == ["shop.rate"]
