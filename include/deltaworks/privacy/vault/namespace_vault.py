"""Opens a namespace's part of the vault: its objects, tables and keys.

First the storage is checked: it must be separate from the lake, and without versions or replication. A versioned or
replicated bucket would still contain a destroyed key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlparse

from deltaworks.control import paths
from deltaworks.control.locks.exclusive import TTL_SECONDS, ExclusiveLock, exclusive_lock
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ConcurrencyError, ConfigError, TransientError
from deltaworks.privacy.key_service import KeyService
from deltaworks.privacy.paths import vault_lock
from deltaworks.privacy.stored_keys import open_key_service
from deltaworks.privacy.vault.key_pages import EpochKeys, SubjectKeys
from deltaworks.privacy.vault.tables import VaultTables
from deltaworks.specs.base import resolve_text
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.privacy import PrivacySettings
from deltaworks.specs.storage import StorageSpec

#: Error codes of stores that do not support the request.
_UNSUPPORTED_CODES = frozenset({"NotImplemented", "501", "MethodNotAllowed", "405", "XNotImplemented"})
#: Suspended versioning keeps existing versions.
_VERSIONED_STATES = ("Enabled", "Suspended")
_NO_REPLICATION_CODES = frozenset({"ReplicationConfigurationNotFoundError", "ReplicationConfigurationNotFound"})


def check_isolation(vault: StorageSpec, *others: StorageSpec) -> None:
    """Rejects a storage that is unsuitable as a vault.

    Args:
        others: storages that must not contain the vault: the lake and the landing storage.

    Raises:
        ConfigError: VAULT_NOT_ISOLATED; VAULT_BUCKET_VERSIONED, it is versioned or replicated, or that is unknown.
        TransientError: STORAGE_UNREACHABLE.
    """
    for other in others:
        if _overlaps(vault, other):
            raise ConfigError(
                "VAULT_NOT_ISOLATED", f"The vault {vault.root} overlaps with {other.root}, which other jobs can read."
            )
    if vault.scheme == "s3":
        _check_bucket(vault)


def _overlaps(vault: StorageSpec, other: StorageSpec) -> bool:
    if vault.scheme != other.scheme:
        return False
    if vault.scheme == "file":
        return _is_within(vault.prefix, other.prefix) or _is_within(other.prefix, vault.prefix)
    # Permissions, versioning and replication are set per bucket, so a prefix in the lake's bucket is not isolated.
    return vault.bucket == other.bucket and _server(vault) == _server(other)


def _is_within(folder: str, parent: str) -> bool:
    return f"{folder}/".startswith(f"{parent}/")


def _server(storage: StorageSpec) -> str:
    return urlparse(resolve_text(storage.endpoint)).netloc if storage.endpoint is not None else ""


def _check_bucket(vault: StorageSpec) -> None:
    from botocore.config import Config

    from deltaworks.control.objects import aws_session

    config = Config(s3={"addressing_style": "path" if vault.path_style else "auto"}, connect_timeout=5, read_timeout=20)
    client: Any = aws_session().client("s3", config=config, **vault.boto3_options())
    versions = _query_bucket(
        vault, "versioning", lambda: client.get_bucket_versioning(Bucket=vault.bucket), _UNSUPPORTED_CODES
    )
    if versions is not None and versions.get("Status") in _VERSIONED_STATES:
        raise _keeps_versions_error(vault, f"versioning is {versions['Status'].lower()}")
    copies = _query_bucket(
        vault,
        "replication",
        lambda: client.get_bucket_replication(Bucket=vault.bucket),
        _UNSUPPORTED_CODES | _NO_REPLICATION_CODES,
    )
    if copies is not None and copies.get("ReplicationConfiguration", {}).get("Rules"):
        raise _keeps_versions_error(vault, "replication is enabled")


def _query_bucket(vault: StorageSpec, setting: str, query: Any, unsupported: frozenset[str]) -> dict[str, Any] | None:
    """Returns a setting of the bucket; None if the store does not support the request."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer: dict[str, Any] = query()
        return answer
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
        if {code, status} & unsupported:
            return None
        if code in ("AccessDenied", "403"):
            raise ConfigError(
                "VAULT_BUCKET_VERSIONED",
                f"Whether {vault.root} keeps old versions is unknown: reading its {setting} is denied.",
                hint="Allow s3:GetBucketVersioning and s3:GetReplicationConfiguration on the vault's bucket.",
            ) from error
        raise _unreachable_error(vault, error) from error
    except BotoCoreError as error:
        raise _unreachable_error(vault, error) from error


def _keeps_versions_error(vault: StorageSpec, why: str) -> ConfigError:
    return ConfigError(
        "VAULT_BUCKET_VERSIONED", f"{vault.root} cannot be the vault: {why}, so a destroyed key would still exist."
    )


def _unreachable_error(vault: StorageSpec, error: Exception) -> TransientError:
    return TransientError(
        "STORAGE_UNREACHABLE",
        f"The versioning of {vault.root} cannot be checked: {error}.",
        hint="Check the vault's endpoint, keys and permissions in include/environments.",
    )


#: Maximum wait for another run's lock.
LOCK_WAIT_SECONDS = 60.0


def privacy_settings_of(environment: EnvironmentSpec) -> PrivacySettings:
    """Returns the key service and vault settings of an environment.

    Raises:
        ConfigError: KEY_SERVICE_UNDECLARED.
    """
    if environment.privacy is None:
        raise ConfigError(
            "KEY_SERVICE_UNDECLARED", f"The environment {environment.environment} declares no vault and no key service."
        )
    return environment.privacy


class NamespaceVault:
    """A namespace's objects, tables and keys. Open it for one run, so that keys do not stay in memory. Not
    thread-safe."""

    def __init__(
        self, storage: StorageSpec, lake: StorageSpec, namespace: str, service: KeyService, objects: ObjectStore
    ) -> None:
        self.namespace = namespace
        self.storage = storage
        self.service = service
        self.objects = objects
        self.lake_objects = open_objects(lake)
        self.epochs = EpochKeys(objects, namespace, service)
        self.keys = SubjectKeys(objects, namespace, self.epochs)
        self.tables = VaultTables(storage, namespace)

    @classmethod
    def open(cls, environment: EnvironmentSpec, namespace: str) -> NamespaceVault:
        """Opens the vault that an environment declares.

        Raises:
            ConfigError: KEY_SERVICE_UNDECLARED; VAULT_NOT_ISOLATED, VAULT_BUCKET_VERSIONED; KEYRING_UNUSABLE.
            TransientError: STORAGE_UNREACHABLE.
        """
        settings = privacy_settings_of(environment)
        check_isolation(settings.vault, environment.lake, environment.landing)
        service = open_key_service(settings.keys)
        return cls(settings.vault, environment.lake, namespace, service, open_objects(settings.vault))

    @contextlib.contextmanager
    def lock(
        self, *, wait_seconds: float = LOCK_WAIT_SECONDS, ttl_seconds: float = TTL_SECONDS
    ) -> Iterator[ExclusiveLock]:
        """Holds the lock on keys and rows of the namespace during the block.

        Ingest, rotation and erasure take this lock. Otherwise an ingest with an older suppression list could recreate a
        key that an erasure destroyed.

        Raises:
            ConcurrencyError: VAULT_BUSY; also raised by `check` once the lock is lost.
        """
        with exclusive_lock(
            self.objects,
            paths.lease(vault_lock(self.namespace)),
            name=f"the vault of {self.namespace!r}",
            wait_seconds=wait_seconds,
            ttl_seconds=ttl_seconds,
            lost_error=self._busy_error,
            held_error=lambda _: self._busy_error(),
        ) as lock:
            yield lock

    def _busy_error(self) -> ConcurrencyError:
        return ConcurrencyError("VAULT_BUSY", f"Another run is using the vault of {self.namespace!r}.")
