"""Reads what a catalog, or a person, wants to know of a table: columns, types, descriptions, partitions, location.

Everything comes from the Delta log and the declaration; no rows are read.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from deltaworks.control import paths
from deltaworks.specs.descriptions import TableDescription, table_descriptions
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.descriptions import COMMENT
from deltaworks.tables.lake import Lake

#: SQL names of Delta's primitive types that differ from it.
_SQL_NAMES: Final = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnEntry:
    """A column: its type as SQL and as in the Delta log, its description, and its roles.

    Args:
        partition: its ordinal among the partition columns, from 0; None for other columns.
    """

    name: str
    type: str
    delta_type: Any
    description: str = ""
    personal: bool = False
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """A table as catalogs show it.

    Args:
        table_id: id in the Delta log; a recreated table has another one.
        location: URI of the folder, such as `s3://lake/tables/games/events`.
        properties: table properties of Delta.
    """

    pipeline: str
    name: str
    kind: str
    description: str
    owner: str
    tags: tuple[str, ...]
    location: str
    table_id: str
    version: int
    created_at: dt.datetime | None
    columns: tuple[ColumnEntry, ...]
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Names of the partition columns, in their order."""
        columns = [column for column in self.columns if column.partition is not None]
        return tuple(column.name for column in sorted(columns, key=lambda column: column.partition or 0))


def sql_type(delta_type: Any) -> str:
    """Returns a type of a Delta schema as SQL, as Hive, Glue and Spark write it: `array<struct<a:bigint>>`."""
    if isinstance(delta_type, str):
        return _SQL_NAMES.get(delta_type, delta_type)
    match delta_type["type"]:
        case "array":
            return f"array<{sql_type(delta_type['elementType'])}>"
        case "map":
            return f"map<{sql_type(delta_type['keyType'])},{sql_type(delta_type['valueType'])}>"
    fields = (f"{one['name']}:{sql_type(one['type'])}" for one in delta_type["fields"])
    return f"struct<{','.join(fields)}>"


def read_entry(lake: Lake, key: str, description: TableDescription, *, pipeline: str, name: str) -> TableEntry | None:
    """Returns the entry of the table at `key` at its newest version; None if it does not exist.

    The texts are those in Delta, and declared ones that are not there yet.

    Raises:
        ContractError: TABLE_FEATURE_UNSUPPORTED.
    """
    table = lake.open(key)
    if table is None:
        return None
    metadata = table.metadata()
    partitions = list(metadata.partition_columns)
    columns = tuple(
        ColumnEntry(
            name=field["name"],
            type=sql_type(field["type"]),
            delta_type=field["type"],
            description=description.columns.get(field["name"]) or (field.get("metadata") or {}).get(COMMENT) or "",
            personal=field["name"] in description.personal,
            partition=partitions.index(field["name"]) if field["name"] in partitions else None,
        )
        for field in json.loads(table.schema().to_json())["fields"]
    )
    created = metadata.created_time
    return TableEntry(
        pipeline=pipeline,
        name=name,
        kind=description.kind,
        description=description.text or metadata.description or "",
        owner=description.owner,
        tags=description.tags,
        location=lake.storage.uri(key),
        table_id=str(metadata.id),
        version=table.version(),
        created_at=None if created is None else dt.datetime.fromtimestamp(created / 1000, tz=dt.UTC),
        columns=columns,
        properties=dict(metadata.configuration),
    )


def read_pipeline_entry(lake: Lake, spec: PipelineSpec, name: str) -> TableEntry | None:
    """Returns the entry of a pipeline's table; None if it does not exist yet."""
    description = table_descriptions(spec)[name]
    return read_entry(lake, paths.table(spec.pipeline, name), description, pipeline=spec.pipeline, name=name)
