"""Event times: the event's own or its arrival time, as declared, and the same on every read."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import pipeline_spec

READ_US = 1_700_000_000_000_000
#: An hour and a quarter before it is read.
ARRIVED_US = READ_US - 4_500_000_000
ARRIVED = dt.datetime(2023, 11, 14, 20, 58, 20, tzinfo=dt.UTC)
OWN = dt.datetime(2023, 11, 14, 12, tzinfo=dt.UTC)


def declared(*, of: dict[str, Any] | None = None, **time: Any) -> PipelineSpec:
    columns = [{"name": "level", "path": "level", "type": "int"}]
    source = {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"} | (of or {})
    event = {"name": {"constant": "hook"}, "time": time}
    return pipeline_spec({"name": "hooks", "catch_all": True, "columns": columns}, event=event, source=source)


def parsed(
    spec: PipelineSpec, *payloads: Payload | bytes, read_us: int = READ_US
) -> tuple[list[dt.datetime], list[list[tuple[str, str]]], dict[str, Any]]:
    """The times that landed, the reasons of those in quarantine, and what was noted."""
    numbered = [
        p if isinstance(p, Payload) else Payload(seq, f"k{seq}", p, arrived_at_us=ARRIVED_US)
        for seq, p in enumerate(payloads, 1)
    ]
    parser = Parser(spec)
    rows: dict[str, list[dict[str, Any]]] = {"hooks": [], "quarantine": []}
    for name, part in parser.parse(numbered, BatchMetadata(3, read_us, "f")):
        rows[name] += part.to_pylist()
    assert all(row["event_date"] == row["event_time"].date() for row in rows["hooks"])
    assert all(row["_ingested_at"].timestamp() * 1e6 == read_us for row in rows["hooks"])
    reasons = [[(reason["code"], reason["path"]) for reason in row["reasons"]] for row in rows["quarantine"]]
    facts = parser.findings.ledger_entry()
    counts = ("events", "quarantined_events", "rejected", "rejected_events")
    of_times = {name: value for name, value in facts.items() if name not in counts}
    return [row["event_time"] for row in rows["hooks"]], reasons, of_times


def lines(*events: dict[str, Any]) -> bytes:
    return "\n".join(map(json.dumps, events)).encode()


def test_events_have_their_arrival_time_where_declared() -> None:
    later = Payload(2, "k2", lines({}), arrived_at_us=ARRIVED_US + 1)

    times, reasons, facts = parsed(declared(arrival=True), lines({"at": "2020-01-01"}, {"at": []}), later)

    assert (times, reasons, facts) == ([ARRIVED, ARRIVED, ARRIVED + dt.timedelta(microseconds=1)], [], {})


@pytest.mark.parametrize("arrival", [True, "when_missing", "when_unusable"])
def test_the_read_time_does_not_matter(arrival: Any) -> None:
    spec = declared(arrival=True) if arrival is True else declared(path="at", arrival=arrival)
    events = lines({}, {"at": None})

    assert parsed(spec, events)[0] == parsed(spec, events, read_us=READ_US * 2)[0] == [ARRIVED, ARRIVED]


#: Absent, null, no time, too old, in the future, and good.
MIXED = lines(
    {},
    {"at": None},
    {"at": "soon"},
    {"at": "2023-01-01T00:00:00Z"},
    {"at": "2024-01-01T00:00:00Z"},
    {"at": "2023-11-14T12:00:00Z"},
)


@pytest.mark.parametrize(
    ("arrival", "times", "reasons", "facts"),
    [
        (
            False,
            [OWN],
            [
                [("missing_required", "at")],
                [("missing_required", "at")],
                [("type_mismatch", "at")],
                [("too_old", "at")],
                [("too_far_in_future", "at")],
            ],
            {},
        ),
        (
            "when_missing",
            [ARRIVED, ARRIVED, OWN],
            [[("type_mismatch", "at")], [("too_old", "at")], [("too_far_in_future", "at")]],
            {},
        ),
        ("when_unusable", [ARRIVED] * 5 + [OWN], [], {"unusable_times": 3}),
    ],
)
def test_arrival_replaces_a_time_only_where_declared(
    arrival: Any, times: list[dt.datetime], reasons: list[Any], facts: dict[str, Any]
) -> None:
    spec = declared(path="at", arrival=arrival, max_age_days=30, max_future_minutes=60)

    assert parsed(spec, MIXED) == (times, reasons, facts)


def test_a_rejected_event_is_not_counted_as_an_unusable_time() -> None:
    spec = declared(path="at", arrival="when_unusable")

    _, reasons, facts = parsed(spec, lines({"at": "soon", "level": "x"}, {"at": "soon"}))

    assert (reasons, facts) == ([[("type_mismatch", "level")]], {"unusable_times": 1})


@pytest.mark.parametrize("arrived_us", [None, -(1 << 60), 1 << 60])
def test_an_event_without_a_recorded_arrival_is_quarantined(arrived_us: int | None) -> None:
    payload = Payload(1, "k", lines({"at": "2023-11-14T12:00:00Z"}, {}), arrived_at_us=arrived_us)

    assert parsed(declared(arrival=True), payload)[1] == [[("missing_required", "arrival")]] * 2
    assert parsed(declared(path="at", arrival="when_missing"), payload)[:2] == (
        [OWN],
        [[("missing_required", "arrival")]],
    )


def test_quarantine_says_when_an_event_arrived() -> None:
    parser = Parser(declared(path="at"))
    payloads = [
        Payload(1, "k", b'{"at": 1}{', arrived_at_us=ARRIVED_US),
        Payload(2, "k", b"{}"),
        Payload(3, "k", b"{}", arrived_at_us=1 << 62),
    ]

    (part,) = [rows for name, rows in parser.parse(payloads, BatchMetadata(0, READ_US, "f")) if name == "quarantine"]

    assert part.column("arrived_at").to_pylist() == [ARRIVED, ARRIVED, None, None]


ACCESS = '10.0.0.1 - - [20/May/2015:21:05:15 +0000] "GET / HTTP/1.1" 200 7'


def test_the_times_of_an_access_log_are_read_by_their_pattern() -> None:
    of = {"format": "text", "pattern": r"\S+ \S+ \S+ \[(?P<time>[^\]]+)\] .*"}
    spec = declared(of=of, path="time", format="%d/%b/%Y:%H:%M:%S %z")

    times, reasons, _ = parsed(spec, f"{ACCESS}\n{ACCESS.replace('May', 'Mai')}\n".encode())

    assert times == [dt.datetime(2015, 5, 20, 21, 5, 15, tzinfo=dt.UTC)]
    assert reasons == [[("type_mismatch", "time")]]


def test_a_date_and_a_time_in_two_fields_are_one_time() -> None:
    form = {"format": "%d.%m.%Y %H:%M", "zone": "Europe/Berlin"}
    spec = declared(of={"format": "csv"}, path=["day", "clock"], **form)

    times, reasons, _ = parsed(spec, b"day,clock\n31.01.2024,00:30\n31.01.2024,\n31.01.2024,noon\n")

    assert times == [dt.datetime(2024, 1, 30, 23, 30, tzinfo=dt.UTC)]
    assert reasons == [[("missing_required", "day, clock")], [("type_mismatch", "day, clock")]]


def test_of_two_time_parts_the_one_that_is_no_text_is_the_error() -> None:
    spec = declared(path=["day", "clock"])

    _, reasons, _ = parsed(spec, lines({"day": "2024-01-01", "clock": 0}, {"day": "2024-01-01", "clock": "10:00"}))

    assert reasons == [[("type_mismatch", "day, clock")]]
