"""Spec of a pipeline: source, bronze, live and gold tables, rules, feeds and maintenance of one use case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from deltaworks.specs.alert_rule import RuleSpec, rule_problems
from deltaworks.specs.archive import ARCHIVE, ArchiveSpec, archive_problems
from deltaworks.specs.base import Bytes, Name, Problem, Spec, exclude_if_default, raise_problems
from deltaworks.specs.dashboards import DashboardSpec, dashboard_problems
from deltaworks.specs.enrich import (
    ENRICH_CHANGES,
    MASK_CHANGES,
    EnrichSpec,
    PrivateSpec,
    enrich_problems,
    private_problems,
)
from deltaworks.specs.environment import Approvers
from deltaworks.specs.event import EventSpec, UnwrapSpec, unwrap_problems
from deltaworks.specs.feeds import FeedSpec, feed_problems
from deltaworks.specs.gold import GoldSpec, ReferenceSpec, ViewSpec
from deltaworks.specs.keyed import KeyedTable
from deltaworks.specs.live import LiveTableSpec, latest_table
from deltaworks.specs.maintenance import MaintenanceSpec
from deltaworks.specs.models import ModelSpec, TrainingSpec, model_problems
from deltaworks.specs.mutation import MutationsSpec
from deltaworks.specs.pipeline_tables import readable_by_views, table_problems
from deltaworks.specs.privacy import PRIVACY_CHANGE, PrivacySpec
from deltaworks.specs.privacy_checks import privacy_problems
from deltaworks.specs.shares import StreamShareSpec
from deltaworks.specs.sources.delta import DeltaSourceSpec
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

_PIPELINE_RENAMED = Edit(Effect.REFUSED, "A pipeline is its name: put the old one back, and declare a new pipeline.")
_TABLES = NamedItems(
    added=Edit(
        Effect.BACKFILL,
        "It is filled from the stream's next start on. What landed before: "
        "`deltaworks reprocess {pipeline} --tables {name} --from-start`.",
    ),
    removed=Edit(
        Effect.RESTART,
        "It stays as it is and gets no more rows. Events that only it took go to quarantine from the "
        "stream's next start on.",
    ),
)
_LIVE_TABLES = NamedItems(
    added=Edit(Effect.RESTART, "It is filled from the beginning of {name}'s input, from the stream's next start."),
    removed=Edit(Effect.RESTART, "It stays as it is and is brought up to date no more."),
)
_SHARE = OptionalSection(NEXT_START)
_STREAM_GROUP = Edit(
    Effect.RESTART,
    "The stream goes on from its checkpoint in the other driver, once the one that runs it has ended: "
    "`deltaworks stop {pipeline}` before the edit, `start` after it.",
)
_REFERENCES = Edit(
    Effect.SAFE, "Nothing: the next gold build takes it over and rebuilds what follows. Of one removed the table stays."
)
_VIEWS = Edit(
    Effect.SAFE,
    "Nothing: the next `deltaworks sql` has it. What is announced of it, a stream announces from its next start on.",
)
_DASHBOARDS = Edit(Effect.SAFE, "Nothing: the next page drawn has it.")
_RULES = Edit(
    Effect.SAFE,
    "Nothing: the process that judges rules takes it over within a minute. A new rule is judged from then on, one that "
    "is gone ends the alerts it had raised.",
)
_FEEDS = Edit(
    Effect.SAFE,
    "Holds from the next start of the feeds' process: `deltaworks restart feeds__{pipeline}`. What was delivered of a "
    "feed is remembered by its name.",
)
_MODELS = Edit(
    Effect.SAFE,
    "Nothing: the next training has it, and models that are published stay in force until another one is.",
)
_MUTATIONS = OptionalSection(
    Edit(Effect.RESTART, "Holds from the stream's next start: it then shares its tables with mutations.")
)
_ARCHIVE = OptionalSection(
    Edit(
        Effect.RESTART,
        "Holds from the stream's next start. What landed before is in no archive; one that is declared no more stays "
        "as it is, until its folder is deleted.",
    )
)


class QuarantineSpec(Spec):
    """How much of a rejected row is kept in quarantine, and for how long."""

    retain_raw_bytes: Annotated[Bytes, NEXT_START] = 65_536
    retain_days: Annotated[int | None, NEXT_MAINTENANCE] = Field(
        default=30, ge=1, description="after which maintenance removes rows, landed or not; null keeps them for ever"
    )


class StreamSpec(Spec):
    """Settings of the pipeline's stream. All times are in seconds."""

    trigger_seconds: Annotated[float, NEXT_START] = Field(default=60, gt=0)
    max_run_seconds: Annotated[int, NEXT_START] = Field(default=14_400, ge=10)
    lease_ttl_seconds: Annotated[int, NEXT_START] = Field(default=30, ge=3)
    stall_seconds: Annotated[int, NEXT_START] = Field(
        default=900, ge=30, description="a batch that takes longer ends the job"
    )
    driver_memory: Annotated[str, NEXT_START] = Field(default="1g", pattern=r"^\d+[mg]$")
    tasks_per_batch: Annotated[int, NEXT_START] = Field(default=2, ge=1)
    task_memory: Annotated[str, NEXT_START] = Field(
        default="4g", pattern=r"^[1-9]\d*[mg]$", description="what a task may take on top of its idle Python worker"
    )
    object_timeout_seconds: Annotated[int, NEXT_START] = Field(
        default=600, ge=1, description="a task that has one object open for longer is ended"
    )
    crashes_per_object: Annotated[int, NEXT_START] = Field(
        default=2, ge=1, description="an object that tasks died on so often is quarantined"
    )
    share: Annotated[StreamShareSpec | None, _SHARE] = exclude_if_default(
        None, description="what it takes of a cluster instead of what streams of its environment do"
    )

    @property
    def task_memory_bytes(self) -> int:
        """`task_memory` in bytes."""
        return int(self.task_memory[:-1]) << {"m": 20, "g": 30}[self.task_memory[-1]]


class HealthLimitsSpec(Spec):
    """Limits of the health check. Defaults follow from the source or from usual values."""

    backlog_minutes: float = Field(default=60, gt=0, description="an alert is raised when something waits for longer")
    no_input_minutes: float | None = Field(
        default=None,
        gt=0,
        description="an alert is raised when no input comes for longer; without it, for longer than usual",
    )
    retention_hours: float | None = Field(
        default=None, gt=0, description="what the source keeps, where it does not say so itself"
    )
    time_left_hours: float | None = Field(
        default=None,
        gt=0,
        description="an alert is raised where less of it is left; without it a quarter of the retention",
    )
    stale_seconds: float = Field(
        default=120, ge=20, description="a heartbeat that is older says that the stream hangs or is gone"
    )
    start_seconds: float = Field(
        default=180, ge=20, description="a start that takes no longer is not held against the stream"
    )
    restarts_per_hour: int = Field(
        default=3, ge=0, description="how often a hung stream is restarted; 0 leaves it to people"
    )
    quarantined_percent: float = Field(
        default=5,
        ge=0,
        le=100,
        description="an alert is raised when more of what was read is in quarantine; 100: never",
    )
    quarantined_events_min: int = Field(
        default=100, ge=1, description="of fewer events within a day, none is said to be too many"
    )


class PipelineSpec(Spec):
    """`include/pipelines/<name>/pipeline.yaml`."""

    pipeline: Annotated[Name, _PIPELINE_RENAMED]
    description: Annotated[str, IMMEDIATE]
    owner: Annotated[str, IMMEDIATE]
    tags: Annotated[tuple[str, ...], IMMEDIATE] = ()
    approvers: Annotated[Approvers, IMMEDIATE] = Field(
        default=(), description="who may approve what operations delete; without any, those of the environment"
    )
    source: SourceSpec
    unwrap: Annotated[UnwrapSpec | None, CHANGES_MEANING] = None
    event: EventSpec
    enrich: Annotated[tuple[EnrichSpec, ...], ENRICH_CHANGES] = exclude_if_default(
        (), description="what is looked up of each event before its private fields are masked"
    )
    private: Annotated[tuple[PrivateSpec, ...], MASK_CHANGES] = exclude_if_default(
        (), description="fields of which only a part is kept, or nothing"
    )
    privacy: Annotated[PrivacySpec | None, PRIVACY_CHANGE] = exclude_if_default(
        None, description="whose data the events are, what of it becomes a token or goes, and how it is erased"
    )
    tables: Annotated[tuple[TableSpec, ...], _TABLES] = Field(min_length=1)
    quarantine: QuarantineSpec = QuarantineSpec.defaults()
    archive: Annotated[ArchiveSpec | None, _ARCHIVE] = exclude_if_default(
        None, description="keep payloads as they came, in a table of their own"
    )
    stream: StreamSpec = StreamSpec.defaults()
    live: Annotated[tuple[LiveTableSpec, ...], _LIVE_TABLES] = ()
    gold: GoldSpec = GoldSpec.defaults()
    references: Annotated[tuple[ReferenceSpec, ...], _REFERENCES] = exclude_if_default(
        (), description="small tables that gold reads, kept in CSV files"
    )
    views: Annotated[tuple[ViewSpec, ...], _VIEWS] = exclude_if_default(
        (), description="SQL over the tables that deltaworks sql offers by name"
    )
    dashboards: Annotated[tuple[DashboardSpec, ...], _DASHBOARDS] = exclude_if_default(
        (), description="pages of charts over the tables and views"
    )
    rules: Annotated[tuple[RuleSpec, ...], _RULES] = exclude_if_default(
        (), description="rules on answers: figures judged by the minute, of which people are told"
    )
    feeds: Annotated[tuple[FeedSpec, ...], _FEEDS] = exclude_if_default(
        (), description="changed rows of gold tables and views, delivered to others"
    )
    models: Annotated[tuple[ModelSpec, ...], _MODELS] = exclude_if_default(
        (), description="what is predicted from gold tables, and how that is judged"
    )
    training: Annotated[TrainingSpec, IMMEDIATE] = exclude_if_default(
        TrainingSpec.defaults(), description="when its models are trained"
    )
    maintenance: MaintenanceSpec = MaintenanceSpec.defaults()
    mutations: Annotated[MutationsSpec | None, _MUTATIONS] = None
    health: Annotated[HealthLimitsSpec, IMMEDIATE] = HealthLimitsSpec.defaults()
    stream_group: Annotated[Name | None, _STREAM_GROUP] = exclude_if_default(
        None, description="its stream runs in one driver with those of all pipelines that name the same group"
    )

    @model_validator(mode="before")
    @classmethod
    def _named_source(cls, declared: Any) -> Any:
        return selected_source(declared) if isinstance(declared, dict) else declared

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        problems = [*_source_problems(self), *archive_problems(self), *table_problems(self)]
        problems += [*dashboard_problems(self.dashboards), *rule_problems(self, readable_by_views(self))]
        problems += [*feed_problems(self), *model_problems(self)]
        raise_problems([*problems, *enrich_problems(self), *private_problems(self), *privacy_problems(self)])
        return self

    @property
    def event_tables(self) -> tuple[TableSpec, ...]:
        """Tables that receive events: all but notification tables."""
        return tuple(table for table in self.tables if table.announces is None)

    @property
    def keyed_tables(self) -> tuple[KeyedTable, ...]:
        """Keyed tables (the newest row of each key) of bronze tables that declare them."""
        return tuple(keyed for table in self.tables if (keyed := KeyedTable.from_history(table)) is not None)

    @property
    def latest_tables(self) -> tuple[KeyedTable, ...]:
        """Live tables of kind `latest`, which are updated like keyed tables."""
        return tuple(latest_table(self.table(live.reads), live) for live in self.live if live.kind == "latest")

    @property
    def aggregation_tables(self) -> tuple[LiveTableSpec, ...]:
        """Live tables that are streaming aggregations, each a query of its own."""
        return tuple(live for live in self.live if live.kind == "counts")

    @property
    def engine_tables(self) -> tuple[str, ...]:
        """Undeclared tables that every batch may write: quarantine and, if declared, the archive."""
        return ("quarantine",) if self.archive is None else ("quarantine", ARCHIVE)

    def table(self, name: str) -> TableSpec:
        """Returns a bronze table by name.

        Raises:
            KeyError: there is no such table.
        """
        return {table.name: table for table in self.tables}[name]

    def fingerprint(self) -> str:
        """Returns a short digest of the complete spec, which each batch records."""
        import hashlib

        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Returns the effective spec with defaults as plain data, for output."""
        return self.model_dump(mode="json", exclude_defaults=False)


def _source_problems(pipeline: PipelineSpec) -> Iterator[Problem]:
    """Yields keys that the source does not support."""
    source = pipeline.source
    if pipeline.event.time.arrival and isinstance(source, DeltaSourceSpec):
        yield (
            ("event", "time", "arrival"),
            "event.time.arrival is of objects and records; of rows declare a path, such as _ingested_at",
        )
    yield from unwrap_problems(pipeline)
