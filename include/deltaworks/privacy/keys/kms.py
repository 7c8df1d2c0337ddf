"""AWS KMS as key service: one KMS key wraps the data keys of all namespaces and purposes, separated by encryption
context.

There is no KMS key per person: a subject's key is a data key in a key page. Grants are by context: a collector needs
GenerateDataKey for `seal` and `unreadable` and Decrypt for `token`, the vault's job Decrypt for `seal` and `epoch`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from deltaworks.errors import ConfigError, TransientError
from deltaworks.privacy.keys.base import Context, DataKey, DestroyedKey, context_differs_error, key_destroyed_error
from deltaworks.specs.base import resolve_text
from deltaworks.specs.privacy import KmsSpec

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
