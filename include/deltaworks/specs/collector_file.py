"""Reads `include/collectors/<name>.yaml` and checks it against the project's pipelines."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from deltaworks.specs.base import Problem, suggest_name
from deltaworks.specs.catalog import find_by_name
from deltaworks.specs.collector import CollectorSpec
from deltaworks.specs.loading import parse_spec, read_declaration
from deltaworks.specs.overrides import Overrides
from deltaworks.specs.spec_errors import invalid_spec_error


def collector_files(root: Path) -> dict[str, Path]:
    """Returns the spec files of a project's collectors, by name."""
    return {path.stem: path for path in sorted((root / "include" / "collectors").glob("*.yaml"))}


def load_collector(name: str, *, root: Path) -> CollectorSpec:
    """Loads a collector of a project by name.

    Raises:
        ConfigError: COLLECTOR_UNKNOWN with the closest name; SPEC_INVALID with file, line and key of each error.
    """
    pipelines = {path.parent.name for path in (root / "include" / "pipelines").glob("*/pipeline.yaml")}
    return read_collector(find_by_name(name, collector_files(root), "collector"), pipelines=pipelines)


def read_collector(path: Path, *, pipelines: Collection[str], overrides: Overrides | None = None) -> CollectorSpec:
    """Reads and validates a collector's file.

    Args:
        pipelines: names of all pipelines.
        overrides: values that the environment or variables replace, such as write keys.

    Raises:
        ConfigError: SPEC_INVALID with file, line and key of each error; SPEC_MISSING; SPEC_NOT_YAML.
    """
    declaration = read_declaration(path, overrides=overrides)
    spec = parse_spec(CollectorSpec, declaration)
    if errors := [declaration.error_at(*problem[:2]) for problem in collector_problems(spec, path, pipelines)]:
        raise invalid_spec_error(errors)
    return spec


def collector_problems(spec: CollectorSpec, path: Path, pipelines: Collection[str]) -> Iterator[Problem]:
    """Yields conflicts between a collector, its file and the pipelines."""
    if spec.collector != path.stem:
        yield ("collector",), (f"the file is named {path.stem!r}: give the collector the same name, or rename the file")
    for name, source in spec.sources.items():
        if source.pipeline not in pipelines:
            text = f"there is no pipeline {source.pipeline!r}; {suggest_name(source.pipeline, sorted(pipelines))}"
            yield ("sources", name, "pipeline"), text
