"""Which tables delta-rs may commit files to, written by us, without breaking a promise of the table.

A commit of ready-made files is checked by nobody: delta-rs looks neither at CHECK constraints nor at NOT NULL, and
files written by the declared schema know nothing of column mapping, generated or identity columns. So what a table asks
of its writers is compared with a list of what is known to be harmless for such a commit; everything else, features
that are not born yet among them, goes through Spark, which enforces it or refuses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deltalake import DeltaTable

_DELETION_VECTORS = "deletionVectors"
#: Writer features that a commit of ready-made files honours, and one that takes whole files out and puts back files the
#: table has had: either they concern other operations, or their use in this table is looked at below.
SUPPORTED_FEATURES = frozenset(
    {
        "appendOnly",  # appending is what we do
        "invariants",  # columns are looked at
        "checkConstraints",  # the configuration is looked at
        "generatedColumns",  # columns are looked at
        "allowColumnDefaults",  # columns are looked at
        "changeDataFeed",  # an append needs no change files
        _DELETION_VECTORS,  # concerns deletes
        "vacuumProtocolCheck",  # concerns VACUUM
        "timestampNtz",  # no declared type is one
        "columnMapping",  # the configuration is looked at
        "identityColumns",  # columns are looked at
    }
)
#: What old writer versions, which list no features, imply beyond the list above.
_FEATURES_WRITER_VERSION = 7
_NO_REWRITE_PROPERTIES = ("delta.enableChangeDataFeed", "delta.appendOnly")
#: Types of partition columns whose values a snapshot gives as the log writes them.
SIMPLE_PARTITION_TYPES = frozenset({"string", "date", "boolean", "byte", "short", "integer", "long"})
_COLUMN_KEYS = {
    "delta.invariants": "a column invariant",
    "delta.generationExpression": "a generated column",
    "delta.identity.start": "an identity column",
    "CURRENT_DEFAULT": "a column with a default",
}


def reasons_to_use_spark(table: DeltaTable) -> list[str]:
    """Why this table's commits have to go through Spark, in words; empty where delta-rs may commit to it.

    Reads the open table's snapshot only.
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
    """Why delta-rs may not rewrite rows of this table, in words; empty where it may.

    Beside what it cannot append to: deletion vectors, since it would rewrite whole files where rows are to be marked,
    a change data feed, whose files it would have to write as Spark does, and rows that nobody may change.
    """
    configuration = table.metadata().configuration
    reasons = reasons_to_use_spark(table)
    if has_deletion_vectors(table):
        reasons.append("deletion vectors")
    return reasons + [f"{name} is on" for name in _NO_REWRITE_PROPERTIES if configuration.get(name) == "true"]


def reasons_against_compacting(table: DeltaTable) -> list[str]:
    """Why a commit of ours may not put rows of this table into other files, in words; empty where it may.

    No row changes, so that a change data feed has nothing to say and `delta.appendOnly` forbids nothing.
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
    """Whether files of the open table may have rows that are marked as deleted beside them."""
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
