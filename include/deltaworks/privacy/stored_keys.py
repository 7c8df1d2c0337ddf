"""Opens the declared key service, and reads or creates the wrapped data keys that are stored as objects.

In AWS KMS one KMS key wraps the data keys of all namespaces and purposes, separated by encryption context. There is no
KMS key per person: a subject's key is a data key in a key page. Grants are by context: a collector needs
GenerateDataKey for `seal` and `unreadable` and Decrypt for `token`, the vault's job Decrypt for `seal` and `epoch`.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from deltaworks.errors import ConfigError, ContractError, TransientError
from deltaworks.privacy import paths
from deltaworks.privacy.key_service import (
    TOKEN_PURPOSE,
    UNREADABLE_PURPOSE,
    Context,
    DataKey,
    DestroyedKey,
    KeyService,
    LocalKeyring,
    context_differs_error,
    key_context,
    key_destroyed_error,
    public_key,
)
from deltaworks.specs.base import resolve_text
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.privacy import KeyringSpec, KeyServiceSpec, KmsSpec, PrivacySettings
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


_CONTEXT_ERRORS = ("InvalidCiphertextException", "IncorrectKeyException")
_DESTROYED_ERRORS = ("KMSInvalidStateException", "DisabledException")
_ACCESS_ERRORS = ("AccessDeniedException", "NotFoundException", "UnrecognizedClientException", "InvalidClientTokenId")


class KmsKeyService:
    """A key service that wraps data keys with one KMS key. Thread-safe."""

    def __init__(self, spec: KmsSpec) -> None:
        import boto3
        from botocore.config import Config

        config = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "max_attempts": 4})
        self._key_id = resolve_text(spec.key_id)
        self._pending_days = spec.pending_days
        self._client: Any = boto3.session.Session().client("kms", config=config, **spec.boto3_options())

    def new_key(self, context: Context) -> DataKey:
        """Creates a 256-bit data key with GenerateDataKey."""
        with self._translate_errors(context):
            answer = self._client.generate_data_key(
                KeyId=self._key_id, KeySpec="AES_256", EncryptionContext=dict(context)
            )
        return DataKey(answer["Plaintext"], answer["CiphertextBlob"], answer["KeyId"])

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        """Unwraps a data key; see `KeyService.unwrap`."""
        with self._translate_errors(context):
            answer = self._client.decrypt(KeyId=self._key_id, CiphertextBlob=wrapped, EncryptionContext=dict(context))
        return bytes(answer["Plaintext"])

    def destroy(self, key_id: str) -> DestroyedKey:
        """Schedules the deletion of the KMS key after `pending_days`. It cannot be used from now on."""
        with self._translate_errors({}):
            description = self._client.describe_key(KeyId=key_id)["KeyMetadata"]
            if description["KeyState"] != "PendingDeletion":
                self._client.schedule_key_deletion(KeyId=description["KeyId"], PendingWindowInDays=self._pending_days)
                description = self._client.describe_key(KeyId=key_id)["KeyMetadata"]
        deletion_date: datetime = description.get("DeletionDate") or datetime.now(UTC)
        return DestroyedKey(key_id, deletion_date)

    @contextlib.contextmanager
    def _translate_errors(self, context: Context) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code in _CONTEXT_ERRORS:
                raise context_differs_error(context) from error
            if code in _DESTROYED_ERRORS:
                raise key_destroyed_error(self._key_id) from error
            if code in _ACCESS_ERRORS:
                raise ConfigError(
                    "KEY_SERVICE_REFUSED", f"KMS refuses the key {self._key_id} for {dict(context)}: {error}."
                ) from error
            raise self._unreachable_error(error) from error
        except BotoCoreError as error:
            raise self._unreachable_error(error) from error

    def _unreachable_error(self, error: Exception) -> TransientError:
        return TransientError("KEY_SERVICE_UNREACHABLE", f"KMS cannot be reached for the key {self._key_id}: {error}.")
