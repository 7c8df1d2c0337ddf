"""Undeclared fields: ignored, rescued, added or rejected as each table declares, also in held-back files."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.engine.fan_out import FanOutResult, write_with_new_columns
from deltaworks.engine.table_set import TableSet
from deltaworks.errors import ContractError, FencedError
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.evolution import (
    EvolvedColumn,
    EvolvedColumns,
    add_columns,
    evolved_columns,
    new_columns,
    to_records,
)
from deltaworks.events.parse import Parser
from deltaworks.events.table_columns import conform_prepared_table
from deltaworks.events.task_findings import TaskFindings
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.commit import Step, raise_owner_epoch
from deltaworks.tables.files import write_file
from deltaworks.tables.lake import arrow_path
from deltaworks.testing import declare_pipeline, declare_table, local_lake, present, rows_by_table
from tests.examples import examples
from tests.unit.engine.batch_records import prepared_batch

MakeSpec = Callable[..., PipelineSpec]
STAMP = BatchMetadata(batch_id=7, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
OWNER = Step("shop/owner", 3)
CAMPAIGN = "struct<network: string, cost: double>"


def spec_with(make_spec: MakeSpec, evolve: str) -> PipelineSpec:
    columns = [
        {"name": "level", "path": "params.level", "type": "int"},
        {"name": "campaign", "path": "params.campaign", "type": CAMPAIGN},
        {"name": "tags", "path": "tags", "type": "map<string,string>"},
    ]
    return make_spec(tables=[{"name": "orders", "when": {"name": "order"}, "columns": columns, "evolve": evolve}])


def event(**fields: Any) -> bytes:
    return json.dumps({"name": "order", "time": 1_700_000_000} | fields).encode()


def parse(
    spec: PipelineSpec, *lines: bytes, evolved: EvolvedColumns | None = None
) -> tuple[dict[str, list[dict[str, Any]]], TaskFindings]:
    parser = Parser(spec, evolved=evolved)
    return rows_by_table(parser.parse([Payload(1, "k", b"\n".join(lines))], STAMP)), parser.findings


EXTRA = event(
    params={"level": 1, "color": "red", "campaign": {"network": "x", "id": 7}}, tags={"a": "b"}, top=[1], nothing=None
)


def test_by_default_undeclared_fields_are_ignored(make_spec: MakeSpec) -> None:
    rows, findings = parse(spec_with(make_spec, "ignore"), EXTRA)

    assert "_rescued" not in rows["orders"][0]
    assert findings == TaskFindings()


def test_rescued_fields_keep_their_paths_and_null_is_omitted(make_spec: MakeSpec) -> None:
    rows, findings = parse(spec_with(make_spec, "rescue"), EXTRA, event(params={"level": 2}))

    assert json.loads(rows["orders"][0]["_rescued"]) == {
        "params": {"color": "red", "campaign": {"id": 7}},
        "top": [1],
    }
    assert rows["orders"][1]["_rescued"] is None
    assert findings == TaskFindings()


def test_a_value_in_place_of_an_expected_object_is_rescued(make_spec: MakeSpec) -> None:
    rows, _ = parse(spec_with(make_spec, "rescue"), event(params=5))

    assert json.loads(rows["orders"][0]["_rescued"]) == {"params": 5}


def test_fields_nested_too_deeply_do_not_fail_the_batch(make_spec: MakeSpec) -> None:
    deep = b'{"name": "order", "time": 1, "deep": ' + b"[" * 990 + b"]" * 990 + b"}"

    rows, _ = parse(spec_with(make_spec, "rescue"), deep)

    assert "deep" in rows["orders"][0]["_rescued"]


def test_where_undeclared_fields_fail_the_first_one_is_named(make_spec: MakeSpec) -> None:
    with pytest.raises(
        ContractError, match=r"'params\.color' \(JSON type string\) in event 1 of file event 1"
    ) as caught:
        parse(spec_with(make_spec, "fail"), event(params={"level": 2}), EXTRA)

    assert caught.value.condition == "FIELD_UNDECLARED"


def test_a_quarantined_event_neither_fails_the_batch_nor_adds_columns(make_spec: MakeSpec) -> None:
    bad = event(params={"level": "x", "color": "red"})

    assert set(parse(spec_with(make_spec, "fail"), bad)[0]) == {"quarantine"}
    assert parse(spec_with(make_spec, "add_columns"), bad)[1] == TaskFindings()


def test_fields_that_can_be_columns_are_reported_with_the_kinds_of_their_values(make_spec: MakeSpec) -> None:
    rows, findings = parse(
        spec_with(make_spec, "add_columns"),
        EXTRA,
        event(params={"color": 7, "big": 2**63, "ratio": 0.5}),
        event(params={"ratio": 1}),
    )

    assert findings.new_fields == {
        "orders": {
            ("params", "color"): {"str", "int"},
            ("params", "campaign", "id"): {"int"},
            ("params", "big"): {"large"},
            ("params", "ratio"): {"float", "int"},
            ("top",): {"list"},
        }
    }
    assert TaskFindings.from_record(findings.as_record()) == findings
    assert json.loads(rows["orders"][1]["_rescued"]) == {"params": {"color": 7, "big": 2**63, "ratio": 0.5}}


def test_columns_are_proposed_for_values_of_one_type_under_an_unused_name(make_spec: MakeSpec) -> None:
    spec = spec_with(make_spec, "add_columns")
    fields: Mapping[tuple[str, ...], set[str]] = {
        ("params", "ratio"): {"float", "int"},
        ("params", "color"): {"str", "int"},
        ("params", "LEVEL"): {"int"},
        ("ok",): {"bool"},
        ("params", "ok"): {"str"},
        ("params", "größe"): {"int"},
        ("top",): {"list"},
    }

    assert new_columns(spec, {"orders": ()}, {"orders": fields}) == {
        "orders": (
            EvolvedColumn("ok", ("ok",), "boolean"),
            EvolvedColumn("params_LEVEL", ("params", "LEVEL"), "long"),
            EvolvedColumn("params_ok", ("params", "ok"), "string"),
            EvolvedColumn("ratio", ("params", "ratio"), "double"),
        )
    }
    assert new_columns(spec, {}, {"orders": fields}) == {}


def test_the_number_of_added_columns_is_limited(make_spec: MakeSpec) -> None:
    fields = {("params", f"f{number}"): {"int"} for number in range(500)}

    added = new_columns(spec_with(make_spec, "add_columns"), {"orders": ()}, {"orders": fields})

    assert len(added["orders"]) == 200


def test_added_columns_get_their_values_and_other_types_are_rescued(make_spec: MakeSpec) -> None:
    evolved = {"orders": (EvolvedColumn("color", ("params", "color"), "string"),)}

    rows, findings = parse(
        spec_with(make_spec, "add_columns"),
        event(params={"color": "red"}),
        event(params={"color": 7, "other": 1}),
        event(),
        evolved=evolved,
    )

    assert [row["color"] for row in rows["orders"]] == ["red", None, None]
    assert [json.loads(row["_rescued"] or "null") for row in rows["orders"]] == [
        None,
        {"params": {"color": 7, "other": 1}},
        None,
    ]
    assert findings.new_fields == {"orders": {("params", "other"): {"int"}}}


def test_a_batch_with_a_new_field_is_read_a_second_time_with_its_column(make_spec: MakeSpec) -> None:
    spec, passes = spec_with(make_spec, "add_columns"), []

    def one_pass(evolved: EvolvedColumns) -> FanOutResult:
        passes.append(evolved)
        return FanOutResult(findings=parse(spec, event(params={"color": "red"}), evolved=evolved)[1])

    column = EvolvedColumn("color", ("params", "color"), "string")
    assert write_with_new_columns(one_pass, spec, {"orders": ()}).new_columns == {"orders": (column,)}
    assert passes == [{"orders": ()}, {"orders": (column,)}]

    passes.clear()
    assert write_with_new_columns(one_pass, spec, {"orders": (column,)}).new_columns == {}
    assert len(passes) == 1


class TestOnDisk:
    """Columns are added to the Delta table once, and read back from it."""

    COLUMNS = (
        EvolvedColumn("color", ("params", "color"), "string"),
        EvolvedColumn("ratio", ("a.b", "ratio"), "double"),
    )

    @pytest.fixture
    def spec(self, make_spec: MakeSpec) -> PipelineSpec:
        return spec_with(make_spec, "add_columns")

    @pytest.fixture
    def table(self, spec: PipelineSpec, tmp_path: Path) -> DeltaTable:
        lake = local_lake(tmp_path)
        TableSet(lake, spec).open()
        return present(lake.open(paths.table("shop", "orders")))

    def test_columns_are_added_once_and_stored_with_their_paths(self, spec: PipelineSpec, table: DeltaTable) -> None:
        for _ in range(2):
            add_columns(table, to_records(self.COLUMNS), owner=OWNER, user_metadata="{}")

        assert evolved_columns(table, spec.tables[0]) == self.COLUMNS
        assert table.version() == 1
        assert table.transaction_version(OWNER.app_id) == OWNER.version

    def test_concurrent_writers_add_a_column_once(self, spec: PipelineSpec, table: DeltaTable) -> None:
        other = DeltaTable(table.table_uri)
        add_columns(other, to_records(self.COLUMNS[:1]), owner=OWNER, user_metadata="{}")

        add_columns(table, to_records(self.COLUMNS), owner=OWNER, user_metadata="{}")

        assert evolved_columns(table, spec.tables[0]) == self.COLUMNS

    def test_a_fenced_owner_adds_none(self, table: DeltaTable) -> None:
        raise_owner_epoch(DeltaTable(table.table_uri), Step("shop/owner", 4), user_metadata="{}")

        with pytest.raises(FencedError):
            add_columns(table, to_records(self.COLUMNS), owner=OWNER, user_metadata="{}")

    def test_a_column_with_another_type_raises(self, table: DeltaTable) -> None:
        add_columns(table, to_records([EvolvedColumn("color", ("c",), "long")]), owner=OWNER, user_metadata="{}")

        with pytest.raises(ContractError, match="TABLE_SCHEMA_DIFFERS"):
            add_columns(table, to_records(self.COLUMNS), owner=OWNER, user_metadata="{}")


# A whole number of more than 64 bits is a double, as reference/pipeline/index.md says.
WHOLE_NUMBERS = st.integers(-(2**63), 2**64 - 1)
VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.lists(WHOLE_NUMBERS, max_size=2)
FIELDS = st.dictionaries(st.sampled_from(["level", "color", "ratio", "campaign", "x y"]), VALUES, max_size=5)
LINES = st.lists(
    st.fixed_dictionaries({}, optional={"params": FIELDS | WHOLE_NUMBERS, "top": VALUES, "color": VALUES}), max_size=6
)


@settings(max_examples=examples(150), deadline=None)
@given(LINES)
def test_no_value_of_an_accepted_event_is_lost(lines: list[dict[str, Any]]) -> None:
    """What is in columns and what is rescued, put together, is the event without its nulls."""
    declared: dict[str, Any] = declare_pipeline(
        declare_table("orders", "level int from params.level", evolve="add_columns"),
        event={"name": {"constant": "order"}, "time": {"path": "t", "unit": "epoch_seconds"}},
    )
    spec = PipelineSpec.model_validate(declared)
    payload = [json.dumps(line | {"t": 1}).encode() for line in lines]
    _, findings = parse(spec, *payload)
    evolved = {"orders": new_columns(spec, {"orders": ()}, findings.new_fields).get("orders", ())}

    rows, _ = parse(spec, *payload, evolved=evolved)

    places = {("params", "level"): "level"} | {column.path: column.name for column in evolved["orders"]}
    for row in rows.get("orders", []):
        found = flat(json.loads(row["_rescued"] or "{}"))
        found |= {path: row[name] for path, name in places.items() if row[name] is not None}
        assert found == flat(lines[row["_position"]])


def flat(value: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    """Every value of `params` and of the top, by path; nulls left out, as no column tells them from nothing."""
    found = {}
    for name, inner in value.items():
        if name == "params" and isinstance(inner, dict):
            found |= {("params", each): one for each, one in inner.items() if one is not None}
        elif inner is not None:
            found[name,] = inner
    return found


def prepared(share: PreparedTable) -> PreparedBatch:
    return prepared_batch(4, tables=(share,))


@pytest.mark.parametrize("declared", [True, False])
def test_columns_added_by_the_share_are_not_missing_in_the_table(
    make_spec: Callable[..., PipelineSpec], tmp_path: Path, declared: bool
) -> None:
    spec = make_spec(tables=[{"name": "orders", "catch_all": True, "evolve": "add_columns"}])
    lake = local_lake(tmp_path)
    tables = TableSet(lake, spec)
    tables.open()
    rows = pa.table({"_seq": [1], "_position": [0], "color": ["red"]})
    file = write_file(lake.filesystem, arrow_path(lake.storage, paths.table("shop", "orders")), rows, partition={})
    new = to_records([EvolvedColumn("color", ("color",), "string")]) if declared else ()
    share = PreparedTable(table="orders", writer="fan_out", rows=1, files=(asdict(file),), new_columns=new)

    if declared:
        assert conform_prepared_table(lake, tables.handles["orders"], prepared(share), share) == share
    else:
        with pytest.raises(ContractError, match="PREPARED_FILES_INCOMPATIBLE"):
            conform_prepared_table(lake, tables.handles["orders"], prepared(share), share)


def test_a_value_that_does_not_fit_the_table_is_not_in_the_error(
    make_spec: Callable[..., PipelineSpec], tmp_path: Path
) -> None:
    spec = make_spec(
        tables=[{"name": "orders", "catch_all": True, "columns": [{"name": "n", "path": "n", "type": "int"}]}]
    )
    lake = local_lake(tmp_path)
    tables = TableSet(lake, spec)
    tables.open()
    rows = pa.table({"_seq": [1], "_position": [0], "n": ["jane.doe@example.org"]})
    file = write_file(lake.filesystem, arrow_path(lake.storage, paths.table("shop", "orders")), rows, partition={})
    share = PreparedTable(table="orders", writer="fan_out", rows=1, files=(asdict(file),))

    with pytest.raises(ContractError) as refused:
        conform_prepared_table(lake, tables.handles["orders"], prepared(share), share)

    assert "n has a value that does not fit" in refused.value.message
    assert "jane" not in "".join(traceback.format_exception(refused.value))
