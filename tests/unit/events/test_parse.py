"""Parsing: every event is in all its tables or in quarantine with its reasons, never in both."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.events.reasons import QUARANTINE_SCHEMA, Reason, ReasonCode
from deltaworks.events.task_findings import TaskFindings
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import ENVELOPE_COLUMNS
from deltaworks.testing import declare_table, payloads_of, pipeline_spec, rows_by_table
from tests.examples import examples
from tests.unit.events.routing_oracle import expected

MakeSpec = Callable[..., PipelineSpec]
Rows = dict[str, list[dict[str, Any]]]
STAMP = BatchMetadata(batch_id=7, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")


def parse(spec: PipelineSpec, *payloads: Payload | bytes, chunk_events: int = 20_000) -> Rows:
    parts = list(Parser(spec, chunk_events=chunk_events).parse(payloads_of(*payloads), STAMP))
    assert all(table.num_rows for _, table in parts)
    return defaultdict(list, rows_by_table(parts))


def event(**changes: Any) -> bytes:
    params = {"amount": 4.99, "level": 3} | changes.pop("params", {})
    return json.dumps({"name": "order", "time": 1_700_000_000, "device": "d", "params": params} | changes).encode()


def codes(rows: Rows) -> list[list[tuple[str, str]]]:
    return [[(reason["code"], reason["path"]) for reason in row["reasons"]] for row in rows["quarantine"]]


def test_the_reason_of_a_nested_field_has_its_path(make_spec: MakeSpec) -> None:
    columns = [{"name": "items", "path": "basket.items", "type": "array<struct<sku: string, count: int>>"}]
    spec = make_spec(tables=[{"name": "orders", "catch_all": True, "columns": columns}])

    rows = parse(spec, event(basket={"items": [{"sku": "a", "count": 1}, {"sku": "b", "count": "1"}]}))

    (reason,) = rows["quarantine"][0]["reasons"]
    assert reason == {
        "code": "type_mismatch",
        "path": "basket.items[].count",
        "detail": "the text '1' is not a valid whole number",
    }


def test_an_event_lands_in_all_its_tables_with_its_envelope(make_spec: MakeSpec) -> None:
    rows = parse(make_spec(), event(), event(time=1_700_000_001) + event())

    assert set(rows) == {"events", "orders"}
    assert [row["_position"] for row in rows["orders"]] == [0, 0, 1]
    assert [row["_seq"] for row in rows["orders"]] == [1, 2, 2]
    assert rows["orders"][0] == {
        "event_id": None,
        "event_name": "order",
        "event_time": dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC),
        "event_date": dt.date(2023, 11, 14),
        "_ingested_at": dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC),
        "_batch_id": 7,
        "_seq": 1,
        "_position": 0,
        "amount": Decimal("4.99"),
        "level": 3,
    }


def test_rows_have_the_declared_schema_whatever_the_events_lack(make_spec: MakeSpec) -> None:
    spec = make_spec()
    payload = Payload(1, "k", event(params={"level": None}))
    tables = dict(Parser(spec).parse([payload, Payload(2, "bad", b"{")], STAMP))

    for table in spec.tables:
        assert tables[table.name].schema.names == list(table.column_types())
    assert tables["orders"].schema.field("amount").type == pa.decimal128(12, 2)
    assert tables["quarantine"].schema == QUARANTINE_SCHEMA
    assert list(dict(ENVELOPE_COLUMNS)) == tables["events"].schema.names[:8]


@pytest.mark.parametrize(
    ("payload", "reasons"),
    [
        (b"{broken", [("malformed", "")]),
        (b"7", [("not_an_object", "")]),
        (event(name="login"), [("unknown_event", "")]),
        (event(name=None), [("unknown_event", "")]),
        (event(time=None), [("missing_required", "time")]),
        (event(time="soon"), [("type_mismatch", "time")]),
        (event(time=10**15), [("out_of_range", "time")]),
        (event(device=7), [("type_mismatch", "device")]),
        (event(params={"amount": None}), [("missing_required", "params.amount")]),
        (event(params={"amount": "much"}), [("type_mismatch", "params.amount")]),
        (event(params={"level": 2**31}), [("out_of_range", "params.level")]),
        (
            event(device=7, time=None, params={"amount": None, "level": "x"}),
            [
                ("missing_required", "time"),
                ("type_mismatch", "device"),
                ("missing_required", "params.amount"),
                ("type_mismatch", "params.level"),
            ],
        ),
    ],
)
def test_a_rejected_event_is_in_quarantine_with_every_reason_and_in_no_table(
    make_spec: MakeSpec, payload: bytes, reasons: list[tuple[str, str]]
) -> None:
    rows = parse(make_spec(), event() + b"\n" + payload + b"\n" + event())

    assert set(rows) == {"events", "orders", "quarantine"}
    assert [len(rows[name]) for name in ("events", "orders", "quarantine")] == [2, 2, 1]
    assert sorted(codes(rows)[0]) == sorted(reasons)
    assert rows["quarantine"][0]["raw"] == payload.decode()
    assert rows["quarantine"][0]["_position"] == 1


def test_unavailable_objects_are_in_quarantine_with_their_reason(make_spec: MakeSpec) -> None:
    of_objects = [code for code in ReasonCode if code.value.startswith("object_")]
    assert len(of_objects) == 5

    rows = parse(
        make_spec(),
        *[Payload(seq, f"gone{seq}", None, Reason(code, "", "why")) for seq, code in enumerate(of_objects, 1)],
        Payload(9, "there", event()),
    )

    assert [(row["_seq"], row["object_key"]) for row in rows["quarantine"]] == [(n, f"gone{n}") for n in range(1, 6)]
    assert codes(rows) == [[(code.value, "")] for code in of_objects]
    assert len(rows["orders"]) == 1


def test_an_event_rejected_by_one_table_is_in_none(make_spec: MakeSpec) -> None:
    rows = parse(make_spec(), event(params={"amount": "much"}))

    assert set(rows) == {"quarantine"}


def test_a_reason_of_two_tables_is_given_once(make_spec: MakeSpec) -> None:
    column = {"name": "level", "path": "level", "type": "int"}
    tables = [{"name": name, "when": {"name": "order"}, "columns": [column]} for name in ("a", "b")]

    assert codes(parse(make_spec(tables=tables), event(level="x"))) == [[("type_mismatch", "level")]]


class TestIds:
    """A declared id is required."""

    EVENT: ClassVar[dict[str, Any]] = {
        "name": {"path": "name"},
        "time": {"path": "time", "unit": "epoch_seconds"},
    }

    def test_an_event_without_its_id_is_in_quarantine(self, make_spec: MakeSpec) -> None:
        rows = parse(make_spec(event=self.EVENT | {"id": "id"}), event(id="e1") + event() + event(id=""))

        assert [row["event_id"] for row in rows["orders"]] == ["e1"]
        assert codes(rows) == [[("missing_required", "id")]] * 2

    def test_an_event_without_one_part_of_its_id_is_in_quarantine(self, make_spec: MakeSpec) -> None:
        rows = parse(
            make_spec(event=self.EVENT | {"id": ["id", "device"]}), event(id="e1") + event(id="e1", device=None)
        )

        assert [len(row["event_id"]) for row in rows["orders"]] == [32]
        assert codes(rows) == [[("missing_required", "id, device")]]


def test_a_quarantined_event_says_where_it_came_from(make_spec: MakeSpec) -> None:
    (row,) = parse(make_spec(), Payload(41, "games/a.json", event() + event(params={"level": "x"})))["quarantine"]

    assert (row["_seq"], row["_position"], row["object_key"]) == (41, 1, "games/a.json")
    assert (row["event_name"], row["spec_fingerprint"], row["_batch_id"]) == ("order", "fp", 7)
    assert row["quarantine_date"] == dt.date(2023, 11, 14)
    assert row["raw_bytes"] == len(event(params={"level": "x"}))


def test_a_large_raw_value_is_truncated_with_its_original_size(make_spec: MakeSpec) -> None:
    bad = b'{"name": "' + "é".encode() * 5_000

    (row,) = parse(make_spec(quarantine={"retain_raw_bytes": 101}), bad)["quarantine"]

    assert row["raw_bytes"] == len(bad)
    assert row["raw"].startswith('{"name": "éé')
    assert len(row["raw"].encode()) <= 101 + 3


def test_bytes_that_are_no_text_are_kept_readable(make_spec: MakeSpec) -> None:
    (row,) = parse(make_spec(), b'{"name": "\xff\xfe"}')["quarantine"]

    assert row["raw"] == '{"name": "\\xff\\xfe"}'


def test_wrapped_events_are_parsed_like_others(make_spec: MakeSpec) -> None:
    wrapped = json.dumps({"path": "/v1", "body": event().decode()}).encode()

    rows = parse(make_spec(unwrap={"path": "body"}), wrapped + wrapped + json.dumps({"body": "{"}).encode())

    assert len(rows["orders"]) == 2
    assert codes(rows) == [[("malformed", "")]]


def test_an_array_of_nothing_gives_no_rows(make_spec: MakeSpec) -> None:
    assert parse(make_spec(), b"[]") == {}


def test_chunks_stay_bounded_for_good_and_bad_events_alike(make_spec: MakeSpec) -> None:
    sizes = [
        table.num_rows
        for payload in (event() * 1000, b"7 " * 1000)
        for _, table in Parser(make_spec(), chunk_events=100).parse([Payload(1, "k", payload)], STAMP)
    ]

    assert max(sizes) <= 100
    assert sum(sizes) == 2 * 1000 + 1000


EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["order", "refund", "login", "", 7, None]),
        "time": st.sampled_from([0, 1_700_000_000, -(10**10), 10**12, "x", None, True]),
        "id": st.sampled_from(["e1", "e2", "", None]),
        "device": st.sampled_from(["d1", None, 7, True]),
        "params": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "amount": st.sampled_from([1, 4, 10**10, True, {}, None]),
                "level": st.sampled_from([1, 2**31, "x", None]),
            },
        ),
    },
)
LIKELY_GOOD = st.builds(
    lambda name, amount: {"name": name, "time": 1_700_000_000, "id": "e", "device": "d", "params": {"amount": amount}},
    st.sampled_from(["order", "refund"]),
    st.integers(1, 100),
)
# Lines that are broken between their braces: of those broken elsewhere, neighbours make one row in quarantine.
BROKEN = st.sampled_from(['{"a": nul}', '{"a": [7}', "{]}", '{"name": "order" "time"}'])
LINES = st.one_of(LIKELY_GOOD.map(json.dumps), EVENTS.map(json.dumps), BROKEN)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(LINES, min_size=1, max_size=12), st.booleans(), st.integers(1, 5))
def test_every_event_is_once_in_all_its_tables_or_once_in_quarantine(
    lines: list[str], with_id: bool, chunk_events: int
) -> None:
    amount = {"name": "amount", "path": "params.amount", "type": "decimal(12,2)", "required": True}
    level = {"name": "level", "path": "params.level", "type": "int"}
    spec = pipeline_spec(
        declare_table("events", "device string"),
        {"name": "orders", "when": {"name": "order"}, "columns": [amount, level]},
        {"name": "money", "when": {"name": ["order", "refund"]}, "columns": [amount]},
        event={
            "name": {"path": "name"},
            "time": {"path": "time", "unit": "epoch_seconds"},
            "id": ["id"] if with_id else [],
        },
    )

    rows = parse(spec, "\n".join(lines).encode(), chunk_events=chunk_events)

    landed, quarantined = expected(spec, lines)
    found = Counter((name, row["_position"]) for name in rows if name != "quarantine" for row in rows[name])
    assert found == landed
    assert Counter(row["_position"] for row in rows["quarantine"]) == Counter(quarantined)
    assert all(row["reasons"] for row in rows["quarantine"])


BAD = [event(params={"level": "x"}), b"{", b"7"]


@pytest.mark.parametrize("chunk_events", [1, 2, 20_000])
def test_parsed_and_rejected_events_are_counted_without_values(make_spec: MakeSpec, chunk_events: int) -> None:
    payloads = [event(), *BAD, event(), *BAD[:2], BAD[0]]
    parser, quarantined = Parser(make_spec(), chunk_events=chunk_events), Counter[tuple[str, str]]()
    events = Counter[tuple[str, str, str]]()
    numbered = [Payload(seq, f"k{seq}", data) for seq, data in enumerate(payloads, 1)]
    for name, table in parser.parse(numbered, STAMP):
        for row in table.to_pylist() if name == "quarantine" else ():
            quarantined.update({(reason["code"], reason["path"]) for reason in row["reasons"]})
            events.update({(reason["code"], row["event_name"] or "", reason["path"]) for reason in row["reasons"]})

    again = TaskFindings.from_record(parser.findings.as_record())
    assert again.events == parser.findings.events == len(payloads)
    assert again.rejected == parser.findings.rejected == quarantined
    assert again.rejected_events == parser.findings.rejected_events == events
    assert again.ledger_entry()["rejected"] == [
        ["type_mismatch", "params.level", 3],
        ["malformed", "", 2],
        ["not_an_object", "", 1],
    ]
