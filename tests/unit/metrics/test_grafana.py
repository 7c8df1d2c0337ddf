"""The Grafana dashboard queries exported metrics, and shows all of them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from deltaworks.metrics.grafana import dashboard, dashboard_json, expressions
from deltaworks.metrics.samples import FAMILIES
from deltaworks.specs.catalog import PROJECT_ROOT

FIGURE = re.compile(r"\bdeltaworks_\w+")


@pytest.fixture(scope="module")
def created() -> dict[str, Any]:
    return dashboard()


def test_every_expression_uses_exported_metrics(created: dict[str, Any]) -> None:
    for expression in expressions(created):
        figures = FIGURE.findall(expression)
        assert figures, expression
        assert set(figures) <= set(FAMILIES), expression


def test_every_metric_has_a_panel(created: dict[str, Any]) -> None:
    shown = {figure for expression in expressions(created) for figure in FIGURE.findall(expression)}

    assert set(FAMILIES) - shown == set()


def test_labels_in_expressions_and_legends_belong_to_their_metrics(created: dict[str, Any]) -> None:
    for panel in created["panels"]:
        for target in panel.get("targets", ()):
            labels = {label for name in FIGURE.findall(target["expr"]) for label in FAMILIES[name].labels}
            used = set(re.findall(r"{{(\w+)}}", target["legendFormat"])) | set(re.findall(r"(\w+)=~", target["expr"]))
            assert used <= labels, panel["title"]


def test_counters_are_queried_as_rates(created: dict[str, Any]) -> None:
    counters = {name for name, family in FAMILIES.items() if family.kind == "counter"}
    for expression in expressions(created):
        for figure in counters & set(FIGURE.findall(expression)):
            assert f"rate({figure}" in expression


def test_its_data_source_is_a_variable_and_panels_do_not_overlap(created: dict[str, Any]) -> None:
    cells: list[tuple[int, int]] = []
    for panel in created["panels"]:
        assert panel.get("datasource", {"uid": "${datasource}"})["uid"] == "${datasource}"
        key_path = panel["gridPos"]
        cells += [
            (key_path["x"] + across, key_path["y"] + down)
            for across in range(key_path["w"])
            for down in range(key_path["h"])
        ]

    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in created["panels"]}) == len(created["panels"])


def test_the_dashboard_in_the_docs_is_current() -> None:
    assert (PROJECT_ROOT / "docs" / "reference" / "grafana" / "deltaworks.json").read_text() == dashboard_json(), (
        "run: make tables"
    )
