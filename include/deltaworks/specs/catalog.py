"""Everything declared in a project: its environment, its relays and its pipelines, found in their folders."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from deltaworks.errors import ConfigError
from deltaworks.specs.environment import WEBHOOK_VARIABLE, EnvironmentSpec
from deltaworks.specs.known_secrets import check_secrets
from deltaworks.specs.loading import OVERRIDE_PREFIX, load_spec, merge, overrides_from_variables
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.sources.objects import FileSourceSpec

T = TypeVar("T")
PROJECT_ROOT = Path(__file__).resolve().parents[3]
#: Names of the pipelines that are read, with commas between; all there are where it is not set.
PIPELINES_VARIABLE = "DELTAWORKS_PIPELINES"


@dataclass(frozen=True, slots=True)
class Catalog:
    """What a project declares, by name, sorted.

    `broken` is what is declared wrongly, by kind (`pipeline`, `relay`, `overrides`) and name; asked for by name, it
    raises its own error. Only a tolerant reading has any.
    """

    environment: EnvironmentSpec
    relays: dict[str, RelaySpec]
    pipelines: dict[str, PipelineSpec]
    root: Path
    broken: dict[tuple[str, str], ConfigError] = field(default_factory=dict)

    def pipeline(self, name: str) -> PipelineSpec:
        """The pipeline called `name`.

        Raises:
            ConfigError: PIPELINE_UNKNOWN with the nearest one, or what is wrong with its declaration.
        """
        self._check_sound("pipeline", name)
        return _named(name, self.pipelines, "pipeline")

    def relay(self, name: str) -> RelaySpec:
        """The relay called `name`.

        Raises:
            ConfigError: RELAY_UNKNOWN with the nearest one, or what is wrong with its declaration.
        """
        self._check_sound("relay", name)
        return _named(name, self.relays, "relay")

    def _check_sound(self, kind: str, name: str) -> None:
        if (kind, name) in self.broken:
            raise self.broken[kind, name]

    def folder(self, pipeline: str) -> Path:
        """The folder of a pipeline's declaration, where its SQL is."""
        return self.root / "include" / "pipelines" / pipeline


def _named(name: str, declared: Mapping[str, T], kind: str) -> T:
    if name in declared:
        return declared[name]
    nearest = difflib.get_close_matches(name, declared, n=1, cutoff=0.4)
    hint = f"Did you mean {nearest[0]!r}?" if nearest else f"Known: {', '.join(declared) or 'none'}."
    raise ConfigError(f"{kind.upper()}_UNKNOWN", f"There is no {kind} called {name!r}.", hint=hint)


def project_root() -> Path:
    """The checkout's folder, or what DELTAWORKS_PROJECT says."""
    return Path(os.environ.get("DELTAWORKS_PROJECT", PROJECT_ROOT))


def load_catalog(
    environment: str | None = None,
    *,
    root: Path | None = None,
    tolerant: bool = False,
    only: Collection[str] | None = None,
) -> Catalog:
    """Read all specs of the project.

    Args:
        only: the pipelines to read; by default those DELTAWORKS_PIPELINES names, or all.
        environment: a name under include/environments; by default DELTAWORKS_ENVIRONMENT or `local`.
        tolerant: leave out what is declared wrongly and keep its error in `broken`, so that one pipeline does not
            stand in the way of the others. The environment itself must be right.

    Raises:
        ConfigError: a file is missing or wrong, with file, line and key; PIPELINE_UNKNOWN for a name in `only`;
            SECRET_WEAK for a blank or well-known secret outside `local`.
    """
    root = root or project_root()
    name = environment or os.environ.get("DELTAWORKS_ENVIRONMENT", "local")
    env_file = root / "include" / "environments" / f"{name}.yaml"
    env = load_spec(EnvironmentSpec, env_file).with_webhook(os.environ.get(WEBHOOK_VARIABLE, ""))
    check_secrets(env, env_file, environment=name)
    catalog = Catalog(environment=env, relays={}, pipelines={}, root=root)

    def relay(path: Path) -> None:
        catalog.relays[path.stem] = load_spec(RelaySpec, path, overrides=_overrides(env, "relays", path.stem))

    def pipeline(path: Path) -> None:
        folder = path.parent.name
        spec = load_spec(PipelineSpec, path, overrides=_overrides(env, "pipelines", folder))
        check_secrets(spec, path, environment=name)
        _check_place(spec, path, catalog)
        catalog.pipelines[folder] = spec

    pipelines = {path.parent.name: path for path in sorted((root / "include" / "pipelines").glob("*/pipeline.yaml"))}

    def overrides(path: Path) -> None:
        broken = {name for kind, name in catalog.broken if kind == "relay"}
        _check_overrides(env, path, {"relays": {*catalog.relays, *broken}, "pipelines": set(pipelines)})

    readings: list[tuple[str, str, Callable[[Path], None], Path]] = [
        *(("relay", path.stem, relay, path) for path in sorted((root / "include" / "relays").glob("*.yaml"))),
        *(("pipeline", path.parent.name, pipeline, path) for path in _selected(pipelines, only)),
        ("overrides", name, overrides, env_file),
    ]
    for kind, called, read, path in readings:
        try:
            read(path)
        except ConfigError as error:
            if not tolerant:
                raise
            catalog.broken[kind, called] = error
    return catalog


def _selected(pipelines: Mapping[str, Path], only: Collection[str] | None) -> list[Path]:
    """The declarations that are read."""
    if only is None:
        only = [name.strip() for name in os.environ.get(PIPELINES_VARIABLE, "").split(",") if name.strip()] or pipelines
    return [_named(name, pipelines, "pipeline") for name in sorted(only)]


def _overrides(env: EnvironmentSpec, kind: str, name: str) -> dict[str, Any]:
    declared = env.overrides.get(kind, {}).get(name) or {}
    merged: dict[str, Any] = merge(declared, overrides_from_variables(kind, name))
    return merged


def _check_overrides(env: EnvironmentSpec, path: Path, declared: Mapping[str, set[str]]) -> None:
    """Refuse an override of something that is not there: it would change nothing, and nobody would notice."""
    targets = [(f"{path}: overrides", kind, name) for kind, named in env.overrides.items() for name in named]
    for variable in sorted(os.environ):
        if variable.startswith(OVERRIDE_PREFIX):
            kind, _, rest = variable.removeprefix(OVERRIDE_PREFIX).partition("__")
            targets.append((variable, kind, rest.partition("__")[0]))
    for origin, kind, name in targets:
        candidates = sorted(declared.get(kind, declared))
        if kind in declared and name in candidates:
            continue
        wrong = name if kind in declared else kind
        nearest = difflib.get_close_matches(wrong, candidates, n=1, cutoff=0.4)
        raise ConfigError(
            "OVERRIDE_UNKNOWN",
            f"{origin}: {kind}.{name} is not declared in this project.",
            hint=f"Did you mean {nearest[0]!r}?" if nearest else f"Known: {', '.join(candidates) or 'none'}.",
        )


def _check_place(spec: PipelineSpec, path: Path, catalog: Catalog) -> None:
    if spec.pipeline != path.parent.name:
        raise ConfigError(
            "SPEC_INVALID",
            f"{path}:1: pipeline: the folder is called {path.parent.name!r}, the pipeline {spec.pipeline!r}.",
            hint="Give both the same name.",
        )
    if isinstance(spec.source, FileSourceSpec):
        catalog.relay(spec.source.relay)
    for gold in spec.gold.tables:
        if not (path.parent / gold.sql).is_file():
            raise ConfigError(
                "SPEC_INVALID",
                f"{path}: gold table {gold.name!r} names {gold.sql}, which is not in its folder.",
                hint=f"Create {path.parent / gold.sql}.",
            )
