"""A stream starts with its previous spec, a safe edit, or an accepted edit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.specs import SpecRecords
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.testing import declare_pipeline


def spec(path: str = "amount", kind: str = "double", **changes: Any) -> PipelineSpec:
    declared = declare_pipeline(
        {"name": "orders", "catch_all": True, "columns": [{"name": "amount", "path": path, "type": kind}]},
        source={"kind": "s3_sqs", "relay": "landing", "bucket": "b"},
        event={"name": {"path": "name"}, "time": {"path": "at"}},
    )
    return PipelineSpec.model_validate(declared | changes)


@pytest.fixture
def records(tmp_path: Path) -> SpecRecords:
    return PipelineHome(LocalObjects(tmp_path), "shop").specs


def test_the_first_start_compares_with_nothing(records: SpecRecords) -> None:
    assert records.current() is None
    assert records.check(spec()) == []


def test_the_spec_a_stream_started_with_is_read_back_as_it_was(records: SpecRecords) -> None:
    records.record_start(spec(), owner_epoch=1)
    records.record_start(spec(owner="other"), owner_epoch=1)

    assert records.current() == spec(owner="other")
    assert records.read(spec().fingerprint()) == spec()
    assert records.read("unknown") is None


def test_safe_edits_produce_the_same_rows(records: SpecRecords) -> None:
    fingerprint = spec().fingerprint()
    records.record_start(spec(), owner_epoch=1)

    assert records.produces_same_rows(fingerprint, spec())
    assert records.produces_same_rows(fingerprint, spec(owner="other"))
    assert not records.produces_same_rows(fingerprint, spec(kind="long"))
    assert not records.produces_same_rows("unknown", spec())


def test_locations_of_every_former_source_are_listed(records: SpecRecords) -> None:
    kafka = {"kind": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["orders"]}
    for declared in (spec(), spec(owner="other"), spec(source=kafka)):
        records.record_start(declared, owner_epoch=1)

    assert records.source_locations() == {("landing", "b", ""), ("", "", "")}


@pytest.mark.parametrize("name", sorted(load_catalog("local", root=PROJECT_ROOT).pipelines))
def test_every_declared_pipeline_survives_being_recorded(tmp_path: Path, name: str) -> None:
    declared = load_catalog("local", root=PROJECT_ROOT).pipeline(name)
    records = PipelineHome(LocalObjects(tmp_path), name).specs

    records.record_start(declared, owner_epoch=1)

    found = records.current()
    assert found == declared
    assert found is not None
    assert found.fingerprint() == declared.fingerprint()
    assert records.check(declared) == []


def test_a_safe_edit_is_allowed_and_reported(records: SpecRecords) -> None:
    records.record_start(spec(), owner_epoch=1)

    (change,) = records.check(spec(owner="other"))

    assert (change.field, change.effect) == ("owner", Effect.SAFE)


def test_an_unsafe_edit_is_rejected_with_advice(records: SpecRecords) -> None:
    records.record_start(spec(), owner_epoch=1)

    with pytest.raises(ContractError) as refused:
        records.check(spec(path="total"))

    assert refused.value.condition == "SPEC_CHANGE_UNSAFE"
    assert "tables.orders.columns.amount.path from 'amount' to 'total'" in refused.value.message
    assert "--accept" in refused.value.hint


def test_only_the_accepted_edit_is_allowed(records: SpecRecords) -> None:
    records.record_start(spec(), owner_epoch=1)

    (accepted,) = records.accept(spec(path="total"), by="ada", reason="the producer renamed it")

    assert accepted.effect is Effect.MIXED_ROWS
    assert [change.field for change in records.check(spec(path="total"))] == [accepted.field]
    with pytest.raises(ContractError, match="SPEC_CHANGE_UNSAFE"):
        records.check(spec(path="sum"))


def test_an_acceptance_applies_only_to_its_two_specs(records: SpecRecords) -> None:
    records.record_start(spec(), owner_epoch=1)
    records.accept(spec(path="total"), by="ada", reason="")
    records.record_start(spec(path="third"), owner_epoch=2)

    with pytest.raises(ContractError, match="SPEC_CHANGE_UNSAFE"):
        records.check(spec(path="total"))


def test_an_edit_the_table_cannot_follow_is_never_accepted(records: SpecRecords) -> None:
    records.record_start(spec(), owner_epoch=1)

    with pytest.raises(ContractError, match="SPEC_CHANGE_UNSAFE"):
        records.accept(spec(kind="string"), by="ada", reason="")
    with pytest.raises(ContractError, match="SPEC_CHANGE_UNSAFE"):
        records.check(spec(kind="string"))


def test_an_acceptance_of_one_edit_does_not_cover_another(records: SpecRecords) -> None:
    records.record_start(spec(), owner_epoch=1)
    both = spec(path="total", kind="string")

    with pytest.raises(ContractError, match="SPEC_CHANGE_UNSAFE"):
        records.accept(both, by="ada", reason="")
    with pytest.raises(ContractError, match="SPEC_CHANGE_UNSAFE"):
        records.check(both)


def test_a_former_owner_does_not_overwrite_the_record_of_its_successor(records: SpecRecords) -> None:
    records.record_start(spec(), owner_epoch=2)

    with pytest.raises(ConcurrencyError, match="SPEC_RECORD_CONTENDED"):
        records.record_start(spec(owner="old"), owner_epoch=1)

    assert records.current() == spec()


def test_a_record_that_is_not_a_spec_is_rejected(records: SpecRecords, tmp_path: Path) -> None:
    records.record_start(spec(), owner_epoch=1)
    path = tmp_path / paths.spec_record("shop", spec().fingerprint())
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"spec": {"pipeline": "shop"}}))

    with pytest.raises(ContractError, match="SPEC_RECORD_UNREADABLE"):
        records.check(spec())


def test_a_recorded_spec_with_an_unknown_key_is_rejected(records: SpecRecords, tmp_path: Path) -> None:
    records.record_start(spec(), owner_epoch=1)
    path = tmp_path / paths.spec_record("shop", spec().fingerprint())
    record = json.loads(path.read_text())
    record["spec"]["tables"][0]["colour"] = "blue"
    path.write_text(json.dumps(record))

    with pytest.raises(ContractError, match=r"SPEC_RECORD_UNREADABLE[\s\S]*colour") as raised:
        records.current()
    assert "Run the release that wrote it" in raised.value.hint
