"""The time from an event to a notice follows from the declaration, and `pipelines check` compares it with promises."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltaworks.cli import app
from deltaworks.specs.checks.project import check_project
from deltaworks.specs.notice_delay import notice_delay, table_delay_seconds
from tests.unit.rules.rule_harness import RATE, rules_project

BRONZE = RATE.replace("reads: [errors_minute]", "reads: [orders]")
ORDERS_SQL = """\
SELECT date_trunc('minute', event_time) AS minute, event_name AS cdn, 1.0 AS value
FROM orders WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
"""


def test_the_delay_of_each_kind_of_table_is_known(tmp_path: Path) -> None:
    spec = rules_project(tmp_path).pipeline("shop")
    (gold,) = spec.gold.tables

    def delay(**settings: object) -> float:
        tables = (gold.model_copy(update=settings),)
        declared = spec.gold.model_copy(update={"tables": tables})
        return table_delay_seconds(spec.model_copy(update={"gold": declared}), "errors_minute")

    assert table_delay_seconds(spec, "orders") == 60
    assert delay() == 0
    assert delay(lag=dt.timedelta(minutes=15)) == 900
    assert delay(lag=dt.timedelta(seconds=10)) == 70


@pytest.mark.parametrize(
    ("rule", "seconds"),
    [
        ("for_minutes: 3, evaluation_delay_seconds: 90", 60 + 180 + 90 + 3),
        ("for_minutes: 1, evaluation_delay_seconds: 60", 60 + 60 + 60 + 3),
        ("for_minutes: 5, step_minutes: 5, evaluation_delay_seconds: 60", 300 + 300 + 60 + 3),
        ("for_minutes: 1, time_axis: arrival, evaluation_delay_seconds: 20", 60 + 60 + 60 + 20 + 3),
    ],
)
def test_the_parts_of_a_delay_add_up(tmp_path: Path, rule: str, seconds: float) -> None:
    spec = rules_project(tmp_path, BRONZE.replace("labels: [cdn]", f"labels: [cdn], {rule}"), rate=ORDERS_SQL)
    (declared,) = spec.pipeline("shop").rules

    delay = notice_delay(spec.pipeline("shop"), declared)

    assert delay.total_seconds == seconds
    assert delay.table == "orders"


def test_check_prints_where_a_rule_reads_and_warns_of_a_promise_it_cannot_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = BRONZE.replace("labels: [cdn]", "labels: [cdn], for_minutes: 3, notify_within_seconds: 180")
    rules_project(tmp_path, rule, rate=ORDERS_SQL)
    (warning,) = [item for item in check_project("local", root=tmp_path / "project").warnings if "tells" in item.text]
    assert warning.key.endswith("notify_within_seconds")
    assert "rate tells up to 333 s after an event, and promises 180 s: step 60 + for 180 + settle 90 (orders 60)" in (
        warning.text
    )
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path / "project"))
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")

    printed = CliRunner().invoke(app, ["pipelines", "check", "--wide"])

    assert printed.exit_code == 0, printed.output
    line = next(line for line in printed.output.splitlines() if line.startswith("shop.rate"))
    assert line.split()[1:4] == ["orders", "333", "s"]
