"""Declarations that no event and no object can meet are refused, with what to write instead."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.yaml_reader import InvalidYamlError, load_yaml
from deltaworks.testing import RELAY, SOURCE, declare_table, pipeline_spec

CSV = {"format": "csv", "csv": {"header": False, "columns": ["name", "time", "level", "flag"]}}
HEADER = {"format": "csv"}
TSV = {"format": "tsv", "tsv": {"columns": ["name", "date", "time"]}}
TEXT = {"format": "text", "pattern": r"(?P<name>\\S+) (?P<time>\\S+)"}
KAFKA = {"kind": "kafka", "bootstrap_servers": "b:9092", "topics": ["t"]}


def declared(when: Any, source: dict[str, Any] | None = None, column: str = "", **more: Any) -> PipelineSpec:
    columns = [column] if column else []
    return pipeline_spec(declare_table("orders", *columns, when=when), source=SOURCE | (source or {}), **more)


@pytest.mark.parametrize(
    ("when", "source", "column", "message"),
    [
        ({"level": 1}, CSV, "", 'fields of csv are texts, which never equal 1: write "1"'),
        ({"level": 1.5}, HEADER, "", 'write "1.5"'),
        ({"flag": True}, CSV, "", 'fields of csv are texts, which never equal True: write "true"'),
        ({"level": ["1", 2]}, CSV, "", 'write "2"'),
        ({"level": 1}, TSV | {"tsv": {}}, "", "fields of tsv are texts"),
        ({"name": 1}, TEXT, "", "fields of text are texts"),
        ({"level": ""}, CSV, "", "'' is null in fields of csv"),
        ({"name": "-"}, TSV, "", "'-' is null in fields of tsv"),
        ({"name": ""}, TEXT, "", "'' is null in fields of text"),
        ({"name": []}, {}, "", "an empty list is met by no event"),
        ({"level": float("nan")}, {}, "", "'level' never equals nan"),
        ({"level": float("inf")}, {}, "", "'level' never equals inf"),
        ({"_partition.day": 5}, {"partition_columns": ["day"]}, "", "the values of folders are texts"),
        ({"level": "5"}, {}, "level int", "'5' is not a number"),
        ({"level": True}, {}, "level decimal(4,2)", "True is not a number"),
        ({"level": "yes"}, {}, "level boolean", "'yes' is not a boolean"),
        ({"level": 1}, {}, "level boolean", "1 is not a boolean"),
        ({"lewel": "1"}, CSV, "", "'lewel' is no field of the declared csv; did you mean 'level'?"),
        ({"level.inner": "1"}, CSV, "", "'level.inner' is no field of the declared csv"),
        ({"kind": "1"}, TSV, "", "'kind' is no field of the declared tsv"),
        ({"kind": "1"}, TEXT, "", "'kind' is no field of the declared text"),
    ],
)
def test_a_condition_that_no_event_meets_is_refused(when: Any, source: Any, column: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        declared(when, source, column)

    assert message in str(caught.value)
    assert "tables.0.when" in str(caught.value)


@pytest.mark.parametrize(
    ("when", "source", "column"),
    [
        ({"level": "1"}, CSV, "level int"),
        ({"level": ["1", "2"]}, HEADER, ""),
        ({"datetime": "2026"}, TSV, ""),
        ({"line": "x"}, TEXT, ""),
        ({"level": 1}, {}, "level int"),
        ({"level": 1.5}, {}, "level double"),
        ({"level": "2026-01-01"}, {}, "level date"),
        ({"level": 1}, {}, "level string"),
        ({"level": ""}, {}, ""),
        ({"_partition.day": "5"}, {"partition_columns": ["day"]}, ""),
    ],
)
def test_a_condition_that_an_event_may_meet_is_accepted(when: Any, source: Any, column: str) -> None:
    assert declared(when, source, column).tables[0].when


def test_numbers_of_record_metadata_are_compared() -> None:
    source = KAFKA | CSV
    assert pipeline_spec(declare_table("orders", when={"_record.partition": 1}), source=source).tables[0].when


@pytest.mark.parametrize("path", ["name", "time", "id"])
def test_an_event_path_that_no_event_has_is_refused(path: str) -> None:
    event: dict[str, Any] = {"name": {"path": "name"}, "time": {"path": "time"}, "id": "level"}
    event[path] = "other" if path == "id" else {"path": "other"}

    with pytest.raises(ValidationError, match="'other' is no field of the declared csv"):
        pipeline_spec(declare_table("orders", when={"flag": "x"}), source=SOURCE | CSV, event=event)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": '"'}, "delimiter and quote are the same character"),
        ({"delimiter": "'", "quote": "'"}, "delimiter and quote are the same character"),
        ({"delimiter": "\n"}, "a line break ends a record"),
        ({"quote": "\r"}, "a line break ends a record"),
    ],
)
def test_csv_that_could_not_be_read_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        declared({"name": "x"}, {"format": "csv", "csv": options})


def test_a_column_of_tsv_named_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match="a column is named twice"):
        declared({"a": "x"}, {"format": "tsv", "tsv": {"columns": ["a", "b", "a"]}})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"prefix": "s3://landing/clicks/"}, "keys do not begin with a scheme"),
        ({"prefix": "gs://landing/clicks/"}, "keys do not begin with a scheme"),
        ({"glob": "s3a://landing/**/*.json"}, "keys do not begin with a scheme"),
        ({"bucket": "s3://landing"}, "write the name of the bucket only"),
        ({"bucket": "landing/clicks"}, "write the name of the bucket only"),
        ({"prefix": "us/", "glob": "eu/**/*.json"}, "none begins with both 'us/' and 'eu/'"),
        ({"prefix": "eu/orders/", "glob": "*.json"}, None),
        ({"prefix": "eu/orders/", "glob": "eu/a.json"}, "none begins with both"),
        ({"prefix": "eu/", "glob": "eu/{a,b}/*.json"}, None),
        ({"prefix": "eu/orders", "glob": "eu/**"}, None),
        ({"prefix": "eu/a.json", "glob": "eu/a.json"}, None),
        ({"prefix": "a:b/", "glob": None}, None),
    ],
)
def test_keys_that_no_object_has_are_refused(keys: dict[str, Any], message: str | None) -> None:
    listing = {key: value for key, value in keys.items() if key != "bucket"}
    buckets = [keys.get("bucket", "landing")]
    if message is None:
        assert declared({"name": "x"}, keys)
        assert RelaySpec.model_validate(RELAY | {"buckets": buckets, "listing": listing})
        return
    with pytest.raises(ValidationError, match=message):
        declared({"name": "x"}, keys)
    with pytest.raises(ValidationError, match=message):
        RelaySpec.model_validate(RELAY | {"buckets": buckets, "listing": listing})


@pytest.mark.parametrize(
    ("written", "number"),
    [("1.10", "1.1"), ("007", "7"), ("1e3", "1000.0"), ("0x10", "16"), ("+5", "5"), ("1.", "1.0")],
)
@pytest.mark.parametrize(
    "form", ["when: {{v: {0}}}", "when:\n  v: [1, {0}]", "a:\n  - when: {{v: {0}}}", "deleted_when: {{v: {0}}}"]
)
def test_a_number_in_a_condition_that_loses_characters_is_refused(written: str, number: str, form: str) -> None:
    with pytest.raises(InvalidYamlError, match="quote it to compare texts") as caught:
        load_yaml(form.format(written).encode())

    assert f"{written} is read as the number {number}" in caught.value.problem
    assert load_yaml(form.format(f'"{written}"').encode()).values


@pytest.mark.parametrize(
    "text", ["when: {v: 1.1}", "when: {v: [1, -2, 1.0]}", "above: 1.10", "mode: 0o755", "when: {007: x}"]
)
def test_other_numbers_are_read(text: str) -> None:
    assert load_yaml(text.encode()).values
