"""What may change in landed rows: mutable tables, the requests that change them, and the notifications of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from deltaworks.specs.base import Name, Spec, parse_bytes
from deltaworks.specs.schedules import Schedule
from deltaworks.specs.spec_change_effects import IMMEDIATE, NEXT_MAINTENANCE, Edit, Effect

#: Rows, requests and names belong to an organisation: nothing is changed, resolved or joined across two of them.
ORG_COLUMN = "org_id"
#: Whether a mutation deleted the row. Null in a row that none has touched.
DELETED_COLUMN = "_deleted"
#: The last mutation batch that changed the row. Null in a row that none has touched.
MUTATION_COLUMN = "_mutation"
#: Columns the engine adds to a mutable table.
MUTABLE_COLUMNS: tuple[tuple[str, str], ...] = ((DELETED_COLUMN, "boolean"), (MUTATION_COLUMN, "long"))

#: What a request may ask for. The last one touches the mapping table alone.
OPERATIONS = ("rename", "merge", "update", "delete", "undelete", "rename_name")
#: Columns of the table of requests beside the envelope; a request's time is its `event_time`.
REQUEST_COLUMNS: dict[str, str] = {
    ORG_COLUMN: "string",
    "op": "string",
    "id": "string",
    "new_id": "string",
    "name": "string",
    "fields": "map<string,string>",
    "seq": "long",
}
#: The mapping table: one row for each id that was ever given a name.
NAMES_COLUMNS: dict[str, str] = {
    ORG_COLUMN: "string",
    "id": "string",
    "name": "string",
    "named_at": "timestamp",
    "seq": "long",
    DELETED_COLUMN: "boolean",
    MUTATION_COLUMN: "long",
}
#: The resolved intervals: where rows that arrived under an id, within a time, end.
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
#: Keys one notification names at most.
KEYS_PER_NOTIFICATION = 10_000
#: Columns of a notification table behind those it takes over from the table it announces. `batch` is a row's
#: `_batch_id` where `batch_kind` is `stream`, its `_mutation` where that is `mutation`.
NOTIFICATION_COLUMNS: dict[str, str] = {
    "ingested_at": "timestamp",
    "ingested_date": "date",
    "change": "string",
    "keys": "array<string>",
    "batch": "long",
    "batch_kind": "string",
    "data_version": "long",
}

_NEXT_MUTATIONS = Edit(Effect.SAFE, "Nothing: holds from the next batch of mutations.")
_CHANGES_MUTATIONS = Edit(
    Effect.MIXED_ROWS,
    "Rows that mutations have changed would keep to the old declaration, and others to the new one. Put the old one "
    "back; or accept it with `deltaworks pipelines diff {pipeline} --accept`, restart, and know that requests applied "
    "by now are not applied again.",
)


class MutableSpec(Spec):
    """Which columns of a table requests change. What arrived stays in columns of its own and is never rewritten.

    `id` is the column requests speak of and `origin` the id as it arrived. `fields` are those an update may set, each
    with the column that keeps what arrived.
    """

    id: Annotated[str, _CHANGES_MUTATIONS]
    origin: Annotated[str, _CHANGES_MUTATIONS]
    fields: Annotated[dict[str, str], _CHANGES_MUTATIONS] = Field(default_factory=dict)
    deletion_vectors: Annotated[bool | None, _NEXT_MUTATIONS] = Field(
        default=None, description="merges mark rows and write them again beside their files; none leaves it as it is"
    )


class AnnouncesSpec(Spec):
    """A notification table: each batch says in it which rows of `table` are new, once these have landed.

    `key` is a text column of that table, whose values tell the rows.
    """

    table: Name
    key: str = "event_id"


class MutationsSpec(Spec):
    """How requests are applied to the pipeline's mutable tables."""

    requests: Annotated[Name, _CHANGES_MUTATIONS]
    schedule: Annotated[Schedule | None, IMMEDIATE] = "*/10 * * * *"
    max_requests: Annotated[int, _NEXT_MUTATIONS] = Field(default=1_000_000, ge=1, description="a batch takes no more")
    optimize_every: Annotated[int, _NEXT_MUTATIONS] = Field(
        default=12, ge=1, description="batches between OPTIMIZEs in the write turn"
    )
    max_turn_seconds: Annotated[int, _NEXT_MUTATIONS] = Field(
        default=600, ge=10, description="how long the stream waits for the table at most"
    )
    small_merge_bytes: Annotated[int, BeforeValidator(parse_bytes), _NEXT_MUTATIONS] = Field(
        default=1 << 30, ge=0, description="delta-rs merges where no more is rewritten and memory suffices, else Spark"
    )
    alert_after_minutes: Annotated[int, IMMEDIATE] = Field(
        default=30, ge=1, description="age of the oldest request that is not applied"
    )
    purge_after_days: Annotated[int, NEXT_MAINTENANCE] = Field(
        default=30, ge=1, description="deleted rows are removed for good after these"
    )
    names: Annotated[Name, _CHANGES_MUTATIONS] = "names"
    intervals: Annotated[Name, _CHANGES_MUTATIONS] = "intervals"
    notifications: Annotated[Name | None, _NEXT_MUTATIONS] = None
    merge_names: Annotated[Literal["keep_target", "keep_source", "newest"], _CHANGES_MUTATIONS] = "keep_target"
