"""Records of another format, torn ones, and those that lack a field are refused; the error says what is wrong."""

from __future__ import annotations

import json

import pytest

from deltaworks.control.records.store import decode_record
from deltaworks.errors import ContractError


def unreadable(error: Exception) -> ContractError:
    return ContractError("TEST_UNREADABLE", f"the record: {error}")


def test_a_record_of_the_format_becomes_what_is_made_of_it() -> None:
    data = json.dumps({"name": "a", "format": 3}).encode()

    assert decode_record(data, lambda record: record["name"], expected=3, unreadable=unreadable) == "a"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"name": "a", "format": 2}', "format 2 is not 3"),
        (b'{"name": "a"}', "'format'"),
        (b'{"format": 3}', "'name'"),
        (b'{"name": "a", "form', "Unterminated"),
        (b"[1]", "list indices"),
        (b"", "Expecting value"),
    ],
)
def test_what_this_release_cannot_read_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ContractError, match="TEST_UNREADABLE") as refused:
        decode_record(data, lambda record: record["name"], expected=3, unreadable=unreadable)

    assert said in refused.value.message
