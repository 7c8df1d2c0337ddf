"""Specs of look-ups that enrich events (`enrich`) and of masked fields (`private`).

Both are applied while parsing. A look-up adds its results to the event as fields below `_<name>`. A masked value
appears in no table, no quarantine reason and no log.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from deltaworks.specs.base import (
    FieldPath,
    Name,
    Problem,
    Spec,
    raise_problems,
)
from deltaworks.specs.spec_change_effects import CHANGES_MEANING, CHANGES_PARSING, Edit, Effect, NamedItems

#: Fields of a parsed user agent, below `_<name>`.
USER_AGENT_FIELDS = ("browser", "browser_version", "os", "os_version", "device", "brand", "model", "is_bot")

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
