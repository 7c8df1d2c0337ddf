"""Decides which tables delta-rs may commit to, by table features, constraints and column properties.

delta-rs checks neither CHECK constraints nor NOT NULL for files it did not write, and our files do not support column
mapping, generated columns or identity columns. So only tables whose features are known to be safe are committed through
delta-rs. All others, also those with unknown features, are committed through Spark, which enforces or rejects features.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deltalake import DeltaTable

_DELETION_VECTORS = "deletionVectors"
#: Writer features that are safe for commits that add or remove complete files: they concern other operations only, or
#: their use is checked separately.
SUPPORTED_FEATURES = frozenset(
    {
        "appendOnly",  # appends are allowed
        "invariants",  # columns are checked
        "checkConstraints",  # properties are checked
        "generatedColumns",  # columns are checked
        "allowColumnDefaults",  # columns are checked
        "changeDataFeed",  # an append needs no change files
        _DELETION_VECTORS,  # concerns deletes only
        "vacuumProtocolCheck",  # concerns VACUUM only
        "timestampNtz",  # no declared type uses it
        "variantType",  # values are written, and copied, as they are
        "columnMapping",  # properties are checked
        "identityColumns",  # columns are checked
    }
)
#: From this writer version on, a table's protocol lists its features.
_FEATURES_WRITER_VERSION = 7
_NO_REWRITE_PROPERTIES = ("delta.enableChangeDataFeed", "delta.appendOnly")
#: Partition column types whose values have the same text in a snapshot and in the log.
SIMPLE_PARTITION_TYPES = frozenset({"string", "date", "boolean", "byte", "short", "integer", "long"})
_COLUMN_KEYS = {
    "delta.invariants": "a column invariant",
    "delta.generationExpression": "a generated column",
    "delta.identity.start": "an identity column",
    "CURRENT_DEFAULT": "a column with a default",
}


def reasons_to_use_spark(table: DeltaTable) -> list[str]:
    """Returns why commits to this table must go through Spark; empty if delta-rs may commit. Reads only the open
    snapshot.
    """
    protocol = table.protocol()
    reasons = []
    if protocol.min_writer_version >= _FEATURES_WRITER_VERSION:
        unknown = sorted(set(protocol.writer_features or ()) - SUPPORTED_FEATURES)
        reasons += [f"the writer feature {name}" for name in unknown]
    if protocol.min_writer_version > _FEATURES_WRITER_VERSION:
        reasons.append(f"writer version {protocol.min_writer_version}")
    configuration = table.metadata().configuration
    reasons += sorted(f"the constraint {key}" for key in configuration if key.startswith("delta.constraints."))
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        reasons.append("column mapping")
    return reasons + list(_column_reasons(json.loads(table.schema().to_json())))


def reasons_against_rewriting(table: DeltaTable) -> list[str]:
    """Returns why delta-rs may not rewrite rows of this table; empty if it may.

    In addition to `reasons_to_use_spark`: deletion vectors (delta-rs rewrites complete files instead of marking rows),
    change data feed (it would have to write change files as Spark does), and append-only tables.
    """
    configuration = table.metadata().configuration
    reasons = reasons_to_use_spark(table)
    if has_deletion_vectors(table):
        reasons.append("deletion vectors")
    return reasons + [f"{name} is on" for name in _NO_REWRITE_PROPERTIES if configuration.get(name) == "true"]


def reasons_against_compacting(table: DeltaTable) -> list[str]:
    """Returns why this process may not compact files of this table; empty if it may.

    Compaction changes no rows, so change data feed and `delta.appendOnly` are allowed.
    """
    reasons = reasons_to_use_spark(table)
    if has_deletion_vectors(table):
        reasons.append("deletion vectors")
    types = {field.name: str(field.type.type) for field in table.schema().fields if hasattr(field.type, "type")}
    return reasons + [
        f"the partition column {name} of type {types.get(name, 'struct')}"
        for name in table.metadata().partition_columns
        if types.get(name) not in SIMPLE_PARTITION_TYPES
    ]


def has_deletion_vectors(table: DeltaTable) -> bool:
    """Returns whether files of the open table may have deletion vectors."""
    return _DELETION_VECTORS in (table.protocol().reader_features or ())


def _column_reasons(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for field in schema.get("fields", ()):
        name = f"{path}{field['name']}"
        if not field.get("nullable", True):
            yield f"NOT NULL of {name}"
        for key, reason in _COLUMN_KEYS.items():
            if key in (field.get("metadata") or {}):
                yield f"{reason} ({name})"
        if isinstance(field["type"], dict) and field["type"].get("type") == "struct":
            yield from _column_reasons(field["type"], f"{name}.")
