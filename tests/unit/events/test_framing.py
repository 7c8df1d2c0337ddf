"""JSON framing: every value is found, corrupt bytes and tombstones of erased events affect no other, nothing raises."""

from __future__ import annotations

import codecs
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltaworks.events.budget import Budget, BudgetExceededError
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.erasure_tombstones import tombstone, tombstone_line
from deltaworks.events.formats import json as framing
from deltaworks.events.formats import json_recovery
from deltaworks.events.formats.json import Malformed, read_events
from deltaworks.events.parse import Parser
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import pipeline_spec
from tests.examples import examples

#: Vectors no JSON parser may accept as one document, and which are nevertheless whole values in a payload, since a
#: payload is a sequence of values. Anything not named here must give at least one `Malformed`.
LEGAL_SEQUENCES = {
    "n_structure_double_array": "two arrays, one behind the other",
    "n_structure_object_with_trailing_garbage": "an object, and a text behind it",
    "n_array_comma_after_close": "an array, and the comma that joins it to another",
    "n_structure_no_data": "no value at all, as in an empty file",
    "n_single_space": "white space, as in a file of empty lines",
    "n_structure_UTF8_BOM_no_data": "a byte order mark and no value",
}
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.text('{}[]"\\ ,:\n\té', max_size=12)
JSON_VALUES = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXTS, JSON_VALUES, max_size=4)
SEPARATORS = st.sampled_from(["", "\n", "\r\n", " ", "  \t\n\n "])


def found(payload: bytes) -> list[Any]:
    return [value for value, _ in read_events(payload)]


def good(payload: bytes) -> list[Any]:
    return [value for value in found(payload) if not isinstance(value, Malformed)]


def dumped(value: Any, ascii_only: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ascii_only)


class Parsed:
    """Stands before both parsers and counts the bytes they look at."""

    JSONDecodeError = orjson.JSONDecodeError
    dumps = staticmethod(orjson.dumps)

    def __init__(self) -> None:
        self.bytes = 0
        self._decoder = json.JSONDecoder()

    def loads(self, raw: bytes) -> Any:
        self.bytes += len(raw)
        return orjson.loads(raw)

    def raw_decode(self, text: str, position: int) -> tuple[Any, int]:
        try:
            value, end = self._decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            self.bytes += error.pos - position
            raise
        except RecursionError:
            self.bytes += min(len(text) - position, 5 * sys.getrecursionlimit())
            raise
        self.bytes += end - position
        return value, end


def counted(monkeypatch: pytest.MonkeyPatch) -> Parsed:
    parsed = Parsed()
    for module in (framing, json_recovery):
        monkeypatch.setattr(module, "orjson", parsed)
    monkeypatch.setattr(json_recovery, "_decoder", parsed)
    return parsed


@pytest.fixture(scope="module")
def vectors(malformed_json: Path) -> dict[str, bytes]:
    with tarfile.open(malformed_json / "test_parsing.tar.gz") as archive:
        files = {Path(member.name): archive.extractfile(member) for member in archive if member.isfile()}
        return {path.stem: file.read() for path, file in files.items() if path.suffix == ".json" and file}


def test_every_vector_a_parser_must_accept_gives_its_values(vectors: dict[str, bytes]) -> None:
    accepted = {name: data for name, data in vectors.items() if name.startswith("y_")}
    assert len(accepted) > 90

    for name, data in accepted.items():
        whole = json.loads(data)
        wanted = whole if isinstance(whole, list) else [whole]
        assert found(data) == wanted, name


def test_every_vector_a_parser_must_refuse_is_noticed(vectors: dict[str, bytes]) -> None:
    refused = {name: data for name, data in vectors.items() if name.startswith("n_")}
    assert len(refused) > 180

    unnoticed = {
        name: found(data)
        for name, data in refused.items()
        if not any(isinstance(value, Malformed) for value in found(data))
    }
    assert set(unnoticed) == set(LEGAL_SEQUENCES)


def test_every_vector_gives_values_or_a_reason(vectors: dict[str, bytes]) -> None:
    silent = {name for name, data in vectors.items() if not found(data)}

    assert all(set(vectors[name]) <= set(codecs.BOM_UTF8 + b"[] \n") for name in silent), silent


def test_broken_log_lines_do_not_affect_other_lines(malformed_json: Path) -> None:
    for path in sorted(malformed_json.glob("logfile*.json")):
        lines = path.read_bytes().splitlines()
        wanted = []
        for line in lines:
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            wanted.extend(value if isinstance(value, list) else [value])
        recovered = good(path.read_bytes())
        assert [value for value in recovered if value in wanted] == wanted, path.name


@settings(deadline=None)
@given(st.lists(OBJECTS, max_size=8), SEPARATORS, st.booleans())
@example([{"a": "x} {y"}, {"b": 1}], "", False)
@example([{"a": "}{" * 200}, {"b": 1}], "", False)
def test_concatenated_objects_round_trip(objects: list[Any], separator: str, ascii_only: bool) -> None:
    payload = separator.join(dumped(each, ascii_only) for each in objects).encode()

    read = list(read_events(payload))

    assert [value for value, _ in read] == objects
    assert [orjson.loads(raw) for _, raw in read] == objects
    assert [raw for _, raw in read] == [dumped(each, ascii_only).encode() for each in objects]


@settings(deadline=None)
@given(st.lists(OBJECTS, max_size=6), st.sampled_from([None, 2]))
def test_objects_of_an_array_round_trip(objects: list[Any], indent: int | None) -> None:
    payload = json.dumps(objects, indent=indent, ensure_ascii=False).encode()

    read = list(read_events(payload))

    assert [value for value, _ in read] == objects
    assert [orjson.loads(raw) for _, raw in read] == objects


@settings(deadline=None)
@given(st.lists(st.lists(OBJECTS, max_size=3) | OBJECTS, max_size=5), SEPARATORS)
def test_arrays_and_objects_may_be_mixed(documents: list[Any], separator: str) -> None:
    payload = separator.join(dumped(each) for each in documents).encode()

    wanted = [value for each in documents for value in (each if isinstance(each, list) else [each])]
    assert found(payload) == wanted


def test_indented_objects_are_read() -> None:
    objects = [{"a": {"b": [1, {"c": "}\n{"}]}}, {"d": {}}]

    assert found("\n".join(json.dumps(each, indent=2) for each in objects).encode()) == objects


@settings(deadline=None)
@given(
    st.lists(OBJECTS, max_size=4),
    OBJECTS.filter(bool),
    st.lists(OBJECTS, max_size=4),
    st.sampled_from(["\n", "\r\n"]),
    st.data(),
)
def test_a_truncated_line_does_not_affect_other_lines(
    before: list[Any], broken: dict[str, Any], after: list[Any], newline: str, data: st.DataObject
) -> None:
    whole = dumped(broken)
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    payload = newline.join([*map(dumped, before), cut, *map(dumped, after)]).encode()

    recovered = found(payload)

    assert recovered[: len(before)] == before
    assert not after or recovered[-len(after) :] == after
    assert any(isinstance(value, Malformed) for value in recovered)


FLAT = st.dictionaries(
    st.text("abc", min_size=1), st.integers(0, 99) | st.text("xyz", max_size=3), min_size=1, max_size=3
)


@settings(deadline=None)
@given(st.lists(FLAT, max_size=4), FLAT, st.lists(FLAT, min_size=1, max_size=4), st.data())
def test_a_truncated_object_does_not_affect_concatenated_objects(
    before: list[Any], broken: dict[str, Any], after: list[Any], data: st.DataObject
) -> None:
    whole = dumped(broken)
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]

    recovered = found("".join([*map(dumped, before), cut, *map(dumped, after)]).encode())

    assert recovered == [*before, recovered[len(before)], *after]
    assert isinstance(recovered[len(before)], Malformed)


@settings(deadline=None)
@given(
    st.lists(OBJECTS, max_size=4),
    st.text("abcxyz<>;/=.-\n ", min_size=1).filter(str.strip),
    st.lists(OBJECTS, max_size=4),
)
def test_garbage_between_objects_does_not_affect_them(before: list[Any], garbage: str, after: list[Any]) -> None:
    payload = "".join([*map(dumped, before), garbage, *map(dumped, after)]).encode()

    recovered = list(read_events(payload))

    assert [value for value, _ in recovered if isinstance(value, dict)] == [*before, *after]
    (broken,) = [value for value, _ in recovered if isinstance(value, Malformed)]
    assert broken.raw.decode() == garbage.strip(" \n")


@settings(deadline=None, max_examples=examples(300))
@given(st.binary(max_size=60) | st.text('{}[]":,\\ab1 \n', max_size=60).map(str.encode))
@example(b'{"a":"}{\xff"}{}')
@example(b"}{" * 50)
@example(b'{"a":{"b":1}{"c":2}')
def test_any_bytes_parse_without_raising_or_inventing_events(payload: bytes) -> None:
    read = list(read_events(payload))

    for value, raw in read:
        if isinstance(value, Malformed):
            assert raw in payload
            assert value.detail
        else:
            assert orjson.loads(raw) == value


@settings(deadline=None)
@given(
    (st.binary(max_size=40) | st.text('{}]":,\\ab1 \n', max_size=40).map(str.encode)).filter(
        lambda data: b"[" not in data
    )
)
def test_no_byte_except_separators_is_lost_outside_of_arrays(payload: bytes) -> None:
    kept = b"".join(raw for _, raw in read_events(payload))

    assert squeezed(kept) == squeezed(payload)


def squeezed(data: bytes) -> bytes:
    return bytes(byte for byte in data.replace(codecs.BOM_UTF8, b"") if byte not in b" \t\r\n,\x1e")


def test_a_byte_order_mark_is_not_part_of_the_first_value() -> None:
    assert found(b'\xef\xbb\xbf{"a":1}\n{"b":2}') == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("payload", [b"", b" \n\t\r\n ", b"\xef\xbb\xbf", b"[]", b" [ ] "])
def test_a_payload_without_values_gives_none(payload: bytes) -> None:
    assert found(payload) == []


def test_values_other_than_objects_are_yielded_unchanged() -> None:
    assert found(b'1 "two" null true [3, "four"]') == [1, "two", None, True, 3, "four"]


@pytest.mark.parametrize(
    "payload",
    [
        b'{"a":"}{' * 20_000,
        b'{"a":NaN}' * 20_000,
        b'{"a":' * 20_000,
        b"[{" * 20_000,
        b'"' + b"{}" * 20_000,
        b"{ " * 20_000,
        b'{"a":{"b":1}' * 20_000,
        b"[" + b"{}," * 20_000,
        b"\\" * 20_000 + b'{"a":"',
        b'{"' * 20_000 + b"}{" * 20_000,
        (b'{"k":"' + b"}{" * 500) * 100,
        b'{"a":"' + b"}{" * 20_000 + b'"}' + b" 1" * 20_000,
        b'{"a":' * 900 + b"[" + b"1," * 60_000,
        b'{"a":' * 900 + b"[" + b"1," * 60_000 + b"}",
        b'{"a":' * 2_000 + b"[" + b"1," * 60_000,
        b"[" * 60_000 + b'{"a":1}' * 1_000,
    ],
    ids=range(16),
)
def test_hostile_payloads_are_scanned_a_few_times_only(payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = counted(monkeypatch)

    budget = Budget(size=len(payload))
    left = b""
    try:
        assert list(read_events(payload, budget))
    except BudgetExceededError as over:
        left = over.unread

    assert payload.strip().endswith(left)
    assert parsed.bytes < 40 * len(payload)


def test_every_byte_of_a_good_payload_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = dumped({"name": "level_up", "time": 1, "params": {"level": 3, "tags": ["a", "b"], "text": "x" * 200}})
    payload = "\n".join([one] * 10_000).encode()
    parsed = counted(monkeypatch)

    assert found(payload) == [orjson.loads(one)] * 10_000

    assert parsed.bytes <= len(payload)


@pytest.mark.parametrize(("spaces", "count"), [(0, 9_000), (1, 9_000), (63, 500), (64, 500), (65, 500), (70_000, 9)])
def test_objects_are_separated_with_any_amount_of_white_space(spaces: int, count: int) -> None:
    objects = [{"n": number, "text": "} {" * (number % 700 == 1), "in": {}} for number in range(count)]

    payload = (b"\n" * (spaces % 2) + b" " * (spaces - spaces % 2)).join(map(orjson.dumps, objects))

    assert len(payload) > 30_000
    assert found(payload) == objects
    assert b"".join(raw for _, raw in read_events(payload)) == b"".join(map(orjson.dumps, objects))


REQUEST = "e20260301-0123456789"
MARK = json.dumps(tombstone(REQUEST)).encode()


def pipeline(**more: Any) -> PipelineSpec:
    source = {"kind": "s3_sqs", "relay": "landing", "bucket": "landing", **more.pop("source", {})}
    columns = [{"name": "amount", "path": "amount", "type": "long", "required": True}]
    return pipeline_spec(
        {"name": "orders", "catch_all": True, "columns": columns},
        source=source,
        **{"event": {"name": {"constant": "order"}, "time": {"path": "at", "unit": "iso8601"}}} | more,
    )


def read(spec: PipelineSpec, data: bytes, *, by_columns: bool = False) -> tuple[list[tuple[str, int]], int]:
    """The table and the position of each row, and how many marks there were."""
    parser = Parser(spec, columnar_from_bytes=0 if by_columns else None)
    rows = [
        (table, row["_position"])
        for table, part in parser.parse([Payload(1, "k", data)], BatchMetadata(1, 0, "f"))
        for row in part.to_pylist()
    ]
    assert bool(parser.columnar_count) == by_columns
    return sorted(rows), parser.findings.privacy["erased"]


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("named", ["constant", "path"])
def test_a_tombstone_is_skipped_and_counted_by_both_parsers(by_columns: bool, named: str) -> None:
    event = {"name": {"constant": "order"} if named == "constant" else {"path": "name"}}
    spec = pipeline(event={**event, "time": {"path": "at", "unit": "iso8601"}})
    order = b'{"name": "order", "at": "2026-03-01T10:00:00Z", "amount": 1}'
    data = order + MARK + b"\n" + order + MARK
    assert read(spec, data, by_columns=by_columns) == ([("orders", 0), ("orders", 2)], 2)


def test_an_event_that_resembles_a_tombstone_is_an_event() -> None:
    order = {"at": "2026-03-01T10:00:00Z", "amount": 1, "_erased": REQUEST}
    data = json.dumps(order).encode() + b'{"_erased": "me"}'
    assert read(pipeline(), data) == ([("orders", 0), ("quarantine", 1)], 0)


def test_tombstones_in_wrappers_and_lines_are_skipped() -> None:
    wrapped = pipeline(unwrap={"path": "in"})
    order = {"at": "2026-03-01T10:00:00Z", "amount": 1}
    data = (
        json.dumps({"in": [tombstone(REQUEST), order]}).encode()
        + json.dumps({"in": json.dumps(tombstone(REQUEST))}).encode()
    )
    assert read(wrapped, data + MARK) == ([("orders", 1)], 3)
    csv = pipeline(source={"format": "csv"})
    lines = f"at,amount\n{tombstone_line(REQUEST)}\n2026-03-01T10:00:00Z,1\n_erased=me\n".encode()
    assert read(csv, lines) == ([("orders", 1), ("quarantine", 2)], 1)
