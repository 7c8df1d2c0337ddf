"""Base of all specs: frozen, strict pydantic models and shared value types."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from deltaworks.errors import ConfigError

NAME_PATTERN = re.compile(r"^[a-z][a-z0-9_]{0,62}$")
#: Prefix of the variables by which Airflow passes a connection's keys to jobs.
CONNECTION_VARIABLE_PREFIX = "DELTAWORKS_CONNECTION_"
_DURATION_PATTERN = r"^([1-9]\d*)(s|m|h|d)$"
_DURATION_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_BYTES_PATTERN = re.compile(r"^(\d+)\s*(B|KiB|MiB|GiB)?$")
#: A JSONPath index of a list.
_LIST_INDEX = re.compile(r"\[(?:\d+|\*|'[^']*'|\"[^\"]*\")?\]")
#: A name in backquotes within a path.
QUOTED_NAME = re.compile(r"`(?:[^`]|``)+`")
_BARE_NAME = re.compile(r"(?!\s)[^.`\[\]]+(?<!\s)")
_PATH_PART = re.compile(r"(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<bare>[^.`\[\]]+))(?:\[\])?(?=\.|\Z)")
_BYTE_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class Spec(BaseModel):
    """Base class of specs: frozen, and rejects unknown keys."""

    # The pydantic model is built at its first validation: most specs are only nested in others.
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True, defer_build=True)

    @classmethod
    def defaults(cls) -> Self:
        """Returns a spec with defaults only, without validation, which would build the pydantic model."""
        return cls.model_construct()


def _check_name(value: str) -> str:
    if not NAME_PATTERN.match(value):
        raise ValueError("use lower-case letters, digits and underscores, starting with a letter")
    return value


def parse_bytes(value: Any) -> Any:
    """Parses `64MiB` or a plain number to bytes. Returns any other type unchanged, for pydantic to reject."""
    if not isinstance(value, str):
        return value
    match = _BYTES_PATTERN.match(value.strip())
    if match is None:
        raise ValueError("write a number of bytes, or one with a unit such as 64MiB (B, KiB, MiB, GiB)")
    return int(match.group(1)) * _BYTE_UNITS[match.group(2)]


def parse_duration(value: Any) -> timedelta:
    """Parses `30s`, `15m`, `6h` or `30d` to a timedelta. Returns a timedelta unchanged."""
    if isinstance(value, timedelta):
        return value
    match = re.match(_DURATION_PATTERN, value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a duration with its unit, such as 30s, 15m, 6h or 30d")
    return timedelta(seconds=int(match[1]) * _DURATION_UNITS[match[2]])


def describe_duration(value: timedelta) -> str:
    """Returns a duration in the largest unit that divides it, as it is declared."""
    seconds = int(value.total_seconds())
    unit = next(unit for unit in reversed(_DURATION_UNITS) if seconds % _DURATION_UNITS[unit] == 0)
    return f"{seconds // _DURATION_UNITS[unit]}{unit}"


@lru_cache(maxsize=4_096)
def path_names(path: str) -> tuple[str, ...]:
    """Returns the field names of a path, which are separated by dots.

    A name with dots, brackets or backquotes is in backquotes: `` resource.`service.name` ``; a backquote in it is
    doubled. `[]` after a name, which selects the elements of a list, is not part of the name.

    Raises:
        ValueError: the path is invalid; the message says what to write instead.
    """
    names, end = list[str](), -1
    while end < len(path):
        part = _PATH_PART.match(path, end + 1)
        if part is None:
            raise ValueError(
                "write a dotted path of field names, such as eventParams.device_id; a name with dots, brackets or "
                "backquotes goes in backquotes: `user.email`"
            )
        names.append(part["bare"] or part["quoted"].replace("``", "`"))
        end = part.end()
    return tuple(names)


def paths_overlap(one: Sequence[str], two: Sequence[str]) -> bool:
    """Returns whether two paths, given by their names, are equal or one is a parent of the other."""
    return one[: len(two)] == two or two[: len(one)] == one


def format_path(names: Iterable[str]) -> str:
    """Returns the path of these names, the reverse of `path_names`."""
    return ".".join(name if _BARE_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`" for name in names)


def selects_elements(path: str) -> bool:
    """Returns whether a path has `[]` after a name."""
    return "[]" in QUOTED_NAME.sub("", path)


def check_field_path(value: str) -> str:
    """Returns the field path in its canonical form, if it is valid.

    Raises:
        ValueError: the path is invalid; the message says what to write instead.
    """
    bare_names = QUOTED_NAME.sub("_", value)
    if value == "$" or value.startswith(("$.", "$[")):
        bare = value[1:].lstrip(".") or "page"
        raise ValueError(f"a path starts with a field name and not with $: write {bare}")
    index = _LIST_INDEX.search(bare_names)
    if index is not None:
        before = bare_names[: index.start()].rstrip(".") or "items"
        raise ValueError(
            f"a path cannot select list elements: declare {before} as a column of a type such as "
            '"array<struct<...>>", and select elements in gold'
        )
    return format_path(path_names(value))


def _check_field_paths(value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(check_field_path, value))


def as_tuple(value: Any) -> Any:
    """Wraps a scalar in a tuple, so that a key accepts one value or a list."""
    return (value,) if isinstance(value, str | int | float | bool) else value


#: The path to a value in a spec, of keys and list indexes, like pydantic's `loc`.
KeyPath = tuple[str | int, ...]
#: A problem in a spec: key path, message and, optionally, related key paths.
Problem = tuple[KeyPath, str] | tuple[KeyPath, str, tuple[KeyPath, ...]]


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raises one pydantic ValidationError for all problems. Does nothing without problems.

    Raises:
        ValidationError: with each problem at its key path.
    """
    if problems:
        raise ValidationError.from_exception_data(
            "declaration",
            [
                InitErrorDetails(
                    type=PydanticCustomError("declared", "{problem}", _error_context(problem)),
                    loc=problem[0],
                    input=None,
                )
                for problem in problems
            ],
        )


def _error_context(problem: Problem) -> dict[str, Any]:
    """Returns the pydantic error context of a problem. Its related key paths start at the model that is `depth` keys
    above the error.
    """
    related = problem[2] if len(problem) == 3 else ()
    return {"problem": problem[1], "depth": len(problem[0]), "related": related}


#: Maximum number of known names that an error lists.
_MAX_NAMES = 8


def suggest_name(name: str, candidates: Iterable[str]) -> str:
    """Returns the end of an error message for an unknown name: the closest known name, or some known names."""
    names = list(candidates)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {nearest[0]!r}?" if nearest else f"known names: {shorten_names(names)}"


def shorten_names(names: Sequence[str]) -> str:
    """Lists the first names, and the number of the others."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return (", ".join(names[:_MAX_NAMES]) or "none") + more


def nearest_names_hint(unknown: Iterable[str], candidates: Iterable[str], *, prefix: str) -> str:
    """Returns a next step for unknown names: the nearest known ones, or the first known ones if none is near.

    Args:
        prefix: how the sentence with known names starts, such as `Its tables are`.
    """
    names = list(candidates)
    nearest = dict.fromkeys(near for name in unknown for near in difflib.get_close_matches(name, names, n=3))
    if nearest:
        return f"Did you mean {' or '.join(map(repr, nearest))}?"
    return f"{prefix} {shorten_names(names)}."


def exclude_if_default(default: Any, **options: Any) -> Any:
    """Declares a field that is omitted from the serialized spec while it has its default value.

    For keys that a release after the first adds: the fingerprint of specs that do not use them stays the same.
    """
    return Field(default=default, exclude_if=lambda value: value == default, **options)


Name = Annotated[str, AfterValidator(_check_name)]
FieldPath = Annotated[str, AfterValidator(check_field_path)]
#: One path or a list of paths. A single path is serialized without a list.
FieldPaths = Annotated[
    tuple[str, ...],
    BeforeValidator(as_tuple),
    AfterValidator(_check_field_paths),
    PlainSerializer(lambda paths: paths[0] if len(paths) == 1 else list(paths)),
]
Duration = Annotated[
    timedelta,
    PlainValidator(parse_duration),
    PlainSerializer(describe_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": _DURATION_PATTERN, "examples": ["30s", "15m", "6h", "30d"]}),
]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]


class Reference(Spec):
    """A reference to an environment variable (`env:NAME`), so that specs contain no secrets."""

    scheme: str
    name: str

    def resolve(self) -> str:
        """Returns the current value.

        Raises:
            ConfigError: REFERENCE_UNRESOLVED if the environment variable is not set.
        """
        value = os.environ.get(self.name)
        if value is None:
            raise ConfigError(
                "REFERENCE_UNRESOLVED",
                f"The reference env:{self.name} has no value: the environment variable is not set.",
                hint=self._resolution_hint(),
            )
        return value

    def _resolution_hint(self) -> str:
        if self.name.startswith(CONNECTION_VARIABLE_PREFIX):
            return (
                "Airflow sets it for its tasks and jobs, from the connection aws_conn_id. Elsewhere, set "
                f"{self.name} to that key."
            )
        return f"Set {self.name}, or start the embedded stack with `deltaworks up`, which sets it."

    def __str__(self) -> str:
        return f"{self.scheme}:{self.name}"


def _parse_reference(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    scheme, separator, name = value.partition(":")
    if scheme != "env" or not separator or not re.match(r"^[A-Z][A-Z0-9_]*$", name):
        raise ValueError("write secrets and addresses as references, env:NAME")
    return Reference(scheme=scheme, name=name)


def find_references(declared: object, key_path: str = "") -> Iterator[tuple[str, Reference]]:
    """Yields all references in a spec, each with its key, such as `channels[0].url`.

    Settings that are passed on unparsed, such as those of a lineage transport, contain references as strings.
    """
    if isinstance(declared, Reference):
        yield key_path, declared
    elif isinstance(declared, str) and re.fullmatch(r"env:[A-Z][A-Z0-9_]*", declared):
        yield key_path, Reference(scheme="env", name=declared.removeprefix("env:"))
    elif isinstance(declared, tuple | list):
        for at, part in enumerate(declared):
            yield from find_references(part, f"{key_path}[{at}]")
    elif isinstance(declared, dict | BaseModel):
        parts = declared.items() if isinstance(declared, dict) else iter(declared)
        for name, part in parts:
            yield from find_references(part, f"{key_path}.{name}".lstrip("."))


SecretReference = Annotated[Reference, BeforeValidator(_parse_reference)]


def _parse_text_or_reference(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("env:"):
        return _parse_reference(value)
    return value


TextOrReference = Annotated[Reference | str, BeforeValidator(_parse_text_or_reference)]


def resolve_text(value: Reference | str) -> str:
    """Returns the value of a reference, or a plain text unchanged."""
    return value.resolve() if isinstance(value, Reference) else value
