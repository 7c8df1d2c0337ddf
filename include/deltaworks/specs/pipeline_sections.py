"""The sections of a pipeline: source, bronze, live and gold tables, rules, feeds and maintenance for one use case."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from deltaworks.specs.alert_rule import RuleSpec
from deltaworks.specs.base import Bytes, Name, Spec, path_names, paths_overlap
from deltaworks.specs.dashboards import DashboardSpec
from deltaworks.specs.enrich import (
    ENRICH_CHANGES,
    MASK_CHANGES,
    EnrichSpec,
    PrivateSpec,
)
from deltaworks.specs.environment import Approvers
from deltaworks.specs.event import EventSpec, UnwrapSpec
from deltaworks.specs.feeds import FeedSpec
from deltaworks.specs.gold import GoldSpec, ReferenceSpec, ViewSpec
from deltaworks.specs.keyed import KeyedTable
from deltaworks.specs.live import LiveTableSpec, latest_table
from deltaworks.specs.maintenance import MaintenanceEngine, MaintenanceSpec
from deltaworks.specs.models import ModelSpec, TrainingSpec
from deltaworks.specs.mutation import MutationsSpec
from deltaworks.specs.privacy import PRIVACY_CHANGE, PrivacySpec
from deltaworks.specs.shares import StreamShareSpec
from deltaworks.specs.sources.selection import SourceSpec, selected_source
from deltaworks.specs.spec_change_effects import (
    CHANGES_MEANING,
    IMMEDIATE,
    NEXT_MAINTENANCE,
    NEXT_START,
    Edit,
    Effect,
    NamedItems,
    OptionalSection,
)
from deltaworks.specs.table import TableSpec

_PIPELINE_RENAMED = Edit(Effect.REFUSED, "The name identifies a pipeline: restore it, and declare a new pipeline.")
_TABLES = NamedItems(
    added=Edit(
        Effect.BACKFILL,
        "It is filled from the stream's next start. For earlier events: `deltaworks reprocess {pipeline} "
        "--tables {name} --from-start`.",
    ),
    removed=Edit(
        Effect.RESTART,
        "It remains and is no longer written. Events that only matched this table are quarantined from the "
        "stream's next start.",
    ),
)
_LIVE_TABLES = NamedItems(
    added=Edit(Effect.RESTART, "It is filled from the start of {name}'s input, at the stream's next start."),
    removed=Edit(Effect.RESTART, "It remains and is no longer updated."),
)
_SHARE = OptionalSection(NEXT_START)
_STREAM_GROUP = Edit(
    Effect.RESTART,
    "The stream continues from its checkpoint in the other driver, after the current one ended: `deltaworks stop "
    "{pipeline}` before the edit, `start` after it.",
)
_REFERENCES = Edit(
    Effect.SAFE,
    ("Nothing: the next gold build loads it and rebuilds affected tables. The table of a removed one remains."),
)
_VIEWS = Edit(
    Effect.SAFE,
    "Nothing: the next `deltaworks sql` uses it. Announcements follow from the stream's next start.",
)
_DASHBOARDS = Edit(Effect.SAFE, "Nothing: the next rendered page uses it.")
_RULES = Edit(
    Effect.SAFE,
    "Nothing: the rules process loads it within a minute. New rules are evaluated from then on; alerts of "
    "removed rules are resolved.",
)
_FEEDS = Edit(
    Effect.SAFE,
    "Applies from the next start of the feeds process: `deltaworks restart {pipeline}__feeds`. A feed's progress "
    "is stored under its name.",
)
_MODELS = Edit(
    Effect.SAFE,
    "Nothing: the next training uses it. Published models remain in use until a new one is published.",
)
_MUTATIONS = OptionalSection(
    Edit(Effect.RESTART, "Applies from the stream's next start, when it starts to share its tables with mutations.")
)
_ARCHIVE = OptionalSection(
    Edit(
        Effect.RESTART,
        "Applies from the stream's next start. Earlier payloads are not archived; a removed archive remains "
        "until its folder is deleted.",
    )
)
#: Name of the archive table.
ARCHIVE = "archive"


class QuarantineSpec(Spec):
    """How many bytes of a rejected row are stored in quarantine, and for how many days."""

    retain_raw_bytes: Annotated[Bytes, NEXT_START] = 65_536
    retain_days: Annotated[int | None, NEXT_MAINTENANCE] = Field(
        default=30, ge=1, description="days after which maintenance deletes rows, replayed or not; null: never"
    )


class StreamSpec(Spec):
    """Settings of the pipeline's stream. All times are in seconds."""

    trigger_seconds: Annotated[float, NEXT_START] = Field(default=60, gt=0)
    max_run_seconds: Annotated[int, NEXT_START] = Field(default=14_400, ge=10)
    lease_ttl_seconds: Annotated[int, NEXT_START] = Field(default=30, ge=3)
    stall_seconds: Annotated[int, NEXT_START] = Field(
        default=900, ge=30, description="duration of a batch from which the job is aborted"
    )
    driver_memory: Annotated[str, NEXT_START] = Field(default="1g", pattern=r"^\d+[mg]$")
    tasks_per_batch: Annotated[int, NEXT_START] = Field(default=2, ge=1)
    task_memory: Annotated[str, NEXT_START] = Field(
        default="4g", pattern=r"^[1-9]\d*[mg]$", description="memory of a task in addition to an idle Python worker"
    )
    object_timeout_seconds: Annotated[int, NEXT_START] = Field(
        default=600, ge=1, description="time after which a task is killed for a single object"
    )
    crashes_per_object: Annotated[int, NEXT_START] = Field(
        default=2, ge=1, description="number of task crashes after which an object is quarantined"
    )
    share: Annotated[StreamShareSpec | None, _SHARE] = Field(
        default=None, description="cluster share of this stream; by default the environment's share for streams"
    )

    @property
    def task_memory_bytes(self) -> int:
        """The memory limit of a task in bytes, from `task_memory`."""
        return int(self.task_memory[:-1]) << {"m": 20, "g": 30}[self.task_memory[-1]]


class HealthLimitsSpec(Spec):
    """Thresholds of the health check. Defaults are derived from the source or are usual values."""

    backlog_minutes: float = Field(
        default=60, gt=0, description=("age of unprocessed input from which an alert is raised")
    )
    no_input_minutes: float | None = Field(
        default=None,
        gt=0,
        description="time without input from which an alert is raised; by default derived from history",
    )
    retention_hours: float | None = Field(
        default=None, gt=0, description="retention of the source, if it does not report it"
    )
    time_left_hours: float | None = Field(
        default=None,
        gt=0,
        description="remaining retention from which an alert is raised; by default a quarter",
    )
    stale_seconds: float = Field(
        default=120, ge=20, description="age of the heartbeat from which the stream counts as hung or dead"
    )
    start_seconds: float = Field(default=180, ge=20, description="grace period after a start")
    restarts_per_hour: int = Field(
        default=3, ge=0, description="maximum number of automatic restarts of a hung stream; 0: never"
    )
    quarantined_percent: float = Field(
        default=5,
        ge=0,
        le=100,
        description="percentage of quarantined events of an hour from which an alert is raised; 100: never",
    )
    quarantined_run_percent: float = Field(
        default=25,
        ge=0,
        le=100,
        description="the same for minutes in a row within the hour, such as a batch that was rejected as a whole",
    )
    quarantined_events_min: int = Field(
        default=100, ge=1, description="minimum number of events for that alert, of up to a day or of the minutes"
    )


class ArchiveSpec(Spec):
    """The retention of original payloads. It has no default, since raw payloads may contain personal data."""

    retain_days: Annotated[int, NEXT_MAINTENANCE] = Field(
        ge=1, le=36_500, description="days after which maintenance deletes payloads, by date"
    )


class PipelineSections(Spec):
    """The sections of a pipeline. `PipelineSpec` checks them against each other."""

    pipeline: Annotated[Name, _PIPELINE_RENAMED]
    description: Annotated[str, IMMEDIATE]
    owner: Annotated[str, IMMEDIATE]
    tags: Annotated[tuple[str, ...], IMMEDIATE] = ()
    approvers: Annotated[Approvers, IMMEDIATE] = Field(
        default=(), description="approvers of deleting operations; by default those of the environment"
    )
    source: SourceSpec
    unwrap: Annotated[UnwrapSpec | None, CHANGES_MEANING] = None
    event: EventSpec
    enrich: Annotated[tuple[EnrichSpec, ...], ENRICH_CHANGES] = Field(
        default=(), description="look-ups that enrich events before private fields are masked"
    )
    private: Annotated[tuple[PrivateSpec, ...], MASK_CHANGES] = Field(default=(), description="masked fields")
    privacy: Annotated[PrivacySpec | None, PRIVACY_CHANGE] = Field(
        default=None, description="personal data: subjects, tokenized and dropped fields, and erasure"
    )
    tables: Annotated[tuple[TableSpec, ...], _TABLES] = Field(min_length=1)
    quarantine: QuarantineSpec = QuarantineSpec.defaults()
    archive: Annotated[ArchiveSpec | None, _ARCHIVE] = Field(
        default=None, description="keeps original payloads in a separate table"
    )
    stream: StreamSpec = StreamSpec.defaults()
    live: Annotated[tuple[LiveTableSpec, ...], _LIVE_TABLES] = ()
    gold: GoldSpec = GoldSpec.defaults()
    references: Annotated[tuple[ReferenceSpec, ...], _REFERENCES] = Field(
        default=(), description="small tables in CSV files, for gold"
    )
    views: Annotated[tuple[ViewSpec, ...], _VIEWS] = Field(default=(), description="named queries for deltaworks sql")
    dashboards: Annotated[tuple[DashboardSpec, ...], _DASHBOARDS] = Field(
        default=(), description="pages of charts over the tables and views"
    )
    rules: Annotated[tuple[RuleSpec, ...], _RULES] = Field(
        default=(), description="rules that evaluate results every minute and raise alerts"
    )
    feeds: Annotated[tuple[FeedSpec, ...], _FEEDS] = Field(
        default=(), description="delivery of changed rows of gold tables and views to other systems"
    )
    models: Annotated[tuple[ModelSpec, ...], _MODELS] = Field(
        default=(), description="prediction models on gold tables"
    )
    training: Annotated[TrainingSpec, IMMEDIATE] = Field(
        default=TrainingSpec.defaults(), description="training schedule of the models"
    )
    maintenance: MaintenanceSpec = MaintenanceSpec.defaults()
    maintenance_on: Annotated[MaintenanceEngine | None, IMMEDIATE] = Field(
        default=None, description="overrides maintenance_on of the environment"
    )
    mutations: Annotated[MutationsSpec | None, _MUTATIONS] = None
    health: Annotated[HealthLimitsSpec, IMMEDIATE] = HealthLimitsSpec.defaults()
    stream_group: Annotated[Name | None, _STREAM_GROUP] = Field(
        default=None, description="all pipelines of a group share one driver"
    )

    @model_validator(mode="before")
    @classmethod
    def _select_source(cls, declared: Any) -> Any:
        return selected_source(declared) if isinstance(declared, dict) else declared

    @property
    def event_tables(self) -> tuple[TableSpec, ...]:
        """Bronze tables that receive events, which are all except notification tables."""
        return tuple(table for table in self.tables if table.announces is None)

    @property
    def keyed_tables(self) -> tuple[KeyedTable, ...]:
        """Keyed tables, which have the newest row of each key. Each belongs to a bronze table that declares it."""
        return tuple(keyed for table in self.tables if (keyed := table.keyed_table()) is not None)

    @property
    def latest_tables(self) -> tuple[KeyedTable, ...]:
        """Live tables of kind `latest`. They are updated like keyed tables."""
        return tuple(latest_table(self.table(live.reads), live) for live in self.live if live.kind == "latest")

    @property
    def aggregation_tables(self) -> tuple[LiveTableSpec, ...]:
        """Live tables that are streaming aggregations. Each runs as a query of its own."""
        return tuple(live for live in self.live if live.kind == "counts")

    @property
    def engine_tables(self) -> tuple[str, ...]:
        """Tables that every batch may write without being declared: quarantine and, if configured, the archive."""
        return ("quarantine",) if self.archive is None else ("quarantine", ARCHIVE)

    @property
    def table_kinds(self) -> dict[str, str]:
        """All tables that the pipeline stores, with their kinds."""
        kinds = {table.name: "bronze" for table in self.tables}
        kinds |= {table.name: "keyed" for table in self.keyed_tables}
        kinds |= {table.name: "live" for table in self.live}
        kinds |= {table.name: "gold" for table in self.gold.tables}
        kinds |= {reference.name: "reference" for reference in self.references}
        kinds |= {model.name: "reference" for model in self.models}
        if self.mutations is not None:
            kinds |= dict.fromkeys((self.mutations.names, self.mutations.intervals), "mutations")
        return kinds | {name: name for name in self.engine_tables}

    def table(self, name: str) -> TableSpec:
        """Returns a bronze table by name.

        Raises:
            KeyError: there is no such table.
        """
        return {table.name: table for table in self.tables}[name]

    def is_personal(self, path: str) -> bool:
        """Returns whether a column with this path has personal data, tokens of them or parts of them, also in a struct.

        Dropped fields are null and do not count. List indexes are ignored.
        """
        declared = [field.path for field in self.privacy.fields if field.action != "drop"] if self.privacy else []
        declared += [field.path for field in self.private if field.keep != "nothing"]
        return any(paths_overlap(path_names(path), path_names(other)) for other in declared)

    def fingerprint(self) -> str:
        """Returns a short digest of the complete spec. Each batch records it."""
        import hashlib

        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Returns the effective spec, including defaults, as plain data for output."""
        return self.model_dump(mode="json", exclude_defaults=False)
