"""Opens a namespace's part of the vault: its objects, tables and keys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from deltaworks.control import paths
from deltaworks.control.locks.exclusive import TTL_SECONDS, ExclusiveLock, exclusive_lock
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ConcurrencyError, ConfigError
from deltaworks.privacy.keys.base import KeyService
from deltaworks.privacy.keys.stored_keys import open_key_service
from deltaworks.privacy.paths import vault_lock
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.privacy_settings import PrivacySettings
from deltaworks.specs.storage import StorageSpec
from deltaworks.vault.epochs import EpochKeys
from deltaworks.vault.isolation import check_isolation
from deltaworks.vault.key_pages import SubjectKeys
from deltaworks.vault.tables import VaultTables

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
