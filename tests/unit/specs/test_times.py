"""Times, cron expressions and types: valid spellings, and errors that name the valid one."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from croniter import croniter
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.pipeline_sections import EventTimeSpec
from deltaworks.specs.schedules import PRESETS, next_run, schedule_problem
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.specs.spec_diff import SpecChange, classify_changes
from deltaworks.specs.table import ColumnSpec
from deltaworks.specs.times import parse_pattern
from deltaworks.specs.types import PRIMITIVES, Array, ColumnType, Decimal, Map, Primitive, Struct, parse_type
from deltaworks.tables.arrow_types import arrow_type
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


@pytest.mark.parametrize(
    "expression", ["*/15 * * * *", "0 3 * * 0", "15,45 0-6/2 1 JAN MON", "0 0 L * *", "5 4 * * sun", *PRESETS]
)
def test_expressions_of_airflow_are_valid(expression: str) -> None:
    assert schedule_problem(expression) is None


@pytest.mark.parametrize(
    ("phrase", "expression"),
    [
        ("every 15 minutes", "*/15 * * * *"),
        ("every minute", "* * * * *"),
        ("every 2 hours", "0 */2 * * *"),
        ("Every hour", "0 * * * *"),
        ("hourly", "0 * * * *"),
        ("every day at 4:30", "30 4 * * *"),
        ("daily", "0 3 * * *"),
        ("every week", "0 3 * * 0"),
        ("every month", "0 3 1 * *"),
        ("when it rains", "*/15 * * * *"),
        ("0 */15 * * * *", "*/15 * * * *"),
    ],
)
def test_a_phrase_is_answered_with_its_expression(phrase: str, expression: str) -> None:
    messages = "write a cron expression of five parts (minute, hour, day, month, weekday), such as "

    assert schedule_problem(phrase) == f'{messages}"{expression}", instead of {phrase!r}'
    assert schedule_problem(expression) is None


@pytest.mark.parametrize("expression", ["61 3 * * *", "* 24 * * *", "* * 32 * *", "a b c d e", "*/0 * * * *"])
def test_five_invalid_parts_are_rejected(expression: str) -> None:
    assert str(schedule_problem(expression)).startswith(f"{expression!r} is not a cron expression: minute 0")


NUMBERS = st.integers(0, 70).map(str)
ITEMS = st.one_of(
    st.just("*"),
    NUMBERS,
    st.builds("{}-{}".format, NUMBERS, NUMBERS),
    st.builds("*/{}".format, NUMBERS),
    st.builds("{}/{}".format, NUMBERS, NUMBERS),
    st.builds("{}-{}/{}".format, NUMBERS, NUMBERS, NUMBERS),
)
PARTS = st.lists(ITEMS, min_size=1, max_size=3).map(",".join)


@given(st.lists(PARTS, min_size=5, max_size=5).map(" ".join))
@example("*/5 0-6/2 1,15 * 1")
def test_accepted_expressions_are_valid_for_airflows_library(expression: str) -> None:
    if schedule_problem(expression) is None:
        assert croniter.is_valid(expression)


def test_every_schedule_of_a_declaration_is_checked() -> None:
    from pydantic import TypeAdapter, ValidationError

    from deltaworks.specs.maintenance import MaintenanceSpec
    from deltaworks.specs.mutation import MutationsSpec
    from deltaworks.specs.relay import CleanSpec

    for model, rest in (
        (MaintenanceSpec, {}),
        (MutationsSpec, {"requests": "requests"}),
        (CleanSpec, {"mode": "delete"}),
    ):
        with pytest.raises(ValidationError, match="cron expression"):
            TypeAdapter(model).validate_python({**rest, "schedule": "every 15 minutes"})


NOW = dt.datetime(2026, 3, 1, 12, 3, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("expression", "following"),
    [
        ("*/15 * * * *", "2026-03-01 12:15"),
        ("@daily", "2026-03-02 00:00"),
        ("@quarterly", "2026-04-01 00:00"),
        ("0 4 * * 0", "2026-03-08 04:00"),
    ],
)
def test_the_next_run_of_a_schedule(expression: str, following: str) -> None:
    assert f"{next_run(expression, NOW):%Y-%m-%d %H:%M}" == following


FIELD_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
DECIMALS = st.integers(1, 38).flatmap(
    lambda precision: st.builds(Decimal, st.just(precision), st.integers(0, precision))
)


def nested(inner: st.SearchStrategy[ColumnType]) -> st.SearchStrategy[ColumnType]:
    fields = st.lists(st.tuples(FIELD_NAMES, inner), min_size=1, max_size=4, unique_by=lambda field: field[0])
    return st.one_of(st.builds(Array, inner), st.builds(Map, inner), st.builds(Struct, fields.map(tuple)))


TYPES = st.recursive(st.one_of(st.sampled_from(PRIMITIVES).map(Primitive), DECIMALS), nested, max_leaves=8)


@given(TYPES)
def test_a_serialized_type_parses_to_itself(kind: ColumnType) -> None:
    assert parse_type(str(kind)) == kind


@given(TYPES)
def test_white_space_does_not_matter(kind: ColumnType) -> None:
    spaced = "  ".join(str(kind).replace("<", " < ").replace(">", " > ").replace(",", " , ").split())

    assert parse_type(spaced) == kind


@given(TYPES)
def test_every_type_has_an_arrow_type(kind: ColumnType) -> None:
    assert arrow_type(kind) == arrow_type(str(kind))


@given(st.text("abcdefghijklmnop<>(),: 0123456789_$", max_size=30))
def test_any_other_text_only_raises_an_invalid_yaml_error(text: str) -> None:
    try:
        kind = parse_type(text)
    except ValueError:
        return
    assert parse_type(str(kind)) == kind


@pytest.mark.parametrize(("written", "kind"), [("BIGINT", "long"), ("bool", "boolean"), ("integer", "int")])
def test_synonyms_become_one_name(written: str, kind: str) -> None:
    assert str(parse_type(written)) == kind


@pytest.mark.parametrize(
    ("written", "messages"),
    [
        ("", "ends too early"),
        ("array<int", "ends too early"),
        ("int int", "unexpected 'int' after the type"),
        ("array<" * 1_000 + "int" + ">" * 1_000, "nested more than 64 levels"),
        ("map<int,string>", "map keys must be strings, as in JSON"),
        ("decimal(39,2)", "a precision of 1 to 38"),
        ("decimal(4,5)", "a scale of 0 to its precision"),
        ("decimal(a,b)", "expected a number, found 'a'"),
        ("struct<a: int, a: long>", "'a' is invalid or repeated"),
        ("struct<1: int>", "'1' is invalid or repeated"),
        ("struct<a: int; b: int>", "unexpected character"),
        ("struct<a: int b: int>", "expected ',' or '>', found 'b'"),
        ("varchar", "unknown type 'varchar'"),
    ],
)
def test_a_wrong_type_says_what_was_expected(written: str, messages: str) -> None:
    with pytest.raises(ValueError, match=messages.replace("(", r"\(").replace(")", r"\)")):
        parse_type(written)
