"""Errors in spec files: location, text and advice.

Pydantic's error messages are replaced by messages that say what to write, without names of library types. A test checks
that every error type the specs can raise has an entry.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deltaworks.errors import ConfigError

#: Advice for texts that do not match a pattern, by pattern.
PATTERNS: Final = {
    r"^\d+[mg]$": "write a number with m or g, such as 512m or 2g",
    r"^[1-9]\d*[mg]$": "write a number with m or g, such as 512m or 2g",
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": "use lower-case letters, digits and dashes, with no dash at the ends",
    r"^[1-9]\d*m?$": "write a number of cores, such as 2, or millicores, such as 500m",
    r"^[1-9]\d*(Mi|Gi)$": "write a number with Mi or Gi, such as 512Mi or 2Gi",
    r"^[^@\s<>,]+@[^@\s<>,]+$": "write an e-mail address, such as on-call@example.com",
    r"^[A-Za-z0-9_]+$": "use letters, digits and underscores",
    r"^[a-z0-9_]*$": "use lower-case letters, digits and underscores",
    r"^[a-zA-Z0-9_.-]{1,128}$": "use letters, digits, dots, dashes and underscores, 128 at most",
}
_MAX_VALUE_LENGTH = 60

Context = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpecError:
    """An error at a line of a file.

    The `key` is the dotted path of the value; it is empty if the error concerns the complete file.
    """

    file: Path
    line: int
    key: str
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.key, self.text) if part)


def invalid_spec_error(errors: Sequence[SpecError]) -> ConfigError:
    """Returns the ConfigError SPEC_INVALID for all errors of a file."""
    number = len(errors)
    summary = f"{number} error{'s' * (number != 1)} in {errors[0].file.name}:"
    return ConfigError("SPEC_INVALID", summary, items=[str(spec_error) for spec_error in errors])


def closest_match(name: str, candidates: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """Returns the candidate that is closest to a name; None if no candidate is close."""
    nearest = difflib.get_close_matches(name, sorted(candidates), n=1, cutoff=cutoff)
    return nearest[0] if nearest else None


def format_lines(numbers: Iterable[int]) -> str:
    """Formats line numbers: `line 3`, `lines 3 and 9`."""
    ordered = [str(number) for number in sorted({*numbers})]
    if len(ordered) == 1:
        return f"line {ordered[0]}"
    return f"lines {', '.join(ordered[:-1])} and {ordered[-1]}"


def _format_value(value: Any) -> str:
    """Formats a value as it would be written in YAML."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "keys and values"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}…"


def _instead_message(words: str) -> Callable[[Any, Context], str]:
    return lambda value, context: f"write {words} instead of {_format_value(value)}"


def _string_message(value: Any, context: Context) -> str:
    if value is None or isinstance(value, Mapping | list | tuple):
        return f"write a text instead of {_format_value(value)}"
    text = _format_value(value)
    return f"write a text, in quotes: {json.dumps(text)}"


def _list_message(value: Any, context: Context) -> str:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return f"write a list: [{value}]"
    return f"write a list, such as [a, b], instead of {_format_value(value)}"


def _choice_message(value: Any, context: Context) -> str:
    choices = _expected_values(context)
    nearest = closest_match(str(value), choices)
    advice = f"; did you mean {nearest!r}?" if nearest is not None else ""
    return f"write {_join_choices(choices)} instead of {_format_value(value)}{advice}"


def _kind_message(value: Any, context: Context) -> str:
    kinds = [name.strip().strip("'") for name in str(context["expected_tags"]).split(",")]
    if context["tag"] == "None":
        return f"write a kind: {_join_choices(kinds)}"
    nearest = closest_match(str(context["tag"]), kinds)
    advice = f"did you mean {nearest!r}?" if nearest is not None else f"known kinds: {', '.join(kinds)}"
    return f"there is no kind {context['tag']!r}; {advice}"


def _pattern_message(value: Any, context: Context) -> str:
    words = PATTERNS.get(str(context.get("pattern")), f"write a text that matches {context.get('pattern')}")
    return f"{words}, instead of {_format_value(value)}"


def _bound_message(words: str, key: str) -> Callable[[Any, Context], str]:
    return lambda value, context: (
        f"write {words.format(_format_number(context[key]))} instead of {_format_value(value)}"
    )


def _length_message(words: str, key: str) -> Callable[[Any, Context], str]:
    return lambda value, context: f"write {words.format(_format_number(context[key]))} here"


def _validator_message(value: Any, context: Context) -> str:
    """Returns the message that a validator of Deltaworks raised."""
    return str(context.get("problem") or context.get("error") or "")


def _model_message(value: Any, context: Context) -> str:
    if context.get("class_name") == "Reference":
        return f"write a reference such as env:NAME instead of {_format_value(value)}"
    return _instead_message("keys and values")(value, context)


def _required_message(value: Any, context: Context) -> str:
    return "this key is required"


MESSAGE_BUILDERS: Final[dict[str, Callable[[Any, Context], str]]] = {
    "value_error": _validator_message,
    "declared": _validator_message,
    "missing": _required_message,
    "union_tag_not_found": _required_message,
    "union_tag_invalid": _kind_message,
    "string_type": _string_message,
    "string_too_short": _length_message("at least {} characters", "min_length"),
    "string_too_long": _length_message("at most {} characters", "max_length"),
    "string_pattern_mismatch": _pattern_message,
    "string_unicode": _instead_message("a UTF-8 text"),
    "int_type": _instead_message("a whole number"),
    "int_parsing": _instead_message("a whole number"),
    "int_parsing_size": _instead_message("a smaller whole number"),
    "int_from_float": _instead_message("a whole number"),
    "float_type": _instead_message("a number"),
    "float_parsing": _instead_message("a number"),
    "finite_number": _instead_message("a finite number"),
    "bool_type": _instead_message("true or false"),
    "bool_parsing": _instead_message("true or false"),
    "greater_than": _bound_message("more than {}", "gt"),
    "greater_than_equal": _bound_message("{} or more", "ge"),
    "less_than": _bound_message("less than {}", "lt"),
    "less_than_equal": _bound_message("{} or less", "le"),
    "tuple_type": _list_message,
    "too_short": _length_message("{} or more", "min_length"),
    "too_long": _length_message("{} at most", "max_length"),
    "dict_type": _instead_message("keys and values"),
    "model_type": _model_message,
    "model_attributes_type": _instead_message("keys and values"),
    "literal_error": _choice_message,
}
#: Nouns for the types in a union.
_NOUNS: Final = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
}


def error_message(kind: str, value: Any, context: Context, *, message: str) -> str:
    """Returns the message for an error of pydantic.

    Args:
        value: the declared value.
        message: pydantic's own message, the fallback for an unknown type.
    """
    words = MESSAGE_BUILDERS.get(kind)
    return words(value, context) if words is not None else message.removeprefix("Value error, ")


def union_error_message(errors: Iterable[tuple[str, Context]], value: Any) -> str:
    """Returns the message for a value that matches no type of a union.

    Args:
        errors: type and context of the error of each alternative.
    """
    choices: list[str] = []
    for kind, context in sorted(errors, key=lambda error: error[0] != "literal_error"):
        if context.get("class_name") == "Reference":
            choices.append("a reference such as env:NAME")
        else:
            choices += _expected_values(context) if kind == "literal_error" else [_NOUNS.get(kind, "something else")]
    return f"write {_join_choices(list(dict.fromkeys(choices)))} instead of {_format_value(value)}"


def unknown_key_message(key: str, names: Iterable[str]) -> str:
    """Returns the message for an unknown key, with the closest known key or all keys."""
    nearest = closest_match(key, names)
    if nearest is not None:
        return f"unknown key {key!r}; did you mean {nearest!r}?"
    return f"unknown key {key!r}; known keys: {', '.join(sorted(names))}"


def _expected_values(context: Context) -> list[str]:
    """Returns the allowed values, which pydantic lists as `'a', 'b' or 'c'`."""
    return [part.strip().strip("'") for part in str(context.get("expected", "")).replace(" or ", ", ").split(",")]


def _join_choices(choices: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]])) if choices else "something else"


def _format_number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)
