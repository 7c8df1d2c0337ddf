"""Option parsing for streaming sources: case-insensitive names, one error condition, value formats.

Spark passes options as texts with lower-cased names. An unknown name is an error, because a misspelt option would be
ignored silently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.base import parse_bytes

#: Set by `.load(path)`; these sources ignore it.
_LOAD_PATH_OPTION = "path"
_MAX_LONG = (1 << 63) - 1


def check_option_names(source: str, options: Mapping[str, str], known_names: Collection[str]) -> dict[str, str]:
    """Returns the options with their names spelled as in `known_names`.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, an unknown name.
    """
    by_lower = {name.lower(): name for name in (*known_names, _LOAD_PATH_OPTION)}
    for name in options:
        if name.lower() not in by_lower:
            raise invalid_option(source, name, f"is not known; known are {', '.join(known_names)}")
    return {by_lower[name.lower()]: value for name, value in options.items()}


def invalid_option(source: str, name: str, problem: str) -> ConfigError:
    """Returns the error for one option. `problem` must not contain secret values."""
    return ConfigError("SOURCE_OPTION_INVALID", f"{source}: the option {name!r} {problem}.")


def option_validation_error(
    source: str, error: ValidationError, names: Mapping[str, str], *, fallback: str
) -> ConfigError:
    """Converts a spec's validation error to an error that names the option. Omits the value, which may be a secret.

    Args:
        names: option names by spec field.
        fallback: option to name if the error concerns no single field.
    """
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    fields = [part for part in first["loc"] if isinstance(part, str) and part in names]
    name = names[fields[-1]] if fields else fallback
    return invalid_option(source, name, f"is wrong: {first['msg'].removeprefix('Value error, ')}")


def number_option(
    source: str, options: Mapping[str, str], name: str, default: int, *, minimum: int = 1, maximum: int = _MAX_LONG
) -> int:
    """Parses an integer, or a size such as 64MiB in bytes.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, not a number or not between `minimum` and `maximum`.
    """
    try:
        value = int(parse_bytes(options.get(name, str(default))))
    except ValueError:
        raise invalid_option(source, name, "must be an integer; sizes may have a unit, such as 64MiB") from None
    if not minimum <= value <= maximum:
        bounds = f"{minimum} or more" if maximum == _MAX_LONG else f"between {minimum} and {maximum}"
        raise invalid_option(source, name, f"must be {bounds}, not {value}")
    return value


def boolean_option(source: str, options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Parses true or false.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, neither of them.
    """
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise invalid_option(source, name, "must be true or false")
    return text == "true"


def storage_root(location: str) -> str:
    """Converts a folder as Spark writes it (`s3a://bucket/folder`, `/folder`, `file:/folder`) to the form of storage
    specs.
    """
    if location.startswith("s3a://"):
        return "s3://" + location.removeprefix("s3a://")
    if location.startswith("file:/") and not location.startswith("file://"):
        return "file://" + location.removeprefix("file:")
    return f"file://{location}" if location.startswith("/") else location
