"""What erasures of one namespace work with: its pipelines, the lake, the vault, and the keys of tokens and subjects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, Protocol

from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.erasure import Erasures
from deltaworks.errors import ConfigError
from deltaworks.privacy.keys.opening import namespace_key, open_key_service, privacy_settings
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.privacy import EraseSpec, PrivacySpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake


class Shredder(Protocol):
    """Whoever destroys the keys of subjects."""

    def shred(self, subjects: Iterable[str]) -> Any:
        """Remove the keys from their pages, and read the pages back. Idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """By when people are erased, over all pipelines of a namespace: the shortest of each."""

    purge_within: timedelta
    deadline: timedelta

    @classmethod
    def of(cls, specs: Iterable[EraseSpec]) -> Terms:
        """The shortest terms of these."""
        declared = list(specs)
        return cls(
            purge_within=timedelta(days=min(spec.purge_within_days for spec in declared)),
            deadline=timedelta(days=min(spec.deadline_days for spec in declared)),
        )


@dataclass(frozen=True)
class Namespace:
    """One namespace of tokens. Cheap to build; used by one thread."""

    name: str
    catalog: Catalog
    pipelines: tuple[PipelineSpec, ...]
    objects: ObjectStore
    vault_storage: StorageSpec
    vault: ObjectStore
    token_key: bytes = field(repr=False)
    keys: Shredder

    @cached_property
    def lake(self) -> Lake:
        """The lake."""
        return Lake(self.catalog.environment.lake)

    @cached_property
    def vault_lake(self) -> Lake:
        """The tables of the vault."""
        return Lake(self.vault_storage)

    @property
    def erasures(self) -> Erasures:
        """Its requests."""
        return Erasures(self.objects, self.name)

    @property
    def terms(self) -> Terms:
        """By when people are erased."""
        return Terms.of(privacy_of(spec).erase for spec in self.pipelines)

    @property
    def retention(self) -> timedelta:
        """For how long the slowest of its pipelines keeps files that newer versions have done without."""
        return timedelta(hours=max(spec.maintenance.kept_hours for spec in self.pipelines))

    def home(self, pipeline: str) -> PipelineHome:
        """The home of one of its pipelines."""
        return PipelineHome(self.objects, pipeline)


def privacy_of(spec: PipelineSpec) -> PrivacySpec:
    """What a pipeline of a namespace declares.

    Raises:
        ConfigError: NAMESPACE_UNKNOWN, it declares nothing.
    """
    if spec.privacy is None:
        raise ConfigError(
            "NAMESPACE_UNKNOWN", f"{spec.pipeline!r} declares no personal data.", hint="Add `privacy` to its file."
        )
    return spec.privacy


def namespaces(catalog: Catalog) -> dict[str, tuple[PipelineSpec, ...]]:
    """The namespaces that a project declares, with the pipelines of each, sorted."""
    declared: dict[str, list[PipelineSpec]] = {}
    for spec in catalog.pipelines.values():
        if spec.privacy is not None:
            declared.setdefault(spec.privacy.namespace, []).append(spec)
    return {name: tuple(specs) for name, specs in sorted(declared.items())}


def open_namespace(catalog: Catalog, name: str) -> Namespace:
    """What erasures of a namespace work with.

    Raises:
        ConfigError: NAMESPACE_UNKNOWN, KEY_SERVICE_UNDECLARED, KEYRING_UNUSABLE.
        ContractError, TransientError: what opening its keys raises.
    """
    declared = namespaces(catalog)
    if name not in declared:
        known = ", ".join(declared) or "none; a pipeline declares one under `privacy`"
        raise ConfigError("NAMESPACE_UNKNOWN", f"There is no namespace called {name!r}.", hint=f"Known: {known}.")
    from deltaworks.vault.epochs import EpochKeys
    from deltaworks.vault.pages import SubjectKeys

    settings = privacy_settings(catalog.environment)
    service = open_key_service(settings.keys)
    objects, vault = open_objects(catalog.environment.lake), open_objects(settings.vault)
    return Namespace(
        name=name,
        catalog=catalog,
        pipelines=declared[name],
        objects=objects,
        vault_storage=settings.vault,
        vault=vault,
        token_key=namespace_key(service, objects, name),
        keys=SubjectKeys(vault, name, EpochKeys(vault, name, service)),
    )
