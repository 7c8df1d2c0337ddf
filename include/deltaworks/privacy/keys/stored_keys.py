"""Opens the key service that an environment declares, and the keys of it that are kept as objects."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from deltaworks.errors import ConfigError, ContractError
from deltaworks.privacy import paths
from deltaworks.privacy.keys.base import TOKEN_PURPOSE, UNREADABLE_PURPOSE, Context, KeyService, key_context
from deltaworks.privacy.keys.keyring import LocalKeyring, key_destroyed_error
from deltaworks.specs.base import resolve_text
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.privacy_settings import KeyringSpec, KeyServiceSpec, PrivacySettings
from deltaworks.specs.storage import StorageSpec

_FORMAT = 1


class StoredObject(Protocol):
    """An object's bytes."""

    @property
    def data(self) -> bytes: ...


class KeyStore(Protocol):
    """What of an object store stored keys need; `control.objects.ObjectStore` has it."""

    def get(self, key: str) -> StoredObject | None:
        """The object, or None where there is none."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; False when it was there already with other bytes."""


def privacy_settings(spec: PipelineSpec, lake: StorageSpec) -> PrivacySettings:
    """The key service and the vault of the environment that the pipeline was loaded with.

    A lake in a folder of this machine needs none declared: keyring and vault then lie beside it, never in it.

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
            f"The pipeline {spec.pipeline} has personal data, and its environment no key service and no vault.",
            hint="Declare `privacy: {keys: {kind: keyring, folder: …}, vault: {root: …}}` in include/environments; "
            "kms instead of keyring on AWS.",
        )
    return settings


def open_key_service(spec: KeyServiceSpec) -> KeyService:
    """The service that is declared.

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
    """The data key that lies wrapped at `key`, made where there is none: whoever creates the object first decides.

    Args:
        make: False to open what was sealed: a key that is not there any more was destroyed.

    Raises:
        ContractError: STORED_KEY_UNREADABLE; KEY_CONTEXT_DIFFERS, KEY_DESTROYED.
        TransientError: KEY_SERVICE_UNREACHABLE, or the storage does not answer.
    """
    stored = objects.get(key)
    if stored is None and not create:
        raise key_destroyed_error(key)
    if stored is None:
        made = service.new_key(context)
        record = {
            "format": _FORMAT,
            "context": dict(context),
            "key_id": made.key_id,
            "wrapped": base64.b64encode(made.wrapped).decode(),
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if objects.put_if_absent(key, json.dumps(record).encode()):
            return made.plain
        stored = objects.get(key)
        if stored is None:
            raise unreadable_key_error(key, "it was deleted meanwhile")
    return service.unwrap(decode_wrapped_key(key, stored.data), context)


def namespace_token_key(service: KeyService, lake: KeyStore, namespace: str) -> bytes:
    """The key of a namespace's tokens, which all who strip share. It lies wrapped in the lake.

    Raises:
        DeltaworksError: as `stored_key`.
    """
    context = key_context(namespace, TOKEN_PURPOSE)
    return get_or_create_key(service, lake, key=paths.token_key(namespace), context=context)


def unreadable_day_key(service: KeyService, vault: KeyStore, namespace: str, day: str, *, create: bool = True) -> bytes:
    """The key of a day's unreadable bodies. It lies wrapped in the vault, and is destroyed by deleting it there.

    Raises:
        DeltaworksError: as `stored_key`.
    """
    context = key_context(namespace, UNREADABLE_PURPOSE, day=day)
    return get_or_create_key(service, vault, key=paths.day_key(namespace, day), context=context, create=create)


def decode_wrapped_key(key: str, data: bytes) -> bytes:
    """The wrapped key in the object at `key`.

    Raises:
        ContractError: STORED_KEY_UNREADABLE.
    """
    try:
        record = json.loads(data)
        if record["format"] != _FORMAT:
            raise unreadable_key_error(key, f"format {record['format']} is not {_FORMAT}")
        return base64.b64decode(record["wrapped"], validate=True)
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable_key_error(key, f"{type(error).__name__}: {error}") from error


def unreadable_key_error(key: str, reason: str) -> ContractError:
    """The error of an object that should hold a wrapped key and does not."""
    return ContractError(
        "STORED_KEY_UNREADABLE",
        f"{key} holds no key this release can read: {reason}.",
        hint="Put the object back as it was. With another key in its place old and new tokens would not join.",
    )
