"""Table rules: rows pass unless a rule is false; null passes; an event rejected by one table is in none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.engine.fan_out import write_payloads
from deltaworks.engine.writers import FileTarget
from deltaworks.errors import ContractError
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.conversion import RuleChecker, RuleEngine
from deltaworks.events.parse import Parser
from deltaworks.events.task_findings import TaskFindings
from deltaworks.sources.task_isolation import TaskOutput
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.testing import declare_columns, declare_table
from tests.examples import examples

MakeSpec = Callable[..., PipelineSpec]
STAMP = BatchMetadata(batch_id=7, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")


def spec_with(make_spec: MakeSpec, *rules: dict[str, str]) -> PipelineSpec:
    columns = declare_columns("amount decimal(12,2) from params.amount", "level int from params.level")
    return make_spec(
        tables=[
            {"name": "events", "catch_all": True},
            {"name": "orders", "when": {"name": "order"}, "columns": columns, "rules": list(rules)},
        ]
    )


def events(*params: dict[str, Any]) -> Payload:
    lines = [{"name": "order", "time": 1_700_000_000, "params": each} for each in params]
    return Payload(5, "k", "".join(map(json.dumps, lines)).encode())


def parse(spec: PipelineSpec, payload: Payload) -> tuple[dict[str, list[dict[str, Any]]], TaskFindings]:
    parser = Parser(spec)
    return {name: table.to_pylist() for name, table in parser.parse([payload], STAMP)}, parser.findings


def test_an_event_that_fails_a_rule_is_in_quarantine_and_in_no_table(make_spec: MakeSpec) -> None:
    spec = spec_with(make_spec, {"name": "paid", "check": "amount > 0"}, {"name": "low", "check": "level < 10"})

    rows, findings = parse(spec, events({"amount": 1}, {"amount": -1, "level": 11}, {"amount": 2, "level": 10}))

    assert [row["_position"] for row in rows["events"]] == [0]
    assert [row["_position"] for row in rows["orders"]] == [0]
    assert [[(r["code"], r["path"]) for r in row["reasons"]] for row in rows["quarantine"]] == [
        [("rule", "paid"), ("rule", "low")],
        [("rule", "low")],
    ]
    assert rows["quarantine"][0]["reasons"][0]["detail"] == "orders: not amount > 0"
    assert findings == TaskFindings()


def test_null_passes(make_spec: MakeSpec) -> None:
    rows, _ = parse(spec_with(make_spec, {"name": "paid", "check": "amount > 0"}), events({"amount": None}))

    assert set(rows) == {"events", "orders"}


def test_a_warning_is_counted_for_accepted_events_only(make_spec: MakeSpec) -> None:
    spec = spec_with(
        make_spec,
        {"name": "paid", "check": "amount > 0", "on_fail": "warn"},
        {"name": "low", "check": "level < 10"},
    )

    rows, findings = parse(spec, events({"amount": -1}, {"amount": -2, "level": 50}, {"amount": -3, "level": "x"}))

    assert len(rows["orders"]) == 1
    assert findings.ledger_entry()["rule_warnings"] == {"orders.paid": 1}


def test_a_rule_may_stop_the_stream_and_names_the_event(make_spec: MakeSpec) -> None:
    spec = spec_with(make_spec, {"name": "paid", "check": "amount > 0", "on_fail": "fail"})

    with pytest.raises(ContractError, match="Event 1 of file event 5 fails rule 'paid'") as caught:
        parse(spec, events({"amount": 1}, {"amount": -1}))

    assert caught.value.condition == "RULE_FAILED"


def test_a_task_reports_why_the_stream_must_stop_instead_of_failing(make_spec: MakeSpec, tmp_path: Any) -> None:
    spec = spec_with(make_spec, {"name": "paid", "check": "amount > 0", "on_fail": "fail"})
    names = ("events", "orders", "quarantine")
    target = FileTarget(None, {name: str(tmp_path / name) for name in names}, dict.fromkeys(names, ()))

    output = write_payloads([events({"amount": -1})], spec, STAMP, target)

    failure = TaskOutput.decode(output.encode()).findings.failure
    assert failure is not None
    assert failure.condition == "RULE_FAILED"


def test_a_row_that_cannot_be_evaluated_fails_and_its_neighbours_do_not(make_spec: MakeSpec) -> None:
    table = TableSpec.model_validate(
        declare_table(
            "t",
            "code string from c",
            rules=[
                {"name": "number", "check": "CAST(code AS INT) > 0"},
                {"name": "short", "check": "len(code) < 3"},
            ],
        )
    )

    found = RuleChecker(table, RuleEngine()).failed_rows(pa.table({"code": ["1", "x", None, "-5", "12345"]}))

    assert [(rule.name, places) for rule, places in found] == [("number", [1, 3]), ("short", [4])]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.none() | st.integers(-3, 3), max_size=40), st.integers(-2, 2))
def test_the_rows_that_fail_are_those_a_plain_comparison_finds(levels: list[int | None], limit: int) -> None:
    table = TableSpec.model_validate(
        declare_table("t", "level int from l", rules=[{"name": "low", "check": f"level <= {limit}"}])
    )

    found = RuleChecker(table, RuleEngine()).failed_rows(pa.table({"level": pa.array(levels, pa.int32())}))

    wanted = [place for place, level in enumerate(levels) if level is not None and level > limit]
    assert [places for _, places in found] == ([wanted] if wanted else [])
