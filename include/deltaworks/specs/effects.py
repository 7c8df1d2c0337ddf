"""What an edit of each field of a declaration needs: every field of every spec has its effect here.

A test refuses a spec field that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from deltaworks.specs.base import Spec
from deltaworks.specs.gold import GoldSpec
from deltaworks.specs.maintenance import MaintenanceSpec
from deltaworks.specs.mutation import MutableSpec, MutationsSpec
from deltaworks.specs.pipeline import (
    ColumnSpec,
    EventSpec,
    EventTimeSpec,
    LiveTableSpec,
    PipelineSpec,
    QuarantineSpec,
    StreamSpec,
    TableSpec,
)
from deltaworks.specs.source import DeltaSourceSpec, FileSourceSpec, KafkaSourceSpec, KinesisSourceSpec


class Effect(StrEnum):
    """What a change needs. The last three are unsafe: a stream does not start on them unasked."""

    SAFE = "safe"
    RESTART = "restart"
    BACKFILL = "backfill"
    MIXES = "mixes"
    NEW_GENERATION = "new_generation"
    REFUSED = "refused"

    @property
    def unsafe(self) -> bool:
        """Whether a stream refuses to start on it."""
        return self in (Effect.MIXES, Effect.NEW_GENERATION, Effect.REFUSED)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field compared as a whole. `{name}`, `{table}` and `{pipeline}` in the advice are filled in."""

    effect: Effect
    advice: str


@dataclass(frozen=True, slots=True)
class Into:
    """A field whose own fields are compared; one of several models is told by its `kind`.

    `absent` is what it means that the field is declared now and was not, or the other way round.
    """

    models: tuple[type[Spec], ...]
    absent: Leaf | None = None

    def __init__(self, *models: type[Spec], absent: Leaf | None = None) -> None:
        object.__setattr__(self, "models", models)
        object.__setattr__(self, "absent", absent)


@dataclass(frozen=True, slots=True)
class Each:
    """A list of named things, compared name by name."""

    model: type[Spec]
    added: Leaf
    removed: Leaf


Rule = Leaf | Into | Each

_NEXT_START = Leaf(Effect.RESTART, "Holds from the stream's next start: `deltaworks stop {pipeline}`, then `start`.")
_AT_ONCE = Leaf(Effect.SAFE, "Nothing: shown as soon as Airflow reads the file again.")
_NEXT_BUILD = Leaf(Effect.SAFE, "Nothing: the next gold build sees it and rebuilds what follows from it.")
_NEXT_UPKEEP = Leaf(Effect.SAFE, "Nothing: holds from the next maintenance run.")
_RETENTION = Leaf(
    Effect.SAFE,
    "Holds from the next VACUUM. A table whose log remembers less is left out by it: set the table's "
    "delta.deletedFileRetentionDuration while nothing writes.",
)
_OTHER_ROWS = Leaf(
    Effect.BACKFILL,
    "Rows landed before keep to the old declaration. After a restart: "
    "`deltaworks reprocess {pipeline} --tables {table} --from-start`.",
)
OTHER_MEANING = Leaf(
    Effect.MIXES,
    "Old and new rows would mean different things. Give it a new name instead; or accept it with `deltaworks pipelines "
    "diff {pipeline} --accept`, restart, and make old rows alike with `deltaworks reprocess {pipeline} --from-start`.",
)
_OTHER_SOURCE = Leaf(
    Effect.MIXES,
    "Objects of the new place that were announced before the stream's offset would not be read. Declare a pipeline of "
    "its own; or accept it with `deltaworks pipelines diff {pipeline} --accept`, restart, and read them with "
    "`deltaworks reprocess {pipeline} --from-start`.",
)
_OTHER_FORM = Leaf(
    Effect.MIXES,
    "Objects of the old form could not be read any more, neither those that wait nor by a reprocess. Declare a "
    "pipeline of its own; or let the stream work off what waits, accept it with `deltaworks pipelines diff {pipeline} "
    "--accept`, and reprocess nothing that is older.",
)
_OTHER_READING = Leaf(
    Effect.BACKFILL,
    "Holds for what is read from the stream's next start on. Rows that landed before keep to the old reading until "
    "`deltaworks reprocess {pipeline} --from-start`.",
)
OTHER_LOG = Leaf(
    Effect.NEW_GENERATION,
    "Offsets and `_seq` of the old source mean nothing in the new one. Declare it as a pipeline of its own, under a "
    "new name; or give up what has landed: `deltaworks stop {pipeline}`, `deltaworks pipelines start-over {pipeline}`.",
)
_FIXED_ON_DISK = Leaf(
    Effect.NEW_GENERATION,
    "Rows on disk cannot become this. Declare it under a new name, then fill that with `deltaworks reprocess "
    "{pipeline} --tables NEW_NAME --from-start`; or make all tables anew: `deltaworks stop {pipeline}`, `deltaworks "
    "pipelines start-over {pipeline}`.",
)
_LIVE_STATE = Leaf(
    Effect.NEW_GENERATION,
    "The state of the running aggregation does not fit. Give the live table a new name: it counts from the beginning; "
    "or make all tables anew: `deltaworks stop {pipeline}`, `deltaworks pipelines start-over {pipeline}`.",
)

_SAME_PLACE = Leaf(
    Effect.MIXES,
    "Offsets go on as they were: they must mean the same at the new address. If it is another name of the same place, "
    "accept it with `deltaworks pipelines diff {pipeline} --accept`; otherwise declare a pipeline of its own.",
)
_NEXT_MUTATIONS = Leaf(Effect.SAFE, "Nothing: holds from the next batch of mutations.")
_OTHER_CHANGES = Leaf(
    Effect.MIXES,
    "Rows that mutations have changed would keep to the old declaration, and others to the new one. Put the old one "
    "back; or accept it with `deltaworks pipelines diff {pipeline} --accept`, restart, and know that requests applied "
    "by now are not applied again.",
)
_FIRST_START = Leaf(Effect.SAFE, "Nothing: a stream that has an offset goes on from there.")
_RECORDS: Mapping[str, Rule] = {
    "format": _OTHER_FORM,
    "csv": _OTHER_READING,
    "tsv": _OTHER_READING,
    "pattern": _OTHER_READING,
    "compression": _NEXT_START,
    "max_event_bytes": _NEXT_START,
    "tombstones": _NEXT_START,
}

#: Every field of every spec a pipeline is made of.
RULES: Mapping[type[Spec], Mapping[str, Rule]] = {
    PipelineSpec: {
        "pipeline": Leaf(Effect.REFUSED, "A pipeline is its name: put the old one back, and declare a new pipeline."),
        "description": _AT_ONCE,
        "owner": _AT_ONCE,
        "tags": _AT_ONCE,
        "source": Into(FileSourceSpec, KafkaSourceSpec, KinesisSourceSpec, DeltaSourceSpec),
        "unwrap": OTHER_MEANING,
        "event": Into(EventSpec),
        "tables": Each(
            TableSpec,
            added=Leaf(
                Effect.BACKFILL,
                "It is filled from the stream's next start on. What landed before: "
                "`deltaworks reprocess {pipeline} --tables {name} --from-start`.",
            ),
            removed=Leaf(
                Effect.RESTART,
                "It stays as it is and gets no more rows. Events that only it took go to quarantine from the "
                "stream's next start on.",
            ),
        ),
        "quarantine": Into(QuarantineSpec),
        "stream": Into(StreamSpec),
        "live": Each(
            LiveTableSpec,
            added=Leaf(Effect.RESTART, "It counts from the beginning of {name}'s input, from the stream's next start."),
            removed=Leaf(Effect.RESTART, "It stays as it is and is counted no further."),
        ),
        "gold": Into(GoldSpec),
        "maintenance": Into(MaintenanceSpec),
        "watch": _AT_ONCE,
        "mutations": Into(
            MutationsSpec,
            absent=Leaf(
                Effect.RESTART, "Holds from the stream's next start: it then shares its tables with mutations."
            ),
        ),
    },
    FileSourceSpec: {
        "kind": OTHER_LOG,
        "relay": OTHER_LOG,
        "bucket": _OTHER_SOURCE,
        "prefix": _OTHER_SOURCE,
        "glob": _OTHER_SOURCE,
        "partition_columns": _OTHER_READING,
        "format": _OTHER_FORM,
        "csv": _OTHER_READING,
        "tsv": _OTHER_READING,
        "pattern": _OTHER_READING,
        "compression": _NEXT_START,
        "max_files_per_batch": _NEXT_START,
        "max_bytes_per_batch": _NEXT_START,
        "max_event_bytes": _NEXT_START,
        "max_object_bytes": _NEXT_START,
    },
    KafkaSourceSpec: {
        **_RECORDS,
        "kind": OTHER_LOG,
        "bootstrap_servers": _SAME_PLACE,
        "topics": OTHER_LOG,
        "starting_offsets": _FIRST_START,
        "max_records_per_batch": _NEXT_START,
        "allow_data_loss": _NEXT_START,
        "security": _NEXT_START,
    },
    KinesisSourceSpec: {
        **_RECORDS,
        "kind": OTHER_LOG,
        "stream": OTHER_LOG,
        "initial_position": _FIRST_START,
        "max_records_per_batch": _NEXT_START,
        "max_bytes_per_batch": _NEXT_START,
        "allow_data_loss": _NEXT_START,
        "consumer_mode": _NEXT_START,
        "consumer_name": _NEXT_START,
    },
    DeltaSourceSpec: {
        "kind": OTHER_LOG,
        "pipeline": OTHER_LOG,
        "table": OTHER_LOG,
        "uri": _SAME_PLACE,
        "starting_version": _FIRST_START,
        "starting_timestamp": _FIRST_START,
        "skip_change_commits": _NEXT_START,
        "change_feed": OTHER_LOG,
        "max_files_per_batch": _NEXT_START,
        "max_bytes_per_batch": _NEXT_START,
        "max_event_bytes": _NEXT_START,
        "format": _OTHER_FORM,
    },
    EventSpec: {"name": OTHER_MEANING, "time": Into(EventTimeSpec), "id": OTHER_MEANING},
    EventTimeSpec: {
        "path": OTHER_MEANING,
        "unit": OTHER_MEANING,
        "max_age_days": _NEXT_START,
        "max_future_minutes": _NEXT_START,
    },
    TableSpec: {
        "name": _FIXED_ON_DISK,
        "description": _AT_ONCE,
        "when": _OTHER_ROWS,
        "catch_all": _OTHER_ROWS,
        "columns": Each(
            ColumnSpec,
            added=Leaf(
                Effect.BACKFILL,
                "Older rows have null there. After a restart: "
                "`deltaworks reprocess {pipeline} --tables {table} --from-start`.",
            ),
            removed=Leaf(Effect.RESTART, "The column stays in the table, null in new rows."),
        ),
        "partition_by": _FIXED_ON_DISK,
        "zorder_by": _NEXT_UPKEEP,
        "cluster_by": _FIXED_ON_DISK,
        "writer": _NEXT_START,
        "evolve": _NEXT_START,
        "duplicates": Leaf(
            Effect.RESTART,
            "Holds for what is read from the stream's next start on. Rows landed before are not flagged, and count.",
        ),
        "mutable": Into(
            MutableSpec,
            absent=Leaf(
                Effect.RESTART,
                "The table gets the columns `_deleted` and `_mutation` at the stream's next start, or keeps them as "
                "they are. Requests change the rows that are there too, where these have the columns of the origin.",
            ),
        ),
        "announces": Leaf(Effect.RESTART, "Holds for what lands from the stream's next start on."),
        "rules": Leaf(
            Effect.RESTART,
            "Holds for what is read from the stream's next start on. Rows that an old rule sent to quarantine stay "
            "there until they are replayed.",
        ),
    },
    ColumnSpec: {
        "name": _FIXED_ON_DISK,
        "path": OTHER_MEANING,
        "type": _FIXED_ON_DISK,
        "required": _NEXT_START,
        "unit": OTHER_MEANING,
        "description": _AT_ONCE,
    },
    QuarantineSpec: {"retain_raw_bytes": _NEXT_START},
    StreamSpec: {
        "trigger_seconds": _NEXT_START,
        "max_run_seconds": _NEXT_START,
        "lease_ttl_seconds": _NEXT_START,
        "stall_seconds": _NEXT_START,
        "driver_memory": _NEXT_START,
        "tasks_per_batch": _NEXT_START,
    },
    LiveTableSpec: {
        "name": _LIVE_STATE,
        "reads": _LIVE_STATE,
        "window_minutes": _LIVE_STATE,
        "watermark_minutes": _NEXT_START,
        "group_by": _LIVE_STATE,
        "trigger_seconds": _NEXT_START,
    },
    GoldSpec: {"schedule": _AT_ONCE, "deadline_minutes": _AT_ONCE, "dedupe": _NEXT_BUILD, "tables": _NEXT_BUILD},
    MutableSpec: {
        "id": _OTHER_CHANGES,
        "origin": _OTHER_CHANGES,
        "fields": _OTHER_CHANGES,
        "deletion_vectors": _NEXT_MUTATIONS,
    },
    MutationsSpec: {
        "requests": _OTHER_CHANGES,
        "schedule": _AT_ONCE,
        "max_requests": _NEXT_MUTATIONS,
        "optimize_every": _NEXT_MUTATIONS,
        "max_turn_seconds": _NEXT_MUTATIONS,
        "alert_after_minutes": _AT_ONCE,
        "purge_after_days": _NEXT_UPKEEP,
        "names": _OTHER_CHANGES,
        "intervals": _OTHER_CHANGES,
        "notifications": _NEXT_MUTATIONS,
        "merge_names": _OTHER_CHANGES,
        "small_merge_bytes": _NEXT_MUTATIONS,
    },
    MaintenanceSpec: {
        "schedule": _AT_ONCE,
        "optimize": _NEXT_UPKEEP,
        "optimize_minutes": _NEXT_UPKEEP,
        "weekly_on": _NEXT_UPKEEP,
        "weekly_minutes": _NEXT_UPKEEP,
        "closed_after_hours": _NEXT_UPKEEP,
        "target_file_bytes": _NEXT_UPKEEP,
        "vacuum_retention_hours": _RETENTION,
        "time_travel_hours": _RETENTION,
        "vacuum_dry_run": _NEXT_UPKEEP,
    },
}
