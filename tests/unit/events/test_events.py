"""Single events: unwrapping, names, routing, and ids that stay different with any number of digits."""

from __future__ import annotations

import hashlib
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
from deltaworks.events.envelope import EventIdReader
from deltaworks.events.events import EventReader, Router, parent_objects, value_at
from deltaworks.events.formats.json import Malformed
from deltaworks.events.lossless_numbers import has_rounded_number, parse_lossless
from deltaworks.events.reasons import ConversionError, ReasonCode
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import parse_events, pipeline_spec

MakeSpec = Callable[..., PipelineSpec]


def test_a_path_leads_into_nested_objects_and_nowhere_else() -> None:
    event = {"a": {"b": {"c": 1}}, "l": [{"c": 1}], "t": "text"}

    assert value_at(event, ("a", "b", "c")) == 1
    for path in (("a", "x"), ("l", "c"), ("t", "c"), ("x", "y")):
        assert value_at(event, path) is None
    assert parent_objects([event, {}, {"a": 7}], ("a",)) == [{"b": {"c": 1}}, {}, {}]
    assert parent_objects([event, {"a": {"b": None}}], ("a", "b")) == [{"c": 1}, {}]


class TestUnwrapping:
    """The event may sit inside a wrapper."""

    @pytest.mark.parametrize("inner", [{"name": "x"}, {}])
    def test_an_object_at_the_path_is_the_event(self, make_spec: MakeSpec, inner: dict[str, Any]) -> None:
        reader = EventReader(make_spec(unwrap={"path": "request.body"}))

        assert reader.read_event({"request": {"body": inner, "headers": 1}}) == inner
        assert reader.read_event({"request": {"body": orjson.dumps(inner).decode()}}) == inner

    @pytest.mark.parametrize(
        ("value", "code"),
        [
            ({"body": "{broken"}, ReasonCode.MALFORMED),
            ({"body": ""}, ReasonCode.MALFORMED),
            ({"body": "[1]"}, ReasonCode.NOT_AN_OBJECT),
            ({"body": '"text"'}, ReasonCode.NOT_AN_OBJECT),
            ({"body": 7}, ReasonCode.NOT_AN_OBJECT),
            ({"body": [{}]}, ReasonCode.NOT_AN_OBJECT),
            ({"body": None}, ReasonCode.MISSING_REQUIRED),
            ({}, ReasonCode.MISSING_REQUIRED),
            ([1], ReasonCode.NOT_AN_OBJECT),
            ("text", ReasonCode.NOT_AN_OBJECT),
            (Malformed(b"{", "why"), ReasonCode.MALFORMED),
        ],
    )
    def test_other_values_are_conversion_errors(self, make_spec: MakeSpec, value: Any, code: ReasonCode) -> None:
        with pytest.raises(ConversionError) as caught:
            EventReader(make_spec(unwrap={"path": "body"})).read_event(value)

        assert caught.value.code is code

    def test_without_a_wrapper_the_value_is_the_event(self, make_spec: MakeSpec) -> None:
        reader = EventReader(make_spec())

        assert reader.read_event({"body": "x"}) == {"body": "x"}
        with pytest.raises(ConversionError, match="found a list, not an object"):
            reader.read_event([])


class TestNames:
    """An event's name is at a path, or the same for all."""

    def test_a_name_is_read_at_its_path(self, make_spec: MakeSpec) -> None:
        event = {"name": {"path": "meta.kind"}, "time": {"path": "time"}}

        assert EventReader(make_spec(event=event)).event_name({"meta": {"kind": "order"}}) == "order"

    def test_a_constant_name_does_not_depend_on_the_event(self, make_spec: MakeSpec) -> None:
        event = {"name": {"constant": "edit"}, "time": {"path": "time"}}

        assert EventReader(make_spec(event=event)).event_name({}) == "edit"

    @pytest.mark.parametrize("event", [{}, {"name": ""}, {"name": 7}, {"name": None}, {"name": ["order"]}])
    def test_an_event_without_a_name_is_unknown(self, make_spec: MakeSpec, event: dict[str, Any]) -> None:
        with pytest.raises(ConversionError) as caught:
            EventReader(make_spec()).event_name(event)

        assert caught.value.code is ReasonCode.UNKNOWN_EVENT


def read_ids(reader: EventIdReader, events: list[dict[str, Any]]) -> list[str | None]:
    ids, misfits = reader.read(events, lambda index: parse_lossless(orjson.dumps(events[index])))
    assert misfits == {}
    return ids


class TestIds:
    """An event's id is the value at one path, or a digest of several."""

    def ids(self, make_spec: MakeSpec, paths: Any, *events: dict[str, Any]) -> list[str | None]:
        event = {"name": {"path": "name"}, "time": {"path": "time"}, "id": paths}
        return read_ids(EventIdReader(make_spec(event=event)), events)

    def test_without_a_declared_id_there_is_none(self, make_spec: MakeSpec) -> None:
        assert read_ids(EventIdReader(make_spec()), [{"id": "x"}, {}]) == [None, None]

    def test_the_value_at_one_path_is_the_id_as_text(self, make_spec: MakeSpec) -> None:
        events = [{"p": {"id": "e1"}}, {"p": {"id": 17}}, {"p": {"id": True}}, {"p": {"id": 1.5}}]

        assert self.ids(make_spec, "p.id", *events) == ["e1", "17", "true", "1.5"]

    @pytest.mark.parametrize("value", [None, "", {}, {"a": 1}, [1]])
    def test_a_missing_or_nested_value_is_no_id(self, make_spec: MakeSpec, value: Any) -> None:
        assert self.ids(make_spec, "id", {"id": value}, {}) == [None, None]
        assert self.ids(make_spec, ["id", "k"], {"id": value, "k": "x"}) == [None]

    def test_several_values_make_one_id_that_is_the_same_everywhere(self, make_spec: MakeSpec) -> None:
        first, again, other = self.ids(
            make_spec, ["a", "p.b"], {"a": "x", "p": {"b": 1}}, {"p": {"b": 1}, "a": "x"}, {"a": "x", "p": {"b": 2}}
        )

        assert first == again != other
        assert first == hashlib.blake2b(b'["x","1"]', digest_size=16).hexdigest()

    @given(st.tuples(*[st.text('ab\x1f,"[]', min_size=1, max_size=4)] * 2), st.data())
    def test_different_values_never_make_the_same_id(self, parts: tuple[str, str], data: st.DataObject) -> None:
        joined = "".join(parts)
        cut = data.draw(st.integers(1, len(joined) - 1))
        other = (joined[:cut], joined[cut:])
        reader = EventIdReader(
            pipeline_spec(
                {"name": "t", "catch_all": True},
                pipeline="p",
                source={"kind": "s3_sqs", "relay": "r", "bucket": "b"},
                event={"name": {"constant": "x"}, "time": {"path": "t"}, "id": ["a", "b"]},
            )
        )

        one, two = read_ids(reader, [{"a": parts[0], "b": parts[1]}, {"a": other[0], "b": other[1]}])

        assert (one == two) == (parts == other)


class TestRouting:
    """An event lands in every table whose condition it meets."""

    TABLES = (
        {"name": "events", "catch_all": True},
        {"name": "orders", "when": {"name": "order"}},
        {"name": "money", "when": {"name": ["order", "refund"]}},
    )

    def test_by_name(self, make_spec: MakeSpec) -> None:
        router = Router(make_spec(tables=list(self.TABLES)))

        for _ in range(2):  # the second time from memory
            assert router.tables({"name": "order"}, "order") == ("events", "orders", "money")
            assert router.tables({"name": "refund"}, "refund") == ("events", "money")

    def test_an_event_without_a_matching_condition_is_unknown_despite_a_catch_all(self, make_spec: MakeSpec) -> None:
        router = Router(make_spec(tables=list(self.TABLES)))

        for _ in range(2):
            with pytest.raises(ConversionError) as caught:
                router.tables({"name": "login"}, "login")
            assert caught.value.code is ReasonCode.UNKNOWN_EVENT
            assert "'login'" in caught.value.detail

    def test_a_single_catch_all_table_accepts_everything(self, make_spec: MakeSpec) -> None:
        assert Router(make_spec(tables=[self.TABLES[0]])).tables({"name": "login"}, "login") == ("events",)

    def test_without_a_catch_all_table(self, make_spec: MakeSpec) -> None:
        router = Router(make_spec(tables=list(self.TABLES[1:])))

        assert router.tables({"name": "refund"}, "refund") == ("money",)

    def test_by_several_paths_which_must_all_match(self, make_spec: MakeSpec) -> None:
        router = Router(make_spec(tables=[{"name": "big", "when": {"name": "order", "params.tier": [1, "gold"]}}]))

        assert router.tables({"name": "order", "params": {"tier": 1}}, "order") == ("big",)
        assert router.tables({"name": "order", "params": {"tier": "gold"}}, "order") == ("big",)
        for params in ({"tier": 2}, {"tier": "1"}, {"tier": [1]}, {"tier": None}, {}, None):
            with pytest.raises(ConversionError):
                router.tables({"name": "order", "params": params}, "order")

    @pytest.mark.parametrize(
        ("wanted", "met", "missed"), [(True, True, 1), (1, 1, True), (0, 0.0, False), (False, False, 0)]
    )
    def test_true_is_not_one(self, make_spec: MakeSpec, wanted: Any, met: Any, missed: Any) -> None:
        router = Router(make_spec(tables=[{"name": "t", "when": {"flag": wanted}}]))

        assert router.tables({"flag": met}, "x") == ("t",)
        with pytest.raises(ConversionError):
            router.tables({"flag": missed}, "x")

    def test_the_cache_of_names_is_bounded(self, make_spec: MakeSpec) -> None:
        router = Router(make_spec(tables=list(self.TABLES)))

        for number in range(25_000):
            with pytest.raises(ConversionError):
                router.tables({"name": f"n{number}"}, f"n{number}")

        assert len(router._tables_by_name) <= 10_001
        assert router.tables({"name": "order"}, "order") == ("events", "orders", "money")


def test_a_rest_table_accepts_events_without_a_matching_condition() -> None:
    tables = [
        {"name": "events", "catch_all": True},
        {"name": "orders", "when": {"name": "order"}},
        {"name": "others", "catch_all": "rest"},
    ]
    spec = pipeline_spec(*tables, event={"name": {"path": "name"}, "time": {"path": "time"}})
    router = Router(spec)

    assert router.tables({"name": "order"}, "order") == ("events", "orders")
    assert router.tables({"name": "new"}, "new") == ("events", "others")


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
