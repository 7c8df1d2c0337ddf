"""Names with dots, as OpenTelemetry and ECS have them: in backquotes in every section that reads events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.inference.envelope_inference import FieldChoice, is_declarable
from deltaworks.events.parse import Parser
from deltaworks.events.redaction_keys import RedactionKeys
from deltaworks.specs.base import check_field_path, format_path, path_names, selects_elements
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import SOURCE, declare_table, pipeline_spec, rows_by_table

STAMP = BatchMetadata(batch_id=0, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
COLUMNS = [
    {"name": "service", "path": "resource.`service.name`", "type": "string"},
    {"name": "code", "path": "`http.status_code`", "type": "int"},
]
EVENT = {
    "name": {"path": "`event.name`"},
    "time": {"path": "`@timestamp`", "unit": "epoch_seconds"},
    "id": "`trace.id`",
}
SENT = {
    "event.name": "order",
    "@timestamp": 1_700_000_000,
    "trace.id": "t1",
    "resource": {"service.name": "shop", "host.ip": "203.0.113.7:80"},
    "http.status_code": 200,
    "user.email": "ana@example.org",
    "user": {"email": "nested@example.org"},
    "peers": [{"net.ip": "203.0.113.9"}],
}


def spec_of(**more: Any) -> PipelineSpec:
    table = declare_table("orders", when={"`event.name`": "order", "`http.status_code`": 200}, evolve="rescue")
    return pipeline_spec(table | {"columns": COLUMNS}, source=SOURCE, event=EVENT, **more)


def parsed(spec: PipelineSpec, *events: Any, columnar: bool, keys: RedactionKeys | None = None) -> dict[str, Any]:
    parser = Parser(spec, columnar_from_bytes=0 if columnar else None, redaction_keys=keys)
    data = "\n".join(map(json.dumps, events)).encode()
    return rows_by_table(parser.parse([Payload(1, "k", data)], STAMP))


@pytest.mark.parametrize("columnar", [False, True])
def test_names_with_dots_are_read_by_every_section(columnar: bool) -> None:
    rows = parsed(spec_of(), SENT, SENT, columnar=columnar)

    assert rows.keys() == {"orders"}
    row = rows["orders"][0]
    assert (row["event_name"], row["event_id"], row["event_time"].timestamp()) == ("order", "t1", 1_700_000_000)
    assert (row["service"], row["code"]) == ("shop", 200)
    rescued = json.loads(row["_rescued"])
    assert rescued["user.email"] == "ana@example.org"
    assert rescued["resource"] == {"host.ip": "203.0.113.7:80"}
    assert not {"event.name", "trace.id", "http.status_code"} & rescued.keys()


@pytest.mark.parametrize("columnar", [False, True])
def test_names_with_dots_are_redacted(columnar: bool) -> None:
    fields = [
        {"path": "`user.email`", "action": "token", "as": "email"},
        {"path": "resource.`host.ip`", "action": "truncate_ip"},
        {"path": "peers[].`net.ip`", "action": "drop"},
    ]
    spec = spec_of(privacy={"namespace": "shop", "fields": fields})

    (row,) = parsed(spec, SENT, columnar=columnar, keys=RedactionKeys(bytes(32)))["orders"]

    rescued = json.loads(row["_rescued"])
    assert rescued["user.email"].startswith("email_") or rescued["user.email"] != "ana@example.org"
    assert "ana@example.org" not in row["_rescued"]
    assert rescued["user"] == {"email": "nested@example.org"}
    assert rescued["resource"] == {"host.ip": "203.0.113.0"}
    assert "203.0.113.9" not in row["_rescued"]


@pytest.mark.parametrize("columnar", [False, True])
def test_names_with_dots_are_masked_and_looked_up(columnar: bool) -> None:
    private = [{"path": "`user.email`", "keep": "nothing"}, {"path": "resource.`host.ip`", "keep": "network"}]

    (row,) = parsed(spec_of(private=private), SENT, columnar=columnar)["orders"]

    rescued = json.loads(row["_rescued"])
    assert "user.email" not in rescued
    assert (rescued["user"], rescued["resource"]) == ({"email": "nested@example.org"}, {"host.ip": "203.0.113.0"})


def test_names_with_dots_are_read_into_structs() -> None:
    columns = [*COLUMNS, {"name": "email", "path": "`user.email`", "type": "string"}]
    tables = [declare_table(name, when={"`event.name`": name}) | {"columns": columns} for name in ("order", "refund")]
    fields = [{"path": "`user.email`", "action": "drop"}]
    spec = pipeline_spec(*tables, source=SOURCE, event=EVENT, privacy={"namespace": "shop", "fields": fields})
    events = [SENT, SENT | {"event.name": "refund"}] * 50
    data = "\n".join(map(json.dumps, events)).encode()
    parser = Parser(spec, columnar_from_bytes=0, redaction_keys=RedactionKeys(bytes(32)))

    rows = {name: part.to_pylist() for name, part in parser.parse([Payload(1, "k", data)], STAMP)}

    assert (rows.keys(), parser.columnar_count) == ({"order", "refund"}, 98)
    for name, found in rows.items():
        values = {(row["event_name"], row["event_id"], row["service"], row["code"], row["email"]) for row in found}
        assert values == {(name, "t1", "shop", 200, None)}


def test_reasons_name_a_field_as_it_is_declared() -> None:
    (row,) = parsed(spec_of(), SENT | {"@timestamp": "soon"}, columnar=False)["quarantine"]
    assert [reason["path"] for reason in row["reasons"]] == ["@timestamp"]

    sent = SENT | {"resource": {"service.name": {"a": 1}}, "trace.id": None}
    (row,) = parsed(spec_of(), sent, columnar=False)["quarantine"]
    assert {reason["path"] for reason in row["reasons"]} >= {"resource.`service.name`"}


def test_a_wrapper_may_have_dots_in_its_names() -> None:
    spec = spec_of(unwrap={"path": "`log.message`", "keep": ["`cloud.region`"]})
    spec = PipelineSpec.model_validate(spec.model_dump(mode="json", exclude_unset=True))
    wrapper = {"log.message": json.dumps([SENT, SENT]), "cloud.region": "eu", "log": {"message": "x"}}

    rows = parsed(spec, wrapper, columnar=False)["orders"]

    assert [json.loads(row["_rescued"])["cloud.region"] for row in rows] == ["eu", "eu"]


@pytest.mark.parametrize(
    ("one", "other"), [("`user.email`", "`user.email`"), ("user", "user.`e.mail`"), ("a.`b`", "`a`.b"), ("a", "a[]")]
)
def test_overlapping_private_paths_are_refused(one: str, other: str) -> None:
    fields = [{"path": path, "action": "drop"} for path in (one, other)]
    with pytest.raises(ValidationError, match="overlap"):
        spec_of(privacy={"namespace": "shop", "fields": fields})


def test_paths_that_only_look_alike_do_not_overlap() -> None:
    fields = [{"path": path, "action": "drop"} for path in ("`user.email`", "user.email", "`a.b`.c", "a.b.c")]

    assert spec_of(privacy={"namespace": "shop", "fields": fields}).privacy is not None


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("a", ("a",)),
        ("a.b", ("a", "b")),
        ("`a.b`", ("a.b",)),
        ("x.`a.b`.c", ("x", "a.b", "c")),
        ("`a``b`", ("a`b",)),
        ("`tags[]`", ("tags[]",)),
        ("friends[].`net.ip`[]", ("friends", "net.ip")),
        ("$set.`$browser`", ("$set", "$browser")),
        ("units.USD/shares", ("units", "USD/shares")),
    ],
)
def test_a_path_has_the_names_between_its_dots(path: str, names: tuple[str, ...]) -> None:
    assert path_names(path) == names


@pytest.mark.parametrize(
    "path", ["", ".", "a.", ".a", "a..b", "`a", "a`b", "``", "`a`b", "a`b`", "`a.b`.", "a[", "a[0]"]
)
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"backquotes|list elements"):
        check_field_path(path)


NAMES = st.text(min_size=1, max_size=6) | st.text(".`[]$ ab", min_size=1, max_size=6)


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_any_names_make_a_path_that_has_these_names(names: list[str]) -> None:
    path = format_path(names)

    assert path_names(path) == tuple(names)
    assert not selects_elements(path)


def test_inference_writes_names_with_dots() -> None:
    assert is_declarable(("resource", "service.name"))
    assert FieldChoice(("resource", "service.name"), "").path_text == "resource.`service.name`"
