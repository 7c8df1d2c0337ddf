"""All specs of a project by name: environment, relays, pipelines and collectors.

`deltaworks.specs.project` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from deltaworks.errors import ConfigError
from deltaworks.specs.base import nearest_names_hint
from deltaworks.specs.collector import CollectorSpec
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project_folder import PROJECT_ROOT, project_root
from deltaworks.specs.relay import RelaySpec

__all__ = ["PROJECT_ROOT", "Catalog", "find_by_name", "project_root"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Catalog:
    """The specs of a project by name, sorted.

    Invalid specs are in `broken` as errors, by kind (`pipeline`, `relay`, `collector`, `overrides`) and name. Looking
    one up raises its error. Only `load_catalog(skip_invalid=True)` fills `broken`.
    """

    environment: EnvironmentSpec
    relays: dict[str, RelaySpec]
    pipelines: dict[str, PipelineSpec]
    root: Path
    broken: dict[tuple[str, str], ConfigError] = field(default_factory=dict)
    collectors: dict[str, CollectorSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pipeline in self.pipelines.values():
            if pipeline.privacy is not None:
                pipeline.privacy.bind_service(self.environment.privacy)

    def pipeline(self, name: str) -> PipelineSpec:
        """Returns a pipeline by name.

        Raises:
            ConfigError: PIPELINE_UNKNOWN with the closest name, or the error of its spec.
        """
        self._raise_if_invalid("pipeline", name)
        return find_by_name(name, self.pipelines, "pipeline")

    def relay(self, name: str) -> RelaySpec:
        """Returns a relay by name.

        Raises:
            ConfigError: RELAY_UNKNOWN with the closest name, or the error of its spec.
        """
        self._raise_if_invalid("relay", name)
        return find_by_name(name, self.relays, "relay")

    def collector(self, name: str) -> CollectorSpec:
        """Returns a collector by name.

        Raises:
            ConfigError: COLLECTOR_UNKNOWN with the closest name, or the error of its spec.
        """
        self._raise_if_invalid("collector", name)
        return find_by_name(name, self.collectors, "collector")

    @property
    def owners(self) -> dict[str, str]:
        """Owner of each pipeline, relay, collector and remediation by name. A pipeline has priority."""
        remediations = {spec.name: spec.owner for spec in self.environment.remediations}
        groups: tuple[Mapping[str, PipelineSpec | RelaySpec | CollectorSpec], ...] = (
            self.collectors,
            self.relays,
            self.pipelines,
        )
        return remediations | {name: spec.owner for group in groups for name, spec in group.items()}

    @property
    def namespaces(self) -> dict[str, tuple[PipelineSpec, ...]]:
        """Pipelines with personal data by their token namespace, sorted."""
        by_name: dict[str, tuple[PipelineSpec, ...]] = {}
        for spec in self.pipelines.values():
            if spec.privacy is not None:
                by_name[spec.privacy.namespace] = (*by_name.get(spec.privacy.namespace, ()), spec)
        return dict(sorted(by_name.items()))

    def namespace(self, name: str) -> tuple[PipelineSpec, ...]:
        """Returns the pipelines of a namespace of personal data.

        Raises:
            ConfigError: NAMESPACE_UNKNOWN with the closest name.
        """
        return find_by_name(name, self.namespaces, "namespace")

    def declares(self, kind: Literal["pipeline", "relay"], name: str) -> bool:
        """Returns whether a pipeline or relay of that name is declared, valid or not."""
        return name in (self.pipelines if kind == "pipeline" else self.relays) or (kind, name) in self.broken

    def invalid_pipelines(self, section: str = "") -> dict[str, ConfigError]:
        """Returns the errors of invalid pipelines by name. With `section`, only of pipelines whose file has that
        section.
        """
        return self._invalid("pipeline", section)

    def invalid_relays(self, section: str = "") -> dict[str, ConfigError]:
        """Returns the errors of invalid relays by name. With `section`, only of relays whose file has that section."""
        return self._invalid("relay", section)

    def _invalid(self, kind: str, section: str) -> dict[str, ConfigError]:
        heading = re.compile(rf"^{section}\s*:", re.MULTILINE)
        return {
            name: error
            for (error_kind, name), error in self.broken.items()
            if error_kind == kind and (not section or heading.search(self.declaration_text(kind, name)))
        }

    def check(self) -> None:
        """Raises if any spec is invalid.

        Raises:
            ConfigError: SPEC_INVALID with all collected errors.
        """
        if self.broken:
            listed = [
                line
                for (kind, name), error in self.broken.items()
                for line in (f"{kind} {name}: {error.summary}", *(f"  {item}" for item in error.items))
            ]
            summary = f"{len(self.broken)} invalid specs were skipped; all others work."
            raise ConfigError("SPEC_INVALID", summary, items=listed)

    def declaration_text(self, kind: str, name: str) -> str:
        """Returns the text of a spec's file; empty if it cannot be read."""
        other = self.root / "include" / f"{kind}s" / f"{name}.yaml"
        path = self.folder(name) / "pipeline.yaml" if kind == "pipeline" else other
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _raise_if_invalid(self, kind: str, name: str) -> None:
        if (kind, name) in self.broken:
            raise self.broken[kind, name]

    def folder(self, pipeline: str) -> Path:
        """Returns the folder of a pipeline, with its SQL files."""
        return self.root / "include" / "pipelines" / pipeline


def find_by_name(name: str, declared: Mapping[str, T], kind: str) -> T:
    """Returns the spec of that name.

    Raises:
        ConfigError: `<KIND>_UNKNOWN` with the closest name.
    """
    if name in declared:
        return declared[name]
    hint = nearest_names_hint([name], declared, prefix="Known:")
    raise ConfigError(f"{kind.upper()}_UNKNOWN", f"There is no {kind} called {name!r}.", hint=hint)
