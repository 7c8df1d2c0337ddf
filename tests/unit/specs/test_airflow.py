"""Small sections of specs: Airflow, lineage, references to secrets, stream groups and archives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.base import Reference, parse_bytes
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import EnvironmentSpec, LineageSpec
from deltaworks.specs.groups import group_of, stream_dag_id, stream_groups
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.specs.spec_diff import classify_changes
from deltaworks.specs.storage import StorageSpec
from deltaworks.testing import pipeline_spec, write_project
from tests.unit.recovery.replay_harness import orders
from tests.unit.specs.conftest import ENVIRONMENT

LOGIN = "username: ada, password: env:PASSWORD_OF_ADA"


def environment(make_project: Callable[..., Path], declared: str) -> EnvironmentSpec:
    return load_catalog(root=make_project(environment=f"{ENVIRONMENT}airflow: {{{declared}}}\n")).environment


def test_an_address_and_a_login_are_enough(make_project: Callable[..., Path]) -> None:
    airflow = environment(make_project, f"url: https://airflow.example.com/team/, {LOGIN}").airflow

    assert airflow is not None
    assert airflow.url == "https://airflow.example.com/team"
    assert airflow.password == Reference(scheme="env", name="PASSWORD_OF_ADA")
    assert airflow.verify


def test_all_values_can_be_references(make_project: Callable[..., Path]) -> None:
    airflow = environment(make_project, "url: env:AIRFLOW_URL, token: env:TOKEN, ca: env:CA").airflow

    assert airflow is not None
    assert airflow.url == Reference(scheme="env", name="AIRFLOW_URL")


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        (f"url: airflow.example.com, {LOGIN}", "airflow.url: write the URL of Airflow, such as https://"),
        (f"url: 'https://ada:pw@airflow', {LOGIN}", "airflow.url: the URL must not contain a login"),
        (f"url: 'https://airflow/af/api/v2', {LOGIN}", "airflow.url: the URL must end before /api, ? and #: write "),
        (f"url: 'https://airflow/?next=x', {LOGIN}", "write https://airflow"),
        ("url: https://airflow", "airflow: a login is required: username and password: env:NAME, or token: env:NAME"),
        ("url: https://airflow, username: ada", "airflow: a login is required"),
        (
            f"url: https://airflow, {LOGIN}, token: env:TOKEN",
            "airflow.token: give either token, or username and password",
        ),
        ("url: https://airflow, username: ada, password: hunter2", "airflow.password: write secrets and addresses"),
        (f"url: https://airflow, {LOGIN}, verify: false, ca: /ca.pem", "airflow.verify: verify: false ignores ca"),
        (f"url: 'http://airflow:8080', {LOGIN}, ca: /ca.pem", "airflow.ca: ca only applies to https://"),
        (f"url: https://airflow, {LOGIN}, adress: x", "airflow.adress: unknown key 'adress'"),
    ],
)
def test_invalid_settings_of_airflow_are_rejected_with_advice(
    make_project: Callable[..., Path], declared: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match="SPEC_INVALID") as raised:
        environment(make_project, declared)

    assert "environments/local.yaml:5" in raised.value.message
    assert problem in raised.value.message
    assert "hunter2" not in raised.value.message


def test_a_well_known_password_is_rejected_outside_local(
    make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_project(environment=f"{ENVIRONMENT}airflow: {{url: https://airflow, {LOGIN}}}\n")
    folder = root / "include" / "environments"
    (folder / "prod.yaml").write_text((folder / "local.yaml").read_text().replace("local", "prod", 1))
    monkeypatch.setenv("PASSWORD_OF_ADA", "admin")

    with pytest.raises(ConfigError, match=r"SECRET_WEAK.*airflow\.password: PASSWORD_OF_ADA"):
        load_catalog("prod", root=root)


@pytest.mark.parametrize(
    ("transport", "messages"),
    [
        ({}, "unknown transport type"),
        ({"type": "htp"}, "did you mean 'http'?"),
        ({"type": "http"}, "needs url"),
        ({"type": "file"}, "needs log_file_path"),
        ({"type": "kafka", "topic": "lineage"}, "needs config"),
        ({"type": "http", "url": "http://m", "auth": {"type": "api_key", "apiKey": "the-key"}}, "apiKey is a secret"),
        ({"type": "kafka", "topic": "l", "config": {"sasl.password": "the-key"}}, "sasl.password is a secret"),
    ],
)
def test_invalid_transports_are_rejected(transport: dict[str, Any], messages: str) -> None:
    with pytest.raises(ValidationError) as caught:
        LineageSpec(transport=transport)
    text = str(caught.value.errors(include_input=False))
    assert messages in text
    assert "the-key" not in text


def test_references_are_resolved_when_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = LineageSpec(transport={"type": "kafka", "topic": "l", "config": {"sasl.password": "env:LINEAGE_PASSWORD"}})
    with pytest.raises(ConfigError, match="REFERENCE_UNRESOLVED"):
        spec.resolved_transport()
    monkeypatch.setenv("LINEAGE_PASSWORD", "p")
    assert spec.resolved_transport()["config"] == {"sasl.password": "p"}


KEYS = {"access_key": "env:TEST_ACCESS_KEY", "secret_key": "env:TEST_SECRET_KEY"}


def test_a_reference_resolves_when_it_is_used_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = StorageSpec(root="s3://lake", **KEYS)

    monkeypatch.setenv("TEST_ACCESS_KEY", "first")
    monkeypatch.setenv("TEST_SECRET_KEY", "hidden")
    assert storage.boto3_options()["aws_access_key_id"] == "first"

    monkeypatch.setenv("TEST_ACCESS_KEY", "second")
    assert storage.boto3_options()["aws_access_key_id"] == "second"


def test_no_rendering_of_a_spec_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ACCESS_KEY", "hidden-access")
    monkeypatch.setenv("TEST_SECRET_KEY", "hidden-secret")
    storage = StorageSpec(root="s3://lake", **KEYS)

    for shown in (repr(storage), str(storage), storage.model_dump_json(), str(storage.model_dump())):
        assert "hidden" not in shown


def test_a_spec_with_references_survives_json() -> None:
    storage = StorageSpec(root="s3://lake", endpoint="env:TEST_ENDPOINT", **KEYS)

    assert StorageSpec.model_validate_json(storage.model_dump_json()) == storage


def test_a_reference_without_a_value_says_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_ACCESS_KEY", raising=False)

    with pytest.raises(ConfigError) as caught:
        StorageSpec(root="s3://lake", **KEYS).boto3_options()

    assert caught.value.condition == "REFERENCE_UNRESOLVED"
    assert "TEST_ACCESS_KEY" in caught.value.message
    assert "deltaworks up" in caught.value.hint


@pytest.mark.parametrize("written", ["AKIAIOSFODNN7EXAMPLE", "env:", "env:lower", "file:/etc/passwd", "env:A B"])
def test_a_secret_written_into_a_spec_is_refused(written: str) -> None:
    with pytest.raises(ValidationError, match="write secrets and addresses as references, env:NAME"):
        StorageSpec(root="s3://lake", access_key=written, secret_key="env:TEST_SECRET_KEY")


def test_half_a_pair_of_keys_is_refused() -> None:
    with pytest.raises(ValidationError, match="both access_key and secret_key"):
        StorageSpec(root="s3://lake", access_key="env:TEST_ACCESS_KEY")


def test_specs_are_immutable() -> None:
    reference = Reference(scheme="env", name="A")

    with pytest.raises(ValidationError, match="frozen"):
        reference.name = "B"


@pytest.mark.parametrize(("text", "count"), [("12", 12), ("1KiB", 1024), ("64 MiB", 64 << 20), ("2GiB", 2 << 30)])
def test_sizes_are_read_with_their_unit(text: str, count: int) -> None:
    assert parse_bytes(text) == count


PIPELINE = """\
pipeline: %s
description: events
owner: tests
source: {kind: delta, uri: "file:///elsewhere"}
event: {name: {constant: e}, time: {path: at, unit: epoch_seconds}}
tables: [{name: events, catch_all: true}]
stream: {max_run_seconds: %d}
"""


def project(root: Path, environment: str = "", **groups: str) -> Path:
    """A project whose pipelines have these lines at their end."""
    numbered = enumerate(groups.items(), start=1)
    pipelines = [PIPELINE % (name, 1000 * number) + f"{line}\n" for number, (name, line) in numbered]
    return write_project(root, *pipelines, environment=ENVIRONMENT + environment, relays=[])


def read(root: Path) -> Catalog:
    return load_catalog("local", root=root, skip_invalid=True)


def test_pipelines_that_name_the_same_group_are_its_members(tmp_path: Path) -> None:
    root = project(tmp_path, a="stream_group: small", b="", c="stream_group: small", d="stream_group: other")

    groups = stream_groups(read(root))

    assert {name: list(group.members) for name, group in groups.items()} == {"other": ["d"], "small": ["a", "c"]}
    assert groups["small"].max_run_seconds == 1000
    assert stream_dag_id("b") == "b__stream"
    assert stream_dag_id("a", "small") == groups["small"].dag_id == "small__stream_group"


def test_settings_of_a_group_come_from_the_environment(tmp_path: Path) -> None:
    settings = "stream_groups: {small: {driver_memory: 2g, max_run_seconds: 60, non_outage_failures: 2}}\n"
    root = project(tmp_path, settings, a="stream_group: small")

    group = stream_groups(read(root))["small"]

    assert (group.settings.driver_memory, group.max_run_seconds, group.settings.non_outage_failures) == ("2g", 60, 2)


def test_an_undeclared_group_is_an_error_with_the_closest_name(tmp_path: Path) -> None:
    root = project(tmp_path, "stream_groups: {small: {}}\n", a="stream_group: smal", b="stream_group: small")

    with pytest.raises(ConfigError, match=r"pipeline\.yaml:8.*no group 'smal'.*did you mean 'small'"):
        load_catalog("local", root=root)
    groups = stream_groups(read(root))

    assert list(groups["small"].members) == ["b"]
    assert list(groups["smal"].invalid_members) == ["a"]


@pytest.mark.parametrize("line", ["stream_group: small", 'stream_group : "small"', "stream_group: 'small' # why"])
def test_an_invalid_pipeline_remains_a_member_of_its_group(tmp_path: Path, line: str) -> None:
    root = project(tmp_path, a=f"{line}\nunknown: 1", b="stream_group: small")

    catalog = read(root)
    group = stream_groups(catalog)["small"]

    assert list(group.members) == ["b"]
    assert list(group.invalid_members) == ["a"]
    assert group_of(catalog, "a") == "small"


def test_an_override_changes_the_group_of_an_invalid_pipeline_too(tmp_path: Path) -> None:
    moved = "overrides: {pipelines: {a: {stream_group: small}, b: {stream_group: small}}}\n"
    root = project(tmp_path, moved, a="unknown: 1", b="")

    group = stream_groups(read(root))["small"]

    assert (list(group.members), list(group.invalid_members)) == (["b"], ["a"])


KAFKA = {"kind": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["events"]}
KINESIS = {"kind": "kinesis", "stream": "events"}


def declared(source: dict[str, Any] = KAFKA, **more: Any) -> PipelineSpec:
    return pipeline_spec(orders("int"), source=source, **more)


@pytest.mark.parametrize("source", [KAFKA, KINESIS])
def test_records_are_archived_for_the_declared_time(source: dict[str, Any]) -> None:
    spec = declared(source, archive={"retain_days": 90})

    assert spec.archive is not None
    assert spec.archive.retain_days == 90
    assert spec.engine_tables == ("quarantine", "archive")
    assert declared(source).engine_tables == ("quarantine",)


def test_an_archive_changes_the_fingerprint() -> None:
    assert declared().fingerprint() != declared(archive={"retain_days": 1}).fingerprint()


@pytest.mark.parametrize(
    ("more", "messages"),
    [
        ({"archive": {}}, "retain_days"),
        ({"archive": {"retain_days": 0}}, "retain_days"),
        (
            {"archive": {"retain_days": 1}, "source": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"}},
            "the bucket keeps objects",
        ),
        (
            {"archive": {"retain_days": 1}, "tables": [{**orders("int"), "name": "archive"}]},
            "the archive is a table called 'archive'",
        ),
    ],
)
def test_invalid_archives_are_rejected(more: dict[str, Any], messages: str) -> None:
    with pytest.raises(ValidationError, match=messages):
        PipelineSpec.model_validate(declared().model_dump(mode="json") | more)


def test_a_table_can_be_named_archive_without_an_archive() -> None:
    spec = PipelineSpec.model_validate(
        declared().model_dump(mode="json") | {"tables": [{**orders("int"), "name": "archive"}]}
    )

    assert spec.engine_tables == ("quarantine",)


def test_an_archive_needs_a_restart_and_its_retention_none() -> None:
    def effects(before: PipelineSpec, after: PipelineSpec) -> list[Effect]:
        return [change.effect for change in classify_changes(before, after)]

    assert effects(declared(), declared(archive={"retain_days": 1})) == [Effect.RESTART]
    assert effects(declared(archive={"retain_days": 1}), declared(archive={"retain_days": 9})) == [Effect.SAFE]
