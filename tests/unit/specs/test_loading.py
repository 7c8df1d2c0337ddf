"""Errors in a spec have file, line and advice; an invalid pipeline blocks no other; this project's specs are valid."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.specs.spec_diff import pipeline_json_schema
from deltaworks.specs.yaml_reader import load_yaml
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.testing import write_files
from tests.unit.specs.conftest import ENVIRONMENT, PIPELINE, RELAY

MakeProject = Callable[..., Path]


def rejection_of(root: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_catalog("local", root=root)
    assert caught.value.exit_code == 10
    assert not caught.value.retryable
    return caught.value


def line_of(text: str, fragment: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if fragment in line)


def test_a_valid_project_loads(make_project: MakeProject) -> None:
    catalog = load_catalog("local", root=make_project())

    assert catalog.pipeline("shop").source.max_bytes_per_batch == 64 << 20
    assert catalog.pipeline("shop").table("orders").when == {"name": ("order",)}
    assert list(catalog.relays) == ["landing"]


def test_an_unknown_key_is_rejected_with_its_line_and_the_closest_name(
    make_project: MakeProject, pipeline_text: str
) -> None:
    invalid = pipeline_text.replace("owner: tests", "ownr: tests")

    message = str(rejection_of(make_project(pipeline=invalid)))

    assert f"pipeline.yaml:{line_of(invalid, 'ownr')}: ownr: unknown key 'ownr'; did you mean 'owner'?" in message


def test_an_unknown_nested_key_lists_the_keys_of_its_level(make_project: MakeProject, pipeline_text: str) -> None:
    invalid = pipeline_text.replace("path: amount,", "pth: amount,")

    message = str(rejection_of(make_project(pipeline=invalid)))

    line = line_of(invalid, "pth: amount")
    assert f"pipeline.yaml:{line}: tables.0.columns.0.pth: unknown key 'pth'; did you mean 'path'?" in message
    assert f"pipeline.yaml:{line}: tables.0.columns.0.path: this key is required" in message


def test_an_unknown_key_without_a_close_match_lists_all_keys(make_project: MakeProject, pipeline_text: str) -> None:
    invalid = pipeline_text.replace("  trigger_seconds: 60", "  zzz: 60")

    message = str(rejection_of(make_project(pipeline=invalid)))

    assert "stream.zzz: unknown key 'zzz'; known keys: crashes_per_object, driver_memory" in message


@pytest.mark.parametrize(
    ("good", "bad", "messages"),
    [
        ("trigger_seconds: 60", "trigger_seconds: soon", "stream.trigger_seconds: write a number instead of 'soon'"),
        ("64MiB", "64 megabytes", "source.max_bytes_per_batch: write a number of bytes, or one with a unit"),
        ("kind: s3_sqs", "kind: ftp", "source.kind: there is no kind 'ftp'; known kinds: s3_sqs, cloud_files"),
        ("kind: s3_sqs", "kind: s3_sq", "source.kind: there is no kind 's3_sq'; did you mean 's3_sqs'?"),
        ("  kind: s3_sqs", "  kine: s3_sqs", "source.kind: this key is required"),
        ("pipeline: shop", "pipeline: Shop", "use lower-case letters, digits and underscores"),
        ("path: time", "path: time..zone", "event.time.path: write a dotted path of field names"),
        ("decimal(12,2)", "decimal(12)", "tables.0.columns.0.type: expected ',', found ')'"),
        ("decimal(12,2)", "number", "unknown type 'number'; known types are string, int"),
        ("{path: name}", "{path: name, constant: edit}", "event.name: give either path or constant"),
        ("    when: {name: order}\n", "", "give `when` a condition, or set catch_all: true"),
        ("    columns:", "    partition_by: [region]\n    columns:", "'region' is not a column of this table"),
        ("    columns:", "    partition_by: [amount]\n    columns:", "'amount' is a decimal(12,2); partition types"),
        ("    columns:", "    zorder_by: [event_date]\n    columns:", "event_date is a partition column"),
        ("name: orders", "name: quarantine", "'quarantine' is reserved; choose another"),
    ],
)
def test_an_invalid_value_is_rejected_with_advice(
    make_project: MakeProject, pipeline_text: str, good: str, bad: str, messages: str
) -> None:
    assert good in pipeline_text

    assert messages in str(rejection_of(make_project(pipeline=pipeline_text.replace(good, bad, 1))))


def test_all_errors_are_reported_together(make_project: MakeProject, pipeline_text: str) -> None:
    invalid = pipeline_text.replace("owner: tests\n", "").replace("relay: landing\n", "rely: landing\n")

    error = rejection_of(make_project(pipeline=invalid))

    assert error.condition == "SPEC_INVALID"
    assert error.message.startswith("3 errors in pipeline.yaml:")
    assert "owner: this key is required" in error.message


def test_a_table_declared_twice_is_refused(make_project: MakeProject, pipeline_text: str) -> None:
    repeated = "  - name: orders\n    when: {name: refund}\n"

    message = str(rejection_of(make_project(pipeline=pipeline_text.replace("stream:", repeated + "stream:"))))

    assert "table orders is declared twice in this pipeline" in message


@pytest.mark.parametrize("name", ["amount", "event_id", "_batch_id"])
def test_a_duplicate_or_reserved_column_is_rejected(make_project: MakeProject, pipeline_text: str, name: str) -> None:
    repeated = f'      - {{name: {name}, path: other, type: "string"}}\n'

    message = str(rejection_of(make_project(pipeline=pipeline_text.replace("stream:", repeated + "stream:"))))

    assert "tables.0" in message
    assert "declared twice" in message or "cannot be declared" in message or "use lower-case letters" in message


def test_a_duplicate_key_is_rejected_with_its_line(make_project: MakeProject, pipeline_text: str) -> None:
    invalid = pipeline_text + "owner: others\n"

    error = rejection_of(make_project(pipeline=invalid))

    assert error.condition == "SPEC_NOT_YAML"
    assert f"pipeline.yaml:{line_of(invalid, 'owner: others')}:" in error.message


def test_invalid_yaml_is_rejected_with_its_line(make_project: MakeProject, pipeline_text: str) -> None:
    invalid = pipeline_text.replace("{path: name}", "{path: name")

    error = rejection_of(make_project(pipeline=invalid))

    assert error.condition == "SPEC_NOT_YAML"
    assert "pipeline.yaml:" in error.message


def test_a_missing_file_is_named(make_project: MakeProject) -> None:
    root = make_project()

    with pytest.raises(ConfigError) as caught:
        load_catalog("prod", root=root)

    assert caught.value.condition == "SPEC_MISSING"
    assert "environments/prod.yaml" in caught.value.message


def test_a_reader_of_an_unknown_table_is_rejected(make_project: MakeProject, pipeline_text: str) -> None:
    invalid = pipeline_text + "live: [{name: per_hour, reads: order}]\n"

    assert "'per_hour' reads unknown table 'order'; did you mean 'orders'?" in str(
        rejection_of(make_project(pipeline=invalid))
    )


def test_an_unknown_relay_is_answered_with_the_closest_name(make_project: MakeProject, pipeline_text: str) -> None:
    invalid = pipeline_text.replace("relay: landing", "relay: landings")

    message = str(rejection_of(make_project(pipeline=invalid)))

    line = line_of(invalid, "relay: landings")
    messages = "source.relay: there is no relay 'landings' in include/relays; did you mean 'landing'?"
    assert f"pipeline.yaml:{line}: {messages}" in message


def test_missing_sql_files_are_reported(make_project: MakeProject, pipeline_text: str) -> None:
    gold = "gold: {tables: [{name: daily, sql: gold/daily.sql, reads: [orders], partition_by: event_date}]}\n"

    message = str(rejection_of(make_project(pipeline=pipeline_text + gold)))

    assert "gold table 'daily' refers to gold/daily.sql, which does not exist in its folder" in message


def test_an_unknown_pipeline_is_answered_with_the_closest_name(make_project: MakeProject) -> None:
    catalog = load_catalog("local", root=make_project())

    with pytest.raises(ConfigError) as caught:
        catalog.pipeline("shops")

    assert "Did you mean 'shop'?" in caught.value.hint


class TestOverrides:
    """An environment and variables may replace values, mapping by mapping."""

    def test_an_environment_overrides_one_value_and_leaves_its_neighbours(
        self, make_project: MakeProject, environment_text: str
    ) -> None:
        override = "overrides: {pipelines: {shop: {stream: {max_run_seconds: 100}}}}\n"

        stream = (
            load_catalog("local", root=make_project(environment=environment_text + override)).pipeline("shop").stream
        )

        assert (stream.max_run_seconds, stream.trigger_seconds) == (100, 60)

    def test_a_variable_wins_over_the_environment(
        self, make_project: MakeProject, environment_text: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        override = "overrides: {pipelines: {shop: {stream: {trigger_seconds: 7}}}}\n"
        monkeypatch.setenv("DELTAWORKS_SET__pipelines__shop__stream__trigger_seconds", "3")
        monkeypatch.setenv("DELTAWORKS_SET__relays__landing__buckets", "[a, b]")

        catalog = load_catalog("local", root=make_project(environment=environment_text + override))

        assert catalog.pipeline("shop").stream.trigger_seconds == 3
        assert catalog.relay("landing").buckets == ("a", "b")

    def test_a_wrong_override_is_said_to_be_one(
        self, make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DELTAWORKS_SET__pipelines__shop__stream__triger_seconds", "3")

        message = str(rejection_of(make_project()))

        variable = "DELTAWORKS_SET__pipelines__shop__stream__triger_seconds"
        assert f"stream.triger_seconds (set by {variable}): unknown key 'triger_seconds'; did you mean" in message

    def test_an_override_of_a_pipeline_that_is_not_there_is_refused(
        self, make_project: MakeProject, environment_text: str
    ) -> None:
        override = "overrides: {pipelines: {shopp: {stream: {trigger_seconds: 7}}}}\n"

        error = rejection_of(make_project(environment=environment_text + override))

        assert error.condition == "OVERRIDE_UNKNOWN"
        messages = "overrides.pipelines.shopp: there is no pipeline 'shopp'; did you mean 'shop'?"
        assert f"local.yaml:{line_of(environment_text + override, 'shopp')}: {messages}" in error.message

    @pytest.mark.parametrize("variable", ["pipelines__shopp__stream__trigger_seconds", "pipeline__shop__owner"])
    def test_a_variable_that_overrides_nothing_is_refused(
        self, make_project: MakeProject, monkeypatch: pytest.MonkeyPatch, variable: str
    ) -> None:
        monkeypatch.setenv(f"DELTAWORKS_SET__{variable}", "1")

        assert rejection_of(make_project()).condition == "OVERRIDE_UNKNOWN"

    @pytest.mark.parametrize(
        "variables",
        [
            {"stream__trigger_seconds": "[1"},
            {"stream": "1", "stream__trigger_seconds": "2"},
        ],
    )
    def test_a_variable_that_cannot_be_read_is_named(
        self, make_project: MakeProject, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(f"DELTAWORKS_SET__pipelines__shop__{name}", value)

        error = rejection_of(make_project())

        assert error.condition == "OVERRIDE_INVALID"
        assert "DELTAWORKS_SET__pipelines__shop__stream__trigger_seconds" in error.message


@pytest.fixture
def two_pipelines(make_project: MakeProject, pipeline_text: str) -> Path:
    """`shop`, and `wrong`, which is declared wrongly."""
    return write_files(make_project(), {"include/pipelines/wrong/pipeline.yaml": "pipeline: wrong\ncolour: blue\n"})


def test_deselected_pipelines_are_not_read(two_pipelines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAWORKS_SET__pipelines__wrong__owner", "x")
    assert "SPEC_INVALID" in str(rejection_of(two_pipelines))

    assert list(load_catalog("local", root=two_pipelines, only=["shop"]).pipelines) == ["shop"]
    monkeypatch.setenv("DELTAWORKS_PIPELINES", " shop, ")
    assert list(load_catalog("local", root=two_pipelines).pipelines) == ["shop"]
    monkeypatch.setenv("DELTAWORKS_PIPELINES", "")
    assert "SPEC_INVALID" in str(rejection_of(two_pipelines))


def test_an_unknown_selected_pipeline_is_answered_with_the_closest_name(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTAWORKS_PIPELINES", "shopp")

    caught = rejection_of(make_project())

    assert caught.condition == "PIPELINE_UNKNOWN"
    assert "Did you mean 'shop'?" in caught.hint


def test_pipelines_with_operation_dags_must_exist(make_project: Callable[..., Path]) -> None:
    assert load_catalog(root=make_project()).environment.has_operation_dags("shop")
    chosen = make_project(environment=ENVIRONMENT + "operation_dags: [shop]\n")
    environment = load_catalog(root=chosen).environment
    assert (environment.has_operation_dags("shop"), environment.has_operation_dags("other")) == (True, False)
    assert not load_catalog(
        root=make_project(environment=ENVIRONMENT + "operation_dags: []\n")
    ).environment.has_operation_dags("shop")

    with pytest.raises(ConfigError, match=r"local.yaml:5: operation_dags.0: there is no pipeline 'shp'; did you mean"):
        load_catalog(root=make_project(environment=ENVIRONMENT + "operation_dags: [shp]\n"))


def with_a_second(root: Path, text: str) -> Path:
    return write_files(root, {"include/pipelines/store/pipeline.yaml": text})


@pytest.fixture
def root(make_project: MakeProject) -> Path:
    """A good pipeline `shop` beside a wrong one, `store`."""
    return with_a_second(make_project(), PIPELINE.replace("pipeline: shop", "pipeline: store\ncolour: blue"))


def test_valid_pipelines_are_read(root: Path) -> None:
    catalog = load_catalog("local", root=root, skip_invalid=True)

    assert list(catalog.pipelines) == ["shop"]
    assert list(catalog.broken) == [("pipeline", "store")]


def test_looking_up_an_invalid_pipeline_raises_its_error(root: Path) -> None:
    catalog = load_catalog("local", root=root, skip_invalid=True)

    with pytest.raises(ConfigError, match="unknown key 'colour'") as caught:
        catalog.pipeline("store")

    assert caught.value.condition == "SPEC_INVALID"
    with pytest.raises(ConfigError, match="PIPELINE_UNKNOWN"):
        catalog.pipeline("other")


def test_without_skip_invalid_the_first_error_is_raised(root: Path) -> None:
    with pytest.raises(ConfigError, match="SPEC_INVALID"):
        load_catalog("local", root=root)


def test_an_invalid_relay_invalidates_its_pipelines_with_its_error(make_project: MakeProject) -> None:
    catalog = load_catalog("local", root=make_project(relay=RELAY + "colour: blue\n"), skip_invalid=True)

    assert set(catalog.broken) == {("relay", "landing"), ("pipeline", "shop")}
    with pytest.raises(ConfigError, match="colour"):
        catalog.pipeline("shop")


def test_an_override_of_an_invalid_pipeline_is_not_an_error(root: Path) -> None:
    (root / "include" / "environments" / "local.yaml").write_text(
        ENVIRONMENT + "overrides: {pipelines: {store: {stream: {trigger_seconds: 5}}}}\n"
    )

    assert list(load_catalog("local", root=root, skip_invalid=True).broken) == [("pipeline", "store")]


def test_an_override_without_a_target_is_reported(make_project: MakeProject) -> None:
    environment = ENVIRONMENT + "overrides: {pipelines: {shopp: {owner: x}}}\n"

    catalog = load_catalog("local", root=make_project(environment=environment), skip_invalid=True)

    assert [error.condition for error in catalog.broken.values()] == ["OVERRIDE_UNKNOWN"]
    assert list(catalog.pipelines) == ["shop"]


def test_an_invalid_environment_is_always_raised(make_project: MakeProject) -> None:
    with pytest.raises(ConfigError, match="SPEC_INVALID"):
        load_catalog("local", root=make_project(environment=ENVIRONMENT + "colour: blue\n"), skip_invalid=True)


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
