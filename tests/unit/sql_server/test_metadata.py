"""The metadata tables of Flight SQL."""

from __future__ import annotations

import contextlib
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.sql_server import messages, metadata


def likes(pattern: str, name: str) -> bool:
    """LIKE by its definition."""
    if not pattern:
        return not name
    if pattern[0] == "%":
        return likes(pattern[1:], name) or (name != "" and likes(pattern, name[1:]))
    return name != "" and pattern[0] in ("_", name[0]) and likes(pattern[1:], name[1:])


@given(st.text("ab%_.[", max_size=6), st.text("ab.[", max_size=6))
def test_patterns_match_as_like_does(pattern: str, name: str) -> None:
    assert metadata.like(pattern)(name) == likes(pattern, name)


def test_properties_are_selected_by_number_and_unknown_ones_left_out() -> None:
    assert metadata.sql_info([3, 0, 99_999]).to_pylist() == [
        {"info_name": 3, "value": True},
        {"info_name": 0, "value": "Deltaworks"},
    ]
    everything = metadata.sql_info([])
    everything.validate(full=True)
    assert everything.schema == metadata.SQL_INFO
    assert everything.num_rows > 80


def test_types_are_selected_by_code_and_sorted() -> None:
    codes = metadata.type_info(None).column("data_type").to_pylist()
    assert codes == sorted(codes)
    assert metadata.type_info(-5).column("type_name").to_pylist() == ["BIGINT"]
    metadata.type_info(None).validate(full=True)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_command_or_refused(data: bytes) -> None:
    with contextlib.suppress(pa.ArrowInvalid):
        name, _ = messages.decode(data)
        assert re.fullmatch(r"[A-Z]\w+", name)


def test_optional_fields_differ_from_empty_ones() -> None:
    name, message = messages.decode(messages.encode("CommandGetDbSchemas", db_schema_filter_pattern=""))
    assert name == "CommandGetDbSchemas"
    assert message.HasField("db_schema_filter_pattern")
    assert not message.HasField("catalog")


@pytest.mark.parametrize("schema", [metadata.PRIMARY_KEYS, metadata.FOREIGN_KEYS, metadata.TABLES_WITH_SCHEMA])
def test_empty_tables_have_their_schema(schema: pa.Schema) -> None:
    assert metadata.table_of(schema, []).schema == schema
