"""What the options of every streaming source have in common: names in any case, one error, how values are written.

Spark hands options over as texts, with their names lower-cased. A name that is not known is an error: one that was
misspelt would else be left out in silence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.base import parse_bytes

#: What `.load(path)` gives; it says nothing to these sources.
_LOAD_PATH_OPTION = "path"
_MAX_LONG = (1 << 63) - 1


def check_option_names(source: str, options: Mapping[str, str], known_names: Collection[str]) -> dict[str, str]:
    """The options by the names of `known`, in whatever case they are given.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, a name that is not known.
    """
    by_lower = {name.lower(): name for name in (*known_names, _LOAD_PATH_OPTION)}
    for name in options:
        if name.lower() not in by_lower:
            raise invalid_option(source, name, f"is not known; known are {', '.join(known_names)}")
    return {by_lower[name.lower()]: value for name, value in options.items()}


def invalid_option(source: str, name: str, problem: str) -> ConfigError:
    """The error about one option. `problem` has no value of a key in it."""
    return ConfigError(
        "SOURCE_OPTION_INVALID",
        f"{source}: the option {name!r} {problem}.",
        hint="Mend the readStream options (docs/reference/sources.md).",
    )


def option_validation_error(
    source: str, error: ValidationError, names: Mapping[str, str], *, fallback: str
) -> ConfigError:
    """The first mistake a spec found, by the option's name and without the value: it may be a key.

    Args:
        names: options by the fields of specs they are given to.
        otherwise: the option to name where a mistake is of no single one.
    """
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    fields = [part for part in first["loc"] if isinstance(part, str) and part in names]
    name = names[fields[-1]] if fields else fallback
    return invalid_option(source, name, f"is wrong: {first['msg'].removeprefix('Value error, ')}")


def number_option(
    source: str, options: Mapping[str, str], name: str, default: int, *, minimum: int = 1, maximum: int = _MAX_LONG
) -> int:
    """A whole number, or a size such as 64MiB as its bytes.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, it is none, or not from `low` to `high`.
    """
    try:
        value = int(parse_bytes(options.get(name, str(default))))
    except ValueError:
        raise invalid_option(source, name, "must be a whole number; sizes may have a unit, such as 64MiB") from None
    if not minimum <= value <= maximum:
        bounds = f"{minimum} or more" if maximum == _MAX_LONG else f"between {minimum} and {maximum}"
        raise invalid_option(source, name, f"must be {bounds}, not {value}")
    return value


def boolean_option(source: str, options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """True or false.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, it is neither.
    """
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise invalid_option(source, name, "must be true or false")
    return text == "true"


def storage_root(location: str) -> str:
    """A folder as Spark may write it (`s3a://bucket/folder`, `/folder`, `file:/folder`), as storage specs have it."""
    if location.startswith("s3a://"):
        return "s3://" + location.removeprefix("s3a://")
    if location.startswith("file:/") and not location.startswith("file://"):
        return "file://" + location.removeprefix("file:")
    return f"file://{location}" if location.startswith("/") else location
