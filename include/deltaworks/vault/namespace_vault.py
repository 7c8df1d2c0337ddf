"""A namespace's part of the vault, opened: its objects, its tables and its keys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from deltaworks.control import paths, vault_paths
from deltaworks.control.locks.exclusive import TTL_SECONDS, ExclusiveLock, exclusive_lock
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ConcurrencyError, ConfigError
from deltaworks.privacy.keys.base import KeyService
from deltaworks.privacy.keys.stored_keys import open_key_service
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.privacy_settings import PrivacySettings
from deltaworks.specs.storage import StorageSpec
from deltaworks.vault.epochs import EpochKeys
from deltaworks.vault.isolation import check_isolation
from deltaworks.vault.key_pages import SubjectKeys
from deltaworks.vault.tables import VaultTables

#: A run of the job ends within this, or between two of its portions.
LOCK_WAIT_SECONDS = 60.0


def privacy_settings_of(environment: EnvironmentSpec) -> PrivacySettings:
    """What an environment says of keys and vault.

    Raises:
        ConfigError: KEY_SERVICE_UNDECLARED.
    """
    if environment.privacy is None:
        raise ConfigError(
            "KEY_SERVICE_UNDECLARED",
            f"The environment {environment.environment} declares no vault and no key service.",
            hint="Declare `privacy: {keys: {kind: keyring, folder: …}, vault: {root: …}}` in include/environments.",
        )
    return environment.privacy


class NamespaceVault:
    """What a job needs that opens the vault. Used by one thread; opened for one run, so that keys do not stay."""

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
        """The vault that an environment declares.

        Raises:
            ConfigError: KEY_SERVICE_UNDECLARED; VAULT_NOT_ISOLATED, VAULT_KEEPS_VERSIONS; KEYRING_UNUSABLE.
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
        """Keep other runs from keys and rows of the namespace while the block runs.

        The job, a rotation and an erasure take it: a key that an erasure shreds is not made again by a job that began
        before with an older list of the suppressed.

        Raises:
            ConcurrencyError: VAULT_BUSY; `check` raises it too, once the lock is lost.
        """
        with exclusive_lock(
            self.objects,
            paths.lease(vault_paths.namespace_lock(self.namespace)),
            name=f"the vault of {self.namespace!r}",
            wait_seconds=wait_seconds,
            ttl_seconds=ttl_seconds,
            lost_error=self._busy_error,
            held_error=lambda _: self._busy_error(),
        ) as lock:
            yield lock

    def _busy_error(self) -> ConcurrencyError:
        return ConcurrencyError(
            "VAULT_BUSY",
            f"Another run works on the vault of {self.namespace!r}.",
            hint="Nothing: what was done stays done, and the next run continues from there.",
        )
