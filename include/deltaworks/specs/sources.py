"""The source of a pipeline: objects, a Delta table or records; declared directly, or selected by name from several.

Objects are selected by globs of their keys: `*` and `?` match within a path segment, `**` across segments, `{a,b}`
alternatives.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from deltaworks.errors import ContractError
from deltaworks.specs.base import Bytes, Name, Spec, raise_problems
from deltaworks.specs.record_sources import BudgetSpec, KafkaSourceSpec, KinesisSourceSpec, PayloadSpec
from deltaworks.specs.spec_change_effects import (
    CHANGES_ADDRESS,
    CHANGES_FORMAT,
    CHANGES_PARSING,
    CHANGES_SOURCE,
    FIRST_START_ONLY,
    NEXT_START,
    Edit,
    Effect,
)

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_REGEX_BY_CHARACTER = {"*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}


def glob_expression(glob: str) -> str:
    """Converts a glob to a regular expression that must match the complete key. Without anchors; valid in Python and
    Arrow.

    Raises:
        ValueError: unbalanced braces.
    """
    parts: list[str] = []
    position, depth = 0, 0
    while position < len(glob):
        if glob.startswith("**/", position):
            # `**/` matches any number of folders, including none.
            parts.append("(?:.*/)?")
            position += 3
            continue
        if glob.startswith("**", position):
            parts.append(".*")
            position += 2
            continue
        character = glob[position]
        depth += (character == "{") - (character == "}")
        if depth < 0 or depth > 1:
            break
        special = character in "*?{}" or (character == "," and depth)
        parts.append(_REGEX_BY_CHARACTER[character] if special else re.escape(character))
        position += 1
    if depth != 0:
        raise ValueError(f"unbalanced or nested braces in the glob {glob!r}; write *, ?, ** and {{a,b}}")
    return f"(?s:{''.join(parts)})"


def key_matcher(glob: str | None) -> Callable[[str], bool]:
    """Returns a function that tells whether a key matches; without a glob every key matches.

    Raises:
        ValueError: unbalanced braces.
    """
    if glob is None:
        return lambda key: True
    pattern = re.compile(glob_expression(glob))
    return lambda key: pattern.fullmatch(key) is not None


def key_selection_problems(prefix: str, glob: str | None, *, buckets: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for a prefix, a glob or names of buckets that select no object."""
    for key, text in [("prefix", prefix), ("glob", glob or "")]:
        if _SCHEME.match(text):
            yield key, f"keys do not begin with a scheme and a bucket: write the rest of {text!r} after the bucket"
    for bucket in buckets:
        if _SCHEME.match(bucket) or "/" in bucket:
            yield "bucket", f"write the name of the bucket only, without scheme and prefix, not {bucket!r}"
    if glob is not None and not _SCHEME.match(prefix + glob):
        literal = re.split(r"[*?{]", glob, maxsplit=1)[0]
        if not literal.startswith(prefix) and not (prefix.startswith(literal) and literal != glob):
            yield "glob", f"a glob matches complete keys, and none begins with both {prefix!r} and {literal!r}"


def _check_glob(glob: str) -> str:
    glob_expression(glob)
    return glob


#: The type of a glob in a spec, validated.
Glob = Annotated[str, AfterValidator(_check_glob)]


class DeltaSourceSpec(Spec):
    """A Delta table as source: a table of a pipeline of this project, or any table by URI.

    Rows become events with their columns as fields. With the change data feed, events also have the fields
    `_change_type`, `_commit_version` and `_commit_timestamp`.
    """

    kind: Annotated[Literal["delta"], CHANGES_SOURCE]
    pipeline: Annotated[Name | None, CHANGES_SOURCE] = None
    table: Annotated[Name | None, CHANGES_SOURCE] = None
    uri: Annotated[str | None, CHANGES_ADDRESS] = None
    starting_version: Annotated[int | None, FIRST_START_ONLY] = Field(default=None, ge=0)
    starting_timestamp: Annotated[str | None, FIRST_START_ONLY] = None
    skip_change_commits: Annotated[bool, NEXT_START] = False
    change_feed: Annotated[bool, CHANGES_SOURCE] = False
    max_files_per_batch: Annotated[int, NEXT_START] = Field(default=500, ge=1)
    max_bytes_per_batch: Annotated[Bytes, NEXT_START] = 256 << 20
    max_event_bytes: Annotated[Bytes, NEXT_START] = 16 << 20
    budget: BudgetSpec = BudgetSpec.defaults()
    format: Annotated[Literal["json"], CHANGES_FORMAT] = "json"

    @model_validator(mode="after")
    def _check_table(self) -> Self:
        named = self.pipeline is not None and self.table is not None
        if named == (self.uri is not None) or (self.pipeline is None) != (self.table is None):
            raise ValueError("give either pipeline and table, or uri")
        if self.starting_version is not None and self.starting_timestamp is not None:
            raise ValueError("give either starting_version or starting_timestamp")
        if self.change_feed and self.skip_change_commits:
            raise ValueError("the change data feed has every change: remove skip_change_commits")
        return self

    def display_name(self) -> str:
        """Returns the table's name or URI for messages."""
        return self.uri or f"{self.pipeline}/{self.table}"


_CHANGES_OBJECTS = Edit(
    Effect.MIXED_ROWS,
    "Objects at the new location that were announced before the stream's offset would not be read. Declare a new "
    "pipeline; or accept it with `deltaworks pipelines diff {pipeline} --accept`, restart, and read them with "
    "`deltaworks reprocess {pipeline} --from-start`.",
)


class FileSourceSpec(PayloadSpec):
    """Objects in a relay's file event log: announced by its queue (`s3_sqs`) or listed (`cloud_files`).

    The `partition_columns` are read from key segments such as `day=2026-01-31` and become fields of `_partition`.
    """

    kind: Annotated[Literal["s3_sqs", "cloud_files"], CHANGES_SOURCE]
    relay: Annotated[Name, CHANGES_SOURCE]
    bucket: Annotated[str, _CHANGES_OBJECTS]
    prefix: Annotated[str, _CHANGES_OBJECTS] = ""
    glob: Annotated[Glob | None, _CHANGES_OBJECTS] = None
    partition_columns: Annotated[tuple[Name, ...], CHANGES_PARSING] = ()
    max_files_per_batch: Annotated[int, NEXT_START] = Field(default=500, ge=1)
    max_bytes_per_batch: Annotated[Bytes, NEXT_START] = 256 << 20
    max_object_bytes: Annotated[Bytes, NEXT_START] = 512 << 20

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        problems = key_selection_problems(self.prefix, self.glob, buckets=[self.bucket])
        raise_problems([((key,), text) for key, text in problems])
        return self

    def display_name(self) -> str:
        """Returns bucket and key pattern for messages."""
        return f"{self.bucket}/{self.glob or self.prefix}"


SourceSpec = Annotated[
    FileSourceSpec | KafkaSourceSpec | KinesisSourceSpec | DeltaSourceSpec, Field(discriminator="kind")
]
#: Built lazily, like models.
_SOURCE: TypeAdapter[Any] = TypeAdapter(SourceSpec, config=ConfigDict(defer_build=True))


def selected_source(declared: dict[str, Any]) -> dict[str, Any]:
    """Replaces the name in `source` by the source of that name, if the pipeline declares several in `sources`.

    All sources are validated, so that errors are found before a switch.

    Raises:
        ValueError: `source` names none of them, or one of them is invalid.
    """
    if "sources" not in declared:
        return declared
    rest = {key: value for key, value in declared.items() if key != "sources"}
    sources, name = declared["sources"], declared.get("source")
    if not isinstance(sources, dict) or not sources:
        raise_problems([(("sources",), "write a mapping from names to sources")])
    if not isinstance(name, str) or name not in sources:
        nearest = difflib.get_close_matches(str(name), sources, n=1, cutoff=0.4)
        advice = f"did you mean {nearest[0]!r}?" if nearest else f"known sources: {', '.join(map(str, sources))}"
        raise_problems([(("source",), f"with `sources` it must be the name of one of them, not {name!r}; {advice}")])
    _check_unselected({key: source for key, source in sources.items() if key != name})
    return rest | {"source": sources[name]}


def _check_unselected(sources: dict[str, Any]) -> None:
    """Validates the sources that are not selected. The selected one is validated with the pipeline."""
    problems: list[InitErrorDetails] = []
    for name, source in sources.items():
        try:
            _SOURCE.validate_python(source)
        except ValidationError as error:
            problems += [
                InitErrorDetails(
                    type=_to_custom_error(details), loc=("sources", name, *details["loc"]), input=details["input"]
                )
                if details["type"] in ("value_error", "declared")
                else InitErrorDetails(
                    type=details["type"],
                    loc=("sources", name, *details["loc"]),
                    input=details["input"],
                    ctx=details.get("ctx", {}),
                )
                for details in error.errors()
            ]
    if problems:
        raise ValidationError.from_exception_data("sources", problems)


def _to_custom_error(details: ErrorDetails) -> PydanticCustomError:
    """Converts an error of a nested validation, so that the outer validator can raise it."""
    return PydanticCustomError("declared", "{problem}", {"problem": details["msg"].removeprefix("Value error, ")})


def partition_columns_of(source: SourceSpec) -> tuple[str, ...]:
    """Returns the fields that the source reads from object keys; empty for sources without objects."""
    return source.partition_columns if isinstance(source, FileSourceSpec) else ()


def require_object_source(source: SourceSpec, *, pipeline: str, unsupported: str) -> FileSourceSpec:
    """Returns the source; raises if it does not read objects.

    Args:
        unsupported: the operation that needs objects, for the message.

    Raises:
        ContractError: SOURCE_HAS_NO_OBJECTS.
    """
    if isinstance(source, FileSourceSpec):
        return source
    raise ContractError(
        "SOURCE_HAS_NO_OBJECTS",
        f"{pipeline!r} reads {source.kind} ({source.display_name()}), which keeps no objects: {unsupported}.",
    )
