"""Specs of rules and announced views: errors have file, line, key, closest name and advice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.checks.project import check_project
from deltaworks.specs.project import load_catalog
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.specs.spec_diff import classify_changes
from tests.unit.rules.rule_harness import RATE, RATE_SQL, rules_project

BASED = RATE.replace(
    "fire: {above: 0.1}, clear: {above: 0.09}",
    "min_samples: 100, baseline: {kind: hour_of_week}, fire: {above_baseline: 1.1}, clear: {above_baseline: 1.05}",
)


def reported_errors(folder: Path) -> list[str]:
    return [str(spec_error) for spec_error in check_project("local", root=folder / "project").errors]


def rejection(folder: Path, *rules: str, **options: str) -> str:
    with pytest.raises(ConfigError) as error:
        rules_project(folder, *rules, **options)
    return error.value.message


def test_a_rule_has_defaults(tmp_path: Path) -> None:
    (rule,) = rules_project(tmp_path, BASED).pipeline("shop").rules

    assert (rule.for_minutes, rule.keep_firing_minutes, rule.evaluation_delay_seconds, rule.no_data) == (
        3,
        5,
        90,
        "unknown",
    )
    assert rule.baseline is not None
    assert (rule.baseline.weeks, rule.baseline.min_weeks, rule.grouping.min_alerts) == (4, 2, 20)
    assert reported_errors(tmp_path) == []


@pytest.mark.parametrize(
    ("before", "after", "messages"),
    [
        ("baseline: {kind: hour_of_week}, ", "", "above_baseline needs a baseline; declare `baseline`"),
        ("min_samples: 100, ", "", "random deviations depend on the number of samples; declare `min_samples`"),
        ("{above_baseline: 1.05}", "{above_baseline: 1.2}", "1.2 is beyond 1.1 of `fire`"),
        ("clear: {above_baseline: 1.05}", "clear: {above: 2}", "`fire` has no above"),
        ("{above_baseline: 1.1}", "{above_baseline: 1.1, below: 0}", "have opposite directions"),
        ("fire: {above_baseline: 1.1}", "fire: {}", "give a bound, such as above"),
        ("{kind: hour_of_week}", "{kind: fixed}", "give the number that values are compared with"),
        ("{kind: hour_of_week}", "{kind: hour_of_weak}", "did you mean 'hour_of_week'?"),
        ("{kind: hour_of_week}", "{kind: peers, weeks: 3}", "weeks is a key of hour_of_week and hour_of_day"),
        (
            "{kind: hour_of_week}",
            "{kind: peers, within: [cnd]}",
            "'cnd' is not a label of this rule; did you mean 'cdn'?",
        ),
        ("{kind: hour_of_week}", "{kind: peers, within: [cdn]}", "peers need a label that is not in `within`"),
        ("{kind: hour_of_week}", "{kind: hour_of_week, weeks: 2, min_weeks: 3}", "only 2 weeks are read"),
        ("labels: [cdn]", "labels: [value]", "'value' is a reserved result column"),
        ("labels: [cdn]", "labels: [cdn], grouping: {by: [region]}", "'region' is not a label of this rule"),
        ("labels: [cdn]", "labels: [cdn], inhibited_by: [origin]", "there is no rule 'origin' in this pipeline"),
        (
            "labels: [cdn]",
            "labels: [cdn], inhibited_by: [rate]",
            "rules inhibit each other in a cycle: rate is inhibited by rate",
        ),
        ("labels: [cdn]", "labels: [cdn], step_minutes: 15, for_minutes: 20", "write a multiple of that"),
        ("labels: [cdn]", "labels: [cdn], no_data: zero, percentile: 0.5", "only a value of its own can be zero"),
        ("labels: [cdn]", "labels: [cdn], no_data: zero, stale_seconds: 90", "write at least 150"),
        ("{kind: hour_of_week}", "{kind: peers}, no_data: zero", "only a value of its own can be zero"),
        ("labels: [cdn]", "labels: [cdn], stale_seconds: 60", "a minute is evaluated after 90 s; write at least that"),
        (
            "labels: [cdn]",
            "labels: [cdn], percentile: 0.95, evaluation_dely_seconds: 5",
            "did you mean 'evaluation_delay_seconds'?",
        ),
        ("reads: [errors_minute]", "reads: [errors_minutes]", "did you mean 'errors_minute'?"),
        ("rules/rate.sql", "rules/rates.sql", "did you mean 'rules/rate.sql'?"),
        (
            "reads: [errors_minute]",
            "reads: [orders], evaluation_delay_seconds: 30",
            "a row may take 60 s into 'orders'",
        ),
    ],
)
def test_a_rule_that_cannot_be_evaluated_is_rejected(tmp_path: Path, before: str, after: str, messages: str) -> None:
    assert before in BASED
    message = rejection(tmp_path, BASED.replace(before, after))

    assert messages in message
    assert "pipelines/shop/pipeline.yaml:" in message
    assert "rules.0" in message


def test_rule_names_are_unique(tmp_path: Path) -> None:
    assert "rules.1.name: rule rate is declared twice" in rejection(tmp_path, RATE, RATE)


def test_a_private_field_cannot_be_a_label(tmp_path: Path) -> None:
    column = "{name: network, path: client.ip, type: string}"
    tables = f"tables: [{{name: orders, when: {{name: order}}, columns: [{column}]}}]\n"
    private = "private: [{path: client.ip, keep: network}]\n"
    message = rejection(tmp_path, RATE.replace("[cdn]", "[network]"), more=private, tables=tables)

    assert "'network' contains the private field client.ip, and notifications contain labels" in message


@pytest.mark.parametrize(
    ("sql", "messages"),
    [
        (RATE_SQL.replace("rate AS value", "rate AS valeu"), "has no column 'value'; did you mean 'valeu'?"),
        (RATE_SQL.replace("cdn,", ""), "has no column 'cdn'"),
        (RATE_SQL.replace("rate AS", "ratte AS"), "ratte"),
        (RATE_SQL.replace("minute < $to", "minute < now()"), "write $to instead"),
        (RATE_SQL.replace("rate AS", "rate * random() AS"), "is nondeterministic, and rules must be deterministic"),
        (RATE_SQL.replace("rate AS", "epoch(current_date) AS"), "is nondeterministic, and rules must be deterministic"),
        ("SELECT minute, cdn, rate AS value FROM errors_minute", "it reads the complete table"),
        ("DELETE FROM errors_minute", "write one SELECT"),
    ],
)
def test_invalid_rule_sql_is_rejected(tmp_path: Path, sql: str, messages: str) -> None:
    rules_project(tmp_path, rate=sql)

    (spec_error,) = reported_errors(tmp_path)
    assert messages in spec_error


def test_a_change_of_rules_does_not_affect_the_stream(tmp_path: Path) -> None:
    before = rules_project(tmp_path / "a").pipeline("shop")
    after = rules_project(tmp_path / "b", BASED).pipeline("shop")

    assert {change.effect for change in classify_changes(before, after)} == {Effect.SAFE}


CHANNELS = """\
alerts:
  channels:
    - {kind: sns, name: widgets, topic: "arn:aws:sns:eu-west-1:1:widgets", min_severity: critical}
    - {kind: log, name: lines}
"""


def announced(pipeline: str, channel: str, more: str = "") -> str:
    view = f"{{name: now, sql: now.sql, reads: [orders], announce: {{channel: {channel}{more}}}}}"
    return f"{pipeline}views:\n  - {view}\n"


@pytest.fixture
def project(
    make_project: Callable[..., Path], pipeline_text: str, environment_text: str
) -> Callable[[str, str, str], Path]:
    def make(channel: str, more: str = "", channels: str = CHANNELS) -> Path:
        root = make_project(pipeline=announced(pipeline_text, channel, more), environment=environment_text + channels)
        (folder,) = {path.parent for path in root.glob("include/pipelines/*/pipeline.yaml")}
        (folder / "now.sql").write_text("SELECT count(*) AS orders FROM orders\n")
        return root

    return make


def test_a_view_names_its_topic(project: Callable[..., Path]) -> None:
    (pipeline,) = load_catalog("local", root=project("widgets")).pipelines.values()
    (view,) = pipeline.views

    assert view.announce is not None
    assert (view.announce.channel, view.announce.every_seconds) == ("widgets", 5)


@pytest.mark.parametrize(
    ("channel", "more", "message"),
    [
        ("widget", "", "views.0.announce.channel: there is no channel 'widget' of kind sns below alerts.channels"),
        ("widget", "", "did you mean 'widgets'?"),
        ("lines", "", "views.0.announce.channel: the channel 'lines' has kind log"),
        ("widgets", ", every_seconds: 0", "views.0.announce.every_seconds: write 1 or more instead of 0"),
    ],
)
def test_an_error_has_file_line_and_key(project: Callable[..., Path], channel: str, more: str, message: str) -> None:
    root = project(channel, more)
    with pytest.raises(ConfigError) as rejection:
        load_catalog("local", root=root)
    assert "pipeline.yaml:" in rejection.value.message
    assert message in rejection.value.message

    assert any(
        message in f"{spec_error.key}: {spec_error.text}" for spec_error in check_project("local", root=root).errors
    )
