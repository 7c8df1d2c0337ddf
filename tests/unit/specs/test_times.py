"""Time formats: patterns with a complete date, existing zones, and arrival times."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.specs.event import EventTimeSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.specs.spec_diff import SpecChange, classify_changes
from deltaworks.specs.table import ColumnSpec
from deltaworks.specs.times import parse_pattern
from deltaworks.testing import pipeline_spec

EVENTS = {"name": "events", "catch_all": True}


def messages(model: Any, declared: dict[str, Any]) -> dict[str, str]:
    """The mistakes by their place."""
    with pytest.raises(ValidationError) as rejection:
        model.model_validate(declared)
    errors = rejection.value.errors()
    return {".".join(map(str, error["loc"])): error["msg"].removeprefix("Value error, ") for error in errors}


def with_time(**time: Any) -> PipelineSpec:
    return pipeline_spec(EVENTS, event={"name": {"path": "name"}, "time": time})


def with_column(**column: Any) -> PipelineSpec:
    columns = [{"name": "at", "path": "at", "type": "timestamp"} | column]
    return pipeline_spec(EVENTS | {"columns": columns})


def test_a_pattern_is_parsed() -> None:
    pattern = parse_pattern("%d/%b/%Y:%H:%M:%S %z")

    assert pattern.parts == ("%d", "/", "%b", "/", "%Y", ":", "%H", ":", "%M", ":", "%S", " ", "%z")
    assert (pattern.has_offset, pattern.has_time_of_day) == (True, True)
    assert parse_pattern("%Y%m%d").parts == ("%Y", "%m", "%d")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("dd/MMM/yyyy:HH:mm:ss Z", "has no strptime directive; did you mean '%d/%b/%Y:%H:%M:%S %z'?"),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "did you mean '%Y-%m-%dT%H:%M:%S.%f%z'?"),
        ("MM/dd/yy hh:mm a", "did you mean '%m/%d/%y %I:%M %p'?"),
        ("2024-01-01", "has no strptime directive; write, for example, %d/%b/%Y:%H:%M:%S %z"),
        ("%Y-%m-%d %T", "%T in '%Y-%m-%d %T' is not a directive; write %H:%M:%S"),
        ("%d %b %Y %H:%M %Z", "is not a directive; write GMT or UTC literally, and declare `zone`"),
        ("%Y-%j", "%j in '%Y-%j' is not a directive; known directives: %Y, %y, %m"),
        ("%Y-%m-%d %", "% in '%Y-%m-%d %' is not a directive"),
        ("100%%", "%% in '100%%' is not a directive"),
        ("%b %d %H:%M:%S", "'%b %d %H:%M:%S' has no year, which a date needs"),
        ("%H:%M", "has no year"),
        ("%d.%m.%Y %B", "two directives for the month"),
        ("%Y-%m-%d %I:%M", "%I in '%Y-%m-%d %I:%M' requires %p"),
        ("%Y-%m-%d %H:%M %p", "requires %I"),
        ("%Y-%m-%d %M", "requires %H or %I"),
        ("%Y-%m-%d %H:%S", "requires %M"),
        ("%Y-%m-%d %H:%M.%f", "requires %S"),
    ],
)
def test_a_pattern_without_a_date_is_rejected_with_advice(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_pattern(pattern)

    assert message in messages(EventTimeSpec, {"path": "at", "format": pattern})["format"]


@pytest.mark.parametrize(
    ("zone", "message"),
    [
        ("Europe/Berln", "there is no time zone 'Europe/Berln'; did you mean 'Europe/Berlin'?"),
        ("the moon", "write one such as Europe/Berlin"),
        ("localtime", "there is no time zone 'localtime'"),
        ("right/Europe/Berlin", "did you mean 'Europe/Berlin'?"),
        ("/etc/localtime", "there is no time zone"),
        ("", "there is no time zone"),
        ("Europe", "there is no time zone 'Europe'"),
    ],
)
def test_an_unknown_zone_is_rejected_with_the_closest_name(zone: str, message: str) -> None:
    assert message in messages(EventTimeSpec, {"path": "at", "zone": zone})["zone"]


@pytest.mark.parametrize(
    ("time", "key", "message"),
    [
        ({}, "path", "give the path of the time; or arrival: true for events without one"),
        ({"arrival": "when_missing"}, "path", "give the path of the time"),
        ({"path": "at", "arrival": True}, "arrival", "with a path, write arrival"),
        ({"path": "at", "arrival": "sometimes"}, "arrival", "'when_missing' or 'when_unusable'"),
        ({"arrival": True, "max_age_days": 3}, "max_age_days", "it requires a path, and none is declared"),
        ({"arrival": True, "format": "%Y-%m-%d"}, "format", "it requires a path, and none is declared"),
        ({"arrival": True, "unit": "epoch_millis"}, "unit", "it requires a path, and none is declared"),
        (
            {"path": "at", "unit": "epoch_millis", "format": "%Y-%m-%d"},
            "format",
            "it conflicts with unit: epoch_millis",
        ),
        ({"path": "at", "unit": "epoch_millis", "zone": "Asia/Tokyo"}, "zone", "is in UTC, independent of the zone"),
        ({"path": "at", "format": "%Y-%m-%d %z", "zone": "Asia/Tokyo"}, "zone", "the pattern contains the offset, %z"),
        ({"path": ["date", "time"], "unit": "epoch_millis"}, "unit", "several paths are joined to a text"),
        ({"path": ["date", "time..x"]}, "path", "write a dotted path of field names"),
    ],
)
def test_contradictions_are_rejected_at_their_keys(time: dict[str, Any], key: str, message: str) -> None:
    assert message in messages(EventTimeSpec, time)[key]


@pytest.mark.parametrize(
    ("column", "key", "message"),
    [
        (
            {"type": "string", "format": "%Y-%m-%d"},
            "format",
            "it only applies to timestamp or date columns; 'at' is string",
        ),
        ({"type": "array<long>", "zone": "Asia/Tokyo"}, "zone", "it only applies to timestamp or date columns"),
        ({"type": "date", "format": "%Y-%m-%d", "zone": "Asia/Tokyo"}, "zone", "the same in every zone"),
        (
            {"type": "date", "unit": "epoch_millis", "format": "%Y-%m-%d"},
            "format",
            "it conflicts with unit: epoch_millis",
        ),
    ],
)
def test_only_time_columns_have_a_time_format(column: dict[str, Any], key: str, message: str) -> None:
    assert message in messages(ColumnSpec, {"name": "at", "path": "at"} | column)[key]


def test_nested_times_have_the_format_of_their_column() -> None:
    kind = "map<string,array<struct<at: timestamp>>>"

    spec = ColumnSpec.model_validate(
        {"name": "a", "path": "a", "type": kind, "format": "%Y-%m-%d", "zone": "Asia/Tokyo"}
    )

    assert spec.time_format.zone == "Asia/Tokyo"


def test_rows_of_a_table_have_no_arrival_time() -> None:
    source = {"kind": "delta", "pipeline": "games", "table": "events"}

    with pytest.raises(ValidationError, match=r"declare a path, such as _ingested_at"):
        pipeline_spec(EVENTS, event={"name": {"path": "name"}, "time": {"arrival": True}}, source=source)


def changes(old: PipelineSpec, new: PipelineSpec) -> list[tuple[str, Effect]]:
    return [(change.field, change.effect) for change in classify_changes(old, new)]


def test_time_format_changes_are_unsafe_and_arrival_changes_need_a_restart() -> None:
    plain = with_time(path="time")

    assert changes(plain, with_time(path="time", format="%Y-%m-%d")) == [("event.time.format", Effect.MIXED_ROWS)]
    assert changes(plain, with_time(path="time", zone="Asia/Tokyo")) == [("event.time.zone", Effect.MIXED_ROWS)]
    assert changes(plain, with_time(path="time", arrival="when_missing")) == [("event.time.arrival", Effect.RESTART)]
    assert changes(plain, with_time(arrival=True)) == [
        ("event.time.path", Effect.MIXED_ROWS),
        ("event.time.arrival", Effect.RESTART),
    ]
    assert changes(with_column(), with_column(format="%Y-%m-%d")) == [
        ("tables.events.columns.at.format", Effect.MIXED_ROWS)
    ]
    (change,) = classify_changes(plain, with_time(path="time", format="%Y-%m-%d"))
    assert isinstance(change, SpecChange)
    assert "`deltaworks quarantine replay shop`" in change.advice


def test_a_time_zone_changes_the_fingerprint() -> None:
    assert with_time(path="time", zone="Asia/Tokyo").fingerprint() != with_time(path="time").fingerprint()


@pytest.mark.parametrize(
    "time",
    [
        {"path": ["date", "time"], "format": "%d.%m.%Y %H:%M", "zone": "Europe/Berlin", "arrival": "when_unusable"},
        {"path": "at", "arrival": "when_missing"},
        {"arrival": True},
    ],
)
def test_a_time_survives_json_as_it_travels_to_tasks(time: dict[str, Any]) -> None:
    spec = with_time(**time)

    assert PipelineSpec.model_validate_json(spec.model_dump_json()) == spec
    assert PipelineSpec.model_validate(spec.to_dict()) == spec


def test_original_columns_have_the_time_format_of_changing_columns() -> None:
    columns = [
        {"name": "org_id", "path": "org", "type": "string"},
        {"name": "id", "path": "id", "type": "string"},
        {"name": "origin", "path": "id", "type": "string"},
        {"name": "due", "path": "due", "type": "date", "format": "%d.%m.%Y"},
        {"name": "origin_due", "path": "due", "type": "date"},
    ]
    table = {"name": "contacts", "catch_all": True, "columns": columns}
    mutable = {"id": "id", "origin": "origin", "fields": {"due": "origin_due"}}

    with pytest.raises(
        ValidationError, match=r"give it the same path, type, unit, format and zone \(due, date, iso8601, %d"
    ):
        pipeline_spec(table | {"mutable": mutable})
