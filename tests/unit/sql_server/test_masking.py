"""Personal columns in the views of users without the right to read them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.privacy.tokens.envelope_encryption import is_token
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.sql_server.sessions import personal_columns, projection
from deltaworks.tables.duckdb_session import duckdb_session
from deltaworks.testing import declare_table, pipeline_spec
from tests.unit.sql_server.sql_harness import PEOPLE, SHOP, TOKEN

SPEC = PipelineSpec.model_validate(PEOPLE)


def shown(spec: PipelineSpec, table: str, rows: pa.Table, *, show_personal: bool = False) -> list[dict[str, object]]:
    select = projection(spec, table, rows.schema, show_personal=show_personal)
    with duckdb_session() as connection:
        connection.register("data", rows)
        return connection.sql(f"SELECT {select} FROM data").to_arrow_table().to_pylist()


def test_a_column_is_personal_by_its_field_a_part_of_it_or_its_struct() -> None:
    fields = [
        {"path": "a.id", "action": "token", "as": "person"},
        {"path": "b", "action": "truncate_ip"},
        {"path": "gone", "action": "drop"},
    ]
    columns = ("one string from a.id", "whole_a struct<id:string> from a", "two string from b", "three string from c")
    spec = pipeline_spec(
        declare_table("t", *columns, "four string from gone"),
        privacy={"namespace": "people", "subject": "a.id", "fields": fields},
    )
    assert personal_columns(spec, "t") == {"one", "whole_a", "two", "_rest", "_rescued"}
    assert personal_columns(spec, "any_gold") == {"one", "whole_a", "two", "_rest", "_rescued"}
    assert "raw" in personal_columns(spec, "quarantine")


def test_fields_that_no_column_declares_are_hidden_and_so_is_the_id_of_events_if_it_is_personal() -> None:
    spec = pipeline_spec(
        declare_table("t", "one string from one", evolve="add_columns"),
        event={"id": "who", "name": {"path": "name"}, "time": {"path": "at"}},
        privacy={
            "namespace": "people",
            "subject": "who",
            "fields": [{"path": "who", "action": "token", "as": "person"}],
        },
    )
    row = {"event_id": TOKEN, "event_name": "t", "one": "1", "_rescued": '{"mail": "a@b"}', "mail": "a@b"}
    rows = pa.Table.from_pylist([row])

    assert shown(spec, "t", rows) == [{**dict.fromkeys(row), "event_name": "t", "one": "1"}]
    assert shown(spec, "t", rows, show_personal=True) == [row]


def test_a_truncated_address_is_personal_without_a_section_of_privacy() -> None:
    private = [{"path": "ip", "keep": "network"}, {"path": "phone", "keep": "nothing"}]
    spec = pipeline_spec(declare_table("t", "ip string from ip", "phone string from phone"), private=private)

    assert "ip" in personal_columns(spec, "t")
    assert "phone" not in personal_columns(spec, "t")


def test_a_pipeline_without_personal_data_is_shown_as_it_is() -> None:
    spec = PipelineSpec.model_validate(SHOP)
    assert projection(spec, "orders", pa.schema([("id", pa.int64())]), show_personal=False) == "*"
    assert projection(SPEC, "visits", pa.schema([("person", pa.string())]), show_personal=True) == "*"


@pytest.mark.parametrize(
    "value", [TOKEN, "x1_" + "b" * 26, f"a {TOKEN} b", [TOKEN], {"who": TOKEN}, {"who": [{"deep": TOKEN}]}]
)
def test_values_with_a_token_are_null_in_other_tables(value: object) -> None:
    rows = pa.Table.from_pylist([{"n": 1, "value": value}])
    assert shown(SPEC, "visitors", rows) == [{"n": 1, "value": None}]
    assert shown(SPEC, "visitors", rows, show_personal=True) == [{"n": 1, "value": value}]


@settings(max_examples=30)
@given(st.lists(st.text("p1_x2az", max_size=40), min_size=1, max_size=5))
def test_texts_without_a_token_are_shown_and_no_token_is(texts: list[str]) -> None:
    rows = pa.table({"value": pa.array(texts, pa.string())})
    expected = [
        None if any(is_token(text[at : at + 29]) for at in range(len(text))) else text for text in texts
    ]  # fmt: skip
    assert [row["value"] for row in shown(SPEC, "visitors", rows)] == expected
