"""Bodies, compared with a slow oracle: malformed content affects only its own event."""

from __future__ import annotations

import gzip
import json
import random
import zlib

import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from collector import bodies
from collector.bodies import (
    MAX_EVENTS,
    RequestBody,
    SentEvent,
    TooLargeError,
    decode_text,
    inflate_body,
    parse_single,
    run_steps,
)
from collector.lossless_json import remove_member
from tests.examples import examples
from tests.fed_bytes import FedBytes


def parse_batch(text: str, *, max_events: int = MAX_EVENTS) -> RequestBody:
    return run_steps(bodies.parse_batch(text, max_events=max_events))


def parse_events(text: str, *, json_lines: bool, max_events: int = MAX_EVENTS) -> RequestBody:
    return run_steps(bodies.parse_events(text, json_lines=json_lines, max_events=max_events))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=5), values, max_size=4)
#: Elements that are no events, with brackets that pair.
BROKEN = (
    "3",
    '"text"',
    "null",
    "[1]",
    "NaN",
    '{"a":NaN}',
    '{"a":1,}',
    '{"a" 1}',
    "{'a':1}",
    '{"a":[1,}',
    "[1,2}",
    '"\\x"',
)


def dumped(value: object, indent: int | None) -> str:
    return json.dumps(value, indent=indent)


@settings(max_examples=examples(40))
@given(
    elements=st.lists(objects | st.sampled_from(BROKEN), max_size=8),
    context=st.none() | objects,
    indent=st.sampled_from([None, 1]),
    before=st.booleans(),
)
def test_a_batch_yields_each_event_unchanged(
    elements: list[object], context: dict[str, object] | None, indent: int | None, before: bool
) -> None:
    texts = [element if isinstance(element, str) else dumped(element, indent) for element in elements]
    members = ['"batch" : [ ' + " , ".join(texts) + " ]", '"sentAt":"2026-01-01T00:00:00Z"', '"writeKey":"k"']
    if context is not None:
        members.insert(0 if before else 2, f'"context":{dumped(context, indent)}')

    sent = parse_batch("{" + ", ".join(members) + "}")

    assert [event.text.strip() for event in sent.events] == texts
    assert [event.value for event in sent.events] == [
        element if isinstance(element, dict) else None for element in elements
    ]
    assert (sent.sent_at, sent.write_key) == ("2026-01-01T00:00:00Z", "k")
    assert sent.context == (None if context is None else dumped(context, indent))


@settings(max_examples=examples(40))
@given(events=st.lists(objects, min_size=1, max_size=5), data=st.data())
def test_a_truncated_batch_yields_the_events_before_the_end(
    events: list[dict[str, object]], data: st.DataObject
) -> None:
    whole = json.dumps({"writeKey": "k", "batch": events})
    size = data.draw(st.integers(0, len(whole) - 1))
    ends = [len(json.dumps({"writeKey": "k", "batch": events[: count + 1]})) - 2 for count in range(len(events))]

    sent = parse_batch(whole[:size])

    complete = sum(end <= size for end in ends)
    assert [event.value for event in sent.events if event.value is not None][:complete] == events[:complete]
    assert len(sent.events) <= complete + 1
    if 0 < size < ends[-1] and not whole[:size].endswith(": ["):
        assert sent.events, "nothing of it is dropped"


@settings(max_examples=examples(500))
@given(text=st.text(st.sampled_from('{}[]",:1ab \\\n'), max_size=60))
def test_no_text_is_dropped_or_fails_the_parser(text: str) -> None:
    for sent in (
        parse_batch(text),
        parse_single(text),
        *(parse_events(text, json_lines=lines) for lines in (True, False)),
    ):
        assert all(isinstance(event, SentEvent) for event in sent.events)
        for event in sent.events:
            if event.value is not None:
                assert json.loads(event.text) == event.value
    assert parse_single(text).events


@pytest.mark.parametrize(
    ("text", "count"),
    [('{"a":1}', 1), ('{"a":1}\n{"b":2}', 2), ('[{"a":1},\n{"b":2}]', 2), ('\n{"a":1}\r\n\r\n{"b":2}\r\n', 2)],
)
def test_a_body_is_one_event_an_array_or_lines(text: str, count: int) -> None:
    sent = parse_events(text, json_lines=False)

    assert [event.value for event in sent.events] == [{"a": 1}, {"b": 2}][:count]


def test_every_line_is_an_event_regardless_of_its_content() -> None:
    sent = parse_events('{"a":"\u2028"}\nbroken\n[1]\n', json_lines=True)

    assert [(event.text, event.value is None) for event in sent.events] == [
        ('{"a":"\u2028"}', False),
        ("broken", True),
        ("[1]", True),
    ]


@pytest.mark.parametrize("bad", ["[" * 100_000, '{"a":' * 50_000, "[" * 900 + "}" * 300_000, '"a' * 1_000_000])
def test_unclosed_brackets_cost_a_bounded_scan(bad: str) -> None:
    sent = parse_batch('{"batch":[{"a":1},' + bad)

    assert sent.events[0].value == {"a": 1}
    assert "".join(event.text for event in sent.events[1:]) != ""


def test_a_request_with_too_many_events_is_rejected() -> None:
    few = ",".join(["{}"] * MAX_EVENTS)
    assert len(parse_batch('{"batch":[' + few + "]}").events) == MAX_EVENTS
    with pytest.raises(TooLargeError):
        parse_batch('{"batch":[' + few + ",{}]}")
    with pytest.raises(TooLargeError):
        parse_events("{}\n" * (MAX_EVENTS + 1), json_lines=True)


@pytest.mark.parametrize("encoding", [b"gzip", b"zstd"])
def test_a_zip_bomb_is_decompressed_up_to_the_limit(encoding: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(bytes(64 << 20)) if encoding == b"gzip" else zstandard.compress(bytes(64 << 20))
    fits = gzip.compress(b"x" * 1000) if encoding == b"gzip" else zstandard.compress(b"x" * 1000)

    with pytest.raises(TooLargeError):
        inflate_body(bomb, encoding, max_bytes=1 << 20)
    with pytest.raises(TooLargeError):
        inflate_body(fits, encoding, max_bytes=999)
    assert inflate_body(fits, encoding, max_bytes=1000) == b"x" * 1000


def test_without_the_limit_a_zip_bomb_would_be_decompressed_completely() -> None:
    bomb = gzip.compress(bytes(8 << 20))

    assert len(bomb) < 10_000
    assert len(inflate_body(bomb, b"gzip", max_bytes=1 << 40)) == 8 << 20


def test_decompression_never_holds_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = zlib.decompressobj

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._inner = real(wbits)

        def decompress(self, data: bytes, most: int) -> bytes:
            asked.append(most)
            return self._inner.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    with pytest.raises(TooLargeError):
        inflate_body(gzip.compress(bytes(8 << 20)), b"gzip", max_bytes=1000)

    assert asked
    assert all(0 < most <= 1001 for most in asked)


def test_concatenated_gzip_members_are_read_and_a_damaged_one_up_to_its_damage() -> None:
    two = gzip.compress(b'{"a":1}\n') + gzip.compress(b'{"b":2}\n')
    cut = gzip.compress(bytes(range(256)) * 400)[:-200]

    assert inflate_body(two, b"gzip", max_bytes=100) == b'{"a":1}\n{"b":2}\n'
    assert (bytes(range(256)) * 400).startswith(inflate_body(cut, b"gzip", max_bytes=1 << 20))
    assert inflate_body(b"no gzip", b"gzip", max_bytes=100) == b"base64:bm8gZ3ppcA=="
    assert inflate_body(b"no zstd", b"zstd", max_bytes=100) == b"base64:bm8genN0ZA=="


def test_invalid_utf8_affects_only_its_own_event() -> None:
    sent = parse_batch(decode_text(b'{"batch":[{"a":1},{"b":"\xff"},{"c":"\xc3\xa4"}]}'))

    assert [event.value for event in sent.events] == [{"a": 1}, None, {"c": "ä"}]
    assert sent.events[1].text == '{"b":"\\xff"}'


@settings(max_examples=examples(40))
@given(
    members=st.lists(st.tuples(st.sampled_from(["x", "y", "z"]), values), max_size=6), indent=st.sampled_from(["", " "])
)
def test_removing_a_member_leaves_all_others_unchanged(members: list[tuple[str, object]], indent: str) -> None:
    parts = [(name, f'"{name}"{indent}:{indent}{json.dumps(value)}') for name, value in members]
    text = "{" + f"{indent},{indent}".join(part for _, part in parts) + "}"

    assert remove_member(text, "x") == "{" + ",".join(part for name, part in parts if name != "x") + "}"


def test_numbers_are_unchanged() -> None:
    text = '{"n":100000000000000000000000000001,"p":1.10,"e":1E400,"_collector":7}'

    assert remove_member(parse_single(text).events[0].text, "_collector") == text.replace(',"_collector":7', "")
    assert orjson.loads('{"p":1.10}') == {"p": 1.1}


def test_many_gzip_members_take_work_linear_in_their_size_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    body = gzip.compress(b"{}") * 10_000
    fed = FedBytes(zlib.decompressobj)
    monkeypatch.setattr(bodies.zlib, "decompressobj", fed)
    assert inflate_body(body, b"gzip", max_bytes=4 << 20, max_members=1 << 40) == b"{}" * 10_000
    assert len(body) <= fed.total < 200 * len(body), "the rest of the body must not be read again for each member"
    with pytest.raises(TooLargeError):
        inflate_body(gzip.compress(b"") * 1001, b"gzip", max_bytes=4 << 20)


@settings(max_examples=examples(40))
@given(sizes=st.lists(st.integers(0, 90_000), min_size=1, max_size=5), cut=st.integers(0, 60))
def test_a_body_of_any_members_is_inflated_up_to_its_end_or_damage(sizes: list[int], cut: int) -> None:
    contents = [random.Random(size).randbytes(size) for size in sizes]
    body = b"".join(map(gzip.compress, contents))
    body = body[: len(body) - cut]

    inflated = inflate_body(body, b"gzip", max_bytes=1 << 20)

    if not cut and any(sizes):
        assert inflated == b"".join(contents)
    elif not inflated.startswith(b"base64:"):
        assert b"".join(contents).startswith(inflated)
        assert len(inflated) >= sum(sizes[:-3])


def test_an_array_of_malformed_events_is_bounded_by_the_number_of_events_of_its_sender() -> None:
    text = "[" + "{]," * 1_000
    with pytest.raises(TooLargeError):
        parse_events(text, json_lines=False, max_events=500)
    with pytest.raises(TooLargeError):
        parse_batch('{"batch":' + text, max_events=500)
    with pytest.raises(TooLargeError):
        parse_events("1\n" * 501, json_lines=True, max_events=500)
