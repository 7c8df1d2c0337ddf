"""The collector's time in events: the only one any reader finds, and nothing else changed."""

from __future__ import annotations

import json
import random
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from collector.records import outgoing
from collector.stamp import TIME_FIELD, stamped

AT = 1_700_000_000
Pairs = list[tuple[str, Any]]


def pairs(text: str) -> Pairs:
    """The members of the outermost object, those of one name too; numbers as they are written."""
    found: Pairs = json.loads(text, object_pairs_hook=list, parse_int=str, parse_float=str)
    return found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("{}", '{"eventTime":1700000000}'),
        (" \r\n{ } ", ' \r\n{"eventTime":1700000000 } '),
        ('{"a":1}', '{"eventTime":1700000000,"a":1}'),
        ('{"eventTime":1}', '{"eventTime":1700000000}'),
        ('{"eventTime" : "x,}" , "b":{"eventTime":2}}', '{"eventTime" : 1700000000 , "b":{"eventTime":2}}'),
        ('{"eventTime":1,"a":0,"eventTime":{"b":[2,3]}}', '{"eventTime":1700000000,"a":0,"eventTime":1700000000}'),
        ('{"\\u0065ventTime":"client"}', '{"\\u0065ventTime":1700000000}'),
        ('{"a":{"eventTime":1}}', '{"eventTime":1700000000,"a":{"eventTime":1}}'),
        ('{"id":100000000000000000001,"x":1.10,"y":-0,"x":2}', None),
        ('{"a":"\\"eventTime\\":1","b":"\\\\"}', None),
        ('\ufeff{"a":1}', '{"eventTime":1700000000,"a":1}'),
        ('{"a":' * 1_000 + "1" + "}" * 1_000, None),
    ],
)
def test_the_time_is_put_into_the_text(body: str, expected: str | None) -> None:
    assert stamped(body, AT) == (expected or f'{{"eventTime":{AT},{body[1:]}')


@pytest.mark.parametrize("body", ["", "17", "[{}]", "{", "no json", '{"a":1}{"b":2}', '{"a":"\\ud800"}', "\ud800"])
def test_what_is_no_object_is_left_alone(body: str) -> None:
    assert stamped(body, AT) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from([TIME_FIELD, "\\u0065ventTime", "id", "a"]) | st.text(st.characters(codec="ascii"), max_size=4)
spaces = st.text(" \t\r\n", max_size=2)


@st.composite
def objects(draw: st.DrawFn) -> str:
    """JSON objects as text: with white space anywhere, names that come twice, numbers of any length."""
    members = []
    for _ in range(draw(st.integers(0, 5))):
        name = draw(names)
        key = f'"{name}"' if name.startswith("\\u") else json.dumps(name)
        value = draw(values.map(json.dumps) | st.from_regex(r"-?[1-9][0-9]{0,40}(\.[0-9]{1,30})?", fullmatch=True))
        members.append(f"{draw(spaces)}{key}{draw(spaces)}:{draw(spaces)}{value}{draw(spaces)}")
    return f"{draw(spaces)}{{{','.join(members) or draw(spaces)}}}{draw(spaces)}"


@given(objects())
@example('{"a":1,"eventTime":[{"eventTime":2},"}"],"\\u0065ventTime":3,"eventTime":4}')
def test_whatever_an_event_holds_its_time_is_the_collectors_and_the_rest_is_what_was_sent(body: str) -> None:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:  # half a surrogate pair
        assert stamped(body, AT) is None
        return

    result = stamped(body, AT)

    assert result is not None
    before, after = pairs(body), pairs(result)
    assert {value for name, value in after if name == TIME_FIELD} == {str(AT)}
    assert [pair for pair in after if pair[0] != TIME_FIELD] == [pair for pair in before if pair[0] != TIME_FIELD]
    times = sum(name == TIME_FIELD for name, _ in before)
    assert sum(name == TIME_FIELD for name, _ in after) == max(1, times)
    assert orjson.loads(result)[TIME_FIELD] == AT


@pytest.mark.parametrize("extra", [{"n": 2**70}, {"text": "\ud800"}])
def test_a_request_that_orjson_cannot_write_goes_on_all_the_same(extra: dict[str, Any]) -> None:
    request = {"body": '{"a":1}', "requestContext": extra}

    record = outgoing(request, at=AT, keys=random.Random(1))

    assert json.loads(record.data) == {"body": f'{{"eventTime":{AT},"a":1}}', "requestContext": extra}
