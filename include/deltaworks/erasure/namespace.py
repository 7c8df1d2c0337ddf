"""The context of erasures in one namespace: pipelines, lake, vault, and keys of tokens and subjects."""

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
    """Deadlines of erasures: the shortest of all pipelines of a namespace."""

    purge_within: timedelta
    deadline: timedelta

    @classmethod
    def shortest(cls, specs: Iterable[EraseSpec]) -> ErasureDeadlines:
        """Returns the shortest deadlines in these `privacy` sections."""
        declared = list(specs)
        return cls(
            purge_within=timedelta(days=min(spec.purge_within_days for spec in declared)),
            deadline=timedelta(days=min(spec.deadline_days for spec in declared)),
        )


@dataclass(frozen=True)
class Namespace:
    """A namespace of tokens: its pipelines, stores and token key. Cheap to create; not thread-safe."""

    name: str
    catalog: Catalog
    pipelines: tuple[PipelineSpec, ...]
    objects: ObjectStore
    vault: NamespaceVault
    token_key: bytes = field(repr=False)

    @cached_property
    def lake(self) -> Lake:
        """The lake with the tables of the pipelines."""
        return Lake(self.catalog.environment.lake)

    @cached_property
    def vault_lake(self) -> Lake:
        """The lake with the tables of the vault."""
        return Lake(self.vault.storage)

    @property
    def erasures(self) -> Erasures:
        """The erasure requests of the namespace."""
        return Erasures(self.objects, self.name)

    @property
    def deadlines(self) -> ErasureDeadlines:
        """The deadlines of erasures in the namespace."""
        return ErasureDeadlines.shortest(require_privacy(spec).erase for spec in self.pipelines)

    @property
    def retention(self) -> timedelta:
        """The longest VACUUM retention of the namespace's pipelines."""
        return timedelta(hours=max(spec.maintenance.file_retention_hours for spec in self.pipelines))

    def home(self, pipeline: str) -> PipelineHome:
        """Returns the control records of one of its pipelines."""
        return PipelineHome(self.objects, pipeline)


def require_privacy(spec: PipelineSpec) -> PrivacySpec:
    """Returns the `privacy` section of a pipeline.

    Raises:
        ConfigError: NAMESPACE_UNKNOWN, the pipeline declares no `privacy`.
    """
    if spec.privacy is None:
        raise ConfigError(
            "NAMESPACE_UNKNOWN",
            f"{spec.pipeline!r} declares no `privacy`.",
            hint=("Add a `privacy` section to its pipeline.yaml."),
        )
    return spec.privacy


def open_namespace(catalog: Catalog, name: str) -> Namespace:
    """Opens a namespace for erasures.

    Raises:
        ConfigError: NAMESPACE_UNKNOWN, KEY_SERVICE_UNDECLARED, KEYRING_UNUSABLE, VAULT_NOT_ISOLATED.
        ContractError, TransientError: errors of opening its keys.
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
