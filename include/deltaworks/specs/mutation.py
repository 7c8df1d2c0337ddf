"""Specs of mutations: which tables requests can change, how requests are applied, and notifications of changes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from deltaworks.specs.base import Name, Spec, parse_bytes
from deltaworks.specs.schedules import Schedule
from deltaworks.specs.spec_change_effects import IMMEDIATE, NEXT_MAINTENANCE, Edit, Effect

#: The organisation of a row, request or name. No operation affects several organisations.
ORG_COLUMN = "org_id"
#: Whether a mutation deleted the row. Null if no mutation changed it.
DELETED_COLUMN = "_deleted"
#: The last mutation batch that changed the row. Null if no mutation changed it.
MUTATION_COLUMN = "_mutation"
#: Columns that the engine adds to a mutable table.
MUTABLE_COLUMNS: tuple[tuple[str, str], ...] = ((DELETED_COLUMN, "boolean"), (MUTATION_COLUMN, "long"))

#: Operations of a request. The last one changes only the mapping table.
OPERATIONS = ("rename", "merge", "update", "delete", "undelete", "rename_name")
#: Operations that move an entity to another id,
RENAME_OPERATIONS = ("rename", "merge")
#: to the location of deleted rows of its id, and back,
DELETE, UNDELETE = "delete", "undelete"
#: and the one that does not move it.
UPDATE = "update"
MOVE_OPERATIONS = (*RENAME_OPERATIONS, DELETE, UNDELETE)
#: Columns of the request table in addition to the envelope. A request's time is its `event_time`.
REQUEST_COLUMNS: dict[str, str] = {
    ORG_COLUMN: "string",
    "op": "string",
    "id": "string",
    "new_id": "string",
    "name": "string",
    "fields": "map<string,string>",
    "seq": "long",
}
#: The mapping table: one row per id that ever had a name.
NAMES_COLUMNS: dict[str, str] = {
    ORG_COLUMN: "string",
    "id": "string",
    "name": "string",
    "named_at": "timestamp",
    "seq": "long",
    DELETED_COLUMN: "boolean",
    MUTATION_COLUMN: "long",
}
#: Resolved intervals: the final id of rows that arrived under an id within an interval.
INTERVALS_COLUMNS: dict[str, str] = {
    ORG_COLUMN: "string",
    "id": "string",
    "valid_from": "timestamp",
    "valid_to": "timestamp",
    "final_id": "string",
    "deleted": "boolean",
    "fields": "map<string,string>",
    "hops": "int",
    "last_time": "timestamp",
    "last_seq": "long",
}
#: Maximum number of keys in a notification.
KEYS_PER_NOTIFICATION = 10_000
#: Columns of a notification table after those copied from the announced table. `batch` is a row's `_batch_id` if
#: `batch_kind` is `stream`, and its `_mutation` if it is `mutation`.
NOTIFICATION_COLUMNS: dict[str, str] = {
    "ingested_at": "timestamp",
    "ingested_date": "date",
    "change": "string",
    "keys": "array<string>",
    "batch": "long",
    "batch_kind": "string",
    "data_version": "long",
}

_NEXT_MUTATIONS = Edit(Effect.SAFE, "Nothing: applies from the next mutation batch.")
_MUTATIONS_EDIT = Edit(
    Effect.MIXED_ROWS,
    "Rows changed by past mutations would follow the old declaration, others the new one. Revert it; or accept "
    "it with `deltaworks pipelines diff {pipeline} --accept` and restart: applied requests are not applied again.",
)


class MutableSpec(Spec):
    """Columns of a table that requests can change. Original values are stored in separate columns.

    The column `id` is the one that requests refer to; `origin` has the id on arrival. `fields` maps columns that an
    update can set to the columns with their original values.
    """

    id: Annotated[str, _MUTATIONS_EDIT]
    origin: Annotated[str, _MUTATIONS_EDIT]
    fields: Annotated[dict[str, str], _MUTATIONS_EDIT] = Field(default_factory=dict)
    deletion_vectors: Annotated[bool | None, _NEXT_MUTATIONS] = Field(
        default=None, description="use deletion vectors in merges; by default the table's setting"
    )


class ChangeNotificationSpec(Spec):
    """Makes a table a notification table: it lists the new rows of `table` per batch, after they were committed.

    `key` is a string column of that table that identifies rows.
    """

    table: Name
    key: str = "event_id"


class MutationsSpec(Spec):
    """How requests are applied to the pipeline's mutable tables."""

    requests: Annotated[Name, _MUTATIONS_EDIT]
    schedule: Annotated[Schedule | None, IMMEDIATE] = "*/10 * * * *"
    max_requests: Annotated[int, _NEXT_MUTATIONS] = Field(
        default=1_000_000, ge=1, description=("maximum number of requests per batch")
    )
    optimize_every: Annotated[int, _NEXT_MUTATIONS] = Field(
        default=12, ge=1, description="batches between two OPTIMIZEs within the write turn"
    )
    max_turn_seconds: Annotated[int, _NEXT_MUTATIONS] = Field(
        default=600, ge=10, description="maximum time that the stream waits for the table"
    )
    small_batch_requests: Annotated[int, _NEXT_MUTATIONS] = Field(
        default=20_000,
        ge=0,
        description=(
            "apply a batch without Spark if its organisations have at most as many requests; 0: always with Spark"
        ),
    )
    small_merge_bytes: Annotated[int, BeforeValidator(parse_bytes), _NEXT_MUTATIONS] = Field(
        default=1 << 30,
        ge=0,
        description=("merge with delta-rs up to this size, if memory suffices; otherwise with Spark"),
    )
    alert_after_minutes: Annotated[int, IMMEDIATE] = Field(
        default=30, ge=1, description="age of the oldest unapplied request from which an alert is raised"
    )
    alert_above_ids: Annotated[int, _NEXT_MUTATIONS] = Field(
        default=1_000, ge=1, description="number of ids joined into one id from which an alert is raised"
    )
    purge_after_days: Annotated[int, NEXT_MAINTENANCE] = Field(
        default=30, ge=1, description="days after which deleted rows are physically removed"
    )
    names: Annotated[Name, _MUTATIONS_EDIT] = "names"
    intervals: Annotated[Name, _MUTATIONS_EDIT] = "intervals"
    notifications: Annotated[Name | None, _NEXT_MUTATIONS] = None
    merge_names: Annotated[Literal["keep_target", "keep_source", "newest"], _MUTATIONS_EDIT] = "keep_target"
