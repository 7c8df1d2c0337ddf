"""What erasures of one namespace work with: its pipelines, the lake, the vault, and the keys of tokens and subjects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property

from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.erasure import Erasures
from deltaworks.errors import ConfigError
from deltaworks.privacy.keys.stored_keys import namespace_token_key
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.privacy import EraseSpec, PrivacySpec
from deltaworks.tables.lake import Lake
from deltaworks.vault.namespace_vault import NamespaceVault


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureDeadlines:
    """By when people are erased, over all pipelines of a namespace: the shortest of each."""

    purge_within: timedelta
    deadline: timedelta

    @classmethod
    def shortest(cls, specs: Iterable[EraseSpec]) -> ErasureDeadlines:
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
    vault: NamespaceVault
    token_key: bytes = field(repr=False)

    @cached_property
    def lake(self) -> Lake:
        """The lake."""
        return Lake(self.catalog.environment.lake)

    @cached_property
    def vault_lake(self) -> Lake:
        """The tables of the vault."""
        return Lake(self.vault.storage)

    @property
    def erasures(self) -> Erasures:
        """Its requests."""
        return Erasures(self.objects, self.name)

    @property
    def deadlines(self) -> ErasureDeadlines:
        """By when people are erased."""
        return ErasureDeadlines.shortest(require_privacy(spec).erase for spec in self.pipelines)

    @property
    def retention(self) -> timedelta:
        """For how long the slowest of its pipelines keeps files that newer versions have done without."""
        return timedelta(hours=max(spec.maintenance.file_retention_hours for spec in self.pipelines))

    def home(self, pipeline: str) -> PipelineHome:
        """The home of one of its pipelines."""
        return PipelineHome(self.objects, pipeline)


def require_privacy(spec: PipelineSpec) -> PrivacySpec:
    """What a pipeline of a namespace declares.

    Raises:
        ConfigError: NAMESPACE_UNKNOWN, it declares nothing.
    """
    if spec.privacy is None:
        raise ConfigError("NAMESPACE_UNKNOWN", f"{spec.pipeline!r} declares no `privacy`.", hint="Add it to its file.")
    return spec.privacy


def open_namespace(catalog: Catalog, name: str) -> Namespace:
    """What erasures of a namespace work with.

    Raises:
        ConfigError: NAMESPACE_UNKNOWN, KEY_SERVICE_UNDECLARED, KEYRING_UNUSABLE, VAULT_NOT_ISOLATED.
        ContractError, TransientError: what opening its keys raises.
    """
    pipelines = catalog.namespace(name)
    vault = NamespaceVault.open(catalog.environment, name)
    return Namespace(
        name=name,
        catalog=catalog,
        pipelines=pipelines,
        objects=vault.lake_objects,
        vault=vault,
        token_key=namespace_token_key(vault.service, vault.lake_objects, name),
    )
