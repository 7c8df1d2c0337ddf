"""The catalog of conditions: every raised code has a row, every row is raised, and every link leads to a heading."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deltaworks.control.conditions import (
    ALERTS,
    CONDITIONS,
    HEALTH_CAUSES,
    SEVERITIES,
    AlertCause,
    Condition,
    alert_for_failure,
    alert_for_verdict,
    failure_alerts,
    get_alert_cause,
    index_by_code,
    severity_rank,
    verdict_alerts,
)
from deltaworks.control.conditions.docs_tables import PAGES, page_with_tables
from deltaworks.errors import (
    ConcurrencyError,
    ConfigError,
    ContractError,
    DeltaworksError,
    FencedError,
    TransientError,
)
from tests.offenders import failures

ROOT = Path(__file__).resolve().parents[4]
DOCS = ROOT / "docs"
LIBRARY = ROOT / "include"
ROWS = LIBRARY / "deltaworks" / "control" / "troubles"
CODE = re.compile(r"^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$")
KINDS = (DeltaworksError, ConfigError, ContractError, ConcurrencyError, TransientError, FencedError)
#: Built from the kind of thing that is unknown.
GENERATED_PAGES = {
    f"{kind}_UNKNOWN" for kind in ("PIPELINE", "RELAY", "DASHBOARD", "COLLECTOR", "FEED", "MODEL", "NAMESPACE")
}


def sources() -> dict[Path, str]:
    """Every module except the catalog itself."""
    rows = {path for path in ROWS.glob("*.py") if path.name != "__init__.py"}
    return {path: path.read_text() for path in sorted(LIBRARY.rglob("*.py")) if path not in rows}


def raised_conditions() -> dict[str, set[str]]:
    """Every condition of a DeltaworksError in the library, with the error classes."""
    nodes = [
        node
        for text in sources().values()
        for node in ast.walk(ast.parse(text))
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
    trees = [ast.parse(text) for path, text in sources().items() if path.parent.name == "health"]
    return {
        node.args[1].value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", None) == "Finding"
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
        and isinstance(node.args[1].value, str)
    }


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_condition_that_is_raised_has_a_row_of_its_class() -> None:
    conditions = raised_conditions()

    assert len(conditions) > 200, "the search for conditions finds too few"
    assert conditions.keys() - CONDITIONS.keys() == set()
    classes = {code: {getattr(CONDITIONS[code].error, "__name__", "")} for code in conditions}
    assert {code: kinds for code, kinds in conditions.items() if kinds != classes[code]} == {}


def test_every_condition_is_raised_somewhere() -> None:
    text = "\n".join(sources().values())

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


def check_runbook(row: Condition) -> None:
    page, _, anchor = row.runbook.partition("#")

    assert row.meaning
    assert row.next_step
    assert not page or (DOCS / page).is_file()
    assert not anchor or anchor in anchors(DOCS / page)


def test_every_runbook_of_a_row_exists() -> None:
    assert failures(check_runbook, CONDITIONS | HEALTH_CAUSES) == {}
    row = replace(CONDITIONS["SPEC_INVALID"], runbook="reference/conditions.md#none")
    assert failures(check_runbook, {"another": row}).keys() == {"another"}


def check_alert(cause: AlertCause) -> None:
    page, _, anchor = cause.runbook.partition("#")

    assert (DOCS / page).is_file(), cause.runbook
    assert anchor in anchors(DOCS / page), cause.runbook
    prose = re.sub(r"<!-- table.*?<!-- end -->", "", (DOCS / page).read_text(), flags=re.DOTALL)
    assert f"`{cause.name}`" in prose
    assert cause.severity in SEVERITIES
    assert cause.max_notifications_per_hour >= 2


def test_every_alert_leads_to_a_heading_that_describes_it() -> None:
    assert failures(check_alert, ALERTS) == {}
    assert failures(check_alert, {"other": replace(ALERTS["STREAM_HUNG"], name="OTHER")}).keys() == {"other"}


def test_there_are_alerts() -> None:
    assert len(ALERTS) >= 15


def test_an_unknown_alert_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(ConfigError) as refused:
        get_alert_cause("STREAM_HUNGRY")

    assert refused.value.condition == "ALERT_CAUSE_UNKNOWN"
    assert "STREAM_HUNG" in refused.value.hint


def test_codes_are_unique() -> None:
    hung = ALERTS["STREAM_HUNG"]
    other = AlertCause("STREAM_HUNG", "info", hung.runbook, "another")

    assert index_by_code((hung, hung), lambda row: row.name) == {"STREAM_HUNG": hung}
    with pytest.raises(ValueError, match="Two rows are called STREAM_HUNG"):
        index_by_code((hung, other), lambda row: row.name)


def test_severities_are_in_order() -> None:
    assert sorted(SEVERITIES, key=severity_rank) == ["info", "warning", "critical"]


@pytest.mark.parametrize(
    ("code", "retryable"),
    [("SPEC_INVALID", False), ("LEASE_HELD", True), ("STORAGE_REFUSED", True), ("LAKE_NOT_EMPTY", False),
     ("JOB_FAILED", True), ("OWNER_FENCED", False)],
)  # fmt: skip
def test_a_condition_is_retryable_like_its_class_unless_overridden(code: str, retryable: bool) -> None:
    assert CONDITIONS[code].retryable is retryable


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
