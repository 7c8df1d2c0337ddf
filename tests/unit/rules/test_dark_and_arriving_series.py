"""Series without rows, rows by their time of arrival, and how tables are watched for commits."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.objects import ObjectStore
from deltaworks.rules import inputs
from deltaworks.rules.inputs import RuleTables
from deltaworks.tables.lake import Lake
from tests.unit.rules.rule_harness import RATE, START, RuleHarness, minute_row, rules_project

LOW = (
    "{name: rate, reads: [errors_minute], sql: rules/rate.sql, labels: [cdn], fire: {below: 0.5}, no_data: zero, "
    "stale_seconds: 150}"
)
LAG = 2.6


def beat(harness: RuleHarness, minute: float, **said: object) -> None:
    """Writes the heartbeat of the stream as of some minutes after START."""
    at = (START + dt.timedelta(minutes=minute)).isoformat()
    fields = {"written_at": at, "started_at": at, "state": "idle", "pipeline": "shop", "owner": "o", "run": "r"} | said
    heartbeat = Heartbeat.model_validate({"epoch": 1, "trigger_seconds": 60.0, **fields})
    harness.objects.put(paths.heartbeat(paths.pipeline_control("shop")), heartbeat.encode())


@pytest.fixture
def low(tmp_path: Path) -> RuleHarness:
    return RuleHarness(rules_project(tmp_path, LOW))


def evaluate_each_minute(harness: RuleHarness, first: int, last: int) -> None:
    for minute in range(first, last):
        harness.evaluate_at(minute + LAG)


def test_a_label_set_that_goes_dark_has_the_value_zero(low: RuleHarness) -> None:
    low.append_rates([1.0] * 12)
    low.append_rates([1.0] * 5, cdn="b")
    evaluate_each_minute(low, 0, 11)

    assert low.open_subjects() == ["shop.rate{cdn=b}"]
    (raised,) = low.notifications()
    assert (raised.detail["value"], raised.detail["began"]) == (0.0, "2026-03-02T10:05Z")
    assert low.phases() == {"a": "ok", "b": "firing"}

    low.append_rates([1.0] * 9, first=12)
    low.append_rates([1.0] * 9, first=12, cdn="b")
    evaluate_each_minute(low, 11, 20)
    assert low.open_subjects() == []


def test_a_table_that_goes_dark_fires_only_if_the_stream_has_read_its_source(low: RuleHarness) -> None:
    low.append_rates([1.0] * 5)
    for minute in range(9):
        beat(low, minute + LAG)
        low.evaluate_at(minute + LAG)

    assert low.open_subjects() == ["shop.rate{cdn=a}"]


@pytest.mark.parametrize(
    "said",
    [
        {"state": "failed"},
        {"oldest_pending_at": START.isoformat()},
        {"written_at": START.isoformat()},
        {"held": [{"table": "orders"}]},
        {"gold_failures": [{"table": "errors_minute"}]},
    ],
)
def test_rows_that_a_stream_has_not_read_are_no_zeros(low: RuleHarness, said: dict[str, object]) -> None:
    low.append_rates([1.0] * 5)
    for minute in range(9):
        beat(low, minute + LAG, **said)
        low.evaluate_at(minute + LAG)

    assert low.open_subjects() == []
    assert low.state().last_minute == "2026-03-02T10:03Z"


def test_a_game_without_data_stays_silent(low: RuleHarness) -> None:
    for minute in range(9):
        beat(low, minute + LAG)
        low.evaluate_at(minute + LAG)

    assert (low.sent(), low.sent("RULE_UNKNOWN")) == ([], [])


def test_minutes_in_which_a_pipeline_did_not_run_are_no_zeros(low: RuleHarness) -> None:
    low.append_rates([1.0] * 5)
    low.evaluate_at(600)
    low.append_rates([1.0] * 5, first=600)
    evaluate_each_minute(low, 600, 605)

    assert low.sent() == []
    assert low.state().last_minute == "2026-03-02T20:03Z"


def test_a_series_that_was_withdrawn_stops_firing(tmp_path: Path) -> None:
    harness = RuleHarness(rules_project(tmp_path, RATE.replace("labels: [cdn]", "labels: [cdn], no_data: ok")))
    harness.append_rates([0.01] * 20)
    harness.append_rates([0.2] * 8, cdn="b")
    evaluate_each_minute(harness, 0, 20)

    assert harness.sent() == [("raised", "shop.rate{cdn=b}"), ("resolved", "shop.rate{cdn=b}")]


ARRIVAL_SQL = """\
SELECT minute, cdn, rate AS value
FROM orders
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
"""
ARRIVAL = RATE.replace(
    "labels: [cdn]", "labels: [cdn], time_axis: arrival, for_minutes: 1, evaluation_delay_seconds: 30"
)


def test_a_minute_of_arrival_needs_no_later_rows(tmp_path: Path) -> None:
    rule = ARRIVAL.replace("[errors_minute]", "[orders]")
    harness = RuleHarness(rules_project(tmp_path, rule, rate=ARRIVAL_SQL))
    harness.append_rows([minute_row(3, 0.01)], table="orders")
    evaluate_each_minute(harness, 0, 5)
    harness.append_rows([minute_row(6, 0.2)], table="orders")

    harness.evaluate_at(7.4)
    assert harness.open_subjects() == []
    harness.evaluate_at(7.6)
    assert harness.open_subjects() == ["shop.rate{cdn=a}"]


class Requests:
    """Counts requests for objects of a Delta log."""

    def __init__(self, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heads = 0
        etag = objects.etag

        def counted(key: str) -> str | None:
            self.heads += "/_delta_log/" in key
            return etag(key)

        monkeypatch.setattr(objects, "etag", counted)


def test_tables_are_looked_at_only_while_a_minute_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RuleHarness(rules_project(tmp_path))
    harness.append_rates([0.01] * 5)
    tables = harness.evaluator._tables
    requests = Requests(tables._lake.objects, monkeypatch)
    harness.evaluate_at(3 + LAG)
    harness.evaluate_at(3 + LAG + 0.1)
    requests.heads = 0
    harness.evaluate_at(3 + LAG + 0.2)
    assert requests.heads == 0

    for seconds in (0, 3, 6):
        harness.evaluate_at(4 + LAG + seconds / 60)
    assert requests.heads == 3
    harness.append_rates([0.01], first=5)
    assert harness.evaluate_at(4 + LAG + 9 / 60) == 1


def test_a_table_that_was_recreated_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RuleHarness(rules_project(tmp_path))
    harness.append_rates([0.01])
    harness.append_rates([0.01], first=1)
    storage, key = harness.catalog.environment.lake, paths.table("shop", "errors_minute")
    tables = RuleTables(Lake(storage))
    opened = tables.open(key)
    assert opened is not None
    assert opened.version() == 1
    shutil.rmtree(storage.uri(key).removeprefix("file://"))
    harness.append_rates([0.01])

    monkeypatch.setattr(inputs, "_REFRESH_SECONDS", -1.0)
    tables.mark_stale()

    again = tables.open(key)
    assert again is not None
    assert again.version() == 0
