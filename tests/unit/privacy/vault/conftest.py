"""A vault on local disk with a keyring, and data sealed for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from deltaworks.control.objects import LocalObjects
from deltaworks.privacy.key_service import LocalKeyring
from deltaworks.privacy.tokens.envelope_encryption import Identity
from deltaworks.privacy.vault.key_pages import EpochKeys, SubjectKeys
from deltaworks.privacy.vault.namespace_vault import NamespaceVault
from deltaworks.specs.environment import EnvironmentSpec
from tests.unit.privacy.vault.vault_harness import NAMESPACE, environment_of, seal_file


@pytest.fixture
def environment(tmp_path: Path) -> EnvironmentSpec:
    return environment_of(tmp_path)


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path / "vault")


@pytest.fixture
def keyring(tmp_path: Path) -> LocalKeyring:
    return LocalKeyring(tmp_path / "keys")


@pytest.fixture
def epochs(objects: LocalObjects, keyring: LocalKeyring) -> EpochKeys:
    return EpochKeys(objects, NAMESPACE, keyring)


@pytest.fixture
def keys(objects: LocalObjects, epochs: EpochKeys) -> SubjectKeys:
    return SubjectKeys(objects, NAMESPACE, epochs)


@pytest.fixture
def home(environment: EnvironmentSpec) -> NamespaceVault:
    return NamespaceVault.open(environment, NAMESPACE)


@pytest.fixture
def seal(objects: LocalObjects, keyring: LocalKeyring) -> Callable[[str, Sequence[Identity]], str]:
    """Puts one sealed file of these identities into the vault; its key."""
    return lambda name, identities: seal_file(objects, keyring, name, identities)
