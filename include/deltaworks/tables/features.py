"""Decides which tables delta-rs may commit to, by table features, constraints and column properties.

delta-rs checks neither CHECK constraints nor NOT NULL for files it did not write, and our files do not support column
mapping, generated columns or identity columns. So only tables whose features are known to be safe are committed through
delta-rs. All others, also those with unknown features, are committed through Spark, which enforces or rejects features.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from deltalake import DeltaTable

from deltaworks.errors import ContractError, DeltaworksError

_DELETION_VECTORS = "deletionVectors"
#: Writer features that are safe for commits that add or remove complete files through delta-rs: they concern other
#: operations only, or their use is checked separately. delta-rs rejects commits to tables with any other feature.
SUPPORTED_FEATURES = frozenset(
    {
        "appendOnly",  # appends are allowed
        "invariants",  # columns are checked
        "checkConstraints",  # properties are checked
        "generatedColumns",  # columns are checked
        "changeDataFeed",  # an append needs no change files
        _DELETION_VECTORS,  # concerns deletes only
        "timestampNtz",  # no declared type uses it
        "variantType",  # values are written, and copied, as they are
        "columnMapping",  # properties are checked
    }
)
#: Reader features that deltalake's scan supports, and its dataset does not.
_SCANNED_FEATURES = frozenset({_DELETION_VECTORS, "v2Checkpoint"})
#: Writer features that are safe for our own commits, which move complete files of the table in or out.
FILE_COMMIT_FEATURES = SUPPORTED_FEATURES | {
    "allowColumnDefaults",  # no rows are written
    "identityColumns",  # no rows are written
    "vacuumProtocolCheck",  # concerns VACUUM only
}
#: Reader features with which a log has the same commits and checkpoints as without them.
_READABLE_LOG_FEATURES = frozenset(
    {
        _DELETION_VECTORS,
        "columnMapping",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
#: Features of tables whose newest commits, or whose files, are not in their log. Some are writer features only, which a
#: reader need not know.
_OTHER_LAYOUTS = frozenset(
    {
        "adaptiveMetadata",
        "catalogManaged",
        "catalogOwned-preview",
        "coordinatedCommits-preview",
        "icebergV4Metadata",
        "redirectReaderWriter-preview",
        "redirectWriterOnly-preview",
    }
)
_FEATURES_READER_VERSION = 3
_UNSUPPORTED = "TABLE_FEATURE_UNSUPPORTED"
#: From this writer version on, a table's protocol lists its features.
_FEATURES_WRITER_VERSION = 7
#: Includes identity columns, which delta-rs rejects.
_IDENTITY_WRITER_VERSION = 6
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
    if protocol.min_writer_version == _IDENTITY_WRITER_VERSION or (
        protocol.min_writer_version > _FEATURES_WRITER_VERSION
    ):
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


def needs_scan(table: DeltaTable) -> bool:
    """Returns whether the open table is read by deltalake's scan, because its dataset rejects one of its features."""
    return bool(_SCANNED_FEATURES & set(table.protocol().reader_features or ()))


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


def newest_protocol(newest_commits: Iterable[Iterable[Mapping[str, Any]]]) -> dict[str, Any]:
    """Returns the protocol of the first of these commits, newest first, that has one; empty if none has."""
    for actions in newest_commits:
        for action in actions:
            # A commit may embed the table's state, including its protocol.
            for holder in (action, action.get("checkpoint") or {}):
                if holder.get("protocol"):
                    return dict(holder["protocol"])
    return {}


def check_log_features(key: str, protocol: Mapping[str, Any]) -> None:
    """Raises if a table with this protocol keeps its state in another way than this log reader knows.

    Raises:
        ContractError: TABLE_FEATURE_UNSUPPORTED.
    """
    readers, writers = (set(protocol.get(name) or ()) for name in ("readerFeatures", "writerFeatures"))
    unknown = (readers - _READABLE_LOG_FEATURES) | (writers & _OTHER_LAYOUTS)
    reasons = [f"the feature {name}" for name in sorted(unknown)]
    version = int(protocol.get("minReaderVersion") or 0)
    if version > _FEATURES_READER_VERSION:
        reasons.append(f"reader version {version}")
    if reasons:
        raise unsupported_features_error(key, ", ".join(reasons))


def unsupported_features_error(table: str, features: str) -> ContractError:
    """Builds the error for a table whose features do not let it be read here."""
    return ContractError(_UNSUPPORTED, f"{table} cannot be read, because it has {features}.")


def is_unsupported_table(error: DeltaworksError) -> bool:
    """Returns whether an error is that of a table with unsupported features. Work on other tables can continue."""
    return error.condition == _UNSUPPORTED
