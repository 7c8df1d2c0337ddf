"""Everything declared in a project: its environment, its relays and its pipelines, found in their folders."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from deltaworks.errors import ConfigError
from deltaworks.specs.environment import WEBHOOK_VARIABLE, EnvironmentSpec
from deltaworks.specs.known_secrets import check_secrets
from deltaworks.specs.loading import load_spec, parse_spec, read_declared
from deltaworks.specs.mistakes import spec_invalid
from deltaworks.specs.overrides import aimless_overrides, overrides_of
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.surroundings import surrounding_mistakes

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

    def declares(self, kind: Literal["pipeline", "relay"], name: str) -> bool:
        """Whether there is a pipeline or a relay of that name, rightly declared or not."""
        return name in (self.pipelines if kind == "pipeline" else self.relays) or (kind, name) in self.broken

    def wrong_pipelines(self, section: str = "") -> dict[str, ConfigError]:
        """What is wrong with pipelines, by name: with all that are wrong, or those whose file has a section."""
        heading = re.compile(rf"^{section}\s*:", re.MULTILINE)
        return {
            name: error
            for (kind, name), error in self.broken.items()
            if kind == "pipeline" and (not section or heading.search(self._text(name)))
        }

    def wrong_relays(self) -> dict[str, ConfigError]:
        """What is wrong with relays, by name."""
        return {name: error for (kind, name), error in self.broken.items() if kind == "relay"}

    def check(self) -> None:
        """Refuse a project of which anything is declared wrongly; for whoever shows that.

        Raises:
            ConfigError: SPEC_INVALID with everything that a tolerant reading has met, one below the other.
        """
        if self.broken:
            listed = "\n\n".join(f"{kind} {name}: {error.message}" for (kind, name), error in self.broken.items())
            raise ConfigError(
                "SPEC_INVALID",
                f"{len(self.broken)} of the declarations are wrong and left out; the rest works.\n\n{listed}\n",
                hint="Mend the lines named; `deltaworks pipelines check` lists them all.",
            )

    def _text(self, pipeline: str) -> str:
        try:
            return (self.folder(pipeline) / "pipeline.yaml").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

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
        overrides = overrides_of(env, env_file, "relays", path.stem)
        catalog.relays[path.stem] = load_spec(RelaySpec, path, overrides=overrides)

    def pipeline(path: Path) -> None:
        folder = path.parent.name
        declared = read_declared(path, overrides=overrides_of(env, env_file, "pipelines", folder))
        spec = parse_spec(PipelineSpec, declared)
        check_secrets(spec, path, environment=name)
        mistakes = list(
            surrounding_mistakes(spec, declared, relays=catalog.relays, wrong_relays=catalog.wrong_relays())
        )
        if mistakes:
            raise spec_invalid([mistake for _, mistake in mistakes])
        catalog.pipelines[folder] = spec

    pipelines = pipeline_files(root)

    def overrides(path: Path) -> None:
        broken = {name for kind, name in catalog.broken if kind == "relay"}
        _check_overrides(env, path, {"relays": {*catalog.relays, *broken}, "pipelines": set(pipelines)})

    readings: list[tuple[str, str, Callable[[Path], None], Path]] = [
        *(("relay", path.stem, relay, path) for path in sorted((root / "include" / "relays").glob("*.yaml"))),
        *(("pipeline", path.parent.name, pipeline, path) for path in selected_pipelines(pipelines, only)),
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


def pipeline_files(root: Path) -> dict[str, Path]:
    """The declaration of every pipeline of a project, by its folder's name."""
    return {path.parent.name: path for path in sorted((root / "include" / "pipelines").glob("*/pipeline.yaml"))}


def selected_pipelines(pipelines: Mapping[str, Path], only: Collection[str] | None = None) -> list[Path]:
    """The declarations that are read: those of `only`, those DELTAWORKS_PIPELINES names, or all.

    Raises:
        ConfigError: PIPELINE_UNKNOWN with the nearest one.
    """
    if only is None:
        only = [name.strip() for name in os.environ.get(PIPELINES_VARIABLE, "").split(",") if name.strip()] or pipelines
    return [_named(name, pipelines, "pipeline") for name in sorted(only)]


def _check_overrides(env: EnvironmentSpec, path: Path, declared: Mapping[str, Collection[str]]) -> None:
    """Refuse an override of something that is not there and looks like a slip: nobody would notice that it changes
    nothing. What is left from a pipeline that was removed is none."""
    slips = [aimless for aimless in aimless_overrides(env, declared) if aimless.slip]
    if not slips:
        return
    file = read_declared(path)
    listed = "\n  ".join(
        f"{aimless.variable}: {aimless.text}" if aimless.variable else str(file.mistake(aimless.place, aimless.text))
        for aimless in slips
    )
    raise ConfigError("OVERRIDE_UNKNOWN", f"Overrides that change nothing:\n  {listed}", hint="Correct or remove them.")
