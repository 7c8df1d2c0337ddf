"""An inferred pipeline lands every event of its files and explains its choices."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from deltaworks.errors import ContractError
from deltaworks.events.inference.pipeline_proposal import Overrides
from deltaworks.scaffolding.pipeline_yaml import InferredPipeline, infer_from_sample, sample_files
from deltaworks.sources.objects.landed_inputs import find_inputs
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.yaml_reader import load_yaml
from tests.examples import examples
from tests.shared_data import SHARED_DATA
from tests.webhook_events import TYPES, webhooks

PLACE = {"relay": "landing", "bucket": "landing", "prefix": "shop/"}
SETTINGS = settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
AT = "2026-03-01T12:00:00Z"


def infer(*files: Path, **chosen: str) -> InferredPipeline:
    sample = sample_files(find_inputs([str(file) for file in files]), PLACE, max_bytes=64 << 20)
    return infer_from_sample(sample, name="shop", overrides=Overrides(**chosen))


def spec_of(pipeline: InferredPipeline) -> PipelineSpec:
    return PipelineSpec.model_validate(load_yaml(pipeline.text.encode()).values)


def write_file(folder: Path, data: bytes, name: str = "events") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def write_lines(folder: Path, events: list[dict[str, Any]]) -> Path:
    return write_file(folder, b"".join(json.dumps(event).encode() + b"\n" for event in events))


def columns(pipeline: InferredPipeline, table: str = "shop") -> dict[str, str]:
    return {column.path: column.type for column in spec_of(pipeline).table(table).columns}


def inferred_type(folder: Path, values: list[Any], name: str = "field") -> str | None:
    """Returns the inferred column type of a field with these values."""
    pipeline = infer(write_lines(folder, [{"time": AT, name: value} for value in values]))
    assert not pipeline.quarantined
    return columns(pipeline).get(name)


NAMES = st.sampled_from(
    ["a", "price", "updated_at", "id", "x.y", "data", "Größe", " b", "a b", "}", "order"]
) | st.text(st.characters(codec="utf-8"), max_size=4)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**66), 2**66)
    | st.integers(1_600_000_000, 1_700_000_000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.decimals(0, 100, places=2).map(str)
    | st.datetimes(dt.datetime(1999, 1, 1), dt.datetime(2100, 1, 1)).map(dt.datetime.isoformat)
    | st.dates(dt.date(1999, 1, 1)).map(dt.date.isoformat)
    | st.text(st.characters(codec="utf-8"), max_size=5)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
EVENTS = st.lists(
    st.builds(
        lambda rest, name: {**rest, "time": AT, "type": name},
        st.dictionaries(NAMES, VALUES, max_size=4),
        st.sampled_from(["order", "order", "refund", "quarantine", "a.b", "Ö", "events", "1", "null", 'x"\n#']),
    ),
    min_size=1,
    max_size=12,
)


@SETTINGS
@given(events=EVENTS)
@example(events=[{"time": AT, "type": "a", "price": 1e300}, {"time": AT, "type": "a", "price": 1.25}])
@example(events=[{"time": AT, "type": "a", "ids": {"1": 1, "2": "x"}}])
def test_no_event_of_the_sample_goes_to_quarantine(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    pipeline = infer(write_lines(tmp_path, events))

    assert not pipeline.quarantined
    assert spec_of(pipeline).source.display_name() == "landing/shop/"
    assert pipeline.proposal.events == len(events)


TEXTS = st.sampled_from(
    ["", "NA", "007", "1", "12.50", "3.14159", "1e5", "true", "x", "2026-03-01", AT, "-", "1,5", "\n"]
)


@SETTINGS
@given(
    rows=st.lists(st.lists(TEXTS | st.text("ab1.;\"' \n", max_size=5), min_size=3, max_size=3), min_size=1, max_size=12)
)
def test_no_record_of_the_sample_goes_to_quarantine(tmp_path: Path, rows: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([["time", "one", "two", "three"], *([AT, *row] for row in rows)])

    pipeline = infer(write_file(tmp_path, text.getvalue().encode()))

    assert not pipeline.quarantined
    assert pipeline.proposal.events == len(rows)


@pytest.mark.parametrize(
    ("values", "name", "kind"),
    [
        (["2026-01-31T00:00:00Z", "2026-01-31 01:02:03.5"], "field", "timestamp"),
        (["2026-01-31", "2026-02-01"], "field", "date"),
        (["2026-01-31", "2026-02-01T00:00:00+02:00"], "field", "timestamp"),
        (["2026-01-31", "soon"], "field", "string"),
        ([1_700_000_000, 1_700_000_001], "created_at", "timestamp"),
        ([1_700_000_000_000], "expiresAt", "timestamp"),
        ([1_700_000_000], "members", "long"),
        ([17, 1_700_000_000], "created_at", "long"),
        ([1, 2**40], "field", "long"),
        ([1, 2.5], "field", "double"),
        ([4.99, 5], "price", "decimal(18,2)"),
        ([4.123456789], "price", "double"),
        (["4.99", "5.00"], "amount", "decimal(18,2)"),
        (["4.10", "5.20"], "field", "decimal(18,2)"),
        (["4.10", "5.2"], "field", "string"),
        (["4.10", "5.20"], "version", "string"),
        (["1", "2"], "field", "string"),
        ([True, False], "field", "boolean"),
        ([["a"], []], "field", "array<string>"),
        ([[{"sku": "a", "count": 1}]], "field", "array<struct<sku:string,count:long>>"),
        ([{"17": 1.5, "18": 2}, {"19": 3}], "field", "map<string,double>"),
        ([1, "one"], "field", None),
        ([None], "field", None),
        ([[1, "one"]], "field", None),
    ],
)
def test_types_are_inferred_from_the_values(tmp_path: Path, values: list[Any], name: str, kind: str | None) -> None:
    assert inferred_type(tmp_path, values, name) == kind


@pytest.mark.parametrize(
    ("values", "name", "kind"),
    [
        (["20/May/2015:21:05:15 +0000"], "field", "timestamp"),
        (["10/17/2020 14:05", "10/7/2020 9:05"], "field", "timestamp"),
        (["17.10.2020"], "birth_date", "date"),
        (["17.10.2020"], "field", "string"),
        (["2020.3.14", "2020.1.3"], "version", "string"),
        (["10/7/2020 14:05"], "field", "string"),
        (["10/17/2020 14:05", "soon"], "field", "string"),
        (["10/17/2020 14:05", "2020-10-17T14:05:00"], "field", "string"),
    ],
)
def test_times_in_other_formats_are_columns_of_times(tmp_path: Path, values: list[str], name: str, kind: str) -> None:
    assert inferred_type(tmp_path, values, name) == kind


def test_a_format_is_declared_with_its_reason(tmp_path: Path) -> None:
    values = [{"time": AT, "paid_at": "10/17/2020 14:05", "seen": "20/May/2015:21:05:15 +0000"}]

    text = infer(write_lines(tmp_path, values)).text

    assert '      - {name: paid_at, path: paid_at, type: timestamp, format: "%m/%d/%Y %H:%M"}\n' in text
    assert 'fit the format "%m/%d/%Y %H:%M", and no other that was tried. They name no offset' in in_one_line(text)
    assert '{name: seen, path: seen, type: timestamp, format: "%d/%b/%Y:%H:%M:%S %z"}' in text
    assert '# All values fit the format "%d/%b/%Y:%H:%M:%S %z", and no other that was tried.\n' in text


def test_ambiguous_day_and_month_stay_text(tmp_path: Path) -> None:
    text = infer(write_lines(tmp_path, [{"time": AT, "paid_at": f"0{day}/04/2020"} for day in range(1, 9)])).text

    assert "      - {name: paid_at, path: paid_at, type: string}\n" in text
    said = 'A text: all values fit "%d/%m/%Y" and "%m/%d/%Y", and do not tell which is meant.'
    assert f"{said} Declare type: date with that format." in in_one_line(text)


def in_one_line(text: str) -> str:
    return re.sub(r"\n +# ", " ", text)


def test_the_time_of_events_is_found_in_other_formats(tmp_path: Path) -> None:
    rows = "time,page\n" + "".join(f"{day}/May/2015:21:05:15 +0000,/\n" for day in range(10, 20))

    pipeline = infer(write_file(tmp_path, rows.encode()))

    assert spec_of(pipeline).event.time.format == "%d/%b/%Y:%H:%M:%S %z"
    assert not pipeline.quarantined


def test_an_ambiguous_event_time_needs_a_choice(tmp_path: Path) -> None:
    events = write_lines(tmp_path, [{"at": "03/04/2020 14:05", "page": "/"}])

    for chosen in ({}, {"time": "at"}):
        with pytest.raises(ContractError) as caught:
            infer(events, **chosen)
        assert caught.value.condition == "EVENTS_WITHOUT_TIME"
        assert "at holds times" in caught.value.message
        assert "%d/%m/%Y %H:%M and %m/%d/%Y %H:%M" in caught.value.message
        assert caught.value.hint == 'Choose one: --time at --time-format "%d/%m/%Y %H:%M".'

    pipeline = infer(events, time="at", time_format="%m/%d/%Y %H:%M")
    assert spec_of(pipeline).event.time.format == "%m/%d/%Y %H:%M"
    assert not pipeline.quarantined


def test_only_leaf_fields_become_columns_named_by_their_path(tmp_path: Path) -> None:
    event = {"time": AT, "id": 7, "user": {"id": 1, "login": "x", "plan": "a"}, "repository": {"owner": {"id": 2}}}

    pipeline = infer(write_lines(tmp_path, [event]))

    table = spec_of(pipeline).table("shop")
    assert {column.name: column.path for column in table.columns} == {
        "user_id": "user.id",
        "user_login": "user.login",
        "plan": "user.plan",
        "owner_id": "repository.owner.id",
    }
    assert spec_of(pipeline).event.id == ("id",)


def test_the_twenty_most_frequent_types_have_tables_and_others_share_one(tmp_path: Path) -> None:
    sent = webhooks(3_000)

    pipeline = infer(sent.write(tmp_path / "hooks.jsonl"))

    spec = spec_of(pipeline)
    frequent = [name for name, _ in sent.by_type.most_common(20)]
    assert {value for table in spec.tables for value in table.when.get("type", ())} == set(frequent)
    assert [(table.name, table.catch_all) for table in spec.tables if table.catch_all] == [
        ("events", True),
        ("other_events", "rest"),
    ]
    assert (spec.event.name.path, spec.event.time.path, spec.event.id) == ("type", ("created_at",), ("id",))
    assert not pipeline.quarantined
    assert len(pipeline.text.splitlines()) < 700
    assert pipeline.proposal.rest == {name: sent.by_type[name] for name in TYPES if name not in frequent}
    order = spec.table("order_created")
    assert {column.name: column.type for column in order.columns}["amount"] == "decimal(18,2)"
    assert "No column, values are int53 and text: payload.build.attempt." in pipeline.text


def test_the_declaration_explains_its_choices(tmp_path: Path) -> None:
    sent = webhooks(500)
    sent.events.append(sent.events[0])

    text = infer(sent.write(tmp_path / "hooks.jsonl")).text

    assert "# Inferred from 501 events: all of 1 file." in text
    assert "# The type: 60 different values." in text
    assert "# The time: a time in every event." in text
    assert "# The id: 1 events repeat an earlier id." in text
    assert re.search(r"Types that are rare, or new: \S+ \d+, .*, and 32 more\.", text.replace("\n    # ", " "))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda events: [{"body": event, "headers": {"host": "x"}, "requestId": "x"} for event in events],
        lambda events: [{"body": event, "requestContext": {"time": AT}} for event in events],
        lambda events: [{"records": events}],
        lambda events: [{"body": json.dumps(event), "requestId": "x"} for event in events],
        lambda events: [{"body": json.dumps(events)}],
    ],
)
def test_events_are_found_in_wrappers(wrap: Any, tmp_path: Path) -> None:
    events = [{"type": "order", "at": AT, "total": number} for number in range(30)]

    pipeline = infer(write_lines(tmp_path, wrap(events)))

    assert spec_of(pipeline).unwrap is not None
    assert (pipeline.proposal.events, pipeline.quarantined.total()) == (30, 0)


def test_a_list_in_an_event_is_not_a_wrapper(tmp_path: Path) -> None:
    pipeline = infer(write_lines(tmp_path, [{"at": AT, "items": [{"at": AT}]}] * 3))

    assert spec_of(pipeline).unwrap is None


def test_an_object_among_other_fields_is_not_a_wrapper(tmp_path: Path) -> None:
    pipeline = infer(write_lines(tmp_path, [{"user": {"created_at": AT}, "action": "login"}] * 3))

    assert spec_of(pipeline).unwrap is None


TIMES = {
    "iso": [f"2026-03-01T12:00:{second:02}Z" for second in range(40)],
    "iso_dates": [f"2026-03-{day:02}" for day in range(1, 29)],
    "seconds": list(range(1_700_000_000, 1_700_000_040)),
    "seconds_text": [str(second) for second in range(1_700_000_000, 1_700_000_040)],
    "millis": list(range(1_700_000_000_000, 1_700_000_000_040)),
    "pattern": [f"{day}/Mar/2026:12:00:00 +0000" for day in range(10, 29)],
}


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("name", ["moment", "at"])
def test_a_named_time_field_is_read_with_the_form_of_its_values(tmp_path: Path, times: str, name: str) -> None:
    values = TIMES[times]

    pipeline = infer(write_lines(tmp_path, [{"other": AT, name: value} for value in values]), time=name)

    assert spec_of(pipeline).event.time.path == (name,)
    assert not pipeline.quarantined


@pytest.mark.parametrize(
    ("value", "options"),
    [
        ("yes", {"time": "field"}),
        (True, {"time": "field"}),
        (1_700_000_000_000_000, {"time": "field"}),
        (AT, {"time": "missing"}),
        (AT, {"time": "field.inner"}),
        (AT, {"time": "field", "time_format": "%d/%m/%Y"}),
        ({"at": AT}, {"time": "field"}),
        (None, {"time": "field"}),
        (AT, {"type": "missing"}),
    ],
)
def test_a_proposal_that_would_quarantine_every_event_is_rejected(
    tmp_path: Path, value: Any, options: dict[str, str]
) -> None:
    file = write_lines(tmp_path, [{"field": value, "time": AT, "number": number} for number in range(160)])

    with pytest.raises(ContractError) as caught:
        infer(file, **options)

    assert caught.value.condition == "SAMPLE_QUARANTINED"
    assert "all 160 events" in caught.value.message


@pytest.mark.parametrize(
    ("midnights", "name", "first"),
    [
        ("2026-03-{day:02}T00:00:00Z", "ts", 1_700_000_000),
        ("2026-03-{day:02}T00:00:00Z", "event_epoch_ms", 1_700_000_000_000),
        ("2026-03-{day:02}T00:00Z", "createdMillis", 1_700_000_000_000),
        ("2026-03-{day:02} 00:00:00.000", "unix_time", 1_700_000_000),
        ("{day:02}/Mar/2026 00:00:00", "at_seconds", 1_700_000_000),
        ("{day:02}/Mar/2026 12:00:00 AM", "epoch", 1_700_000_000),
    ],
)
@pytest.mark.parametrize("date_name", ["date", "a_day", "timestamp"])
def test_a_time_of_day_is_chosen_before_midnights(
    tmp_path: Path, midnights: str, name: str, first: int, date_name: str
) -> None:
    events = [{date_name: midnights.format(day=day), name: first + day} for day in range(10, 28)]

    assert spec_of(infer(write_lines(tmp_path, events))).event.time.path == (name,)


@pytest.mark.parametrize("day", [86_400, 86_400_000])
def test_epoch_midnights_are_chosen_last(tmp_path: Path, day: int) -> None:
    events = [
        {"date": day * number, "updated": f"2026-03-01T12:00:{number % 60:02}Z"} for number in range(20_400, 20_420)
    ]

    assert spec_of(infer(write_lines(tmp_path, events))).event.time.path == ("updated",)


@pytest.mark.parametrize(
    "name",
    ["metricType", "metric_name", "action", "message_type", "recordType", "activity_kind", "verb"],
)
def test_type_fields_are_found_by_common_names(tmp_path: Path, name: str) -> None:
    events = [{"at": AT, name: ("cpu", "disk")[number % 2], "device_type": "b", "n": number} for number in range(40)]

    assert spec_of(infer(write_lines(tmp_path, events))).event.name.path == name


def test_only_rare_fields_are_called_rare(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [{"at": AT, **{f"f{number}": number for number in range(50)}} for _ in range(100)]
    events[0]["seldom"] = 1

    text = infer(write_lines(tmp_path, events)).text.replace("\n    # ", " ")

    assert "No column, rare: seldom." in text
    assert "No column, beyond the 40 columns proposed for a table: f40, f41, f42" in text


def test_a_new_pipeline_joins_a_group(tmp_path: Path) -> None:
    assert spec_of(infer(write_lines(tmp_path, [{"at": AT}]))).stream_group == "small"


def test_overrides_are_used(tmp_path: Path) -> None:
    events = [
        {"type": "a", "shape": "b", "time": AT, "when": 1_700_000_000, "id": "x", "key": number} for number in (1, 2)
    ]

    spec = spec_of(infer(write_lines(tmp_path, events), time="when", type="shape", id="key"))

    assert (spec.event.time.path, spec.event.time.unit) == (("when",), "epoch_seconds")
    assert (spec.event.name.path, spec.event.id) == ("shape", ("key",))


def test_parquet_is_inferred_from_its_schema(tmp_path: Path) -> None:
    at = [dt.datetime(2026, 3, 1, tzinfo=dt.UTC)] * 3
    pq.write_table(pa.table({"at": at, "n": [1, 2, 3], "day": [dt.date(2026, 3, 1)] * 3}), tmp_path / "x.parquet")

    pipeline = infer(tmp_path / "x.parquet")

    assert spec_of(pipeline).source.format == "parquet"
    assert columns(pipeline) == {"n": "long", "day": "date"}
    assert not pipeline.quarantined


def test_events_of_very_many_days_are_not_partitioned(tmp_path: Path) -> None:
    start = dt.date(2000, 1, 1)
    days = [{"date": (start + dt.timedelta(days=number)).isoformat(), "close": 1.5} for number in range(1_200)]

    pipeline = infer(write_lines(tmp_path, days))

    assert spec_of(pipeline).table("shop").partition_by == ()
    assert not pipeline.quarantined


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"PK\x03\x04", "a zip archive"),
        (b'83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET /"\n', "neither JSON nor delimited records"),
        (b"", "it is empty"),
        (b"a,a\n1,2\n", "duplicate or empty field name"),
    ],
)
def test_an_unknown_format_is_rejected(data: bytes, told: str, tmp_path: Path) -> None:
    with pytest.raises(ContractError) as caught:
        infer(write_file(tmp_path, data))

    assert caught.value.condition == "FORMAT_UNKNOWN"
    assert told in caught.value.message


def test_files_of_several_formats_are_rejected_by_name(tmp_path: Path) -> None:
    files = write_file(tmp_path, b'{"a": 1}\n', "one"), write_file(tmp_path, b"a,b\n1,2\n", "two")

    with pytest.raises(ContractError, match=r"one is json; .*two is csv"):
        infer(*files)


def test_events_without_a_time_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ContractError) as caught:
        infer(write_lines(tmp_path, [{"a": 1}, {"a": 2}]))

    assert caught.value.condition == "EVENTS_WITHOUT_TIME"
    assert "--time" in caught.value.hint
    assert "time: {arrival: true}" in caught.value.hint


@pytest.mark.parametrize(
    ("file", "form"),
    [
        ("wikipedia_edits/wikiticker-2015-09-12-sampled.json.gz", "json"),
        ("cloudfront_logs/sample-cloudfront-access-logs.gz", "tsv"),
        ("cloudfront_logs/E3HXCM7PFRG6HT.2023-04-24-21.d740d76bCloudFront.gz", "tsv"),
        ("media_player_events/source/snowplow_media_player_events.csv", "csv"),
        ("mobile_app_events/source/snowplow_mobile_events.csv", "csv"),
        ("stock_prices/AAPL.csv", "csv"),
        ("stock_prices/stockdata.csv", "csv"),
        ("stock_prices/finance-charts-apple.csv", "csv"),
    ],
)
def test_every_event_of_real_files_would_land(file: str, form: str) -> None:
    path = SHARED_DATA / file
    if not path.is_file():
        pytest.skip(f"no real events at {path}; name their folder in DELTAWORKS_SHARED_DATA")

    pipeline = infer(path)

    assert pipeline.sample.source.format == form
    assert not pipeline.quarantined
