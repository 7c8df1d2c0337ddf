"""Loads a YAML file into a spec. Error messages name file, line, key and the expected value."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.base import Spec
from deltaworks.specs.environment import WEBHOOK_VARIABLE, EnvironmentSpec
from deltaworks.specs.overrides import Overrides, merge
from deltaworks.specs.project_folder import project_root
from deltaworks.specs.spec_errors import SpecError, invalid_spec_error
from deltaworks.specs.validation_errors import Declaration, to_spec_errors
from deltaworks.specs.weak_secrets import check_secrets
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


def environment_file(environment: str | None = None, *, root: Path | None = None) -> Path:
    """Returns the file of an environment, by default of DELTAWORKS_ENVIRONMENT or `local`."""
    name = environment or os.environ.get("DELTAWORKS_ENVIRONMENT", "local")
    return (root or project_root()) / "include" / "environments" / f"{name}.yaml"


def load_environment(path: Path) -> EnvironmentSpec:
    """Reads the file of an environment, without any other spec of the project.

    Raises:
        ConfigError: as `load_spec`; SECRET_WEAK for a blank or well-known secret outside `local`.
    """
    spec = load_spec(EnvironmentSpec, path).with_webhook(os.environ.get(WEBHOOK_VARIABLE, ""))
    check_secrets(spec, path, environment=path.stem)
    return spec
