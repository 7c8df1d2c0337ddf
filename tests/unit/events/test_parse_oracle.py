"""Parsing with all declarations, compared with the slow reference implementation."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.specs.pipeline import PipelineSpec
from tests.examples import examples
from tests.unit.events.reference_parser import ARRIVED, DECLARED, KEPT, tell

STAMP = BatchMetadata(batch_id=3, ingested_at_us=ARRIVED * 1_000_000, fingerprint="fp")
DAY = 86_400
ODD_VALUES = st.sampled_from([None, True, "x", [1], {"a": {"b": None}}, 2**31, 2**63, -1])
TIMES = st.sampled_from([0, -30 * DAY, -31 * DAY, 3_600, 3_601, 10**12, 10**15]).map(lambda later: ARRIVED + later)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "amount": st.integers(-2, 5) | ODD_VALUES,
        "level": st.integers(97, 103) | ODD_VALUES,
        "web": st.sampled_from([True, True, 1, "true"]),
        "color": ODD_VALUES | st.text(max_size=5),
    },
)
ANY_EVENT = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["order", "refund", "login", "login", "", "other", 7, None]),
        "time": TIMES | ODD_VALUES,
        "id": st.sampled_from(["e1", "", None, 5]),
        "device": st.sampled_from(["d", "d", None, 7, "long " * 50]),
        "params": PARAMS | ODD_VALUES,
        "extra": ODD_VALUES,
        "stage": st.sampled_from([None, "own"]),
    },
)
LIKELY_GOOD = st.builds(
    lambda name, amount, level, rest: {
        "name": name,
        "time": ARRIVED,
        "id": "e",
        "device": "d",
        "params": {"amount": amount, "level": level, "web": True} | rest,
    },
    st.sampled_from(["order", "refund", "login"]),
    st.integers(-1, 5),
    st.none() | st.integers(97, 103),
    st.fixed_dictionaries({}, optional={"color": st.text(max_size=5)}),
)
EVENTS = LIKELY_GOOD | ANY_EVENT
BODIES = st.one_of(
    EVENTS,
    EVENTS.map(json.dumps),
    st.lists(EVENTS, max_size=3),
    st.lists(EVENTS, max_size=3).map(json.dumps),
    st.sampled_from([None, 7, "{", "7"]),
)
AROUND = st.fixed_dictionaries(
    {"path": st.just("/v1")},
    optional={
        "stage": st.sampled_from(["prod", None, 2**70, {"n": 0.12345678901234567}]),
        "meta": st.sampled_from([None, {}, {"region": "eu", "zone": 1}, {"region": None}, "x"]),
    },
)
WRAPPED = st.builds(lambda around, body: around | {"body": body}, AROUND, BODIES)
# What is broken ends where the next object begins, so one follows.
BROKEN = st.sampled_from(['{"a": nul}', '{"body": {"name": "order" "time"}}']).map(lambda broken: [broken, "{}"])
LINES = st.one_of(
    WRAPPED.map(lambda value: [json.dumps(value)]),
    st.lists(WRAPPED, max_size=3).map(lambda value: [json.dumps(value)]),
    st.sampled_from([["7"], ['"text"'], ["{}"]]),
    BROKEN,
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(LINES, min_size=1, max_size=8), st.integers(1, 6), st.booleans())
def test_every_event_equals_the_reference_parser(pieces: list[list[str]], chunk_events: int, keep: bool) -> None:
    lines = [line for piece in pieces for line in piece]
    unwrap = DECLARED["unwrap"] | ({"keep": KEPT} if keep else {})
    parser = Parser(PipelineSpec.model_validate(DECLARED | {"unwrap": unwrap}), chunk_events=chunk_events)
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    reasons: dict[int, set[tuple[str, str]]] = {}
    for name, table in parser.parse([Payload(1, "k", "\n".join(lines).encode())], STAMP):
        for row in table.to_pylist():
            position = row["_position"]
            if name == "quarantine":
                assert position not in reasons
                reasons[position] = {(reason["code"], reason["path"]) for reason in row["reasons"]}
            else:
                assert (name, position) not in rows
                rows[name, position] = row

    told = tell(lines, keep=keep)
    assert reasons == told.reasons
    assert rows.keys() == told.rows.keys()
    for place, wanted in told.rows.items():
        found = rows[place]
        if "_rescued" in wanted:
            found |= {"_rescued": json.loads(found["_rescued"] or "null")}
        assert {name: found[name] for name in wanted} == wanted
    assert parser.findings.rule_warnings == told.warnings
