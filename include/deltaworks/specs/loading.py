"""Loads a YAML file into a spec. Error messages name file, line, key and the expected value."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.base import Spec
from deltaworks.specs.overrides import Overrides, merge, to_plain
from deltaworks.specs.plain_yaml import NotPlainYamlError, load_plain_yaml
from deltaworks.specs.spec_errors import SpecError, invalid_spec_error
from deltaworks.specs.validation_errors import Declaration, to_spec_errors
from deltaworks.specs.yaml_errors import InvalidYamlError

if TYPE_CHECKING:
    from ruamel.yaml.comments import CommentedMap

NO_KEYS = "the file has no keys; see docs/reference/pipeline/index.md"
SpecType = TypeVar("SpecType", bound=Spec)


def read_yaml(path: Path) -> Any:
    """Parses a YAML file and keeps line numbers.

    Raises:
        ConfigError: SPEC_MISSING; SPEC_NOT_YAML with the line, also for documents that are nested too deeply or too
            large.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError("SPEC_MISSING", f"Cannot read {path}: {error.strerror}.") from error
    # Imported lazily, because valid files are parsed without this module.
    from deltaworks.specs.bounded_yaml import load_yaml

    try:
        return load_yaml(data, kind="rt")
    except InvalidYamlError as error:
        spec_error = SpecError(path, error.line, "", error.problem)
        raise ConfigError("SPEC_NOT_YAML", f"{spec_error}.") from error


def read_declaration(path: Path, *, overrides: Overrides | None = None) -> Declaration:
    """Reads a file and merges overrides into it. Line numbers are read again from the file if there are errors.

    Raises:
        ConfigError: SPEC_MISSING; SPEC_NOT_YAML; SPEC_INVALID if the file has no keys.
    """
    overrides = overrides or Overrides()
    return Declaration(path, partial(_read_with_lines, path), merge(_read_plain(path), overrides.values), overrides)


def _read_plain(path: Path) -> Any:
    """Parses the file with the fast parser, without line numbers. Uses the full parser for documents it does not
    accept.
    """
    with contextlib.suppress(OSError, NotPlainYamlError):
        document = load_plain_yaml(path.read_bytes())
        if isinstance(document, dict):
            return document
    return to_plain(_read_with_lines(path))


def _read_with_lines(path: Path) -> CommentedMap:
    document = read_yaml(path)
    if not isinstance(document, Mapping):
        raise invalid_spec_error([SpecError(path, 1, "", NO_KEYS)])
    return cast("CommentedMap", document)


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
        ConfigError: SPEC_INVALID with all errors.
    """
    try:
        return model.model_validate(declaration.data)
    except ValidationError as error:
        raise invalid_spec_error([spec_error for _, spec_error in to_spec_errors(error, declaration, model)]) from None
