"""Loads a YAML file into a spec: of a pipeline, an environment, or a collector, which is checked against the pipelines.

Error messages name file, line, key and the expected value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.base import Problem, Spec, suggest_name
from deltaworks.specs.catalog import find_by_name
from deltaworks.specs.collector import CollectorSpec
from deltaworks.specs.overrides import Overrides, merge
from deltaworks.specs.spec_errors import SpecError, invalid_spec_error
from deltaworks.specs.validation_errors import Declaration, to_spec_errors
from deltaworks.specs.yaml_reader import InvalidYamlError, YamlDocument, load_yaml

NO_KEYS = "the file has no keys; see docs/reference/pipeline/index.md"
SpecType = TypeVar("SpecType", bound=Spec)


def read_yaml(path: Path) -> YamlDocument:
    """Parses a YAML file.

    Raises:
        ConfigError: SPEC_MISSING; SPEC_NOT_YAML with the line, also for documents that are nested too deeply or too
            large.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError("SPEC_MISSING", f"Cannot read {path}: {error.strerror}.") from error
    try:
        return load_yaml(data)
    except InvalidYamlError as error:
        spec_error = SpecError(path, error.line, "", error.problem)
        raise ConfigError("SPEC_NOT_YAML", f"{spec_error}.") from error


def read_declaration(path: Path, *, overrides: Overrides | None = None) -> Declaration:
    """Reads a file and merges overrides into it.

    Raises:
        ConfigError: SPEC_MISSING; SPEC_NOT_YAML; SPEC_INVALID if the file has no keys.
    """
    overrides = overrides or Overrides()
    document = read_yaml(path)
    if not isinstance(document.values, dict):
        raise invalid_spec_error([SpecError(path, 1, "", NO_KEYS)])
    return Declaration(path, document, merge(document.values, overrides.values), overrides)


def load_spec(model: type[SpecType], path: Path, *, overrides: Overrides | None = None) -> SpecType:
    """Reads a spec file and validates it.

    Args:
        overrides: values that replace those of the file.

    Raises:
        ConfigError: SPEC_INVALID with file, line, key and advice of each error; SPEC_MISSING; SPEC_NOT_YAML.
    """
    return parse_spec(model, read_declaration(path, overrides=overrides))


def parse_spec(model: type[SpecType], declaration: Declaration) -> SpecType:
    """Validates a declaration and returns the spec.

    Raises:
        ConfigError: SPEC_INVALID with its errors.
    """
    try:
        return model.model_validate(declaration.data)
    except ValidationError as error:
        raise invalid_spec_error(to_spec_errors(error, declaration, model)) from None


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
