"""Different ids stay different, with any number of digits and anywhere in a payload."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from deltaworks.events import events
from deltaworks.events.lossless_numbers import has_rounded_number
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import parse_events, pipeline_spec

MakeSpec = Callable[..., PipelineSpec]
BIG = ("100000000000000000001", "100000000000000000002")
#: An event with an id as it is written in JSON; `body` as the wrappers put it.
EVENT = '{"name":"order","time":1700000000,"id":%s,"params":{"amount":1},"other":%s}'
FORMS: dict[str, Callable[[list[str]], str]] = {
    "one after another": "".join,
    "array": lambda sent: f"[{', '.join(sent)}]",
    "wrapped": lambda sent: "".join(f'{{"body":{json.dumps(event)}}}' for event in sent),
    "array in a text": lambda sent: json.dumps({"body": "[\n" + ",\n".join(sent) + "]"}),
    "array in a wrapper": lambda sent: f'{{"body":[{",".join(sent)}]}}',
}


def parsed(spec: PipelineSpec, payload: str) -> dict[str, list[dict[str, Any]]]:
    return parse_events(spec, payload)


def ids(make_spec: MakeSpec, form: str, sent: list[str], **changes: Any) -> list[str]:
    event = {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}, "id": ["id"], **changes}
    unwrap = {"unwrap": {"path": "body"}} if "body" in FORMS[form](["{}"]) else {}
    rows = parsed(make_spec(event=event, **unwrap), FORMS[form]([EVENT % (value, value) for value in sent]))
    return [row["event_id"] for row in rows["events"]]


@pytest.mark.parametrize("form", FORMS)
def test_ids_beyond_64_bits_equal_the_sent_ones(make_spec: MakeSpec, form: str) -> None:
    assert ids(make_spec, form, list(BIG)) == list(BIG)
    assert len(set(ids(make_spec, form, list(BIG), id=["id", "name"]))) == 2


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("1", "1"),
        ("18446744073709551615", "18446744073709551615"),
        ("18446744073709551616", "18446744073709551616"),
        ("-9223372036854775809", "-9223372036854775809"),
        ("1.5", "1.5"),
        ("1.50", "1.5"),
        ("9007199254740993.0", "9007199254740993.0"),
        ("0.1234567890123456789", "0.1234567890123456789"),
        ('"100000000000000000001"', "100000000000000000001"),
    ],
)
def test_an_id_that_is_exact_as_a_double_is_unchanged(make_spec: MakeSpec, sent: str, read: str) -> None:
    assert ids(make_spec, "one after another", [sent]) == [read]


numbers = st.from_regex(r"-?([1-9][0-9]{0,30}|0)(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)


@given(st.lists(numbers, min_size=2, max_size=4), st.sampled_from(sorted(FORMS)))
@example(list(BIG), "array")
@example(["9007199254740992.0", "9007199254740993.0"], "wrapped")
def test_no_two_numbers_are_read_as_one_id(sent: list[str], form: str) -> None:
    table = {"name": "events", "catch_all": True, "columns": [{"name": "o", "path": "o", "type": "int"}]}

    read = ids(partial(pipeline_spec, table), form, sent)

    # The same number may be written in several ways.
    for one, id_of_one in zip(sent, read, strict=True):
        for other, id_of_other in zip(sent, read, strict=True):
            assert id_of_one != id_of_other or Fraction(one) == Fraction(other)


def test_an_ambiguous_id_is_quarantined_with_its_path(make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_deep(text: Any) -> Any:
        raise RecursionError

    monkeypatch.setattr(events, "parse_lossless", too_deep)
    event = {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}, "id": ["id"]}

    rows = parsed(make_spec(event=event), EVENT % (BIG[0], 1))

    [row] = rows["quarantine"]
    assert [(reason["code"], reason["path"]) for reason in row["reasons"]] == [("out_of_range", "id")]
    assert BIG[0] in row["raw"]


@pytest.mark.parametrize(("kind", "code"), [("string", "type_mismatch"), ("long", "out_of_range")])
def test_a_column_rejects_rounded_numbers(make_spec: MakeSpec, kind: str, code: str) -> None:
    table = {"name": "events", "catch_all": True, "columns": [{"name": "other", "path": "other", "type": kind}]}
    sent = [*BIG, "9007199254740993.0", "9007199254740992.0"]

    rows = parsed(make_spec(tables=[table]), "[" + ",".join(EVENT % (1, value) for value in sent) + "]")

    assert sorted(rows) == ["quarantine"]
    assert [[reason["code"] for reason in row["reasons"]] for row in rows["quarantine"]] == [[code]] * 4
    assert [f'"other":{value}}}' in row["raw"] for value, row in zip(sent, rows["quarantine"], strict=True)] == [
        True
    ] * 4


def test_undeclared_fields_keep_their_exact_numbers(make_spec: MakeSpec) -> None:
    columns = [{"name": "level", "path": "params.level", "type": "int"}]
    table = {"name": "events", "catch_all": True, "columns": columns, "evolve": "rescue"}
    other = f'{{"id":{BIG[0]},"ids":[{BIG[1]}],"x":1.5}}'

    [row] = parsed(make_spec(tables=[table]), EVENT % (1, other))["events"]

    assert json.loads(row["_rescued"], parse_int=str)["other"] == {"id": BIG[0], "ids": [BIG[1]], "x": 1.5}


@given(numbers.map(lambda text: text.encode()))
def test_a_number_counts_as_rounded_where_orjson_reads_another_one(number: bytes) -> None:
    try:
        value = orjson.loads(number)
    except orjson.JSONDecodeError:
        reject()
    differs = Decimal(number.decode()) != Decimal(repr(value))
    assert has_rounded_number(b"[" + number + b"]") >= (differs and len(number.lstrip(b"-").split(b"e")[0]) >= 16)
    assert not has_rounded_number(b"[" + number + b"]") or differs
