"""Reads all specs of a project into a catalog. Separate from `specs.catalog`, so that jobs do not import validation."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deltaworks.errors import ConfigError
from deltaworks.specs.base import parse_bytes, suggest_name
from deltaworks.specs.catalog import Catalog, find_by_name, project_root
from deltaworks.specs.collector_file import collector_files, read_collector
from deltaworks.specs.cross_checks import cross_check_errors
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.loading import environment_file, load_environment, load_spec, parse_spec, read_declaration
from deltaworks.specs.overrides import overrides_of, unused_overrides
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.spec_errors import invalid_spec_error
from deltaworks.specs.weak_secrets import check_secrets

#: Comma-separated names of the pipelines to read; all if it is not set.
PIPELINES_VARIABLE = "DELTAWORKS_PIPELINES"


def load_catalog(
    environment: str | None = None,
    *,
    root: Path | None = None,
    skip_invalid: bool = False,
    only: Collection[str] | None = None,
) -> Catalog:
    """Reads all specs of the project.

    Args:
        only: the pipelines to read; by default those in DELTAWORKS_PIPELINES, or all.
        environment: a name under include/environments; by default DELTAWORKS_ENVIRONMENT or `local`.
        skip_invalid: skip invalid specs and collect their errors in `broken`, so that one invalid pipeline does not
            block the others. The environment itself must be valid.

    Raises:
        ConfigError: a file is missing or invalid, with file, line and key; PIPELINE_UNKNOWN for a name in `only`;
            SECRET_WEAK for a blank or well-known secret outside `local`.
    """
    root = root or project_root()
    env_file = environment_file(environment, root=root)
    env = load_environment(env_file)
    catalog = Catalog(environment=env, relays={}, pipelines={}, root=root)
    loader = _ProjectLoader(catalog, env_file, pipeline_files(root))
    for kind, name, read, path in loader.steps(only):
        try:
            read(path)
        except ConfigError as error:
            if not skip_invalid:
                raise
            catalog.broken[kind, name] = error
    return catalog


@dataclass(frozen=True, slots=True)
class _ProjectLoader:
    """Reads the files of a project into its catalog. A pipeline is checked against the specs that were read earlier."""

    catalog: Catalog
    environment_file: Path
    pipelines: dict[str, Path]

    def steps(self, only: Collection[str] | None) -> Iterator[tuple[str, str, Callable[[Path], None], Path]]:
        """Yields kind, name, reader and file of each spec, in the order in which they must be read."""
        for path in sorted((self.catalog.root / "include" / "relays").glob("*.yaml")):
            yield "relay", path.stem, self._relay, path
        for path in selected_pipelines(self.pipelines, only):
            yield "pipeline", path.parent.name, self._pipeline, path
        for name, path in collector_files(self.catalog.root).items():
            yield "collector", name, self._collector, path
        yield "overrides", self.environment_file.stem, self._overrides, self.environment_file

    def _relay(self, path: Path) -> None:
        overrides = overrides_of(self.catalog.environment, self.environment_file, "relays", path.stem)
        self.catalog.relays[path.stem] = load_spec(RelaySpec, path, overrides=overrides)

    def _pipeline(self, path: Path) -> None:
        folder, env = path.parent.name, self.catalog.environment
        declaration = read_declaration(path, overrides=overrides_of(env, self.environment_file, "pipelines", folder))
        spec = parse_spec(PipelineSpec, declaration)
        check_secrets(spec, path, environment=self.environment_file.stem)
        errors = list(
            cross_check_errors(
                spec,
                declaration,
                relays=self.catalog.relays,
                invalid_relays=self.catalog.invalid_relays(),
                shares=env.shares,
                groups=env.stream_groups,
                channels=env.alerts.channel_kinds,
            )
        )
        if errors:
            raise invalid_spec_error(errors)
        if spec.privacy is not None:
            spec.privacy.bind_service(env.privacy)
        self.catalog.pipelines[folder] = spec

    def _collector(self, path: Path) -> None:
        overrides = overrides_of(self.catalog.environment, self.environment_file, "collectors", path.stem)
        self.catalog.collectors[path.stem] = read_collector(path, pipelines=self.pipelines, overrides=overrides)

    def _overrides(self, path: Path) -> None:
        relays = {*self.catalog.relays, *(name for kind, name in self.catalog.broken if kind == "relay")}
        _check_operation_dags(self.catalog.environment, path, self.pipelines)
        _check_environment(self.catalog, path, self.pipelines)
        _check_collector(self.catalog, path)
        _check_sql_server(self.catalog.environment, path, self.pipelines)
        names = {"relays": relays, "pipelines": set(self.pipelines)}
        names["collectors"] = set(collector_files(self.catalog.root))
        _check_overrides(self.catalog.environment, path, names)


def pipeline_files(root: Path) -> dict[str, Path]:
    """Returns all pipeline.yaml files of a project, by folder name."""
    return {path.parent.name: path for path in sorted((root / "include" / "pipelines").glob("*/pipeline.yaml"))}


def selected_pipelines(pipelines: Mapping[str, Path], only: Collection[str] | None = None) -> list[Path]:
    """Returns the pipeline files to read: those in `only`, those in DELTAWORKS_PIPELINES, or all.

    Raises:
        ConfigError: PIPELINE_UNKNOWN with the closest name.
    """
    if only is None:
        only = [name.strip() for name in os.environ.get(PIPELINES_VARIABLE, "").split(",") if name.strip()] or pipelines
    return [find_by_name(name, pipelines, "pipeline") for name in sorted(only)]


def _check_operation_dags(env: EnvironmentSpec, path: Path, pipelines: Collection[str]) -> None:
    """Rejects unknown pipelines in `operation_dags`. Otherwise their operations would have no DAGs without an error."""
    errors = [(number, name) for number, name in enumerate(env.operation_dags or ()) if name not in pipelines]
    if errors:
        file = read_declaration(path)
        raise invalid_spec_error(
            [
                file.error_at(
                    ("operation_dags", number), f"there is no pipeline {name!r}; {suggest_name(name, pipelines)}"
                )
                for number, name in errors
            ]
        )


def _check_environment(catalog: Catalog, path: Path, pipelines: Collection[str]) -> None:
    """Rejects unknown names in routes, and remediations of unknown rules, which would never act."""
    environment = catalog.environment
    if not environment.alerts.routes and not environment.remediations:
        return
    # Imported lazily: few environments have routes or remediations.
    from deltaworks.specs.cross_checks import ProjectNames, environment_problems

    owners = {name: owner for name, owner in catalog.owners.items() if name not in catalog.pipelines}
    names = ProjectNames(pipelines=catalog.pipelines, declared=pipelines, owners=owners)
    problems = list(environment_problems(environment, names))
    if problems:
        file = read_declaration(path)
        raise invalid_spec_error([file.error_at(*problem) for problem in problems])


def _check_sql_server(env: EnvironmentSpec, path: Path, pipelines: Collection[str]) -> None:
    """Rejects unknown pipelines in roles of the SQL server, whose users would read less than was meant."""
    problems = [] if env.sql_server is None else list(env.sql_server.problems(sorted(pipelines)))
    if problems:
        file = read_declaration(path)
        raise invalid_spec_error([file.error_at(key_path, text) for key_path, text in problems])


def _check_collector(catalog: Catalog, path: Path) -> None:
    """Rejects pods for an undeclared collector, and volumes that are smaller than the collector's spool."""
    kubernetes = catalog.environment.kubernetes
    if kubernetes is None or kubernetes.collector is None:
        return
    name, declaration = kubernetes.collector.name, catalog.collectors.get(kubernetes.collector.name)
    if declaration is not None:
        if declaration.spool.max_bytes < parse_bytes(f"{kubernetes.collector.spool_size}B"):
            return
        key_path: tuple[str, ...] = ("kubernetes", "collector", "spool_size")
        problem = f"the spool of {name!r} needs up to {declaration.spool.max_bytes >> 20} MiB: make its volume larger"
    elif ("collector", name) in catalog.broken:
        return
    else:
        key_path = ("kubernetes", "collector", "name")
        problem = f"there is no collector {name!r}; {suggest_name(name, sorted(catalog.collectors))}"
    raise invalid_spec_error([read_declaration(path).error_at(key_path, problem)])


def _check_overrides(env: EnvironmentSpec, path: Path, declaration: Mapping[str, Collection[str]]) -> None:
    """Rejects overrides with a typo, which would have no effect. Overrides of removed pipelines are allowed."""
    typos = [unused for unused in unused_overrides(env, declaration) if unused.is_typo]
    if not typos:
        return
    file = read_declaration(path)
    listed = [
        f"{unused.variable}: {unused.text}" if unused.variable else str(file.error_at(unused.key_path, unused.text))
        for unused in typos
    ]
    raise ConfigError("OVERRIDE_UNKNOWN", "Overrides without effect:", items=listed)
