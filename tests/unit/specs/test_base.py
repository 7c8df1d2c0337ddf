"""References contain no secrets and resolve lazily; specs are frozen."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.base import Reference, parse_bytes
from deltaworks.specs.storage import StorageSpec

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
