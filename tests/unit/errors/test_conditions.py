"""The catalog of conditions: every raised code has a row, every row is raised, and every link leads to a heading."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltaworks.alerts.raising import get_alert_cause
from deltaworks.errors import (
    ConcurrencyError,
    ConfigError,
    ContractError,
    DeltaworksError,
    FencedError,
    TransientError,
)
from deltaworks.errors.conditions import (
    SEVERITIES,
    alert_for_failure,
    alert_for_verdict,
    catalog,
    failure_alerts,
    severity_rank,
    verdict_alerts,
)
from deltaworks.errors.docs_tables import PAGES, page_with_tables
from tests.code_trees import nodes_of, tree_of
from tests.processes import run_process

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
LIBRARY = ROOT / "include"
CATALOG = LIBRARY / "deltaworks" / "errors" / "conditions.json"
CODE = re.compile(r"^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$")
CONDITIONS, HEALTH_CAUSES, ALERTS = catalog().conditions, catalog().health_causes, catalog().alerts
KINDS = (DeltaworksError, ConfigError, ContractError, ConcurrencyError, TransientError, FencedError)
#: Built from the kind of thing that is unknown.
GENERATED_PAGES = {
    f"{kind}_UNKNOWN" for kind in ("PIPELINE", "RELAY", "DASHBOARD", "COLLECTOR", "FEED", "MODEL", "NAMESPACE")
}


def sources() -> dict[Path, str]:
    """Every module of the library."""
    return {path: path.read_text() for path in sorted(LIBRARY.rglob("*.py"))}


def raised_conditions() -> dict[str, set[str]]:
    """Every condition of a DeltaworksError in the library, with the error classes."""
    nodes = [
        node
        for path in sources()
        for node in nodes_of(tree_of(path))
        if isinstance(node, ast.ClassDef | ast.Call | ast.Dict)
    ]
    kinds = {kind.__name__: kind.__name__ for kind in KINDS}
    for _ in range(3):  # classes derived from classes derived from ours
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                for base in node.bases:
                    if (name := getattr(base, "id", None)) in kinds:
                        kinds.setdefault(node.name, kinds[name])
    conditions: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        for code, kind in codes(node, kinds):
            conditions[code].add(kind)
    return conditions


def codes(node: ast.AST, kinds: dict[str, str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Call) and getattr(node.func, "id", None) in kinds and node.args:
        for part in ast.walk(node.args[0]):
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and CODE.match(part.value):
                yield part.value, kinds[node.func.id]  # type: ignore[attr-defined]
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if getattr(key, "value", None) == "condition" and CODE.match(str(getattr(value, "value", ""))):
                yield str(value.value), DeltaworksError.__name__  # type: ignore[attr-defined]


def causes_of_findings() -> set[str]:
    """Every cause in findings of the health check."""
    trees = [tree_of(path) for path in sources() if path.parent.name == "health"]
    return {
        node.args[1].value
        for tree in trees
        for node in nodes_of(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", None) == "Finding"
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
        and isinstance(node.args[1].value, str)
    }


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_conditions_raised_and_the_conditions_declared_are_the_same() -> None:
    """Lists undeclared codes, codes raised with another class than declared, and codes that nothing raises."""
    raised = raised_conditions()
    text = "\n".join(sources().values())

    assert len(raised) > 200, "the search for conditions finds too few"
    assert raised.keys() - CONDITIONS.keys() == set()
    classes = {code: {CONDITIONS[code].error} for code in raised}
    assert {code: kinds for code, kinds in raised.items() if kinds != classes[code]} == {}
    assert {code for code in CONDITIONS.keys() - GENERATED_PAGES if f'"{code}"' not in text} == set()


def test_health_causes_match_the_codes_of_findings() -> None:
    causes = causes_of_findings()

    assert len(causes) > 15, "the search for causes finds too few"
    assert causes == set(HEALTH_CAUSES)


def test_every_alert_is_raised_by_name_or_for_a_row() -> None:
    text = "\n".join(sources().values())

    raised_for_rows = failure_alerts() | verdict_alerts()
    assert {name for name in ALERTS.keys() - raised_for_rows if f'"{name}"' not in text} == set()


def test_every_alert_that_a_row_names_exists() -> None:
    named = {row.alert for row in (*CONDITIONS.values(), *HEALTH_CAUSES.values()) if row.alert is not None}

    assert named - ALERTS.keys() == set()
    assert (failure_alerts() | verdict_alerts()) - ALERTS.keys() == set()


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_a_page_are_current(name: str) -> None:
    text = (DOCS / name).read_text()

    assert page_with_tables(text) == text, "run: make docs"


def test_the_docs_pages_list_every_condition() -> None:
    conditions, alerts = ((DOCS / name).read_text() for name in PAGES)

    rows = re.findall(r"^\| \[?`([A-Z_]+)`", conditions, re.MULTILINE)
    assert [code for code in (*CONDITIONS, *HEALTH_CAUSES) if rows.count(code) != 1] == []
    assert [name for name in ALERTS if alerts.count(f"\n| [`{name}`]") != 1] == []


def test_every_condition_has_its_texts_and_an_existing_runbook() -> None:
    rows = [*CONDITIONS.values(), *HEALTH_CAUSES.values()]

    assert [row.code for row in rows if not (row.meaning and row.next_step)] == []
    assert [row.code for row in rows if row.next_step.endswith(".")] == [], "the full stop is added"
    assert [row.runbook for row in rows if row.runbook and not is_heading(row.runbook)] == []


def is_heading(runbook: str) -> bool:
    page, _, anchor = runbook.partition("#")
    return (DOCS / page).is_file() and (not anchor or anchor in anchors(DOCS / page))


def test_every_alert_leads_to_a_heading_that_describes_it() -> None:
    prose = {
        page: re.sub(r"<!-- table.*?<!-- end -->", "", (DOCS / page).read_text(), flags=re.DOTALL)
        for page in {alert.runbook.partition("#")[0] for alert in ALERTS.values()}
    }

    assert [
        alert.runbook for alert in ALERTS.values() if "#" not in alert.runbook or not is_heading(alert.runbook)
    ] == []
    assert [name for name, row in ALERTS.items() if f"`{name}`" not in prose[row.runbook.partition("#")[0]]] == []
    assert [name for name, row in ALERTS.items() if row.severity not in SEVERITIES] == []
    assert [name for name, row in ALERTS.items() if row.max_notifications_per_hour < 2] == []


def test_there_are_alerts() -> None:
    assert len(ALERTS) >= 15


def test_an_unknown_alert_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(ConfigError) as refused:
        get_alert_cause("STREAM_HUNGRY")

    assert refused.value.condition == "ALERT_CAUSE_UNKNOWN"
    assert "STREAM_HUNG" in refused.value.hint


def test_the_file_is_formatted_and_its_codes_are_unique() -> None:
    text = CATALOG.read_text()
    raw = json.loads(text)
    codes = Counter(code for rows in (*raw["errors"].values(), raw["health"]) for code in rows)

    assert json.dumps(raw, indent=2, ensure_ascii=False) + "\n" == text, "a code twice, or another indentation"
    assert [code for code, count in codes.items() if count > 1] == []
    assert sum(map(len, raw["alerts"].values())) == len(ALERTS)


def test_the_catalog_is_read_only_for_an_error_that_is_reported() -> None:
    program = """
import sys
from deltaworks.errors import ConfigError
error = ConfigError("LEASE_HELD", "Held.")
before = set(sys.modules)
print(error, "importlib.resources" not in before, "deltaworks.errors.conditions" not in sys.modules)
"""
    done = run_process([sys.executable, "-c", program], env={"PYTHONPATH": str(LIBRARY)}, check=True)

    assert done.stdout.startswith("[LEASE_HELD] Held. Next: ")
    assert done.stdout.endswith(" True True\n")


def test_links_of_a_next_step_are_plain_text_in_an_error() -> None:
    hints = [DeltaworksError(code, "x").hint for code in CONDITIONS]

    assert [hint for hint in hints if "](" in hint or not hint.endswith(".") or hint.endswith("..")] == []
    assert "permissions (docs/reference/sources.md#permissions)" in ConfigError("KINESIS_REFUSED", "x").hint


def test_severities_are_in_order() -> None:
    assert sorted(SEVERITIES, key=severity_rank) == ["info", "warning", "critical"]


def test_a_condition_names_an_error_class_and_says_retryable_only_where_the_class_differs() -> None:
    classes = {kind.__name__: kind for kind in KINDS}

    assert {row.error for row in CONDITIONS.values()} == set(classes)
    overriding = [row for row in CONDITIONS.values() if row.retryable is not None]
    assert [row.code for row in overriding if row.retryable == classes[row.error or ""].default_retryable] == []
    assert {"JOB_FAILED", "STREAM_FAILED"} <= {row.code for row in overriding if row.retryable}


@pytest.mark.parametrize(
    ("condition", "alert"),
    [
        ("GOLD_CHECK_FAILED", "GOLD_CHECK_FAILED"),
        ("MUTATIONS_BEHIND", "MUTATIONS_BEHIND"),
        ("SPEC_INVALID", "JOB_FAILED"),
        ("TABLE_SUSPENDED", "JOB_FAILED"),
        ("UNHEARD_OF", "JOB_FAILED"),
        (None, "JOB_FAILED"),
    ],
)
def test_a_failed_job_raises_the_alert_of_its_condition(condition: str | None, alert: str) -> None:
    assert alert_for_failure(condition) == alert


def test_an_unhealthy_verdict_raises_the_alert_of_its_cause_or_the_general_one() -> None:
    assert alert_for_verdict("RECORDS_LOST") == "DATA_LOST"
    assert alert_for_verdict("SPEC_INVALID") == alert_for_verdict("GOLD_CHECK_FAILED") == "STREAM_UNHEALTHY"
