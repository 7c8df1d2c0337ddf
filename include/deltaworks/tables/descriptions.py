"""Stores descriptions of tables and columns in Delta, where Spark's DESCRIBE, catalogs and other readers show them.

A table has them from its first commit. A changed text is one commit of metadata, which rewrites no file.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.specs.descriptions import TableDescription
from deltaworks.tables.commit import guarded_commit, refresh
from deltaworks.tables.features import SUPPORTED_FEATURES
from deltaworks.tables.lake import Lake
from deltaworks.tables.log_writer import commit_info, write_commit, write_due_checkpoint

#: The key of a column's text in the metadata of its field, as in Spark.
COMMENT = "comment"
#: Writer features of tables whose metadata can be committed here: a schema with other features may have field
#: metadata that must be kept in a form which delta-rs does not return.
_FEATURES = SUPPORTED_FEATURES | {"clustering", "domainMetadata", "v2Checkpoint", "vacuumProtocolCheck"}
_OPERATION = "CHANGE COLUMNS"
log = logging.getLogger(__name__)


def described_schema(schema: pa.Schema, description: TableDescription) -> pa.Schema:
    """Returns an Arrow schema whose fields have the texts of their columns."""
    return pa.schema(
        [
            field.with_metadata({**(field.metadata or {}), COMMENT: description.columns[field.name]})
            if field.name in description.columns
            else field
            for field in schema
        ],
        schema.metadata,
    )


def described_fields(schema: Mapping[str, Any], description: TableDescription) -> dict[str, Any]:
    """Returns a schema in the format of the Delta log whose fields have the texts of their columns.

    Columns without a declared text keep their own, which people may have set.
    """
    fields = []
    for field in schema["fields"]:
        text = description.columns.get(field["name"])
        metadata = {**(field.get("metadata") or {}), **({COMMENT: text} if text else {})}
        fields.append({**field, "metadata": metadata})
    return {**schema, "fields": fields}


def is_described(table: DeltaTable, description: TableDescription) -> bool:
    """Returns whether the open table has these texts. Reads nothing but the open snapshot."""
    if description.text and table.metadata().description != description.text:
        return False
    texts = {field.name: field.metadata.get(COMMENT) for field in table.schema().fields}
    return all(texts[name] == text for name, text in description.columns.items() if name in texts)


def ensure_described(
    lake: Lake,
    key: str,
    schema: pa.Schema,
    description: TableDescription,
    *,
    user_metadata: str,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> DeltaTable:
    """Opens the table at `key` with these texts; creates it if it does not exist. See `Lake.ensure`."""
    table = lake.ensure(
        key,
        described_schema(schema, description),
        user_metadata=user_metadata,
        partition_by=partition_by,
        properties=properties,
        description=description.text,
    )
    describe_table(lake, key, table, description, user_metadata=user_metadata)
    return table


def describe_table(
    lake: Lake, key: str, table: DeltaTable, description: TableDescription, *, user_metadata: str
) -> bool:
    """Stores the texts of the open table in one commit; commits nothing if it has them.

    Idempotent, and safe with concurrent writers: the commit has exactly the version after the one that was read. A
    failure is logged and never raised, because a table without texts works. A table with features whose schema this
    process cannot copy is not changed.

    Returns:
        Whether a commit was made; the table is open at its version then.
    """
    if is_described(table, description):
        return False
    unsupported = sorted({*(table.protocol().writer_features or ())} - _FEATURES)
    if unsupported:
        log.warning("%s: its descriptions are not stored, because it has %s", key, ", ".join(unsupported))
        return False
    try:
        return guarded_commit(
            key,
            lambda _: _commit_texts(lake, key, table, description, user_metadata),
            action="store its descriptions",
        )
    except Exception as error:
        log.warning("%s: its descriptions are not stored: %s", key, error)
        return False


def _commit_texts(
    lake: Lake, key: str, table: DeltaTable, description: TableDescription, user_metadata: str
) -> bool | None:
    """Makes one attempt; returns None if another writer committed first, and False if the texts are there."""
    refresh(table)
    if is_described(table, description):
        return False
    now, version = int(time.time() * 1000), table.version()
    info = commit_info(
        _OPERATION,
        user_metadata=user_metadata,
        at_ms=now,
        read_version=version,
        parameters={"columns": json.dumps(sorted(description.columns))},
        changes_rows=False,
    )
    if not write_commit(lake.objects, key, version + 1, [info, {"metaData": _metadata(table, description)}]):
        return None
    refresh(table)
    write_due_checkpoint(lake, key, version + 1, configuration=table.metadata().configuration)
    return True


def _metadata(table: DeltaTable, description: TableDescription) -> dict[str, Any]:
    """Returns the table's `metaData` action with these texts, and otherwise unchanged."""
    metadata = table.metadata()
    schema = described_fields(json.loads(table.schema().to_json()), description)
    return {
        "id": str(metadata.id),
        "name": metadata.name,
        "description": description.text or metadata.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema, separators=(",", ":")),
        "partitionColumns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
        "createdTime": metadata.created_time,
    }
