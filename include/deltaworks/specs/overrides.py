"""Overrides: values of a spec that an environment or an environment variable replaces. Records where each one
is set."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltaworks.errors import ConfigError
from deltaworks.specs.base import KeyPath
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.spec_errors import closest_match
from deltaworks.specs.yaml_reader import InvalidYamlError, load_yaml

OVERRIDE_PREFIX = "DELTAWORKS_SET__"
#: Minimum similarity of an unknown name to a known one for a typo. A less similar name was probably removed.
_TYPO_CUTOFF = 0.8


@dataclass(frozen=True, slots=True)
class Overrides:
    """Overrides of one spec. Those in `variables` are set by environment variables, all others in `file` below
    `key_prefix`.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[KeyPath, str] = field(default_factory=dict)
    file: Path | None = None
    key_prefix: KeyPath = ()

    def variable(self, key_path: KeyPath) -> str | None:
        """Returns the variable that sets a key or a parent of the key; None if there is none."""
        return next((name for keys, name in self.variables.items() if key_path[: len(keys)] == keys), None)

    def is_overridden(self, key_path: KeyPath, document: Any) -> bool:
        """Returns whether the value at a key path comes from an override in place of the spec file."""
        node: Any = self.values
        for part in key_path:
            if not isinstance(node, Mapping):
                return True
            if part not in node:
                return False
            node, document = node[part], _child(document, part)
        return bool(key_path) and (not isinstance(node, Mapping) or document is None)


def _child(node: Any, part: str | int) -> Any:
    return node.get(part) if isinstance(node, Mapping) else None


def overrides_of(environment: EnvironmentSpec, file: Path, kind: str, name: str) -> Overrides:
    """Returns the overrides of one pipeline, relay or collector from the environment and from variables.

    Raises:
        ConfigError: OVERRIDE_INVALID.
    """
    declared = environment.overrides.get(kind, {}).get(name) or {}
    variables = _override_variables(kind, name)
    return Overrides(
        values=merge(declared, overrides_from_variables(kind, name)),
        variables=variables,
        file=file,
        key_prefix=("overrides", kind, name),
    )


def to_plain(node: Any) -> Any:
    """Converts parsed YAML to plain dicts, lists and scalars."""
    if isinstance(node, Mapping):
        return {str(key): to_plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [to_plain(value) for value in node]
    return node


def merge(base: Any, overrides: Any) -> Any:
    """Merges overrides into data. Mappings are merged key by key; other values are replaced."""
    if not isinstance(base, Mapping) or not isinstance(overrides, Mapping):
        return to_plain(overrides)
    merged = dict(base)
    for key, value in overrides.items():
        merged[key] = merge(merged[key], value) if key in merged else to_plain(value)
    return merged


def overrides_from_variables(kind: str, name: str) -> dict[str, Any]:
    """Returns the values of a spec that variables set, such as
    `DELTAWORKS_SET__pipelines__games__stream__trigger_seconds=5`.

    Raises:
        ConfigError: OVERRIDE_INVALID.
    """
    overrides: dict[str, Any] = {}
    for keys, variable in _override_variables(kind, name).items():
        level = overrides
        for parent in keys[:-1]:
            level = level.setdefault(str(parent), {})
            if not isinstance(level, dict):
                raise _invalid_override(variable, f"another variable sets {parent!r} completely")
        text = os.environ[variable]
        try:
            level[str(keys[-1])] = load_yaml(text.encode("utf-8", "surrogateescape")).values
        except InvalidYamlError as error:
            raise _invalid_override(variable, f"{text!r} is not valid YAML") from error
    return overrides


def _override_variables(kind: str, name: str) -> dict[KeyPath, str]:
    """Returns the variables that override one spec, by key path."""
    prefix = f"{OVERRIDE_PREFIX}{kind}__{name}__"
    return {
        tuple(variable.removeprefix(prefix).split("__")): variable
        for variable in sorted(os.environ)
        if variable.startswith(prefix)
    }


def _invalid_override(variable: str, problem: str) -> ConfigError:
    return ConfigError("OVERRIDE_INVALID", f"{variable}: {problem}.", hint=f"Correct or unset {variable}.")


@dataclass(frozen=True, slots=True)
class UnusedOverride:
    """An override of an undeclared name, which has no effect.

    It is a typo (`is_typo`) if the name resembles a declared one, if a variable sets it, or if its kind does not exist.
    Otherwise the declared name was probably removed, and the override is only a warning.
    """

    key_path: KeyPath
    variable: str | None
    text: str
    is_typo: bool


def unused_overrides(environment: EnvironmentSpec, declared: Mapping[str, Collection[str]]) -> Iterator[UnusedOverride]:
    """Yields all overrides of undeclared kinds or names."""
    targets: list[tuple[str | None, str, str]] = [
        (None, kind, name) for kind, named in environment.overrides.items() for name in named
    ]
    for variable in sorted(os.environ):
        if variable.startswith(OVERRIDE_PREFIX):
            kind, _, rest = variable.removeprefix(OVERRIDE_PREFIX).partition("__")
            targets.append((variable, kind, rest.partition("__")[0]))
    for origin, kind, name in targets:
        if kind in declared and name in declared[kind]:
            continue
        candidates = declared.get(kind, declared)
        unknown_name = name if kind in declared else kind
        nearest = closest_match(unknown_name, candidates, cutoff=_TYPO_CUTOFF if kind in declared else 0.4)
        description = f"{kind.removesuffix('s')} {name!r}" if kind in declared else f"kind of spec {kind!r}"
        advice = f"did you mean {nearest!r}?" if nearest else _removal_advice(origin, kind, candidates, declared)
        yield UnusedOverride(
            key_path=("overrides", kind, name) if kind in declared else ("overrides", kind),
            variable=origin,
            text=f"there is no {description}; {advice}",
            is_typo=nearest is not None or origin is not None or kind not in declared,
        )


def _removal_advice(
    variable: str | None, kind: str, candidates: Collection[str], declared: Mapping[str, Collection[str]]
) -> str:
    if kind in declared and variable is None:
        return "remove these lines, which have no effect"
    return f"known names: {', '.join(sorted(candidates)) or 'none'}"
