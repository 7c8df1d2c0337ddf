"""Variants: exact values, readable by DuckDB; texts in them can be replaced."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.tables.arrow_types import VARIANT_TYPE, arrow_schema, cast_values, rows_as_declared
from deltaworks.tables.duckdb_session import duckdb_session
from deltaworks.tables.statistics import statistics
from deltaworks.tables.variant import delta_schema, encode_json, replace_texts, variant_array, with_marked_variants
from tests.examples import examples

NAMES = st.text(st.characters(codec="utf-8"), max_size=6)
DIGITS = st.from_regex(r"-?(0|[1-9][0-9]{0,45})(\.[0-9]{1,45})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
#: JSON texts of every kind, with numbers in every form.
TEXTS = st.recursive(
    st.sampled_from(["null", "true", "false", '""']) | DIGITS | st.text(max_size=80).map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=5).map(lambda items: f"[{','.join(items)}]")
        | st.dictionaries(NAMES, inner, max_size=5).map(
            lambda fields: "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in fields.items()) + "}"
        )
    ),
    max_leaves=20,
)


def by_duckdb(*texts: str | None) -> list[tuple[Any, bool]]:
    """Returns what DuckDB reads: values of Python, and whether they are null."""
    variants = variant_array([None if text is None else encode_json(text) for text in texts])
    with duckdb_session() as connection:
        connection.register("rows", marked(variants))
        return connection.execute("SELECT v, v IS NULL FROM rows").fetchall()


def as_json(variant: Mapping[str, bytes]) -> Any:
    """Returns the JSON of a variant as DuckDB writes it, with numbers as they are written."""
    with duckdb_session() as connection:
        connection.register("rows", marked(variant_array([variant])))
        ((text,),) = connection.execute("SELECT v::JSON::VARCHAR FROM rows").fetchall()
    return json.loads(text, parse_int=Literal, parse_float=Literal)


def marked(variants: pa.Array) -> pa.Table:
    schema = pa.schema([pa.field("v", VARIANT_TYPE)])
    return pa.table([variants], schema=with_marked_variants(schema, delta_schema(schema)))


def expected(value: Any) -> Any:
    """Returns a value with numbers in the form that a variant has; the literal of those that it has no form for."""
    if isinstance(value, dict):
        return {name: expected(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [expected(inner) for inner in value]
    return number(value) if isinstance(value, Literal) else value


class Literal(str):
    """A number as it was written."""


def number(literal: str) -> Any:
    exact = Decimal(literal)
    if literal.lstrip("-").isdigit():
        return exact if len(literal.lstrip("-")) <= 38 else str(literal)
    if Decimal(repr(float(literal))) == exact:
        return float(literal)
    unscaled = abs(exact.scaleb(38)) if int(exact.as_tuple().exponent) >= -38 else None
    if unscaled is not None and len(exact.as_tuple().digits) <= 38 and abs(exact) < 10**38:
        return exact
    return str(literal)


def plain(value: Any) -> Any:
    """Returns a value in a form that tells texts from numbers, and compares numbers by value."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return ("number", Decimal(repr(value) if isinstance(value, float) else value))
    return value


@settings(max_examples=examples(400), deadline=None)
@given(TEXTS)
def test_duckdb_reads_what_was_encoded(text: str) -> None:
    value = as_json(encode_json(text))

    assert plain(expected(value)) == plain(expected(json.loads(text, parse_int=Literal, parse_float=Literal)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("127", 127),
        ("-129", -129),
        ("9223372036854775808", Decimal("9223372036854775808")),
        ("9" * 38, Decimal("9" * 38)),
        ("1" + "0" * 38, "1" + "0" * 38),
        ("1.50", 1.5),
        ("-0.0", -0.0),
        ("0.12345678901234567890", Decimal("0.12345678901234567890")),
        ("1e5", 1e5),
        ("1e300", 1e300),
        ("0." + "1" * 38, Decimal("0." + "1" * 38)),
        ("0." + "1" * 39, "0." + "1" * 39),
        ("1e999999999999999999999", "1e999999999999999999999"),
        (json.dumps("ä" * 40), "ä" * 40),
        ("{}", {}),
        ("[]", []),
        ("[" + ",".join(["1"] * 300) + "]", [1] * 300),
    ],
)
def test_values_are_exact_up_to_38_digits(text: str, value: Any) -> None:
    ((found, _),) = by_duckdb(text)

    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("count", [1, 255, 256, 70_000])
def test_objects_of_any_size_are_read(count: int) -> None:
    fields = {f"field {number}": "x" * (number % 80) for number in range(count)}

    ((found, _),) = by_duckdb(json.dumps(fields))

    assert found == fields


def test_null_is_told_from_a_json_null() -> None:
    assert by_duckdb("null", None, '{"a": null}') == [(None, False), (None, True), ({"a": None}, False)]


@settings(max_examples=examples(200), deadline=None)
@given(TEXTS, st.integers(0, 3))
def test_texts_and_names_are_replaced_and_all_else_stays(text: str, length: int) -> None:
    replace: Callable[[str], str] = lambda part: part + "\N{BLACK STAR}" * length  # noqa: E731
    replaced = replace_texts(encode_json(text), replace)

    before = expected(json.loads(text, parse_int=Literal, parse_float=Literal))
    assert plain(expected(as_json(replaced))) == plain(_with_texts(before, replace))
    assert replace_texts(encode_json(text), str) == encode_json(text)


def _with_texts(value: Any, replace: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {replace(name): _with_texts(inner, replace) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_texts(inner, replace) for inner in value]
    return replace(value) if isinstance(value, str) else value


def test_types_that_only_others_write_stay_when_texts_are_replaced() -> None:
    query = """
        SELECT variant_to_parquet_variant({
            'day': DATE '2024-02-29', 'at': TIMESTAMP '2024-02-29 12:00:00',
            'zoned': TIMESTAMPTZ '2024-02-29 12:00:00Z',
            'real': 1.5::FLOAT, 'bytes': 'ab'::BLOB, 'id': '7d1c0000-0000-0000-0000-000000000000'::UUID, 'text': 'x'
        }::VARIANT) AS v
    """
    with duckdb_session() as connection:
        variant = connection.sql(query).to_arrow_table().column("v")[0].as_py()
        connection.register("rows", marked(variant_array([variant, replace_texts(variant, str.upper)])))
        (before,), (after,) = connection.execute("SELECT v FROM rows").fetchall()

    assert after == {name.upper(): "X" if name == "text" else value for name, value in before.items()}


def test_the_column_is_a_variant_in_delta_and_has_no_statistics() -> None:
    declared = arrow_schema({"id": "long", "_rest": "variant"})
    rows = pa.table([pa.array([1]), variant_array([encode_json('{"a":1}')])], schema=declared)

    assert [field.to_json() for field in delta_schema(declared).fields] == [
        '{"name":"id","type":"long","nullable":true,"metadata":{}}',
        '{"name":"_rest","type":"variant","nullable":true,"metadata":{}}',
    ]
    assert isinstance(delta_schema(delta_schema(declared)), Schema)
    assert json.loads(statistics(rows)) == {
        "numRecords": 1,
        "minValues": {"id": 1},
        "maxValues": {"id": 1},
        "nullCount": {"id": 0},
    }


def test_rows_of_any_writer_get_the_parts_in_one_order_without_nulls() -> None:
    parts = [pa.field("value", pa.binary()), pa.field("metadata", pa.binary())]
    rows = pa.array([encode_json("1"), None], pa.struct(parts))
    declared = arrow_schema({"v": "variant"})

    found = rows_as_declared(pa.RecordBatch.from_arrays([rows], ["v"]), declared).column(0)

    assert found.type == VARIANT_TYPE
    assert found.to_pylist() == [encode_json("1"), None]
    assert [part.null_count for part in found.flatten()] == [1, 1]
    with pytest.raises(pa.ArrowInvalid, match="value is null"):
        cast_values(pa.array([{"value": None, "metadata": b""}], pa.struct(parts)), VARIANT_TYPE)
