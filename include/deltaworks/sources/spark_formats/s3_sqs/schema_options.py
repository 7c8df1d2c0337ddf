"""The options of `format("s3-sqs")` that say how columns are found where no schema is given.

- `inferredSchemaLocation`: a folder for the versions of the schema. Required without `.schema(...)`, refused with it.
- `schemaHints`: types known better than a sample tells, `a BIGINT, b.c STRING`.
- `inferColumnTypes` (true): what texts of csv and values of json are; else all columns are strings.
- `schemaEvolutionMode` (addNewColumns): what becomes of fields nobody has seen before.
- `schemaSampleFiles` (100) and `schemaSampleBytes` (67108864): how much is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from deltaworks.events.inference.hints import parse_hints
from deltaworks.sources.stream_options import invalid_option, number_option, storage_root, truth_option, unfit_option
from deltaworks.specs.storage import StorageSpec

LOCATION = "inferredSchemaLocation"
#: Where Spark's session has Delta, Delta takes an option of this name for its own, whatever the source.
_OF_DELTA = "schemalocation"
SCHEMA_OPTIONS = (
    LOCATION,
    *("schemaHints", "inferColumnTypes", "schemaEvolutionMode", "schemaSampleFiles", "schemaSampleBytes"),
)
_MOST_SAMPLED_FILES = 10_000
#: Fields of the location's spec by option; others are options of the state, which have been checked.
_NAMED = {"root": LOCATION}


class EvolutionMode(StrEnum):
    """What becomes of fields that no column takes."""

    ADD_NEW_COLUMNS = "addNewColumns"
    RESCUE = "rescue"
    FAIL_ON_NEW_COLUMNS = "failOnNewColumns"
    NONE = "none"

    @property
    def rescues(self) -> bool:
        """Whether there is a column for what no other takes."""
        return self is not EvolutionMode.NONE

    @property
    def watches(self) -> bool:
        """Whether a new field ends the query."""
        return self in (EvolutionMode.ADD_NEW_COLUMNS, EvolutionMode.FAIL_ON_NEW_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOptions:
    """Where versions are kept and how they are made."""

    location: StorageSpec
    hints: str
    typed: bool
    mode: EvolutionMode
    sample_files: int
    sample_bytes: int


def refuse_name_of_delta(source: str, options: Mapping[str, str]) -> None:
    """Say how the location is called here to whom gives it as another source has it.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID.
    """
    for name in options:
        if name.lower() == _OF_DELTA:
            raise invalid_option(source, name, f"is one of Delta's, which takes it of any source: write {LOCATION}")


def schema_options(source: str, given: Mapping[str, str], reached: Mapping[str, Any]) -> SchemaOptions | None:
    """The options, or None where columns are not to be found.

    Args:
        reached: how the state is reached; the location is reached the same way.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID.
    """
    if not given.get(LOCATION):
        for name in SCHEMA_OPTIONS:
            if given.get(name):
                raise invalid_option(source, name, f"goes with {LOCATION}, and only with it")
        return None
    try:
        location = StorageSpec.model_validate({**reached, "root": storage_root(given[LOCATION])})
    except ValidationError as error:
        raise unfit_option(source, error, _NAMED, otherwise=LOCATION) from None
    return SchemaOptions(
        location=location,
        hints=_hints(source, given),
        typed=truth_option(source, given, "inferColumnTypes", default=True),
        mode=_mode(source, given),
        sample_files=number_option(source, given, "schemaSampleFiles", 100, high=_MOST_SAMPLED_FILES),
        sample_bytes=number_option(source, given, "schemaSampleBytes", 64 << 20),
    )


def _hints(source: str, given: Mapping[str, str]) -> str:
    hints = given.get("schemaHints", "").strip()
    try:
        parse_hints(hints)
    except ValueError as error:
        raise invalid_option(source, "schemaHints", f"cannot be read: {error}") from None
    return hints


def _mode(source: str, given: Mapping[str, str]) -> EvolutionMode:
    text = given.get("schemaEvolutionMode", EvolutionMode.ADD_NEW_COLUMNS)
    for mode in EvolutionMode:
        if mode.lower() == text.lower():
            return mode
    raise invalid_option(source, "schemaEvolutionMode", f"must be one of {', '.join(EvolutionMode)}, not {text!r}")
