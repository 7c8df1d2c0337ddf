"""Unknown names in routes, and remediations that would never act, are errors with file, key and the nearest name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deltaworks.errors import ConfigError
from deltaworks.specs.checks.project import check_project
from deltaworks.specs.project import load_catalog
from deltaworks.testing import write_files
from tests.unit.specs.conftest import ENVIRONMENT, PIPELINE

MakeProject = Callable[..., Path]
RULE = """
rules:
  - name: orders_slow
    reads: [orders]
    sql: slow.sql
    labels: [cdn, region]
    fire: {above: 5}
    severity: warning
"""
SQL = "SELECT event_time AS minute, 'a' AS cdn, 'x' AS region, 1.0 AS value FROM orders WHERE event_date >= $from::DATE"
TOPIC = {"kind": "sns", "name": "queues", "topic": "arn:aws:sns:eu-central-1:123456789012:alerts"}
REMEDIATION = {
    "name": "shift_cdn",
    "owner": "network",
    "queue_url": "env:REMEDIATION_QUEUE_URL",
    "rule": "shop.orders_slow",
    "label": "cdn",
    "action": {"kind": "webhook", "url": "env:TRAFFIC_URL"},
    "targets": ["a", "b"],
    "step": 0.2,
    "verify": {"after_minutes": 10, "min_improvement": 0.05},
}


def project(make: MakeProject, *, channels: list[dict[str, Any]] | None = None, **more: Any) -> Path:
    """Writes a project with a rule, and an environment with routes or remediations."""
    alerts = {"channels": [{"kind": "log", "name": "log"}, *(channels or [TOPIC])], "routes": more.pop("routes", [])}
    root = make(pipeline=PIPELINE + RULE, environment=ENVIRONMENT + yaml.safe_dump({"alerts": alerts, **more}))
    write_files(root, {"include/pipelines/shop/slow.sql": SQL})
    return root


def errors(root: Path) -> list[str]:
    """Returns the errors of the check, of which loading the project raises those of the environment too."""
    checked = [str(error) for error in check_project("local", root=root).errors]
    if not checked:
        load_catalog("local", root=root)
        return []
    with pytest.raises(ConfigError) as refused:
        load_catalog("local", root=root)
    assert [text.partition(": ")[2] for text in checked] == [text.partition(": ")[2] for text in refused.value.items]
    return checked


def test_names_that_exist_and_globs_that_match_are_valid(make_project: MakeProject) -> None:
    routes = [
        {"owners": ["tests", "network"], "pipelines": ["sh*", "landing", "shift_cdn"], "channels": ["log"]},
        {"rules": ["shop.*", "shop.orders_slow"], "channels": ["log"]},
        {"channels": ["log"]},
    ]

    assert errors(project(make_project, routes=routes, remediations=[REMEDIATION])) == []


@pytest.mark.parametrize(
    ("route", "text"),
    [
        ({"owners": ["test"]}, "alerts.routes.0.owners.0: there is no owner 'test'; did you mean 'tests'?"),
        (
            {"pipelines": ["shop", "shp"]},
            "alerts.routes.0.pipelines.1: there is no pipeline, relay, collector or remediation 'shp'; "
            "did you mean 'shop'?",
        ),
        (
            {"rules": ["shop.order_slow"]},
            "alerts.routes.0.rules.0: there is no rule 'shop.order_slow'; did you mean 'shop.orders_slow'?",
        ),
        ({"rules": ["shop.x*"]}, "alerts.routes.0.rules.0: there is no rule 'shop.x*'"),
    ],
    ids=["owner", "pipeline", "rule", "glob"],
)
def test_an_unknown_name_in_a_route_gets_the_nearest(
    make_project: MakeProject, route: dict[str, Any], text: str
) -> None:
    (error,) = errors(project(make_project, routes=[{**route, "channels": ["log"]}, {"channels": ["log"]}]))

    assert error.startswith("include/environments/local.yaml:")
    assert text in error


@pytest.mark.parametrize(
    ("remediation", "text"),
    [
        ({"rule": "shop.order_slow"}, "rule: there is no rule 'shop.order_slow'; did you mean 'shop.orders_slow'?"),
        ({"rule": "shopp.orders_slow"}, "did you mean 'shop.orders_slow'?"),
        ({"label": "cnd"}, "label: the rule shop.orders_slow has no label 'cnd'; did you mean 'cdn'?"),
    ],
    ids=["rule", "pipeline", "label"],
)
def test_a_remediation_of_an_unknown_rule_or_label_is_refused(
    make_project: MakeProject, remediation: dict[str, Any], text: str
) -> None:
    (error,) = errors(project(make_project, remediations=[{**REMEDIATION, **remediation}]))

    assert "remediations.0." in error
    assert text in error


@pytest.mark.parametrize(
    ("channels", "routes", "text"),
    [
        ([{"kind": "log", "name": "other"}], [], "its alerts reach no queue: declare a channel of kind sns"),
        ([{**TOPIC, "min_severity": "critical"}], [], "severity is warning, and neither min_severity nor routes"),
        (
            [TOPIC],
            [{"rules": ["shop.*"], "channels": ["log"]}, {"channels": ["queues"]}],
            "neither min_severity nor routes let it reach queues",
        ),
    ],
    ids=["no topic", "severity", "route"],
)
def test_a_remediation_whose_alerts_never_reach_its_queue_is_refused(
    make_project: MakeProject, channels: list[dict[str, Any]], routes: list[dict[str, Any]], text: str
) -> None:
    (error,) = errors(project(make_project, channels=channels, routes=routes, remediations=[REMEDIATION]))

    assert text in error


def test_rules_of_pipelines_that_were_not_read_are_not_judged(make_project: MakeProject) -> None:
    root = project(make_project, remediations=[REMEDIATION])
    other = PIPELINE.replace("pipeline: shop", "pipeline: other")
    write_files(root, {"include/pipelines/other/pipeline.yaml": other})

    assert load_catalog("local", root=root, only=["other"]).environment.remediations[0].rule == "shop.orders_slow"
