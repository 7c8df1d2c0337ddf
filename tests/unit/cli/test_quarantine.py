"""`deltaworks quarantine`: counts, rows and replays."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from deltaworks.cli import operations
from deltaworks.errors import ConfigError
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import pipeline_spec
from tests.commands import invoke
from tests.unit.recovery.replay_harness import ReplayHarness, orders

run = partial(invoke, "quarantine", catch_exceptions=False)


def spec(level: str) -> PipelineSpec:
    return pipeline_spec(orders(level))


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReplayHarness:
    harness = ReplayHarness(tmp_path)
    lines = [{"name": "order", "time": 1_700_000_000, "level": level} for level in ("one", "two", [3], 4)]
    harness.ingest(spec("int"), *(json.dumps(line).encode() for line in lines), b"{bad")
    monkeypatch.setattr(operations, "catalog", lambda: harness.catalog(spec("string")))
    monkeypatch.setenv("COLUMNS", "200")
    return harness


def test_open_rows_are_counted_by_reason_and_event(harness: ReplayHarness) -> None:
    output = run("list", "shop").output

    (line,) = [line for line in output.splitlines() if "type_mismatch" in line]
    assert line.split() == [
        "2023-11-14",
        "type_mismatch",
        "level",
        "order",
        spec("int").fingerprint(),
        "3",
    ]
    assert "No open rows" in run("list", "shop", "--event", "login").output


def test_the_listing_names_the_field_of_each_reason(harness: ReplayHarness) -> None:
    harness.ingest(spec("int"), b'{"name": "order", "level": 1}', b'{"name": "order", "level": 2}')

    counted = {(row["reason"], row["field"]): row["rows"] for row in json.loads(run("list", "shop", "--json").output)}

    assert counted["missing_required", "time"] == 2
    assert counted["type_mismatch", "level"] == 3
    assert counted["malformed", ""] == 1


def test_a_row_is_shown_with_its_reasons_and_its_raw_value(harness: ReplayHarness) -> None:
    output = run("show", "shop", "--reason", "malformed").output

    shown = dict(re.split(r"  +", line, maxsplit=1) for line in output.splitlines() if "  " in line)
    assert (shown["object"], shown["seq"], shown["position"], shown["raw"]) == ("k5", "5", "0", "{bad")
    assert shown["reasons"].startswith("malformed")
    assert "k1" not in output


def test_a_long_raw_value_is_truncated_unless_requested_in_full(harness: ReplayHarness) -> None:
    long = json.dumps({"name": "order", "time": 1_700_000_000, "level": ["x" * 2_000]})
    harness.ingest(spec("int"), long.encode())

    shown, whole = (
        run("show", "shop", "--limit", "1").output,
        run("show", "shop", "--limit", "1", "--full", "--wide").output,
    )

    assert long not in shown
    assert "--full shows the stored part" in shown
    assert long in whole
    assert json.loads(run("show", "shop", "--limit", "1", "--json").output)[0]["raw"] == long


@pytest.mark.parametrize(
    "name", ["[/x]", "renovate[bot]", "[link=http://evil.example]m[/link]", "\x1b]0;pwned\x07\x1b[2J"]
)
def test_events_of_any_name_are_listed_and_shown(harness: ReplayHarness, name: str) -> None:
    harness.ingest(spec("int"), json.dumps({"name": name, "time": 1_700_000_000, "level": "one"}).encode())

    listed, shown = run("list", "shop").output, run("show", "shop", "--limit", "1").output

    seen = name.replace("\x1b", "\\x1b").replace("\x07", "\\x07")
    assert seen in listed
    assert seen in shown
    assert "\x1b" not in listed + shown
    assert name in [row["event"] for row in json.loads(run("list", "shop", "--json").output)]


def test_objects_of_any_name_are_shown(harness: ReplayHarness) -> None:
    harness.ingest(spec("int"), b"{bad", named="[link=http:]m.jsonl[x]")

    assert "[link=http:]m.jsonl[x]6" in run("show", "shop", "--limit", "1").output


def test_a_replay_is_a_dry_run_by_default(harness: ReplayHarness) -> None:
    dry = run("replay", "shop", "--reason", "type_mismatch").output
    assert "3 open rows selected: 2 would land, 1 still do not fit, 0 cannot be read again" in dry
    assert "--no-dry-run" in dry
    assert len(harness.places("orders")) == 1

    output = run("replay", "shop", "--no-dry-run").output

    assert "4 open rows selected: 2 landed, 2 still do not fit" in output
    assert "rows to tables: orders 2" in output
    assert len(harness.places("orders")) == 3


@pytest.mark.parametrize(
    ("option", "value", "condition"),
    [("--reason", "malformd", "QUARANTINE_REASON_UNKNOWN"), ("--from-date", "yesterday", "DATE_INVALID")],
)
def test_an_impossible_filter_is_rejected(harness: ReplayHarness, option: str, value: str, condition: str) -> None:
    with pytest.raises(ConfigError, match=condition):
        run("list", "shop", option, value)


@pytest.mark.parametrize("columns", [80, 120])
def test_listings_fit_the_terminal(harness: ReplayHarness, columns: int) -> None:
    for words in (("list", "shop"), ("show", "shop"), ("show", "shop", "--full")):
        lines = run(*words, columns=columns).output.splitlines()
        assert lines
        assert [line for line in lines if len(line) > columns] == [], words
