"""Options of operations: pydantic models whose fields are the flags of a command and the fields of a form.

A field has a default, and a description that is its help everywhere. Its type is one of `str | None`, `int | None`,
`float | None`, `bool`, `int`, `float`, a `Literal` of texts, or `tuple[str, ...]`.
"""

from __future__ import annotations

import functools
import json
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic.fields import FieldInfo

from deltaworks.errors import ConfigError

#: The argument with the options of a job.
OPTIONS_FLAG: Final = "--options"
#: Complete commands, and flags with a number after them.
_FLAGS: Final = re.compile(
    r"(?P<command>`deltaworks [^`]*`|\bdeltaworks (?:[a-z].*))|(?P<flag>--[a-z][a-z-]*[a-z])(?: (?P<value>\d[\d,]*))?"
)
_OPTIONS_HINT = f"Example: {OPTIONS_FLAG}='{{\"dry_run\": false}}'."


@dataclass(frozen=True, slots=True)
class Positional:
    """Marks an option that a command takes as a positional argument."""


@dataclass(frozen=True, slots=True)
class TableNames:
    """Marks an option that names tables or models of the pipeline, which a form offers as choices.

    Args:
        kinds: the kinds of tables.
    """

    kinds: tuple[Literal["bronze", "keyed", "quarantine", "gold", "model"], ...] = ("bronze",)


@dataclass(frozen=True, slots=True)
class Section:
    """Marks the section of a form in which an option is shown."""

    title: str


#: The section of options about how the work is done, which people rarely need.
ENGINE_SECTION: Final = Section("Engine")


@dataclass(frozen=True, slots=True)
class OnlyFor:
    """Marks an option that only pipelines with this kind of source have in their forms."""

    source: Literal["objects", "records"]


class Options(BaseModel):
    """Base class of the options of operations."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_default(cls, value: Any, info: Any) -> Any:
        """Replaces empty texts of forms and templates by the default; splits a comma-separated text into a list."""
        declared = cls.model_fields[info.field_name]
        if value in ("", None, "None") and not declared.is_required():
            return declared.get_default()
        if get_origin(declared.annotation) is tuple:
            names = tuple(split_names(value))
            if value and not names:
                # The default would select everything.
                raise ValueError("it names nothing")
            return names
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionField:
    """One option with the properties that commands, jobs and forms need.

    In a form that operations share, `is_needed` says that some of them require the option. Only pipelines with this
    `source` have it, if it is set.
    """

    name: str
    kind: Literal["text", "integer", "number", "switch", "names"]
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    required: bool = False
    is_needed: bool = False
    positional: bool = False
    tables: TableNames | None = None
    source: str = ""
    section: str = ""
    minimum: float | None = None
    maximum: float | None = None

    @property
    def flag(self) -> str:
        """The flag that sets the option; for a switch, the flag that turns it on."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def off_flag(self) -> str:
        """The flag that turns the option off, if it is a switch."""
        return f"--no-{self.name.replace('_', '-')}"


@functools.cache
def option_fields(model: type[Options]) -> tuple[OptionField, ...]:
    """Returns the options of a model in declaration order, with `dry_run` last."""
    names = sorted(model.model_fields, key=lambda name: name == "dry_run")
    return tuple(_option_field(name, model.model_fields[name]) for name in names)


def _option_field(name: str, declared: FieldInfo) -> OptionField:
    metadata = declared.metadata
    kind, choices = _option_kind(name, declared.annotation)
    return OptionField(
        name=name,
        kind=kind,
        default=None if declared.is_required() else declared.get_default(),
        required=declared.is_required(),
        help=declared.description or "",
        choices=choices,
        positional=any(isinstance(mark, Positional) for mark in metadata),
        tables=next((mark for mark in metadata if isinstance(mark, TableNames)), None),
        source=next((mark.source for mark in metadata if isinstance(mark, OnlyFor)), ""),
        section=next((mark.title for mark in metadata if isinstance(mark, Section)), ""),
        minimum=next((mark.ge for mark in metadata if getattr(mark, "ge", None) is not None), None),
        maximum=next((mark.le for mark in metadata if getattr(mark, "le", None) is not None), None),
    )


def _option_kind(
    name: str, annotation: Any
) -> tuple[Literal["text", "integer", "number", "switch", "names"], tuple[str, ...]]:
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) is Literal:
        return "text", get_args(annotation)
    if get_origin(annotation) is tuple:
        return "names", ()
    if annotation is bool:
        return "switch", ()
    if annotation is int:
        return "integer", ()
    if annotation is float:
        return "number", ()
    if annotation is str:
        return "text", ()
    raise TypeError(f"option {name}: {annotation} is no type of an option")


def read_options(model: type[Options], values: Mapping[str, Any]) -> Options:
    """Validates option values.

    Raises:
        ConfigError: OPTION_INVALID, with the flag and the problem.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        field = next((item for item in option_fields(model) if item.name == name), None)
        flag = name if field is None else field.flag
        option = f"{flag} {first['input']}" if name else "The options"
        raise ConfigError(
            "OPTION_INVALID",
            f"{option}: {first['msg'].removeprefix('Value error, ')}.",
            hint=f"{flag}: {field.help}" if field is not None else "See the operation's --help.",
        ) from error


def to_arguments(options: Options) -> list[str]:
    """Returns the options that differ from their defaults as one argument of a job; none if all are defaults.

    One JSON value, because a text such as `--` in an argument of its own would be read as syntax.
    """
    changed = {
        field.name: value
        for field in option_fields(type(options))
        if (value := getattr(options, field.name)) != field.default
    }
    if not changed:
        return []
    text = json.dumps(changed, separators=(",", ":"))
    # YARN replaces doubled braces in commands. The object is flat, so they can only be in texts.
    return [f"{OPTIONS_FLAG}=" + text.replace("{{", "{\\u007b").replace("}}", "}\\u007d")]


def from_argument(text: str) -> dict[str, Any]:
    """Parses the argument of `to_arguments`.

    Raises:
        ConfigError: OPTION_INVALID.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError("OPTION_INVALID", f"{OPTIONS_FLAG}: {error}.", hint=_OPTIONS_HINT) from error
    if not isinstance(values, dict):
        raise ConfigError("OPTION_INVALID", f"{OPTIONS_FLAG} is no JSON object.", hint=_OPTIONS_HINT)
    return values


def name_fields(text: str, fields: Iterable[OptionField]) -> str:
    """Replaces flags in a text by the fields of the form, for people who do not use the command: `--no-dry-run` is
    "Dry run off". Complete commands stay.
    """
    titles = {field.flag: field.name.replace("_", " ").capitalize() for field in fields}
    off_titles = {f"--no-{flag[2:]}": f"{title} off" for flag, title in titles.items()}

    def replace(match: re.Match[str]) -> str:
        if match["command"]:
            return match["command"]
        flag, value = match["flag"], match["value"]
        if flag in titles:
            return f"{titles[flag]} {value}" if value else titles[flag]
        return f"{off_titles[flag]} {value}" if value and flag in off_titles else off_titles.get(flag, match[0])

    return _FLAGS.sub(replace, text)


def split_names(value: str | Iterable[str]) -> list[str]:
    """Splits comma-separated names; commas in braces are part of a name."""
    names: list[str] = []
    for text in [value] if isinstance(value, str) else value:
        names += _split_on_commas(text)
    return [name for name in (name.strip() for name in names) if name]


def _split_on_commas(text: str) -> Sequence[str]:
    parts, depth = [""], 0
    for character in text:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
