"""An alert follows the share of rows that fail a table rule, and neither too few rows nor silence change it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.alerts.raising import alerts
from deltaworks.alerts.table_rules import alert_on_table_rules
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.summaries.rule_warnings import RuleWarningsCounter
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.table import TableRuleSpec
from deltaworks.testing import load_project
from tests.unit.alerts.conftest import Clock

PIPELINE = """\
pipeline: shop
description: orders
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: landing}
event:
  name: {path: name}
  time: {path: time}
tables:
  - name: orders
    when: {name: order}
    columns:
      - {name: amount, path: amount, type: "decimal(12,2)"}
    rules:
      - {name: positive, check: "amount > 0", on_fail: warn, alert_percent: 2}
      - {name: small, check: "amount < 1000", on_fail: warn}
stream: {trigger_seconds: 60}
"""
SUBJECT = "shop.orders.positive"


class Shop:
    """A project with two rules that warn, and the counts of its stream."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.clock, self.root, self.batch = clock, root, 0
        self.catalog = self.declared(PIPELINE)
        self.objects: ObjectStore = open_objects(self.catalog.environment.lake)
        self.counter = RuleWarningsCounter(self.objects, "shop", {"orders": ["positive", "small"]}, generation=1)

    def declared(self, text: str) -> Catalog:
        return load_project(self.root / "project", text, lake=self.root)

    def lands(self, rows: int, failed: int) -> None:
        self.batch += 1
        counts = {"orders.positive": failed, "orders.small": rows}
        self.counter.add(self.batch, {"orders": rows}, counts, at=self.clock.now)
        self.counter.write(self.clock.now, force=True)

    def check(self, seconds: float = 60, catalog: Catalog | None = None) -> list[str]:
        return alert_on_table_rules(self.objects, catalog or self.catalog, now=self.clock.advance(seconds))

    def open(self) -> dict[str, str]:
        return {alert.subject: alert.summary for alert in alerts(self.objects) if alert.state.is_open}


@pytest.fixture
def shop(tmp_path: Path, clock: Clock) -> Shop:
    return Shop(tmp_path, clock)


def test_an_alert_is_raised_above_the_declared_share_and_resolved_below(shop: Shop) -> None:
    shop.lands(1_000, 20)
    assert shop.check() == [], "2 % may fail"
    shop.lands(1_000, 30)
    assert shop.check() == [SUBJECT]
    assert shop.open() == {
        SUBJECT: "2.5 % of 2,000 rows of the last hour fail the rule positive of shop.orders (amount > 0); 2 % may."
    }, "the rule without a share has no alert, though all rows fail it"

    shop.lands(10_000, 0)

    assert shop.check() == []
    assert shop.open() == {}


def test_too_few_rows_raise_nothing_and_silence_resolves_nothing(shop: Shop) -> None:
    shop.lands(99, 99)
    assert shop.check() == []
    shop.lands(1, 1)
    assert shop.check() == [SUBJECT]

    assert shop.check(seconds=7_200) == []
    assert [*shop.open()] == [SUBJECT], "without rows nothing is known"
    shop.lands(5, 5)
    shop.check()
    assert [*shop.open()] == [SUBJECT], "five rows that fail mend nothing"
    shop.clock.advance(dt.timedelta(hours=2).total_seconds())
    shop.lands(5, 0)
    shop.check()
    assert shop.open() == {}


def test_a_rule_that_declares_no_share_any_longer_ends_its_alert(shop: Shop) -> None:
    shop.lands(100, 100)
    shop.check()
    assert shop.open()

    shop.check(catalog=shop.declared(PIPELINE.replace(", alert_percent: 2", "")))

    assert shop.open() == {}


@pytest.mark.parametrize("more", [{"on_fail": "quarantine"}, {"on_fail": "fail"}, {}], ids=str)
def test_a_share_without_warn_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="alert_percent is a key of on_fail: warn"):
        TableRuleSpec.model_validate({"name": "positive", "check": "amount > 0", "alert_percent": 2, **more})
