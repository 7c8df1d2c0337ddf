"""The example of docs/how-to/write-rules.md works."""

from __future__ import annotations

import re
from pathlib import Path

from deltaworks.specs.alert_rule import RuleSpec
from deltaworks.specs.checks.project import check_project
from tests.unit.rules.rule_harness import RuleHarness, rules_project

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "how-to/write-rules.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- rule: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))


def test_the_documented_rule_fires(tmp_path: Path) -> None:
    declared = EXAMPLES["rules"].strip().removeprefix("- ")
    catalog = rules_project(tmp_path, declared, errors_high=EXAMPLES["rules/errors_high.sql"])
    assert check_project("local", root=tmp_path / "project").errors == []
    harness = RuleHarness(catalog)
    harness.append_rates([0.01, 0.2, 0.2, 0.2, 0.2, 0.2])
    for minute in (0, 4):
        harness.evaluate_at(minute + 2.6)

    (raised,) = harness.notifications()
    assert (raised.subject, raised.severity) == ("shop.errors_high{cdn=a}", "critical")
    assert raised.summary.startswith("Requests that fail: cdn a at 0.2")
    assert raised.detail["next_step"] == "Does the origin answer?"


def test_the_page_names_every_key_of_a_rule() -> None:
    table = PAGE.partition("| key | default | meaning |")[2].partition("\n\n")[0]

    named = set(re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:] if "|" in line)))
    assert named == set(RuleSpec.model_fields)
