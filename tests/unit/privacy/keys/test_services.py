"""The contract of key services, tested with the keyring and with KMS."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest

from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConfigError, ContractError, TransientError
from deltaworks.privacy import paths
from deltaworks.privacy.keys.base import SEAL_PURPOSE, TOKEN_PURPOSE, KeyService, LocalKeyring, key_context
from deltaworks.privacy.keys.kms import KmsKeyService
from deltaworks.privacy.keys.stored_keys import (
    get_or_create_key,
    namespace_token_key,
    open_key_service,
    unreadable_day_key,
)
from deltaworks.specs.privacy import KeyringSpec, KmsSpec

PLAYERS = key_context("players", SEAL_PURPOSE)


@pytest.fixture
def kms(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> KmsKeyService:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    client = boto3.client("kms", endpoint_url=endpoint, region_name="us-east-1")
    key_id = client.create_key()["KeyMetadata"]["KeyId"]
    service = open_key_service(KmsSpec(kind="kms", endpoint=endpoint, key_id=key_id))
    assert isinstance(service, KmsKeyService)
    return service


@pytest.fixture(params=["keyring", "kms"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> KeyService:
    if request.param == "kms":
        made: KeyService = request.getfixturevalue("kms")
        return made
    return open_key_service(KeyringSpec(kind="keyring", folder=str(tmp_path / "keys")))


def test_a_data_key_is_unwrapped_for_its_context(service: KeyService) -> None:
    made = service.new_key(PLAYERS)

    assert len(made.plain) == 32
    assert made.plain not in made.wrapped
    assert service.unwrap(made.wrapped, PLAYERS) == made.plain
    assert made.plain.hex() not in repr(made)


def test_two_data_keys_differ(service: KeyService) -> None:
    assert service.new_key(PLAYERS).plain != service.new_key(PLAYERS).plain


@pytest.mark.parametrize(
    "other",
    [
        key_context("contacts", SEAL_PURPOSE),
        key_context("players", TOKEN_PURPOSE),
        key_context("players", SEAL_PURPOSE, day="2026-11-23"),
    ],
)
def test_a_data_key_does_not_open_for_another_context(service: KeyService, other: dict[str, str]) -> None:
    service.new_key(other)
    made = service.new_key(PLAYERS)

    with pytest.raises(ContractError) as refused:
        service.unwrap(made.wrapped, other)

    assert refused.value.condition == "KEY_CONTEXT_DIFFERS"


def test_a_damaged_wrapped_key_does_not_open(service: KeyService) -> None:
    made = service.new_key(PLAYERS)

    with pytest.raises(ContractError):
        service.unwrap(made.wrapped[:-1] + bytes((made.wrapped[-1] ^ 1,)), PLAYERS)


def test_a_key_of_kms_is_destroyed_after_its_waiting_time(kms: KmsKeyService) -> None:
    made = kms.new_key(PLAYERS)

    first, second = kms.destroy(made.key_id), kms.destroy(made.key_id)

    assert first.key_id == second.key_id == made.key_id
    assert first.destroyed_at == second.destroyed_at
    assert timedelta(days=6) < first.destroyed_at - datetime.now(UTC) <= timedelta(days=7)


def test_a_destroyed_key_unwraps_nothing_and_is_not_recreated(tmp_path: Path) -> None:
    service = LocalKeyring(tmp_path / "keys")
    made = service.new_key(PLAYERS)

    first, second = service.destroy(made.key_id), service.destroy(made.key_id)

    assert first.key_id == second.key_id == made.key_id
    for use in (lambda: service.unwrap(made.wrapped, PLAYERS), lambda: service.new_key(PLAYERS)):
        with pytest.raises(ContractError) as refused:
            use()
        assert refused.value.condition == "KEY_DESTROYED"


def test_a_keyring_belongs_to_its_user_alone(tmp_path: Path) -> None:
    keyring = LocalKeyring(tmp_path / "keys")
    keyring.new_key(PLAYERS)

    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["players.seal.key"]
    assert stat.S_IMODE((tmp_path / "keys" / "players.seal.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["keys", "keys/players.seal.key"])
def test_a_keyring_readable_by_other_users_is_refused(tmp_path: Path, name: str) -> None:
    LocalKeyring(tmp_path / "keys").new_key(PLAYERS)
    (tmp_path / name).chmod((tmp_path / name).stat().st_mode | 0o040)

    with pytest.raises(ConfigError) as refused:
        LocalKeyring(tmp_path / "keys").new_key(PLAYERS)

    assert refused.value.condition == "KEYRING_UNUSABLE"


def test_a_destroyed_key_is_unavailable_to_processes_that_cached_it(tmp_path: Path) -> None:
    first, second = LocalKeyring(tmp_path / "keys"), LocalKeyring(tmp_path / "keys")
    made = first.new_key(PLAYERS)
    second.unwrap(made.wrapped, PLAYERS)

    first.destroy(made.key_id)

    with pytest.raises(ContractError):
        second.unwrap(made.wrapped, PLAYERS)


def test_another_keyring_does_not_open_what_was_wrapped(tmp_path: Path) -> None:
    made = LocalKeyring(tmp_path / "keys").new_key(PLAYERS)

    with pytest.raises(ConfigError) as refused:
        LocalKeyring(tmp_path / "others").unwrap(made.wrapped, PLAYERS)

    assert "it has no key players.seal" in refused.value.message


def test_a_key_service_that_does_not_answer_can_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    service = KmsKeyService(KmsSpec(kind="kms", endpoint="http://127.0.0.1:9", key_id="alias/none"))

    with pytest.raises(TransientError) as refused:
        service.new_key(PLAYERS)

    assert refused.value.condition == "KEY_SERVICE_UNREACHABLE"


def test_a_key_that_kms_does_not_have_raises(endpoint: str, kms: KmsKeyService) -> None:
    missing = KmsKeyService(KmsSpec(kind="kms", endpoint=endpoint, key_id="3f2504e0-4f89-41d3-9a0c-0305e82c3301"))

    with pytest.raises(ConfigError) as refused:
        missing.new_key(PLAYERS)

    assert refused.value.condition == "KEY_SERVICE_REFUSED"


def test_concurrent_creators_of_a_stored_key_get_the_same_key(tmp_path: Path) -> None:
    lake = LocalObjects(tmp_path / "lake")

    def opened(_: int) -> bytes:
        return namespace_token_key(LocalKeyring(tmp_path / "keys"), lake, "players")

    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(opened, range(16)))

    assert len(keys) == 1
    assert keys != {namespace_token_key(LocalKeyring(tmp_path / "keys"), lake, "contacts")}
    stored = lake.get(paths.token_key_path("players"))
    assert stored is not None
    assert keys.pop() not in stored.data


def test_a_key_of_a_day_is_destroyed_with_its_object(tmp_path: Path) -> None:
    vault, keyring = LocalObjects(tmp_path / "vault"), LocalKeyring(tmp_path / "keys")
    key = unreadable_day_key(keyring, vault, "players", "2026-11-23")

    assert unreadable_day_key(keyring, vault, "players", "2026-11-23", create=False) == key
    vault.delete(paths.day_key_path("players", "2026-11-23"))
    with pytest.raises(ContractError) as refused:
        unreadable_day_key(keyring, vault, "players", "2026-11-23", create=False)

    assert refused.value.condition == "KEY_DESTROYED"


@pytest.mark.parametrize("data", [b"", b"[]", b'{"format":2,"wrapped":""}', b'{"format":1,"wrapped":"%"}'])
def test_an_object_that_holds_no_key_is_refused(tmp_path: Path, data: bytes) -> None:
    lake = LocalObjects(tmp_path / "lake")
    lake.put("key.json", data)

    with pytest.raises(ContractError) as refused:
        get_or_create_key(LocalKeyring(tmp_path / "keys"), lake, key="key.json", context=PLAYERS)

    assert refused.value.condition == "STORED_KEY_UNREADABLE"


def test_a_key_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    LocalKeyring(tmp_path / "keys").new_key(PLAYERS)
    os.truncate(tmp_path / "keys" / "players.seal.key", 31)

    with pytest.raises(ConfigError):
        LocalKeyring(tmp_path / "keys").new_key(PLAYERS)
