"""Fields of a wrapper that are copied to its events: `unwrap.keep`."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from deltaworks.events.chunks import BatchMetadata
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.events import EventReader
from deltaworks.events.reasons import ReasonCode
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import declare_table, parse_events
from tests.shared_data import SHARED_DATA

MakeSpec = Callable[..., PipelineSpec]
STAMP = BatchMetadata(batch_id=0, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")


def keeping(make_spec: MakeSpec, *keep: str, path: str = "body", **more: Any) -> PipelineSpec:
    return make_spec(unwrap={"path": path, "keep": keep}, **more)


def rows_of(spec: PipelineSpec, payload: bytes) -> dict[str, list[dict[str, Any]]]:
    return parse_events(spec, payload, stamp=STAMP)


@pytest.mark.parametrize("body", [{"name": "x"}, '{"name": "x"}'])
def test_an_event_has_the_fields_of_its_wrapper(make_spec: MakeSpec, body: Any) -> None:
    reader = EventReader(keeping(make_spec, "stage", "request.region"))
    wrapper = {"stage": "prod", "request": {"region": "eu", "agent": "x"}, "body": body, "path": "/"}

    assert reader.read_event(wrapper) == {"stage": "prod", "request": {"region": "eu"}, "name": "x"}
    assert reader.lossless_event(json.dumps(wrapper).encode()) == reader.read_event(wrapper)


def test_each_array_element_and_its_bytes_have_the_wrapper_fields(make_spec: MakeSpec) -> None:
    reader = EventReader(keeping(make_spec, "facts.label", "cik", path="facts.units.usd"))
    wrapper = {"cik": 7, "facts": {"label": "EPS", "more": 1, "units": {"usd": [{"v": 1}, {"v": 2}], "eur": []}}}

    spread = list(reader.unwrap_arrays([(wrapper, json.dumps(wrapper).encode())]))

    assert [reader.read_event(value) for value, _ in spread] == [
        {"cik": 7, "facts": {"label": "EPS"}, "v": v} for v in (1, 2)
    ]
    assert [json.loads(raw) for _, raw in spread] == [value for value, _ in spread]
    assert [value for value, _ in reader.unwrap_arrays(spread)] == [value for value, _ in spread]


def test_fields_missing_in_the_wrapper_are_absent(make_spec: MakeSpec) -> None:
    reader = EventReader(keeping(make_spec, "stage", "meta.region"))

    assert reader.read_event({"body": {"a": 1}, "meta": "text"}) == {"a": 1}
    assert reader.read_event({"body": {"a": 1}, "stage": None}) == {"a": 1, "stage": None}


def test_a_field_in_both_event_and_wrapper_is_a_conversion_error(make_spec: MakeSpec) -> None:
    reader = EventReader(keeping(make_spec, "stage"))

    with pytest.raises(ConversionError) as caught:
        reader.read_event({"stage": "prod", "body": {"stage": "prod"}})

    assert (caught.value.code, caught.value.path) == (ReasonCode.NAME_TAKEN, "stage")
    assert reader.read_event({"body": {"stage": "own"}}) == {"stage": "own"}


def test_numbers_of_wrapper_fields_are_exact(make_spec: MakeSpec) -> None:
    event = {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}, "id": ["account", "n"]}
    events = {"name": "events", "catch_all": True}
    bodies = '[{"name": "x", "time": 1700000000, "n": 1}]'

    def id_of(account: str, body: str) -> str:
        wrapper = f'{{"account": {account}, "body": {body}}}'
        (row,) = rows_of(keeping(make_spec, "account", event=event, tables=[events]), wrapper.encode())["events"]
        return str(row["event_id"])

    for body in (bodies, json.dumps(bodies), bodies[1:-1]):
        assert id_of("100000000000000000001", body) != id_of("100000000000000000002", body)


def test_a_wrapper_repeated_too_often_is_one_row(make_spec: MakeSpec) -> None:
    source = {"kind": "s3_sqs", "relay": "landing", "bucket": "b", "budget": {"max_decoded_bytes": "8MiB"}}
    wrapper = json.dumps({"stage": "x" * 10_000, "body": [{}] * 1_000}).encode()

    rows = rows_of(keeping(make_spec, "stage", source=source), wrapper)

    assert [[reason["code"] for reason in row["reasons"]] for row in rows["quarantine"]] == [["over_budget"]]
    assert len(rows_of(make_spec(unwrap={"path": "body"}, source=source), wrapper)["quarantine"]) == 1_000


def test_company_facts_have_the_company_of_their_wrapper(make_spec: MakeSpec) -> None:
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real data at {SHARED_DATA}; name its folder in DELTAWORKS_SHARED_DATA")
    columns = {"cik": "long", "entityName": "string", "end": "date", "val": "decimal(12,2)", "filed": "date"}
    facts = declare_table("facts", *(f"{name.lower()} {kind} from {name}" for name, kind in columns.items()))
    spec = keeping(
        make_spec,
        "cik",
        "entityName",
        path="facts.us-gaap.EarningsPerShareBasic.units.USD/shares",
        event={"name": {"constant": "fact"}, "time": {"path": "filed"}, "id": ["accn", "start", "end"]},
        tables=[facts],
    )

    rows = rows_of(spec, (SHARED_DATA / "fundamentals" / "snow_facts.json").read_bytes())

    assert {*rows} == {"facts"}
    assert len(rows["facts"]) == 52
    assert {(row["cik"], row["entityname"]) for row in rows["facts"]} == {(1640147, "SNOWFLAKE INC.")}
    assert max(row["val"] for row in rows["facts"]) < Decimal(0)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (["body"], "body overlaps with body"),
        (["body.x"], "body.x overlaps with body"),
        (["stage", "stage.x"], "stage.x and stage overlap"),
        (["_record"], "_record is added to events by the engine"),
        (["params.x"], "params.amount is read from events, which therefore have their own 'params'"),
    ],
)
def test_invalid_wrapper_fields_are_refused(make_spec: MakeSpec, keep: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        keeping(make_spec, *keep)


def test_a_name_of_the_event_may_be_copied_from_another_path_of_the_wrapper(make_spec: MakeSpec) -> None:
    unwrap = keeping(make_spec, "name.first").unwrap

    assert unwrap is not None
    assert list(unwrap.keep) == ["name.first"]
