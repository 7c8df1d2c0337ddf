"""The contract of key services, tested with the keyring and with KMS."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest
from cryptography.exceptions import InvalidTag
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConfigError, ContractError, TransientError
from deltaworks.privacy import paths
from deltaworks.privacy.key_service import (
    EPOCH_PURPOSE,
    SEAL_PURPOSE,
    TOKEN_PURPOSE,
    UNREADABLE_PURPOSE,
    KeyService,
    LocalKeyring,
    decapsulate_key,
    encapsulate_key,
    key_context,
    public_key,
)
from deltaworks.privacy.stored_keys import (
    KmsKeyService,
    day_public_key,
    get_or_create_key,
    namespace_token_key,
    open_key_service,
    unreadable_day_key,
)
from deltaworks.specs.privacy import KeyringSpec, KmsSpec
from deltaworks.testing import present

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
    stored = present(lake.get(paths.token_key_path("players")))
    assert keys.pop() not in stored.data


def test_a_key_of_a_day_is_destroyed_with_its_object(tmp_path: Path) -> None:
    vault, keyring = LocalObjects(tmp_path / "vault"), LocalKeyring(tmp_path / "keys")
    public = day_public_key(keyring, vault, "players", "2026-11-23")

    assert day_public_key(keyring, vault, "players", "2026-11-23") == public
    assert public_key(unreadable_day_key(keyring, vault, "players", "2026-11-23")) == public
    vault.delete(paths.day_key_path("players", "2026-11-23"))
    with pytest.raises(ContractError) as refused:
        unreadable_day_key(keyring, vault, "players", "2026-11-23")

    assert refused.value.condition == "KEY_DESTROYED"


def test_concurrent_creators_of_a_key_of_a_day_get_the_same_key(tmp_path: Path) -> None:
    vault = LocalObjects(tmp_path / "vault")

    def opened(_: int) -> bytes:
        return day_public_key(LocalKeyring(tmp_path / "keys"), vault, "players", "2026-11-23")

    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(opened, range(16)))

    assert keys == {public_key(unreadable_day_key(LocalKeyring(tmp_path / "keys"), vault, "players", "2026-11-23"))}


@pytest.fixture
def writers(tmp_path: Path) -> LocalKeyring:
    """The keyring of a process that only writes."""
    LocalKeyring(tmp_path / "keys").share_with_writers(tmp_path / "writers", ["players", "contacts"])
    return LocalKeyring(tmp_path / "writers")


def test_writers_have_the_keys_to_compute_tokens_and_to_seal_and_no_other(
    tmp_path: Path, writers: LocalKeyring
) -> None:
    files = {path.name for path in (tmp_path / "writers").iterdir()}

    assert files == {
        ".writers",
        *(
            f"{name}.{purpose}"
            for name in ("players", "contacts")
            for purpose in ("token.key", "seal.pub", "unreadable.pub")
        ),
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "writers").iterdir()} == {0o600}
    assert stat.S_IMODE((tmp_path / "writers").stat().st_mode) == 0o700


@pytest.mark.parametrize("purpose", [SEAL_PURPOSE, UNREADABLE_PURPOSE])
def test_what_writers_seal_only_the_full_keyring_opens(tmp_path: Path, writers: LocalKeyring, purpose: str) -> None:
    context = key_context("players", purpose)
    made = writers.new_key(context)

    assert LocalKeyring(tmp_path / "keys").unwrap(made.wrapped, context) == made.plain
    with pytest.raises(ConfigError, match="keys of writers only"):
        writers.unwrap(made.wrapped, context)
    with pytest.raises(ConfigError, match="keys of writers only"):
        writers.unwrap(LocalKeyring(tmp_path / "keys").new_key(context).wrapped, context)


def test_writers_compute_the_same_tokens(tmp_path: Path, writers: LocalKeyring) -> None:
    lake = LocalObjects(tmp_path / "lake")

    assert namespace_token_key(writers, lake, "players") == namespace_token_key(
        LocalKeyring(tmp_path / "keys"), lake, "players"
    )


def test_writers_seal_unreadable_bodies_that_they_cannot_open(tmp_path: Path, writers: LocalKeyring) -> None:
    vault = LocalObjects(tmp_path / "vault")

    assert day_public_key(writers, vault, "players", "2026-11-23") == day_public_key(
        LocalKeyring(tmp_path / "keys"), vault, "players", "2026-11-23"
    )
    with pytest.raises(ConfigError, match="keys of writers only"):
        unreadable_day_key(writers, vault, "players", "2026-11-23")


@pytest.mark.parametrize("purpose", [SEAL_PURPOSE, UNREADABLE_PURPOSE, TOKEN_PURPOSE, EPOCH_PURPOSE])
def test_writers_create_no_key_that_nobody_else_has(writers: LocalKeyring, purpose: str) -> None:
    with pytest.raises(ConfigError, match="keys of writers only"):
        writers.new_key(key_context("later", purpose))


def test_the_vaults_keys_are_not_shared_with_writers(tmp_path: Path, writers: LocalKeyring) -> None:
    context = key_context("players", EPOCH_PURPOSE)
    made = LocalKeyring(tmp_path / "keys").new_key(context)

    for use in (lambda: writers.new_key(context), lambda: writers.unwrap(made.wrapped, context)):
        with pytest.raises(ConfigError, match="keys of writers only"):
            use()


def test_sharing_again_changes_no_key_and_adds_those_of_new_namespaces(tmp_path: Path, writers: LocalKeyring) -> None:
    before = {path.name: path.read_bytes() for path in (tmp_path / "writers").iterdir()}

    LocalKeyring(tmp_path / "keys").share_with_writers(tmp_path / "writers", ["later"])

    after = {path.name: path.read_bytes() for path in (tmp_path / "writers").iterdir()}
    assert before.items() <= after.items()
    assert {"later.token.key", "later.seal.pub", "later.unreadable.pub"} <= after.keys()
    assert writers.new_key(key_context("later", SEAL_PURPOSE)).plain


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_an_encapsulated_key_opens_with_its_private_key_only(private: bytes, other: bytes) -> None:
    encapsulated, key = encapsulate_key(public_key(private))

    assert decapsulate_key(private, encapsulated) == key
    # A private key is its bytes without five bits that the curve fixes.
    assert (decapsulate_key(other, encapsulated) == key) == (public_key(other) == public_key(private))


@pytest.mark.parametrize("encapsulated", [b"", bytes(31), bytes(32), b"\x01" + bytes(31), bytes(33)])
def test_an_invalid_encapsulation_is_refused(encapsulated: bytes) -> None:
    with pytest.raises(InvalidTag):
        decapsulate_key(bytes(range(32)), encapsulated)


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
