"""`deltaworks alerts rules`, `alerts backtest` and `annotate`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from deltaworks.cli import operations, rules
from deltaworks.errors import ConfigError
from deltaworks.rules.annotations import recent_annotation_lines
from tests.commands import invoke
from tests.unit.rules.rule_harness import START, RuleHarness, rules_project

LINE = [0.01] * 5 + [0.2] * 6 + [0.01] * 9
TIMES = ("--from", "2026-03-02T10:00", "--to", "2026-03-02T10:20")

run = partial(invoke, columns=300)


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RuleHarness:
    harness = RuleHarness(rules_project(tmp_path))
    for module in (rules, operations):
        monkeypatch.setattr(module, "catalog", lambda **_: harness.catalog)
    harness.append_rates([*LINE, 0.01])
    harness.append_rates([0.01] * 21, cdn="b")
    return harness


def test_rules_are_listed_with_abnormal_series(harness: RuleHarness) -> None:
    for minute in range(9):
        harness.evaluate_at(minute + 2.6)

    listed = json.loads(run("alerts", "rules", "--json").output)

    assert [(item["labels"], item["state"], item["value"]) for item in listed] == [
        ("cdn=a", "firing", 0.2),
        ("1 of 2", "ok", ""),
    ]
    assert {item["judged_to"] for item in listed} == {"2026-03-02T10:08Z"}
    assert len(json.loads(run("alerts", "rules", "shop", "--all", "--json").output)) == 2


def test_an_unevaluated_rule_is_reported(harness: RuleHarness) -> None:
    assert "not evaluated yet" in run("alerts", "rules", "--csv").output


def test_a_backtest_prints_episodes_notifications_and_incidents_and_writes_its_chart(
    harness: RuleHarness, tmp_path: Path
) -> None:
    incidents, chart = tmp_path / "incidents.csv", tmp_path / "trial" / "rate.html"
    incidents.write_text("from,to,cdn\n2026-03-02T10:05,2026-03-02T10:11,a\n")
    words = ("alerts", "backtest", "shop", "rate", *TIMES, "--incidents", str(incidents), "--html", str(chart))

    shown = run(*words)

    assert shown.exit_code == 0, shown.output
    for text in ("2026-03-02T10:07Z", "raised", "shop.rate{cdn=a}", "4.5", "0 episodes of no incident: 0.00 a day"):
        assert text in shown.output
    assert "this is optimistic" in shown.output
    page = chart.read_text(encoding="utf-8")
    assert "shop.rate" in page
    assert "This panel failed" not in page


def test_other_bounds_can_be_tested(harness: RuleHarness) -> None:
    shown = run("alerts", "backtest", "shop", "rate", *TIMES, "--set", "fire.above=0.5", "--set", "clear=null")

    assert shown.output.startswith("0 episodes")


def test_an_invalid_time_range_is_rejected(harness: RuleHarness) -> None:
    refused = run("alerts", "backtest", "shop", "rate", "--from", "2026-03-03", "--to", "2026-03-02")

    assert isinstance(refused.exception, ConfigError)
    assert refused.exception.condition == "BACKTEST_SPAN_INVALID"


def test_an_annotation_is_stored_once(harness: RuleHarness) -> None:
    for _ in range(2):
        shown = run("annotate", "shop", "price change", "--at", "2026-03-02T08:00", "--by", "sales")
        assert shown.exit_code == 0, shown.output

    assert recent_annotation_lines(harness.objects, "shop", START) == ["2026-03-02 08:00Z price change (sales)"]
    refused = run("annotate", "shop", "price change", "--at", "soon")
    assert isinstance(refused.exception, ConfigError)
