"""The specs of this project."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.sources.selection import FileSourceSpec
from deltaworks.specs.spec_diff import pipeline_json_schema
from deltaworks.specs.yaml_reader import load_yaml
from deltaworks.tables.arrow_types import arrow_schema

DECLARED = sorted((PROJECT_ROOT / "include" / "pipelines").glob("*/pipeline.yaml"))


def plain(path: Path) -> dict[str, Any]:
    return load_yaml(path.read_bytes()).values


def test_all_pipelines_load() -> None:
    catalog = load_catalog("local", root=PROJECT_ROOT)

    assert {path.parent.name for path in DECLARED} == set(catalog.pipelines)
    assert len(DECLARED) >= 3
    for spec in catalog.pipelines.values():
        if isinstance(spec.source, FileSourceSpec):
            assert spec.source.relay in catalog.relays
        assert all(arrow_schema(table.column_types()).names for table in spec.tables)


def test_a_fingerprint_depends_on_the_spec() -> None:
    spec = load_spec(PipelineSpec, DECLARED[0])

    assert spec.fingerprint() == load_spec(PipelineSpec, DECLARED[0]).fingerprint()
    assert spec.fingerprint() != spec.model_copy(update={"owner": "others"}).fingerprint()


def test_a_spec_survives_json_as_it_travels_to_tasks() -> None:
    for path in DECLARED:
        spec = load_spec(PipelineSpec, path)
        assert PipelineSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize("path", DECLARED, ids=lambda path: path.parent.name)
def test_the_json_schema_accepts_what_the_loader_accepts(path: Path) -> None:
    matched = jsonschema.Draft202012Validator(pipeline_json_schema()).iter_errors(plain(path))

    assert [error.message for error in matched] == []


def test_the_json_schema_refuses_an_unknown_key_at_any_depth() -> None:
    validator = jsonschema.Draft202012Validator(pipeline_json_schema())
    good = plain(DECLARED[0])

    for spoil in (
        lambda document: document.update(ownr="x"),
        lambda document: document["source"].update(buckets="x"),
        lambda document: document["tables"][0].update(colums=[]),
        lambda document: document["tables"][0]["columns"][0].update(typ="int"),
    ):
        invalid = copy.deepcopy(good)
        spoil(invalid)
        assert not validator.is_valid(invalid)


def test_the_json_schema_takes_sizes_with_units_and_single_values_for_lists() -> None:
    validator = jsonschema.Draft202012Validator(pipeline_json_schema())
    document = plain(DECLARED[0])
    document["source"]["max_bytes_per_batch"] = "64MiB"
    document["event"]["id"] = "some.path"
    document["tables"].append({"name": "one_more", "when": {"name": "x", "kind": ["y", "1"]}})

    assert [error.message for error in validator.iter_errors(document)] == []
    spec = PipelineSpec.model_validate(document)
    assert isinstance(spec.source, FileSourceSpec)
    assert spec.source.max_bytes_per_batch == 64 << 20
    assert spec.event.id == ("some.path",)
    assert spec.tables[-1].when == {"name": ("x",), "kind": ("y", "1")}


def test_the_json_schema_is_a_schema() -> None:
    meta = jsonschema.Draft202012Validator(jsonschema.Draft202012Validator.META_SCHEMA)

    assert [error.message for error in meta.iter_errors(pipeline_json_schema())] == []
    assert not meta.is_valid({"type": "no type"})
