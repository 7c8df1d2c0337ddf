"""The ground all specs stand on: frozen, strict pydantic models and the value types they share."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from deltaworks.errors import ConfigError

NAME_PATTERN = re.compile(r"^[a-z][a-z0-9_]{0,62}$")
_BYTES_PATTERN = re.compile(r"^(\d+)\s*(B|KiB|MiB|GiB)?$")
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


def _check_path(value: str) -> str:
    if not value or any(part == "" for part in value.split(".")):
        raise ValueError("write a dotted path of field names, such as eventParams.device_id")
    return value


def as_tuple(value: Any) -> Any:
    """Let a single scalar stand for a list of one."""
    return (value,) if isinstance(value, str | int | float | bool) else value


#: A place in a declaration and what is wrong there.
Problem = tuple[tuple[str | int, ...], str]


def raise_located(problems: Sequence[Problem]) -> None:
    """Refuse a declaration for what is wrong at places below it; nothing where there is none.

    Raises:
        ValidationError: every problem at its own place.
    """
    if problems:
        raise ValidationError.from_exception_data(
            "declaration",
            [
                InitErrorDetails(
                    type=PydanticCustomError("declared", "{problem}", {"problem": text}), loc=place, input=None
                )
                for place, text in problems
            ],
        )


def nearest_of(name: str, candidates: Iterable[str]) -> str:
    """Which known name was meant, or all there are, as the end of a message."""
    names = list(candidates)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(names) or 'none'}"


Name = Annotated[str, AfterValidator(_check_name)]
FieldPath = Annotated[str, AfterValidator(_check_path)]
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
                hint=f"Set {self.name}, or start the embedded stack with `deltaworks up`, which sets it.",
            )
        return value

    def __str__(self) -> str:
        return f"{self.scheme}:{self.name}"


def _parse_reference(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    scheme, separator, name = value.partition(":")
    if scheme != "env" or not separator or not re.match(r"^[A-Z][A-Z0-9_]*$", name):
        raise ValueError("secrets and addresses of an environment are written as references, env:NAME")
    return Reference(scheme=scheme, name=name)


SecretReference = Annotated[Reference, BeforeValidator(_parse_reference)]


def _parse_text_or_reference(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("env:"):
        return _parse_reference(value)
    return value


TextOrReference = Annotated[Reference | str, BeforeValidator(_parse_text_or_reference)]


def resolve_text(value: Reference | str) -> str:
    """Return a plain text as it is and a reference resolved."""
    return value.resolve() if isinstance(value, Reference) else value
