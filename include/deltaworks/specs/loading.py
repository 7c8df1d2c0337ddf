"""Reads a YAML file into a spec, so that a mistake is reported with file, line, key and what to write instead."""

from __future__ import annotations

import contextlib
import difflib
import os
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.base import Spec
from deltaworks.specs.plain_yaml import NotPlain, load_plain_yaml

if TYPE_CHECKING:
    from ruamel.yaml.comments import CommentedMap

SpecType = TypeVar("SpecType", bound=Spec)
OVERRIDE_PREFIX = "DELTAWORKS_SET__"


def read_yaml(path: Path) -> Any:
    """The file's content with line numbers kept.

    Raises:
        ConfigError: SPEC_MISSING, or SPEC_NOT_YAML with the line: also for what nests or grows without end.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError("SPEC_MISSING", f"Cannot read {path}: {error.strerror}.", hint="Create it.") from error
    # Loaded where it is needed: nearly every declaration is read without it.
    from deltaworks.specs.bounded_yaml import UnreadableYaml, load_yaml

    try:
        return load_yaml(data, kind="rt")
    except UnreadableYaml as error:
        raise ConfigError(
            "SPEC_NOT_YAML", f"{path}:{error.line}: {error.problem}.", hint="Mend the YAML there."
        ) from error


def load_spec(model: type[SpecType], path: Path, *, overrides: Mapping[str, Any] | None = None) -> SpecType:
    """Read and check one spec file.

    Args:
        overrides: nested values that replace those of the file (an environment's, or from variables).

    Raises:
        ConfigError: SPEC_INVALID listing every mistake, each with file, line, key and what to write.
    """
    try:
        return model.model_validate(merge(_read_plain(path), overrides or {}))
    except ValidationError as error:
        document = _read_mapping(path)
        problems = [_describe(problem, path, document, model, overrides or {}) for problem in error.errors()]
        raise ConfigError(
            "SPEC_INVALID",
            f"{len(problems)} mistake{'s' * (len(problems) != 1)} in {path.name}:\n  " + "\n  ".join(problems),
            hint="Mend the lines named, then run `deltaworks pipelines check`.",
        ) from None


def _read_plain(path: Path) -> Any:
    """The file's content without line numbers: fast, since nearly every file is well."""
    with contextlib.suppress(OSError, NotPlain):
        document = load_plain_yaml(path.read_bytes())
        if isinstance(document, dict):
            return document
    return to_plain(_read_mapping(path))


def _read_mapping(path: Path) -> Any:
    document = read_yaml(path)
    if not isinstance(document, Mapping):
        raise ConfigError("SPEC_INVALID", f"{path}:1: expected keys and values.", hint="See docs/specs.md.")
    return document


def to_plain(node: Any) -> Any:
    """Plain dicts, lists and scalars of what YAML gave."""
    if isinstance(node, Mapping):
        return {str(key): to_plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [to_plain(value) for value in node]
    return node


def merge(base: Any, overrides: Any) -> Any:
    """`overrides` laid over `base`, mapping by mapping; anything else is replaced whole."""
    if not isinstance(base, Mapping) or not isinstance(overrides, Mapping):
        return to_plain(overrides)
    merged = dict(base)
    for key, value in overrides.items():
        merged[key] = merge(merged[key], value) if key in merged else to_plain(value)
    return merged


def overrides_from_variables(kind: str, name: str) -> dict[str, Any]:
    """Values set by variables: `DELTAWORKS_SET__pipelines__games__stream__trigger_seconds=5`."""
    prefix = f"{OVERRIDE_PREFIX}{kind}__{name}__"
    overrides: dict[str, Any] = {}
    for variable, text in sorted(os.environ.items()):
        if not variable.startswith(prefix):
            continue
        from deltaworks.specs.bounded_yaml import UnreadableYaml, load_yaml

        *parents, last = variable.removeprefix(prefix).split("__")
        level = overrides
        for parent in parents:
            level = level.setdefault(parent, {})
            if not isinstance(level, dict):
                raise _bad_variable(variable, f"another variable sets {parent!r} as a whole")
        try:
            level[last] = load_yaml(text.encode("utf-8", "surrogateescape"))
        except UnreadableYaml as error:
            raise _bad_variable(variable, f"{text!r} is no YAML") from error
    return overrides


def _bad_variable(variable: str, problem: str) -> ConfigError:
    return ConfigError("OVERRIDE_INVALID", f"{variable}: {problem}.", hint=f"Mend or unset {variable}.")


def _describe(
    problem: Any, path: Path, document: CommentedMap, model: type[BaseModel], overrides: Mapping[str, Any]
) -> str:
    location, parents = _place(problem["loc"], model)
    if problem["type"].startswith("union_tag"):
        location += ("kind",)
    line, depth = _line_of(document, location)
    key = ".".join(str(part) for part in location[: depth + 1]) or "(the whole file)"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        message = _unknown_key(str(location[-1]), parents)
    elif problem["type"] == "union_tag_invalid":
        message = _unknown_kind(problem["ctx"])
    elif problem["type"] in ("missing", "union_tag_not_found"):
        message = "this key is required"
    origin = " (set by an override)" if _is_overridden(overrides, location) else ""
    return f"{path}:{line}: {key}{origin}: {message}"


def _is_overridden(overrides: Mapping[str, Any], location: tuple[str | int, ...]) -> bool:
    node: Any = overrides
    for part in location:
        if not isinstance(node, Mapping):
            break
        if part not in node:
            return False
        node = node[part]
    return True


def _line_of(document: Any, location: tuple[str | int, ...]) -> tuple[int, int]:
    """The 1-based line of the deepest part of `location` the file holds, and that part's index."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    node, line, index = document, 1, -1
    for index, part in enumerate(location):
        if isinstance(node, CommentedMap) and part in node:
            line = node.lc.key(part)[0] + 1
        elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
            line = node.lc.item(part)[0] + 1
        else:
            return line, index
        node = node[part]
    return line, index


def _place(location: tuple[str | int, ...], model: type[BaseModel]) -> tuple[tuple[str | int, ...], set[str]]:
    """A place in the file, and the keys that may stand where it ends.

    Pydantic puts the kind of a thing that may be one of several between its key and those below it.
    """
    kept: list[str | int] = []
    candidates, names = [model], set(model.model_fields)
    for part in location:
        of_kind = [model for model in candidates if len(candidates) > 1 and part in _kinds(model)]
        if of_kind:
            candidates, names = of_kind, set(of_kind[0].model_fields)
            continue
        kept.append(part)
        names = {name for model in candidates for name in model.model_fields}
        fields = [model.model_fields[part] for model in candidates if part in model.model_fields]
        if fields:
            candidates = [inner for field in fields for inner in _models_in(field.annotation)] or candidates
    return tuple(kept), names


def _kinds(model: type[BaseModel]) -> tuple[str, ...]:
    kind = model.model_fields.get("kind")
    return typing.get_args(kind.annotation) if kind else ()


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models a (possibly nested) annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        return [model for argument in typing.get_args(annotation) for model in _models_in(argument)]
    return []


def _unknown_key(key: str, names: set[str]) -> str:
    nearest = difflib.get_close_matches(key, sorted(names), n=1, cutoff=0.5)
    if nearest:
        return f"unknown key {key!r}; did you mean {nearest[0]!r}?"
    return f"unknown key {key!r}; known keys here are {', '.join(sorted(names))}"


def _unknown_kind(context: Mapping[str, str]) -> str:
    kinds = [name.strip().strip("'") for name in context["expected_tags"].split(",")]
    nearest = difflib.get_close_matches(context["tag"], kinds, n=1, cutoff=0.5)
    advice = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(kinds)}"
    return f"there is no kind {context['tag']!r}; {advice}"
