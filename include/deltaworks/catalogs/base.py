"""What a catalog must offer to be kept up, and the comparison of its entries with the tables."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from deltaworks.tables.entries import TableEntry

#: Prefix of the properties of an entry; those of other tools have another one.
OWN_PREFIX: Final = "deltaworks_"
#: Property of an entry that marks it as kept up by Deltaworks.
OWNER_PROPERTY: Final = "deltaworks_pipeline"
KIND_PROPERTY: Final = "deltaworks_kind"
TAGS_PROPERTY: Final = "deltaworks_tags"
PERSONAL_PROPERTY: Final = "deltaworks_personal_columns"
OWNER_NAME_PROPERTY: Final = "deltaworks_owner"
Action = Literal["create", "update", "drop", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """An entry as a catalog has it.

    Args:
        location: URI of the table.
        content: the entry in the form of `CatalogClient.render`, without what other tools added.
    """

    location: str
    content: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """What a catalog lacks of one table, or has too much: `difference` names the keys that differ."""

    catalog: str
    table: str
    action: Action
    difference: str = ""
    applied: bool = False


class CatalogClient(Protocol):
    """A catalog. All methods may raise; the caller retries with the next synchronisation. Not thread-safe."""

    #: Scheme of locations on S3.
    scheme: str

    def render(self, entry: TableEntry) -> Mapping[str, Any]:
        """Returns an entry in the catalog's own form. Pure."""
        ...

    def registered(self, pipeline: str) -> Mapping[str, Registered]:
        """Returns the entries of a pipeline by table; empty without a schema."""
        ...

    def ensure_schema(self, pipeline: str, description: str) -> None:
        """Creates the schema of a pipeline unless it exists."""
        ...

    def put(self, entry: TableEntry, present: Registered | None) -> None:
        """Creates or replaces an entry. The table's data are not touched."""
        ...

    def drop(self, pipeline: str, table: str) -> None:
        """Removes an entry; succeeds if there is none. The table's data are not touched."""
        ...

    def close(self) -> None:
        """Releases connections."""
        ...


def entry_properties(entry: TableEntry) -> dict[str, str]:
    """Returns the properties by which all catalogs show owner, tags, kind and personal columns of a table."""
    personal = [column.name for column in entry.columns if column.personal]
    properties = {
        OWNER_PROPERTY: entry.pipeline,
        KIND_PROPERTY: entry.kind,
        OWNER_NAME_PROPERTY: entry.owner,
        TAGS_PROPERTY: ",".join(entry.tags),
        PERSONAL_PROPERTY: ",".join(personal),
    }
    return {name: value for name, value in properties.items() if value}


def plan_changes(
    name: str,
    client: CatalogClient,
    pipeline: str,
    entries: Sequence[TableEntry],
    registered: Mapping[str, Registered],
    *,
    root: str,
    unreadable: Sequence[str] = (),
) -> list[EntryChange]:
    """Returns what must change so that a catalog has exactly the tables of a pipeline, in the order of names. Pure.

    Only entries below the pipeline's own folder are dropped, so that tables which people registered in its schema stay.

    Args:
        name: of the catalog.
        root: URI of the folder with the pipeline's tables, in the catalog's scheme.
        unreadable: tables whose entries stay as they are, because their state is unknown.
    """
    changes = []
    for entry in entries:
        present = registered.get(entry.name)
        rendered = client.render(entry)
        different = [] if present is None else _differences(rendered, present.content)
        action: Action = "create" if present is None else "update" if different else "none"
        changes.append(
            EntryChange(catalog=name, table=f"{pipeline}.{entry.name}", action=action, difference=", ".join(different))
        )
    existing = {entry.name for entry in entries} | {*unreadable}
    for table, present in registered.items():
        if table not in existing and present.location.startswith(f"{root}/"):
            changes.append(EntryChange(catalog=name, table=f"{pipeline}.{table}", action="drop"))
    return sorted(changes, key=lambda change: change.table)


def _differences(rendered: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """Returns the keys of an entry whose values differ; for columns the first that does."""
    different: list[str] = []
    for key, value in rendered.items():
        other = present.get(key)
        if other == value:
            continue
        if key.lower() == "columns":
            different.append(_column_difference(value, other))
        elif isinstance(value, Mapping) and isinstance(other, Mapping):
            different += _differences(value, other) or [key]
        else:
            different.append(key)
    return different


def _column_difference(columns: Sequence[Mapping[str, Any]], present: Any) -> str:
    old, new = [str(one) for one in present or ()], [str(one) for one in columns]
    for tag, _, _, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            changed = columns[start:end]
            names = [str(one.get("Name") or one.get("name")) for one in changed]
            return f"columns ({', '.join(names[:5]) or 'removed'})"
    return "columns"


def in_scheme(location: str, scheme: str) -> str:
    """Returns a location with the catalog's scheme if it is on S3."""
    return location.replace("s3://", f"{scheme}://", 1) if location.startswith("s3://") else location
