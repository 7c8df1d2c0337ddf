"""Blank and well-known secrets are rejected with file, key and variable, except in `local`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.collector import CollectorSpec
from deltaworks.specs.collector_file import load_collector
from deltaworks.specs.loading import load_spec
from deltaworks.specs.overrides import Overrides
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.weak_secrets import PUBLISHED_KEY_DIGESTS, check_secrets, check_write_keys, secret_weakness
from tests.unit.specs.conftest import ENVIRONMENT

KEYED = """\
environment: production
lake: {root: "s3://lake", access_key: env:LAKE_KEY, secret_key: env:LAKE_SECRET}
landing: {root: "file:///landing"}
messaging: {}
spark: {protected: true, secret: env:SPARK_SECRET}
alerts:
  channels:
    - {kind: webhook, name: chat, url: env:CHAT_URL, token: env:CHAT_TOKEN}
"""
VARIABLES = {
    "LAKE_KEY": "lake-4f1c",
    "LAKE_SECRET": "b7e0d9",
    "SPARK_SECRET": "0c1fe2",
    "CHAT_URL": "test",
    "CHAT_TOKEN": "93ab",
}
PLACES = {
    "LAKE_KEY": "lake.access_key",
    "LAKE_SECRET": "lake.secret_key",
    "SPARK_SECRET": "spark.secret",
    "CHAT_TOKEN": "alerts.channels[0].token",
}
Project = Callable[..., Path]


@pytest.fixture
def production(make_project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_project()
    (root / "include" / "environments" / "production.yaml").write_text(KEYED)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    return root


def test_unknown_secrets_are_accepted(production: Path) -> None:
    assert load_catalog("production", root=production).environment.environment == "production"


@pytest.mark.parametrize("value", ["", "   ", "admin", "Password", "minioadmin", "changeme", '"test"'])
@pytest.mark.parametrize("variable", PLACES)
def test_a_blank_or_known_secret_is_refused_with_file_and_key(
    production: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(ConfigError) as caught:
        load_catalog("production", root=production)

    assert caught.value.condition == "SECRET_WEAK"
    assert f"production.yaml: {PLACES[variable]}: {variable} is " in caught.value.message
    assert variable in caught.value.hint


def test_the_value_of_a_refused_secret_is_not_shown(production: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_SECRET", "minioadmin")

    with pytest.raises(ConfigError) as caught:
        load_catalog("production", root=production)

    assert "minioadmin" not in str(caught.value)


def test_the_local_environment_can_have_any_secret(make_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    local = ENVIRONMENT.replace('"file:///lake"', "s3://lake, access_key: env:LAKE_KEY, secret_key: env:LAKE_KEY")
    monkeypatch.setenv("LAKE_KEY", "minioadmin")

    assert load_catalog("local", root=make_project(environment=local)).environment.lake.access_key is not None


def test_an_unset_variable_is_not_a_weak_secret(production: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_SECRET")

    spark = load_catalog("production", root=production).environment.spark

    assert spark.secret is not None


def test_random_secrets_are_accepted() -> None:
    assert [secret_weakness(secrets.token_urlsafe(8)) for _ in range(1000)] == [None] * 1000


def test_secrets_of_a_pipelines_source_are_checked_too() -> None:
    text = PROJECT_ROOT / "include" / "pipelines" / "engagement" / "pipeline.yaml"
    login = {"username": "env:KAFKA_USER", "password": "env:KAFKA_PASSWORD"}
    security = {"protocol": "SASL_SSL", "mechanism": "PLAIN", **login}
    spec = load_spec(PipelineSpec, text, overrides=Overrides({"source": {"security": security}}))

    with pytest.raises(ConfigError, match=r"source\.security\.password: KAFKA_PASSWORD"):
        check_secrets(spec, text, environment="aws", variables={"KAFKA_USER": "admin", "KAFKA_PASSWORD": "admin"})
    check_secrets(spec, text, environment="local", variables={"KAFKA_PASSWORD": "admin"})


def test_a_published_write_key_is_refused_outside_local(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = load_collector("edge", root=PROJECT_ROOT)
    check_write_keys(demo, environment="local")
    with pytest.raises(ConfigError, match=r"edge\.yaml: sources\.games\.keys has the digest of a published key"):
        check_write_keys(demo, environment="aws")

    declared = demo.model_dump(mode="json", by_alias=True)
    published = {key["sha256"] for source in declared["sources"].values() for key in source["keys"]}
    assert published == PUBLISHED_KEY_DIGESTS
    declared["sources"] = {"games": declared["sources"]["games"] | {"keys": [{"sha256": "env:GAMES_KEY_DIGEST"}]}}
    own = CollectorSpec.model_validate(declared)
    for value, problem in ((published.pop(), "published key"), ("no digest", "no SHA-256"), (None, "not set")):
        monkeypatch.delenv("GAMES_KEY_DIGEST", raising=False)
        if value is not None:
            monkeypatch.setenv("GAMES_KEY_DIGEST", value)
        with pytest.raises(ConfigError, match=problem):
            check_write_keys(own, environment="aws")
    monkeypatch.setenv("GAMES_KEY_DIGEST", "AB" * 32)
    check_write_keys(own, environment="aws")
    assert own.sources["games"].keys[0].digest() == "ab" * 32
