"""Opens the declared key service, and reads or creates the wrapped data keys that are stored as objects."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from deltaworks.errors import ConfigError, ContractError
from deltaworks.privacy import paths
from deltaworks.privacy.keys.base import (
    TOKEN_PURPOSE,
    UNREADABLE_PURPOSE,
    Context,
    DataKey,
    KeyService,
    LocalKeyring,
    key_context,
    key_destroyed_error,
    public_key,
)
from deltaworks.specs.base import resolve_text
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.privacy import KeyringSpec, KeyServiceSpec, PrivacySettings
from deltaworks.specs.storage import StorageSpec

_FORMAT = 1


class StoredObject(Protocol):
    """A stored object with its bytes."""

    @property
    def data(self) -> bytes: ...


class KeyStore(Protocol):
    """The methods of an object store that stored keys need; implemented by `control.objects.ObjectStore`."""

    def get(self, key: str) -> StoredObject | None:
        """Returns the object; None if it does not exist."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Creates the object; returns False if it exists with other bytes."""


def privacy_settings(spec: PipelineSpec, lake: StorageSpec) -> PrivacySettings:
    """Returns the key service and vault settings of the environment with which the pipeline was loaded.

    If the lake is a local folder, nothing needs to be declared: keyring and vault are folders next to it.

    Raises:
        ConfigError: KEY_SERVICE_UNDECLARED.
    """
    settings = None if spec.privacy is None else spec.privacy.service
    if settings is None and lake.scheme == "file":
        keyring = KeyringSpec(kind="keyring", folder=f"{lake.prefix}-keyring")
        return PrivacySettings(keys=keyring, vault=StorageSpec(root=f"{lake.root}-vault"))
    if settings is None:
        raise ConfigError(
            "KEY_SERVICE_UNDECLARED",
            f"Pipeline {spec.pipeline} declares personal data, but its environment has no key service and vault.",
        )
    return settings


def open_key_service(spec: KeyServiceSpec) -> KeyService:
    """Creates the key service that the settings declare.

    Raises:
        ConfigError: KEYRING_UNUSABLE, REFERENCE_UNRESOLVED.
    """
    if isinstance(spec, KeyringSpec):
        return LocalKeyring(Path(resolve_text(spec.folder)).expanduser().absolute())
    from deltaworks.privacy.keys.kms import KmsKeyService

    return KmsKeyService(spec)


def get_or_create_key(
    service: KeyService, objects: KeyStore, *, key: str, context: Context, create: bool = True
) -> bytes:
    """Returns the data key that is stored in wrapped form at `key`. Creates it if absent; the first of concurrent
    creators wins.

    Args:
        create: pass False when decrypting; a missing key then counts as destroyed.

    Raises:
        ContractError: STORED_KEY_UNREADABLE; KEY_CONTEXT_DIFFERS, KEY_DESTROYED.
        TransientError: KEY_SERVICE_UNREACHABLE, or the storage does not answer.
    """
    stored = objects.get(key)
    if stored is None and not create:
        raise key_destroyed_error(key)
    if stored is None:
        new_key = service.new_key(context)
        if objects.put_if_absent(key, _encode_stored_key(context, new_key)):
            return new_key.plain
        stored = objects.get(key)
        if stored is None:
            raise unreadable_key_error(key, "it was deleted concurrently")
    return service.unwrap(decode_wrapped_key(key, stored.data), context)


def namespace_token_key(service: KeyService, lake: KeyStore, namespace: str) -> bytes:
    """Returns the key with which all writers of a namespace compute tokens. It is stored in wrapped form in the lake.

    Raises:
        DeltaworksError: see `get_or_create_key`.
    """
    context = key_context(namespace, TOKEN_PURPOSE)
    return get_or_create_key(service, lake, key=paths.token_key_path(namespace), context=context)


def day_public_key(service: KeyService, vault: KeyStore, namespace: str, day: str) -> bytes:
    """Returns the public key that encrypts a day's unreadable bodies. Creates the day's key if absent; writers never
    unwrap it.

    Raises:
        ContractError: STORED_KEY_UNREADABLE.
        TransientError: KEY_SERVICE_UNREACHABLE, or the vault does not answer.
    """
    key = paths.day_key_path(namespace, day)
    stored = vault.get(key)
    if stored is None:
        context = key_context(namespace, UNREADABLE_PURPOSE, day=day)
        new_key = service.new_key(context)
        public = public_key(new_key.plain)
        if vault.put_if_absent(key, _encode_stored_key(context, new_key, public=base64.b64encode(public).decode())):
            return public
        stored = vault.get(key)
        if stored is None:
            raise unreadable_key_error(key, "it was deleted concurrently")
    return _decode_record(key, stored.data, "public")


def unreadable_day_key(service: KeyService, vault: KeyStore, namespace: str, day: str) -> bytes:
    """Returns the private key that decrypts a day's unreadable bodies. It is stored in wrapped form in the vault;
    deleting the object destroys the key.

    Raises:
        DeltaworksError: see `get_or_create_key`.
    """
    context = key_context(namespace, UNREADABLE_PURPOSE, day=day)
    return get_or_create_key(service, vault, key=paths.day_key_path(namespace, day), context=context, create=False)


def _encode_stored_key(context: Context, new_key: DataKey, **more: str) -> bytes:
    record = {
        "format": _FORMAT,
        "context": dict(context),
        "key_id": new_key.key_id,
        "wrapped": base64.b64encode(new_key.wrapped).decode(),
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **more,
    }
    return json.dumps(record).encode()


def decode_wrapped_key(key: str, data: bytes) -> bytes:
    """Returns the wrapped key from the bytes of the object at `key`.

    Raises:
        ContractError: STORED_KEY_UNREADABLE.
    """
    return _decode_record(key, data, "wrapped")


def _decode_record(key: str, data: bytes, name: str) -> bytes:
    try:
        record = json.loads(data)
        if record["format"] != _FORMAT:
            raise unreadable_key_error(key, f"format {record['format']} is not {_FORMAT}")
        return base64.b64decode(record[name], validate=True)
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable_key_error(key, f"{type(error).__name__}: {error}") from error


def unreadable_key_error(key: str, reason: str) -> ContractError:
    """Returns the error for an object without a valid wrapped key."""
    return ContractError("STORED_KEY_UNREADABLE", f"Stored key {key} is unreadable: {reason}.")
