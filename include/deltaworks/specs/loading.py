"""Loads a YAML file into a spec. Error messages name file, line, key and the expected value."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.base import Spec
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
