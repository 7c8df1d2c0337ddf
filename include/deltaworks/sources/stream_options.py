"""Option parsing for streaming sources: case-insensitive names, one error condition, value formats.

Spark passes options as texts with lower-cased names. An unknown name is an error, because a misspelt option would be
ignored silently.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping

from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.base import parse_bytes

STATE_OPTION = "stateLocation"
#: Set by `.load(path)`; sources without a path ignore it.
LOAD_PATH_OPTION = "path"
#: Set by `CheckpointedSource` in include/jars, never by users: `checkpoint/sources/0`.
CHECKPOINT_OPTION = "sourceCheckpointLocation"
_MAX_LONG = (1 << 63) - 1


def check_option_names(source: str, options: Mapping[str, str], known_names: Collection[str]) -> dict[str, str]:
    """Returns the options with their names spelled as in `known_names`.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, an unknown name.
    """
    by_lower = {name.lower(): name for name in (*known_names, LOAD_PATH_OPTION)}
    for name in options:
        if name.lower() not in by_lower:
            raise invalid_option(source, name, f"is not known; known are {', '.join(known_names)}")
    return {by_lower[name.lower()]: value for name, value in options.items()}


def invalid_option(source: str, name: str, problem: str) -> ConfigError:
    """Returns the error for one option. `problem` must not contain secret values."""
    return ConfigError("SOURCE_OPTION_INVALID", f"{source}: the option {name!r} {problem}.")


def check_unsupported(source: str, options: Mapping[str, str], advice: Mapping[str, str]) -> None:
    """Rejects options that other implementations of a format have.

    Args:
        advice: what to use instead, by option name. A name that ends with `*` stands for all names that begin so.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, naming the option and what to use instead.
    """
    by_lower = {name.lower(): instead for name, instead in advice.items() if not name.endswith("*")}
    prefixes = {name[:-1].lower(): instead for name, instead in advice.items() if name.endswith("*")}
    for name in options:
        by_prefix = [instead for prefix, instead in prefixes.items() if name.lower().startswith(prefix)]
        instead = by_lower.get(name.lower()) or next(iter(by_prefix), None)
        if instead is not None:
            raise invalid_option(source, name, f"is not supported: {instead}")


def rename_options(source: str, options: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Returns the options with names of other implementations replaced by this source's names.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, an option is given by two names.
    """
    by_lower = {name.lower(): target for name, target in names.items()}
    renamed: dict[str, str] = {}
    for name, value in options.items():
        target = by_lower.get(name.lower(), name)
        if target.lower() in {other.lower() for other in renamed}:
            raise invalid_option(source, name, f"and {target} are the same option: give one of them")
        renamed[target] = value
    return renamed


def key_reference(value: str) -> str:
    """Returns a reference to an access or secret key. Published code passes keys as literal option values.

    A literal key becomes an environment variable of this process, and the reference contains only its name, so that no
    spec or message contains the key.
    """
    if ":" in value:
        return value
    name = f"DELTAWORKS_OPTION_{hashlib.blake2b(value.encode(), digest_size=8).hexdigest().upper()}"
    os.environ[name] = value
    return f"env:{name}"


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


def pop_checkpoint(options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Splits the options into Spark's checkpoint folder of this source (an empty string if unknown) and the user's
    options.
    """
    user_options = {name: value for name, value in options.items() if name.lower() != CHECKPOINT_OPTION.lower()}
    checkpoints = [value for name, value in options.items() if name.lower() == CHECKPOINT_OPTION.lower()]
    return (checkpoints[0] if checkpoints else ""), user_options


def state_root(source: str, options: Mapping[str, str], *, checkpoint: str, folder: str, purpose: str) -> str:
    """Returns the location of a query's state: `stateLocation`, or a folder below the query's checkpoint.

    Args:
        checkpoint: the source's folder in the query's checkpoint, or empty before the query starts.
        folder: name of the state's folder, next to the source's folder in the checkpoint.
        purpose: what the state is for.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, no location is given and the checkpoint cannot be used.
    """
    if options.get(STATE_OPTION):
        return storage_root(options[STATE_OPTION])
    if not checkpoint:
        raise invalid_option(
            source,
            STATE_OPTION,
            f"is required: {purpose}. The default below the query's checkpoint needs the jars of include/jars "
            "(`make jars`) on Spark's class path",
        )
    sources = storage_root(checkpoint.rstrip("/").rpartition("/")[0])
    if not sources.startswith(("s3://", "file://")):
        raise invalid_option(
            source,
            STATE_OPTION,
            f"is required with a checkpoint at {sources}: the state must be on S3 or on a local disk",
        )
    return f"{sources}/{folder}"
