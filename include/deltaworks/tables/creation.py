"""Creates a table together with its first rows in one commit, without a JVM.

Two commits would show readers an empty table in between. Spark's writer also makes one commit, but needs a dozen jobs
and up to ten seconds of compilation in a fresh driver. Version 0 is written with put-if-absent, so only one of several
concurrent creators succeeds.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from deltaworks.tables.commit import Step
from deltaworks.tables.features import SIMPLE_PARTITION_TYPES
from deltaworks.tables.files import split_by_partition, write_file
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action
from deltaworks.tables.log_writer import commit_info, txn_action, write_commit

#: Types that need no table feature.
_BASIC_TYPES = frozenset(
    {"string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date", "timestamp"}
)
#: Delta allows these characters in column names only with column mapping.
_RESERVED_NAME_CHARACTERS = frozenset(" ,;{}()\n\t=")
_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """A table to be created.

    Args:
        schema: in the format of the Delta log, see `basic_schema`.
        rows: all first rows, with the schema's columns.
        configuration: table properties; they must not enable table features.
    """

    schema: Mapping[str, Any]
    partition_by: Sequence[str]
    rows: pa.Table
    configuration: Mapping[str, str | None]
    step: Step
    user_metadata: str
    description: str = ""


def basic_schema(schema: Mapping[str, Any], partition_by: Sequence[str]) -> dict[str, Any] | None:
    """Converts a Spark schema in JSON to the schema of a new table: all columns nullable, without column metadata.

    Returns None if a column needs a table feature or Delta would reject the schema.
    """
    names = [str(field["name"]) for field in schema["fields"]]
    if len({name.lower() for name in names}) < len(names) or not {*partition_by} < {*names}:
        return None
    partition_types = [field["type"] for field in schema["fields"] if field["name"] in partition_by]
    if not all(isinstance(kind, str) and kind in SIMPLE_PARTITION_TYPES for kind in partition_types):
        return None
    if not all(map(_is_basic_field, schema["fields"])):
        return None
    return {"type": "struct", "fields": [_nullable_field(field) for field in schema["fields"]]}


def create_table(lake: Lake, key: str, table: NewTable) -> int | None:
    """Creates the table at `key` with its rows. Returns the number of rows, or None if the table already exists.

    If two creators run at the same time, the files of the slower one stay unreferenced until VACUUM.
    """
    root, now = arrow_path(lake.storage, key), int(time.time() * 1000)
    parts = split_by_partition(table.rows, table.partition_by) if table.rows.num_rows else []
    files = [write_file(lake.filesystem, root, part, partition=values) for values, part in parts]
    info = commit_info(
        "WRITE",
        user_metadata=table.user_metadata,
        at_ms=now,
        read_version=None,
        parameters={"mode": "Overwrite", "partitionBy": json.dumps(list(table.partition_by))},
        metrics={
            "numFiles": len(files),
            "numOutputBytes": sum(file.size for file in files),
            "numOutputRows": table.rows.num_rows,
        },
    )
    metadata = {
        "id": str(uuid.uuid4()),
        **({"description": table.description} if table.description else {}),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(table.schema, separators=(",", ":")),
        "partitionColumns": list(table.partition_by),
        "configuration": dict(table.configuration),
        "createdTime": now,
    }
    adds = [{"add": file.to_add_fields(at_ms=now, data_change=True)} for file in files]
    actions: list[Action] = [
        info,
        {"protocol": _PROTOCOL},
        {"metaData": metadata},
        txn_action(table.step, now),
        *adds,
    ]
    return table.rows.num_rows if write_commit(lake.objects, key, 0, actions) else None


def _is_basic_field(field: Mapping[str, Any]) -> bool:
    collated = any("collation" in name.lower() for name in field.get("metadata") or {})
    return not collated and not _RESERVED_NAME_CHARACTERS & {*field["name"]} and _is_basic_type(field["type"])


def _is_basic_type(type_json: Any) -> bool:
    if isinstance(type_json, str):
        return type_json in _BASIC_TYPES or type_json.startswith("decimal(")
    match type_json.get("type"):
        case "struct":
            return all(_is_basic_field(field) for field in type_json["fields"])
        case "array":
            return _is_basic_type(type_json["elementType"])
        case "map":
            return _is_basic_type(type_json["keyType"]) and _is_basic_type(type_json["valueType"])
    return False


def _nullable_field(field: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": field["name"], "type": _nullable_type(field["type"]), "nullable": True, "metadata": {}}


def _nullable_type(type_json: Any) -> Any:
    """Returns the type with nullable values on every nesting level, as Delta's own writer does."""
    if isinstance(type_json, str):
        return type_json
    match type_json["type"]:
        case "struct":
            return {"type": "struct", "fields": [_nullable_field(field) for field in type_json["fields"]]}
        case "array":
            return {"type": "array", "elementType": _nullable_type(type_json["elementType"]), "containsNull": True}
    keys, values = _nullable_type(type_json["keyType"]), _nullable_type(type_json["valueType"])
    return {"type": "map", "keyType": keys, "valueType": values, "valueContainsNull": True}
