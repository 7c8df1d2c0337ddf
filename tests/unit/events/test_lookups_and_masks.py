"""Look-ups and masks while parsing: no private value appears in any output."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConfigError
from deltaworks.events import lookups_and_masks
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.lookup_databases import PinnedDatabases
from deltaworks.events.lookups_and_masks import LookupsAndMasks
from deltaworks.events.parse import Parser
from deltaworks.events.source_fields import pin_databases
from deltaworks.events.task_findings import TaskFindings
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import declare_columns, declare_pipeline, local_storage, present
from tests.examples import examples
from tests.shared_data import SHARED_DATA

CITY = SHARED_DATA / "maxmind" / "GeoLite2-City-Test.mmdb"
STAMP = BatchMetadata(batch_id=1, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
IN_LONDON, ITS_NETWORK = "81.2.69.142", "81.2.69.0"
SECRET = "secret7f3a"
GEO = {"name": "geo", "kind": "mmdb", "path": "ip", "database": "City.mmdb", "fields": {"country": "country.iso_code"}}
AGENT = {"name": "agent", "kind": "user_agent", "path": "agent"}
PRIVATE = [
    {"path": "ip", "keep": "network"},
    {"path": "client.ip", "keep": "network"},
    {"path": "client.cookie", "keep": "nothing"},
]
COLUMNS = declare_columns("network string from ip", "inner_network string from client.ip")


def spec_of(**more: Any) -> PipelineSpec:
    columns = more.pop("columns", COLUMNS)
    table = {"name": "requests", "catch_all": True, "evolve": "rescue", "columns": columns} | more.pop("table", {})
    return PipelineSpec.model_validate(
        declare_pipeline(
            table,
            pipeline="web",
            source={"kind": "s3_sqs", "relay": "landing", "bucket": "b"} | more.pop("source", {}),
            event={"name": {"constant": "request"}, "time": {"path": "t", "unit": "epoch_seconds"}},
            private=PRIVATE,
        )
        | more
    )


def rows_of(
    spec: PipelineSpec, *events: Any, databases: PinnedDatabases | None = None
) -> dict[str, list[dict[str, Any]]]:
    data = b"\n".join(event if isinstance(event, bytes) else json.dumps(event).encode() for event in events)
    parser = Parser(spec, databases=databases)
    rows: dict[str, list[dict[str, Any]]] = {"requests": [], "quarantine": []}
    for table, part in parser.parse([Payload(1, "k", data)], STAMP):
        rows[table] += part.to_pylist()
    rows["invalid_addresses"] = [dict(parser.findings.invalid_addresses)]
    return rows


def test_columns_and_rescued_fields_contain_networks_only() -> None:
    event = {"t": 1, "ip": IN_LONDON, "client": {"ip": "2001:db8:1:2::7", "cookie": SECRET, "lang": "en"}}

    (row,) = rows_of(spec_of(columns=COLUMNS[:1]), event)["requests"]

    assert row["network"] == ITS_NETWORK
    assert json.loads(row["_rescued"]) == {"client": {"ip": "2001:db8:1::", "lang": "en"}}


def test_lossless_numbers_do_not_restore_an_address() -> None:
    """Rescued fields are read again from the bytes of the event where a number would lose digits."""
    event = {"t": 1, "id": 2**70, "ip": IN_LONDON, "client": {"cookie": SECRET, "n": 2**71}}

    (row,) = rows_of(spec_of(columns=COLUMNS[1:]), event)["requests"]

    assert row["_rescued"] == json.dumps(
        {"id": 2**70, "ip": ITS_NETWORK, "client": {"n": 2**71}}, separators=(",", ":")
    )


@pytest.mark.parametrize("value", ["x.x.x.x", "-", "", 7, True, [IN_LONDON], {"v4": IN_LONDON}, 1.5, 2**80])
def test_an_invalid_address_is_null_and_counted(value: Any) -> None:
    rows = rows_of(spec_of(), {"t": 1, "ip": value, "id": 2**70})

    assert [row["network"] for row in rows["requests"]] == [None]
    assert rows["invalid_addresses"] == [{"ip": 1}]
    assert IN_LONDON not in str(rows)


@pytest.mark.parametrize("client", [[{"ip": IN_LONDON}], json.dumps({"ip": IN_LONDON}), 5])
def test_a_value_in_place_of_a_private_field_s_parent_is_dropped(client: Any) -> None:
    rows = rows_of(spec_of(), {"t": 1, "client": client, "other": "kept"})

    assert [json.loads(row["_rescued"]) for row in rows["requests"]] == [{"other": "kept"}]


def test_quarantine_stores_only_the_length_of_a_private_value() -> None:
    event = {"ip": IN_LONDON, "client": {"cookie": SECRET}}

    (row,) = rows_of(spec_of(), event)["quarantine"]

    assert (row["raw"], row["raw_bytes"], row["raw_complete"]) == ("", len(json.dumps(event)), False)


def test_reasons_do_not_quote_private_input() -> None:
    """A file without its header: the first line is taken for one, and named in the reason."""
    lines = f"{IN_LONDON},{IN_LONDON}\n{IN_LONDON},x\n".encode()

    rows = rows_of(spec_of(source={"format": "csv"}), lines)

    assert [(row["reasons"][0]["code"], IN_LONDON in str(row)) for row in rows["quarantine"]] == [("malformed", False)]


def test_the_full_address_is_looked_up_and_not_its_network(databases: PinnedDatabases) -> None:
    spec = spec_of(enrich=[GEO], columns=[*COLUMNS, {"name": "country", "path": "_geo.country", "type": "string"}])

    rows = rows_of(spec, {"t": 1, "ip": IN_LONDON}, {"t": 1, "ip": "203.0.113.9"}, {"t": 1}, databases=databases)

    assert [(row["network"], row["country"]) for row in rows["requests"]] == [
        (ITS_NETWORK, "GB"),
        ("203.0.113.0", None),
        (None, None),
    ]


def test_a_producer_cannot_forge_a_lookup_result() -> None:
    columns = [{"name": "browser", "path": "_agent.browser", "type": "string"}]
    forged = {"t": 1, "_agent": {"browser": "forged"}}

    (row,) = rows_of(spec_of(enrich=[AGENT], columns=columns), forged)["requests"]

    assert (row["browser"], row["_rescued"]) == (None, None)


def test_lookup_results_do_not_count_as_fields_of_the_event() -> None:
    spec = spec_of(enrich=[AGENT], table={"evolve": "fail"}, columns=[{"name": "a", "path": "agent", "type": "string"}])

    assert len(rows_of(spec, {"t": 1, "agent": "curl/8.0"})["requests"]) == 1


def test_lookup_results_keep_their_types_in_text_formats(databases: PinnedDatabases) -> None:
    columns = declare_columns(
        "network string from ip", "is_bot boolean from _agent.is_bot", "version string from _agent.browser_version"
    )
    source = {"format": "tsv", "tsv": {"columns": ["t", "ip", "agent"]}}
    time = {"path": "t", "unit": "iso8601"}
    spec = spec_of(
        enrich=[AGENT], columns=columns, source=source, event={"name": {"constant": "request"}, "time": time}
    )

    (row,) = rows_of(spec, f"2026-01-01T00:00:00Z\t{IN_LONDON}\tcurl/8.0".encode())["requests"]

    assert (row["network"], row["is_bot"], row["version"]) == (ITS_NETWORK, False, "8.0")


def test_a_failed_lookup_fails_the_batch_without_rows(
    databases: PinnedDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, address: str) -> None:
        raise ConfigError("ENRICHMENT_UNREADABLE", "corrupt")

    monkeypatch.setattr("deltaworks.events.lookup_databases.AddressLookup.lookup", broken)

    with pytest.raises(ConfigError, match="ENRICHMENT_UNREADABLE"):
        rows_of(spec_of(enrich=[GEO]), {"t": 1, "ip": IN_LONDON}, databases=databases)


SECRETS = st.text(max_size=3).map(lambda text: f"{text}{SECRET}{text}")
VALUES = st.recursive(
    SECRETS | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["ip", "cookie", "x"]), inner),
    max_leaves=4,
)
EVENTS = st.fixed_dictionaries(
    {"ip": VALUES},
    optional={"t": st.just(1) | st.just("never"), "client": st.fixed_dictionaries({"ip": VALUES, "cookie": VALUES})},
)
LINES = st.tuples(SECRETS, st.sampled_from([b"\t", b'"', b"{", b",", b"\xff", b""])).map(
    lambda parts: parts[1] + parts[0].encode("utf-8", "replace") + parts[1]
)


@settings(max_examples=examples(150))
@given(
    st.lists(EVENTS | LINES, min_size=1, max_size=4),
    st.sampled_from(["json", "tsv", "csv", "text"]),
    st.sampled_from(["ignore", "rescue", "add_columns"]),
)
def test_no_private_value_is_in_any_row_or_finding(events: list[Any], form: str, evolve: str) -> None:
    columns = {"tsv": {"columns": ["t", "ip"]}, "csv": {"columns": ["t", "ip"], "header": False}}
    source = {"format": form} | {key: value for key, value in columns.items() if key == form}
    source |= {"pattern": r"(?P<t>\S+) (?P<ip>\S+)"} if form == "text" else {}
    spec = spec_of(source=source, table={"evolve": evolve})
    if form != "json":
        events = [event for event in events if isinstance(event, bytes)]

    parser = Parser(spec)
    data = b"\n".join(event if isinstance(event, bytes) else json.dumps(event).encode() for event in events)
    parts = list(parser.parse([Payload(1, "k", data)], STAMP))

    assert all(SECRET not in str(part.to_pylist()) for _, part in parts)
    assert SECRET not in json.dumps(parser.findings.as_record())
    assert not events or sum(part.num_rows for _, part in parts) > 0


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "ip": st.sampled_from([IN_LONDON, "x.x.x.x", "::1", "-"]) | VALUES,
        "agent": st.sampled_from(["curl/8.0", "Mozilla/5.0%2520(X11)", ""]) | VALUES,
        "_agent": VALUES,
        "cookie": VALUES,
    },
)


@settings(max_examples=examples(150))
@given(st.lists(FIELDS, max_size=6))
def test_the_cached_path_equals_separate_lookups_and_masks(events: list[Any]) -> None:
    masks = [{"path": "ip", "keep": "network"}, {"path": "cookie", "keep": "nothing"}]
    spec = spec_of(enrich=[AGENT, AGENT | {"name": "again"}, AGENT | {"name": "of_ip", "path": "ip"}], private=masks)
    at_once = LookupsAndMasks(spec, None)
    assert len(at_once._independent_fields) == 3
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lookups_and_masks, "_independent_field_names", lambda _: [])
        one_by_one = LookupsAndMasks(spec, None)
    findings = TaskFindings(), TaskFindings()

    for event in events:
        copies = copy.deepcopy(event), copy.deepcopy(event)
        at_once.apply(copies[0], findings[0])
        one_by_one.apply(copies[1], findings[1])
        assert copies[0] == copies[1]

    assert findings[0].invalid_addresses == findings[1].invalid_addresses


@pytest.fixture
def databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PinnedDatabases:
    """A lake with a database of cities, fixed."""
    if not CITY.exists():
        pytest.skip(f"no databases at {CITY.parent}; name their folder in DELTAWORKS_SHARED_DATA")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    LocalObjects(tmp_path / "lake").put(paths.database("City.mmdb"), CITY.read_bytes())
    return present(pin_databases(spec_of(enrich=[GEO]), local_storage(tmp_path / "lake")))


def test_a_pipeline_without_lookups_and_masks_loads_no_library() -> None:
    spec = PipelineSpec.model_validate(spec_of().model_dump() | {"private": ()})

    parts = dict(Parser(spec).parse([Payload(1, "k", json.dumps({"t": 1, "ip": IN_LONDON}).encode())], STAMP))

    assert isinstance(parts["requests"], pa.Table)
    assert parts["requests"].column("network").to_pylist() == [IN_LONDON]
