"""Event values stay in the lake: none appears in errors, logs, heartbeats or findings."""

from __future__ import annotations

import json
import logging
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import HeartbeatWriter
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ContractError, DeltaworksError
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import declare_columns, pipeline_spec
from tests.examples import examples

CANARY = "canary7f3a"
STAMP = BatchMetadata(batch_id=1, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
#: Where a rule's own expression fails on a text, where it fails the event, and where it only warns.
CHECKS = {
    "none": [],
    "warn": [{"name": "short", "check": "length(c) < 3", "on_fail": "warn"}],
    "fail": [{"name": "short", "check": "length(c) < 3", "on_fail": "fail"}],
    "quarantine": [{"name": "a_number", "check": "CAST(c AS INTEGER) > 0", "on_fail": "quarantine"}],
}
canaries = st.text(max_size=4).map(lambda text: f"{text}{CANARY}{text}")
values = st.recursive(
    canaries | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=6,
)
#: Events that fit but for a field that no column takes, and events of any shape.
fitting = st.fixed_dictionaries(
    {"n": st.just("a"), "t": st.just(1_700_000_000), "c": canaries}, optional={"extra": values, "email": canaries}
)
events = fitting | st.fixed_dictionaries(
    {"t": st.just(1_700_000_000) | values, "c": values},
    optional={"n": st.just("a") | values, "d": values, "o": values, "email": values, "extra": values},
)


def spec_of(evolve: str, rules: str) -> PipelineSpec:
    columns = declare_columns("c string", "d decimal(4,2)", "o struct<a:int,b:date>")
    table = {"name": "x", "catch_all": True, "evolve": evolve, "columns": columns, "rules": CHECKS[rules]}
    return pipeline_spec(
        table,
        pipeline="p",
        source={"kind": "s3_sqs", "relay": "landing", "bucket": "b"},
        event={"name": {"path": "n"}, "time": {"path": "t", "unit": "epoch_seconds"}},
    )


def surfaces(spec: PipelineSpec, data: bytes, heartbeat: LocalObjects) -> str:
    """All that leaves a pass over a payload but its rows: findings, the error as it is told, logs, the heartbeat."""
    log = StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    parser = Parser(spec)
    told: list[str] = []
    try:
        list(parser.parse([Payload(1, "key", data)], STAMP))
    except DeltaworksError as error:
        parser.findings.failure = error
        told = [str(error), error.as_line(), repr(error), as_deltaworks_error(error).as_line()]
        writer = HeartbeatWriter(heartbeat, "heartbeat.json", pipeline="p", trigger_seconds=1)
        writer.start()
        writer.close(state="failed", error=error.as_record())
        stored = heartbeat.get("heartbeat.json")
        assert stored is not None
        told.append(stored.data.decode())
    finally:
        logging.getLogger().removeHandler(handler)
    told.append(json.dumps(parser.findings.as_record()))
    told.append(json.dumps(parser.findings.ledger_entry()))
    return "\n".join([*told, log.getvalue()])


@pytest.mark.parametrize("evolve", ["rescue", "add_columns", "fail"])
@pytest.mark.parametrize("rules", CHECKS)
@settings(max_examples=examples(20))
@given(sent=st.lists(events, min_size=1, max_size=4))
def test_no_value_of_an_event_leaves_the_lake(
    tmp_path_factory: pytest.TempPathFactory, evolve: str, rules: str, sent: list[dict[str, Any]]
) -> None:
    heartbeat = LocalObjects(tmp_path_factory.getbasetemp() / paths.pipeline_control("p"))

    said = surfaces(spec_of(evolve, rules), "".join(map(json.dumps, sent)).encode(), heartbeat)

    assert CANARY not in said


def test_an_undeclared_field_is_named_with_its_type_and_without_its_value(tmp_path: Path) -> None:
    data = b'{"n":"a","t":1700000000,"c":"ab","person":{"email":"jane.doe@example.org"},"person2":1}'

    with pytest.raises(ContractError) as refused:
        list(Parser(spec_of("fail", "none")).parse([Payload(1, "k", data)], STAMP))

    assert refused.value.condition == "FIELD_UNDECLARED"
    assert refused.value.message == (
        "Table 'x' has no column for field 'person' (JSON type object) in event 0 of file event 1, and declares "
        "evolve: fail."
    )


def test_a_field_with_an_endless_name_is_named_by_its_beginning() -> None:
    data = json.dumps({"n": "a", "t": 1_700_000_000, "c": "ab", "x" * 100_000: 1}).encode()

    with pytest.raises(ContractError) as refused:
        list(Parser(spec_of("fail", "none")).parse([Payload(1, "k", data)], STAMP))

    assert len(refused.value.message) < 400
