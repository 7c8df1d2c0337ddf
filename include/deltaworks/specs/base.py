"""The ground all specs stand on: frozen, strict pydantic models and the value types they share."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from deltaworks.errors import ConfigError

NAME_PATTERN = re.compile(r"^[a-z][a-z0-9_]{0,62}$")
#: How variables begin that Airflow sets for jobs, with the keys of a connection.
CONNECTION_VARIABLE_PREFIX = "DELTAWORKS_CONNECTION_"
_BYTES_PATTERN = re.compile(r"^(\d+)\s*(B|KiB|MiB|GiB)?$")
#: An element of a list, as JSONPath has it.
_LIST_INDEX = re.compile(r"\[(?:\d+|\*|'[^']*'|\"[^\"]*\")?\]")
_BYTE_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class Spec(BaseModel):
    """A declared thing: frozen, and refusing keys it does not know."""

    # Built where something is checked against it: most are only ever part of another one.
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True, defer_build=True)

    @classmethod
    def defaults(cls) -> Self:
        """The one that declares nothing, as the default of a field. Nothing is checked, which would build the model."""
        return cls.model_construct()


def _check_name(value: str) -> str:
    if not NAME_PATTERN.match(value):
        raise ValueError("use lower-case letters, digits and underscores, starting with a letter")
    return value


def parse_bytes(value: Any) -> Any:
    """Read `64MiB` or a plain number as a count of bytes; anything else is left for pydantic to refuse."""
    if not isinstance(value, str):
        return value
    match = _BYTES_PATTERN.match(value.strip())
    if match is None:
        raise ValueError("write a number of bytes, or one with a unit such as 64MiB (B, KiB, MiB, GiB)")
    return int(match.group(1)) * _BYTE_UNITS[match.group(2)]


def check_field_path(value: str) -> str:
    """The path, where it can be declared.

    Raises:
        ValueError: what to write instead.
    """
    if value == "$" or value.startswith(("$.", "$[")):
        bare = value[1:].lstrip(".") or "page"
        raise ValueError(f"a path begins with the name of a field and not with $: write {bare}")
    index = _LIST_INDEX.search(value)
    if index is not None:
        before = value[: index.start()].rstrip(".") or "items"
        raise ValueError(
            f"a path leads to a field, not into a list: declare {before} as a column of a type such as "
            f'"array<struct<...>>", and take elements in gold'
        )
    if not value or any(part == "" for part in value.split(".")):
        raise ValueError("write a dotted path of field names, such as eventParams.device_id")
    return value


def _check_field_paths(value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(check_field_path, value))


def as_tuple(value: Any) -> Any:
    """Let a single scalar stand for a list of one."""
    return (value,) if isinstance(value, str | int | float | bool) else value


#: A place in a declaration: keys, and numbers of items.
KeyPath = tuple[str | int, ...]
#: A place and what is wrong there, with other places that have to do with it.
Problem = tuple[KeyPath, str] | tuple[KeyPath, str, tuple[KeyPath, ...]]


def raise_problems(problems: Sequence[Problem]) -> None:
    """Refuse a declaration for what is wrong at places below it; nothing where there is none.

    Raises:
        ValidationError: every problem at its own place.
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
    """What a problem's error carries. Its other places are below the same model, which `depth` keys lead back to."""
    related = problem[2] if len(problem) == 3 else ()
    return {"problem": problem[1], "depth": len(problem[0]), "related": related}


def suggest_name(name: str, candidates: Iterable[str]) -> str:
    """Which known name was meant, or all there are, as the end of a message."""
    names = list(candidates)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(names) or 'none'}"


def exclude_if_default(default: Any, **options: Any) -> Any:
    """A key that came with a later release: where it has its default it is not written out.

    So a declaration that does not use it keeps its fingerprint, and an upgrade is no change of it.
    """
    return Field(default=default, exclude_if=lambda value: value == default, **options)


Name = Annotated[str, AfterValidator(_check_name)]
FieldPath = Annotated[str, AfterValidator(check_field_path)]
#: One path, or several; one is written out as it is declared, without a list around it.
FieldPaths = Annotated[
    tuple[str, ...],
    BeforeValidator(as_tuple),
    AfterValidator(_check_field_paths),
    PlainSerializer(lambda paths: paths[0] if len(paths) == 1 else list(paths)),
]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]


class Reference(Spec):
    """Where a value is to be found (`env:NAME`), so that no secret is ever written in a spec."""

    scheme: str
    name: str

    def resolve(self) -> str:
        """Return the value now.

        Raises:
            ConfigError: REFERENCE_UNRESOLVED when the environment variable is not set.
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
                "Airflow sets it for its own tasks and jobs, from the connection that aws_conn_id names. "
                f"Anywhere else, set {self.name} to that key yourself."
            )
        return f"Set {self.name}, or start the embedded stack with `deltaworks up`, which sets it."

    def __str__(self) -> str:
        return f"{self.scheme}:{self.name}"


def _parse_reference(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    scheme, separator, name = value.partition(":")
    if scheme != "env" or not separator or not re.match(r"^[A-Z][A-Z0-9_]*$", name):
        raise ValueError("secrets and addresses of an environment are written as references, env:NAME")
    return Reference(scheme=scheme, name=name)


def find_references(declared: object, key_path: str = "") -> Iterator[tuple[str, Reference]]:
    """Every reference at or below something declared, by the keys that lead to it, such as `channels[0].url`.

    Settings that are handed on as they are, such as those of a transport, hold theirs as texts.
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
    """Return a plain text as it is and a reference resolved."""
    return value.resolve() if isinstance(value, Reference) else value
