"""Specs of look-ups that enrich events (`enrich`) and of masked fields (`private`).

Both are applied while parsing. A look-up adds its results to the event as fields below `_<name>`. A masked value
appears in no table, no quarantine reason and no log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from deltaworks.specs.base import (
    FieldPath,
    KeyPath,
    Name,
    Problem,
    Spec,
    raise_problems,
    suggest_name,
)
from deltaworks.specs.spec_change_effects import CHANGES_MEANING, CHANGES_PARSING, Edit, Effect, NamedItems

if TYPE_CHECKING:
    from deltaworks.specs.pipeline import PipelineSpec

#: Fields of a parsed user agent, below `_<name>`.
USER_AGENT_FIELDS = ("browser", "browser_version", "os", "os_version", "device", "brand", "model", "is_bot")
#: Fields that the engine adds to events: record metadata (`_record`) and partition folders (`_partition`).
_ENGINE_FIELDS = ("record", "partition")

ENRICH_CHANGES = NamedItems(
    added=CHANGES_PARSING,
    removed=Edit(Effect.RESTART, "Columns below `_{name}` must be removed too. Committed rows keep their values."),
)
MASK_CHANGES = NamedItems(
    added=Edit(
        Effect.BACKFILL,
        "Masked from the stream's next start. Earlier rows and raw values in quarantine still contain {name}: "
        "`deltaworks reprocess {pipeline} --from-start` masks the rows, quarantined values expire.",
    ),
    removed=Edit(
        Effect.MIXED_ROWS,
        "Values of {name} would no longer be masked. If this is intended, accept it with `deltaworks pipelines "
        "diff {pipeline} --accept`.",
    ),
)


def _check_database(value: str) -> str:
    parts = value.split("/")
    if not value.endswith(".mmdb") or any(part in ("", ".", "..") for part in parts):
        raise ValueError("write the database's key below `databases/` of the lake, such as geo/GeoLite2-City.mmdb")
    return value


def _check_record_path(value: str) -> str:
    if any(part == "" for part in value.split(".")):
        raise ValueError("separate names by dots, and write list indexes as numbers: subdivisions.0.iso_code")
    return value


class EnrichSpec(Spec):
    """A look-up: its input path, its database, and the result fields below `_<name>`.

    `mmdb` looks an IP address up in a database in the lake; `user_agent` parses a User-Agent header.
    """

    name: Annotated[Name, CHANGES_MEANING]
    kind: Annotated[Literal["mmdb", "user_agent"], CHANGES_MEANING]
    path: Annotated[FieldPath, CHANGES_PARSING]
    database: Annotated[Annotated[str, AfterValidator(_check_database)] | None, CHANGES_PARSING] = Field(
        default=None, description="mmdb only: its key below `databases/` in the lake"
    )
    fields: Annotated[dict[Name, Annotated[str, AfterValidator(_check_record_path)]], CHANGES_PARSING] = Field(
        default={},
        description="mmdb only: names below `_<name>` with the paths of their values in a database record",
    )

    @model_validator(mode="after")
    def _check_kind_keys(self) -> Self:
        problems: list[Problem] = []
        if self.kind == "mmdb":
            if self.database is None:
                problems.append((("database",), "name the database to look addresses up in, such as geo/City.mmdb"))
            if not self.fields:
                problems.append((("fields",), "give the fields of the result, such as country: country.iso_code"))
        else:
            if self.database is not None:
                problems.append((("database",), "user agents are parsed without a database; remove it"))
            if self.fields:
                problems.append((("fields",), f"a user agent always has {', '.join(USER_AGENT_FIELDS)}; remove it"))
        raise_problems(problems)
        return self

    @property
    def output_field(self) -> str:
        """The event field below which the results are stored."""
        return f"_{self.name}"

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the result fields."""
        return tuple(self.fields) if self.kind == "mmdb" else USER_AGENT_FIELDS


class PrivateSpec(Spec):
    """A field that is masked: truncated or removed."""

    path: Annotated[FieldPath, CHANGES_MEANING]
    keep: Annotated[Literal["network", "nothing"], CHANGES_MEANING] = Field(
        description="network: an address without its last octet (IPv4) or last 80 bits (IPv6)"
    )

    @property
    def name(self) -> str:
        """The key by which a masked field is matched with the same field of another spec version."""
        return self.path


def enrich_problems(pipeline: PipelineSpec) -> Iterator[Problem]:
    """Yields conflicts between look-ups, and columns that read results which no look-up provides."""
    first: dict[str, KeyPath] = {}
    used_names = {
        name.removeprefix("_") for table in pipeline.tables for name in table.column_types() if name[0] == "_"
    }
    for index, lookup in enumerate(pipeline.enrich):
        key_path: KeyPath = ("enrich", index, "name")
        if lookup.name in first:
            text = f"{lookup.name!r} is declared twice; give one of them another name"
            yield key_path, text, (first[lookup.name],)
        elif lookup.name in used_names or lookup.name in _ENGINE_FIELDS:
            yield key_path, f"{lookup.output_field} is reserved; choose another name"
        first.setdefault(lookup.name, key_path)
    if not pipeline.enrich:
        return
    by_field = {lookup.output_field: lookup for lookup in reversed(pipeline.enrich)}
    for key_path, path in _paths_before_enrichment(pipeline):
        if path.split(".")[0] in by_field:
            yield key_path, f"{path!r} is only available after this is read; use an original field of events"
    for key_path, path in _column_paths(pipeline):
        yield from _output_problems(key_path, path, by_field)


def private_problems(pipeline: PipelineSpec) -> Iterator[Problem]:
    """Yields conflicts between masked fields and other sections of the pipeline."""
    if not pipeline.private:
        return
    field_names = {lookup.output_field for lookup in pipeline.enrich}
    for index, private in enumerate(pipeline.private):
        key_path: KeyPath = ("private", index, "path")
        top = private.path.split(".")[0]
        if top in field_names or top in {f"_{name}" for name in _ENGINE_FIELDS}:
            yield key_path, f"{private.path!r} is not an original field of events: mask its input instead"
        for other in range(index):
            if _overlap(private.path, pipeline.private[other].path):
                text = f"{private.path!r} and {pipeline.private[other].path!r} overlap; remove one"
                yield key_path, text, (("private", other, "path"),)
    for key_path, path in _paths_before_enrichment(pipeline):
        for index, private in enumerate(pipeline.private):
            if key_path[0] != "enrich" and _overlap(path, private.path):
                text = (
                    f"{path!r} is private: name, routing, time and id of an event must not be masked; choose "
                    "another field"
                )
                yield key_path, text, (("private", index, "path"),)
    if pipeline.archive is not None:
        yield ("archive",), "an archive keeps original payloads with private fields; remove one of the two"
    yield from _column_problems(pipeline)


def _output_problems(key_path: KeyPath, path: str, by_field: Mapping[str, EnrichSpec]) -> Iterator[Problem]:
    top, *rest = path.split(".")
    if top in by_field:
        field_names = by_field[top].output_names
        if rest and rest[0] not in field_names:
            yield key_path, f"{top} has no field {rest[0]!r}; {suggest_name(rest[0], field_names)}"
    elif top.startswith("_") and rest and top.removeprefix("_") not in _ENGINE_FIELDS:
        yield key_path, f"there is no enrichment {top.removeprefix('_')!r}; {suggest_name(top, by_field)}"


def _column_problems(pipeline: PipelineSpec) -> Iterator[Problem]:
    """Yields columns whose type no masked value fits, so that every event would be quarantined."""
    for index, table in enumerate(pipeline.tables):
        for position, column in enumerate(table.columns):
            keep = next((private.keep for private in pipeline.private if private.path == column.path), None)
            key_path: KeyPath = ("tables", index, "columns", position)
            if keep == "nothing" and column.required:
                yield (*key_path, "required"), f"{column.path!r} is removed: the column is always null"
            if keep == "network" and column.type != "string":
                yield (*key_path, "type"), f"the network of {column.path!r} is a string; declare type: string"


def _paths_before_enrichment(pipeline: PipelineSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yields the paths that are read before events are enriched and masked, each with its key path."""
    event = pipeline.event
    if event.name.path is not None:
        yield ("event", "name", "path"), event.name.path
    for index, path in enumerate(event.time.path):
        yield ("event", "time", "path", *([index] if len(event.time.path) > 1 else [])), path
    for index, path in enumerate(event.id):
        yield ("event", "id", *([index] if len(event.id) > 1 else [])), path
    for index, table in enumerate(pipeline.tables):
        for path in table.when:
            yield ("tables", index, "when", path), path
    for index, lookup in enumerate(pipeline.enrich):
        yield ("enrich", index, "path"), lookup.path


def _column_paths(pipeline: PipelineSpec) -> Iterator[tuple[KeyPath, str]]:
    for index, table in enumerate(pipeline.tables):
        for position, column in enumerate(table.columns):
            yield ("tables", index, "columns", position, "path"), column.path


def _overlap(path: str, other: str) -> bool:
    """Returns whether two paths are equal or one is a parent of the other."""
    return path == other or path.startswith(f"{other}.") or other.startswith(f"{path}.")
