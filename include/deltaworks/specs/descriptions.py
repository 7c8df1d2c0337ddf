"""Descriptions of all tables that a project stores, and of their columns, derived from the declarations.

Tables of a pipeline have the declared texts, and texts of the columns that the engine adds. Control and vault tables
have fixed texts. `tables.descriptions` stores them in Delta, `catalogs` in catalogs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from deltaworks.specs.gold import build_order
from deltaworks.specs.models import ModelSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.pipeline_sections import ARCHIVE
from deltaworks.specs.table import RESCUED_COLUMN, REST_COLUMN, TableSpec

#: Columns that the engine adds to tables of events, and to tables derived from them.
ENGINE_COLUMNS: Final[dict[str, str]] = {
    "event_id": "Id of the event as declared; null if the event has none",
    "event_name": "Name of the event",
    "event_time": "Time of the event, UTC",
    "event_date": "UTC date of event_time",
    "_ingested_at": "When the batch of the row was prepared, UTC",
    "_batch_id": "Batch that wrote the row",
    "_seq": "Ordinal of the file event or record of the row, from 1; unique together with _position",
    "_position": "Ordinal of the event in its object or record, from 0",
    "_rescued": "Undeclared fields as JSON",
    "_rest": "Undeclared fields as a variant",
    "_duplicate": "Whether the event_id occurred before, within the declared window",
    "_deleted": "Whether a mutation deleted the row; readers omit such rows",
    "_mutation": "Last mutation batch that changed the row",
}
_NOTIFICATION_COLUMNS: Final[dict[str, str]] = {
    "ingested_at": "Time of the batch or mutation, UTC",
    "ingested_date": "UTC date of ingested_at",
    "change": "Kind of change: insert, update, delete or rename",
    "keys": "Keys of the changed rows, at most 10,000",
    "batch": "Batch or mutation batch of the changed rows",
    "batch_kind": "stream or mutation",
    "data_version": "Version of the announced table with the change; null from the stream",
}
_LIVE_COLUMNS: Final[dict[str, str]] = {
    "window_start": "Start of the window, inclusive, UTC",
    "window_end": "End of the window, exclusive, UTC",
    "window_date": "UTC date of window_start",
    "events": "Number of events in the window and group",
    "updated_at": "When the row was last computed, UTC",
}
_QUARANTINE_COLUMNS: Final[dict[str, str]] = {
    **{name: ENGINE_COLUMNS[name] for name in ("_ingested_at", "_batch_id", "_seq")},
    "quarantine_date": "UTC date of _ingested_at",
    "event_name": "Name of the event, if known",
    "reasons": "Why it was rejected: one code, field and detail per problem",
    "raw": "The rejected value, possibly cut",
    "raw_bytes": "Length of the rejected value in bytes",
    "raw_complete": "Whether raw is complete and unchanged",
    "object_key": "Object of the value, or stream, partition and number of the record",
    "spec_fingerprint": "Digest of the declaration that rejected it",
    "_position": "Ordinal of the event in its object, from 0; -1 for the object itself",
    "record": "Metadata of the record as JSON; null for objects",
    "arrived_at": "Arrival at the source, UTC",
    "events": "Number of events that the row stands for",
}
_ARCHIVE_COLUMNS: Final[dict[str, str]] = {
    **{name: ENGINE_COLUMNS[name] for name in ("_seq", "_batch_id", "_ingested_at")},
    "archive_date": "UTC date of _ingested_at",
    "stream": "Topic or stream of the record",
    "partition": "Partition or shard of the record",
    "position": "Offset or sequence number of the record",
    "arrived_at_us": "Arrival at the stream, microseconds since 1970",
    "record_key": "Key of the record",
    "headers": "Headers of the record, values as bytes",
    "value": "Payload as received; null for a tombstone",
}
_MUTATION_COLUMNS: Final[dict[str, str]] = {
    "org_id": "Organisation of the entity",
    "id": "Id of the entity",
    "name": "Display name of the id",
    "named_at": "Time of the request that set the name, UTC",
    "seq": "Ordinal of the request that set the name",
    "_deleted": ENGINE_COLUMNS["_deleted"],
    "_mutation": ENGINE_COLUMNS["_mutation"],
    "valid_from": "Start of the interval, inclusive, UTC",
    "valid_to": "End of the interval, exclusive, UTC; null if open",
    "final_id": "Id that rows of the interval end with",
    "deleted": "Whether rows of the interval are deleted",
    "fields": "Values that requests set, by column",
    "hops": "Number of renames and merges between id and final_id",
    "last_time": "Time of the last applied request, UTC",
    "last_seq": "Ordinal of the last applied request",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescription:
    """Texts of a table and of its columns, and further facts for catalogs.

    Args:
        columns: texts by column; columns without a text are missing.
        personal: columns with personal data, also as tokens.
    """

    text: str
    columns: Mapping[str, str] = field(default_factory=dict)
    personal: frozenset[str] = frozenset()
    kind: str = "control"
    owner: str = ""
    tags: tuple[str, ...] = ()


def control_description(name: str) -> TableDescription:
    """Returns the description of a control or vault table.

    Raises:
        KeyError: there is no such table.
    """
    text, columns = _CONTROL_TABLES[name]
    return TableDescription(text=text, columns=columns)


def table_descriptions(spec: PipelineSpec) -> dict[str, TableDescription]:
    """Returns the descriptions of all tables of a pipeline by name, whether or not they exist yet."""
    texts = _texts(spec)
    columns = {table.name: _bronze_columns(table) for table in spec.tables}
    personal = {table.name: bronze_personal_columns(spec, table) for table in spec.tables}
    for keyed in (*spec.keyed_tables, *spec.latest_tables):
        history = ENGINE_COLUMNS | columns[keyed.history]
        columns[keyed.name] = {name: history.get(name, "") for name in keyed.types}
        personal[keyed.name] = personal[keyed.history] & {*keyed.types}
    for live in spec.aggregation_tables:
        columns[live.name] = _LIVE_COLUMNS | {name: columns[live.reads].get(name, "") for name in live.group_by}
        columns[live.name] |= {f"{name}_sum": f"Sum of {name}" for name in live.sum}
        columns[live.name] |= {f"{name}_distinct": f"Number of distinct values of {name}" for name in live.distinct}
        personal[live.name] = personal[live.reads] & {*live.group_by}
    columns |= {reference.name: _texts_of(reference.columns) for reference in spec.references}
    columns |= {"quarantine": _QUARANTINE_COLUMNS, ARCHIVE: _ARCHIVE_COLUMNS}
    if spec.mutations is not None:
        columns |= dict.fromkeys((spec.mutations.names, spec.mutations.intervals), _MUTATION_COLUMNS)
    for gold in build_order(spec.gold.tables):
        columns[gold.name] = dict(gold.columns)
        # A column that SQL passes on usually keeps its name.
        personal[gold.name] = frozenset().union(*(personal.get(name, frozenset()) for name in gold.reads))
    return {
        name: TableDescription(
            text=texts[name],
            columns={column: text for column, text in columns.get(name, {}).items() if text},
            personal=personal.get(name, frozenset()),
            kind=kind,
            owner=spec.owner,
            tags=spec.tags,
        )
        for name, kind in spec.table_kinds.items()
    }


def _texts(spec: PipelineSpec) -> dict[str, str]:
    """Returns the texts of a pipeline's tables; a table without a declared text has one by its kind."""
    texts = {table.name: table.description or _bronze_text(spec, table) for table in spec.tables}
    keyed_texts = {keyed.name: f"Newest row of {keyed.history} by {', '.join(keyed.by)}" for keyed in spec.keyed_tables}
    texts |= keyed_texts
    for live in spec.live:
        declared = f"Newest row of {live.reads} by {', '.join(live.key)}"
        if live.kind == "counts":
            groups = f" by {', '.join(live.group_by)}" if live.group_by else ""
            declared = f"Events of {live.reads} in windows of {live.window_minutes} minutes{groups}"
        texts[live.name] = live.description or declared
    texts |= {gold.name: gold.description or f"Built from {', '.join(gold.reads)}" for gold in spec.gold.tables}
    texts |= {one.name: one.description or f"Reference table of {spec.pipeline}" for one in spec.references}
    texts |= {model.name: _model_text(model) for model in spec.models}
    if spec.mutations is not None:
        texts[spec.mutations.names] = "Current name of each id"
        texts[spec.mutations.intervals] = "Resolved mutations: the final id of rows by id and time"
    return texts | {
        "quarantine": f"Events and objects of {spec.pipeline} that did not fit its declaration, with reasons",
        ARCHIVE: f"Original payloads of {spec.pipeline}",
    }


def _bronze_text(spec: PipelineSpec, table: TableSpec) -> str:
    if table.announces is not None:
        return f"Changes of {table.announces.table}"
    return f"Events of {spec.pipeline}"


def _model_text(model: ModelSpec) -> str:
    return model.description or f"Published models on {model.features}"


def _bronze_columns(table: TableSpec) -> dict[str, str]:
    engine = _NOTIFICATION_COLUMNS if table.announces is not None else ENGINE_COLUMNS
    texts = {name: engine.get(name, "") for name in table.column_types()}
    return texts | _texts_of(table.columns)


def _texts_of(columns: Iterable[object]) -> dict[str, str]:
    return {str(column.name): str(column.description) for column in columns}  # type: ignore[attr-defined]


def bronze_personal_columns(spec: PipelineSpec, table: TableSpec) -> frozenset[str]:
    """Returns the columns of a bronze table that are personal by declaration, also as tokens or parts."""
    paths = {column.name: (column.path,) for column in table.columns} | {"event_id": spec.event.id}
    personal = {name for name, sources in paths.items() if any(map(spec.is_personal, sources))}
    undeclared = {REST_COLUMN, RESCUED_COLUMN} if spec.privacy is not None else set[str]()
    return frozenset((personal | undeclared) & {*table.column_types()})


def result_personal_columns(spec: PipelineSpec) -> frozenset[str]:
    """Returns the names of columns that are personal in some table of events or in quarantine; empty without personal
    data.
    """
    if spec.privacy is None and not spec.private:
        return frozenset()
    named = (bronze_personal_columns(spec, table) for table in spec.tables)
    return frozenset({REST_COLUMN, RESCUED_COLUMN, "raw"}).union(*named)


_BATCH_COLUMNS: Final[dict[str, str]] = {
    "pipeline": "Name of the pipeline",
    "generation": "Generation of the offsets",
    "batch_id": "Number of the batch",
    "run": "Airflow run, or process, that wrote the row",
    "owner_epoch": "Epoch of the stream's owner",
    "rows": "Rows written",
    "quarantined": "Rows written to quarantine",
    "at": "Time of the row, UTC",
}
_LEDGER_COLUMNS: Final[dict[str, str]] = {
    **_BATCH_COLUMNS,
    "spark_batch_id": "Number of the batch in Spark's checkpoint",
    "checkpoint": "Number of the checkpoint folder",
    "job_state": "State of the job as JSON",
    "start_offset": "Offset before the batch as JSON",
    "end_offset": "Offset after the batch as JSON",
    "source_metadata": "Metadata of the source as JSON",
    "spec_fingerprint": "Digest of the declaration",
    "code_version": "Release of Deltaworks",
    "prepared_at": "When the batch was prepared, UTC",
    "completed_at": "When the batch was completed, UTC",
    "step": "Transaction id of the commit",
    "table_name": "Table of the commit",
    "writer": "Writer of the commit: fan_out or spark",
    "outcome": "committed, already_committed, held, caught_up, rolled_back or recommitted",
    "files": "Files written",
    "bytes": "Bytes written",
    "delta_version": "Version of the table after the commit",
    "seconds": "Duration of the commit in seconds",
}
_VAULT_COLUMNS: Final[dict[str, str]] = {
    "namespace": "Namespace of the tokens",
    "subject": "Token of the person",
    "kind": "Kind of the identifier",
    "token": "Token of the value",
    "value": "Encrypted value",
    "key_version": "Version of the key that encrypts the value",
    "first_seen": "First event with the token, UTC",
    "last_seen": "Last event with the token, UTC, refreshed daily",
}
_REVEAL_COLUMNS: Final[dict[str, str]] = {
    "reveal_id": "Id of the request",
    "at": "Time of the request, UTC",
    "by": "Person who requested the values",
    "namespace": "Namespace of the tokens",
    "subject": "Token of the person whose values were revealed",
    "kinds": "Kinds of identifiers that were revealed",
    "reason": "Reason for the request",
    "approval": "Id of the approval, if one was needed",
}
_FILE_EVENT_COLUMNS: Final[dict[str, str]] = {
    "seq": "Ordinal of the file event, from 1 without gaps",
    "bucket": "Bucket of the object",
    "key": "Key of the object, decoded",
    "size": "Size of the object in bytes",
    "etag": "ETag of the object, without quotes",
    "version_id": "Version of the object in a versioned bucket",
    "event_time": "Time of the event according to the store, UTC",
    "event_name": "Kind of the event, such as ObjectCreated:Put",
    "sequencer": "Order of the events of a key according to S3",
    "message_id": "Id of the message",
    "origin": "sqs or listing",
    "received_at": "Arrival at the relay, UTC",
    "batch": "Number of the append",
    "body": "Body of the message",
    "reason": "Why the message was rejected",
}
#: Text, and texts of columns, of control and vault tables by name.
_CONTROL_TABLES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "checkpoint_store": ("Ledger: offsets and state of each completed batch", _LEDGER_COLUMNS),
    "batch_metadata_store": ("Ledger: outcome of each batch in each table", _LEDGER_COLUMNS),
    "progress": ("Progress of the stream: a row per batch, and rows while no batch runs", _BATCH_COLUMNS),
    "zorder_ledger": ("Rewrites of OPTIMIZE: a row per partition", {}),
    "file_events": ("File event log: an object that was announced or listed per row", _FILE_EVENT_COLUMNS),
    "message_quarantine": ("Messages that the relay could not read", _FILE_EVENT_COLUMNS),
    "file_quarantine": ("Content that readers of the s3-sqs format rejected", {}),
    "quarantine_replays": ("Outcomes of replayed quarantine rows", {}),
    "table_snapshots": ("Nightly measurements of all tables", {}),
    "identities": ("Vault: encrypted values by token", _VAULT_COLUMNS),
    "links": ("Vault: which tokens belong to a person", _VAULT_COLUMNS),
    "reveals": ("Vault: who revealed which values, and why", _REVEAL_COLUMNS),
}
