"""A pipeline: one use case from its source through bronze, live and gold tables to maintenance."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from deltaworks.specs.base import Bytes, FieldPath, Name, Spec, as_tuple, nearest_of, raise_located
from deltaworks.specs.gold import GoldSpec, GoldTableSpec, build_order
from deltaworks.specs.maintenance import MaintenanceSpec
from deltaworks.specs.mutation import (
    MUTABLE_COLUMNS,
    NOTIFICATION_COLUMNS,
    ORG_COLUMN,
    AnnouncesSpec,
    MutableSpec,
    MutationsSpec,
)
from deltaworks.specs.mutation_checks import announcing_problems, mutable_problems, mutation_problems
from deltaworks.specs.named_sources import chosen_source
from deltaworks.specs.rules import RuleSpec, problem_of
from deltaworks.specs.source import DeltaSourceSpec, RecordSourceSpec, SourceSpec
from deltaworks.specs.types import TypeText
from deltaworks.specs.watch import WatchSpec

TimeUnit = Literal["epoch_seconds", "epoch_millis", "iso8601"]
Scalar = str | int | float | bool
Evolve = Literal["ignore", "rescue", "add_columns", "fail"]

#: Columns the engine adds to every bronze table; a declared column may not take their names.
ENVELOPE_COLUMNS: tuple[tuple[str, str], ...] = (
    ("event_id", "string"),
    ("event_name", "string"),
    ("event_time", "timestamp"),
    ("event_date", "date"),
    ("_ingested_at", "timestamp"),
    ("_batch_id", "long"),
    ("_seq", "long"),
    ("_position", "long"),
)
#: JSON of the fields no column takes, in tables that keep them.
RESCUED_COLUMN = "_rescued"
#: Whether an event was sent before, in tables that flag it.
DUPLICATE_COLUMN = "_duplicate"
RESERVED_TABLES = ("quarantine",)
#: Types whose values every reader spells the same in a Delta log.
PARTITION_TYPES = ("string", "int", "long", "boolean", "date")


class UnwrapSpec(Spec):
    """Where the event sits inside a wrapper; a string there is read as JSON."""

    path: FieldPath


class EventNameSpec(Spec):
    """The event's name: found at a path, or the same for every event."""

    path: FieldPath | None = None
    constant: str | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.path is None) == (self.constant is None):
            raise ValueError("give either path or constant")
        return self


class EventTimeSpec(Spec):
    """The event's time, how it is written, and how far it may lie from the arrival of the event."""

    path: FieldPath
    unit: TimeUnit = "iso8601"
    max_age_days: int | None = Field(default=None, ge=1)
    max_future_minutes: int | None = Field(default=None, ge=0)


class EventSpec(Spec):
    """What every event of the pipeline has: a name, a time and, where producers send one, an id."""

    name: EventNameSpec
    time: EventTimeSpec
    id: Annotated[tuple[FieldPath, ...], BeforeValidator(as_tuple)] = ()


class ColumnSpec(Spec):
    """One column of a bronze table and the path its value comes from."""

    name: Name
    path: FieldPath
    type: TypeText
    required: bool = False
    unit: TimeUnit = "iso8601"
    description: str = ""


class DuplicatesSpec(Spec):
    """Copies that producers send again are flagged as they land, against what arrived within some days.

    A Python worker keeps 16 bytes an id of them, of `max_ids` of the newest at most.
    """

    flag_within_days: int = Field(ge=1, le=400)
    max_ids: int = Field(default=20_000_000, ge=1)


class TableSpec(Spec):
    """A bronze table: which events land in it and what is kept of them."""

    name: Name
    description: str = ""
    when: dict[str, Annotated[tuple[Scalar, ...], BeforeValidator(as_tuple)]] = Field(default_factory=dict)
    catch_all: bool = False
    columns: tuple[ColumnSpec, ...] = ()
    partition_by: tuple[str, ...] = ("event_date",)
    zorder_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = Field(default=(), max_length=4)
    writer: Literal["fan_out", "spark"] = "fan_out"
    evolve: Evolve = "ignore"
    rules: tuple[RuleSpec, ...] = ()
    duplicates: DuplicatesSpec | None = None
    mutable: MutableSpec | None = None
    announces: AnnouncesSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _clustered_without_partitions(cls, declared: Any) -> Any:
        if isinstance(declared, dict) and declared.get("cluster_by") and "partition_by" not in declared:
            return {**declared, "partition_by": ()}
        return declared

    @model_validator(mode="after")
    def _rules_hold_over_columns(self) -> Self:
        names = [rule.name for rule in self.rules]
        types = dict(ENVELOPE_COLUMNS) | {column.name: column.type for column in self.columns}
        problems = []
        for index, rule in enumerate(self.rules):
            if rule.name in names[:index]:
                problems.append((("rules", index, "name"), f"rule {rule.name!r} is declared twice"))
            problem = problem_of(rule.check, types)
            if problem is not None:
                problems.append((("rules", index, "check"), f"rule {rule.name!r}: {problem}"))
        raise_located(problems)
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.name in RESERVED_TABLES:
            raise ValueError(f"the name {self.name!r} is the engine's own; choose another")
        if self.announces is None and self.catch_all == bool(self.when):
            raise ValueError("give `when` a condition, or set catch_all: true for a table of every event")
        added = ENVELOPE_COLUMNS if self.announces is None else tuple(NOTIFICATION_COLUMNS.items())
        names = [name for name, _ in added] + [column.name for column in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"column {', '.join(twice)} is declared twice (the engine adds event_* itself)")
        for key in (*self.partition_by, *self.zorder_by, *self.cluster_by):
            if key not in names:
                raise ValueError(f"{key!r} is no column of this table; its columns are {', '.join(names)}")
        overlap = sorted(set(self.partition_by) & set(self.zorder_by))
        if overlap:
            raise ValueError(f"{', '.join(overlap)} is a partition column: Z-order cannot use it")
        return self

    @model_validator(mode="after")
    def _clustered_as_asked(self) -> Self:
        if not self.cluster_by:
            return self
        if self.partition_by or self.zorder_by:
            raise ValueError("cluster_by takes the place of partition_by and zorder_by: declare it without them")
        if self.writer != "spark":
            raise ValueError("cluster_by needs writer: spark; delta-rs cannot commit to clustered tables")
        if self.mutable is not None or self.announces is not None:
            raise ValueError("cluster_by is for tables that are appended to, neither mutable nor announcing")
        return self

    @model_validator(mode="after")
    def _changes_as_asked(self) -> Self:
        raise_located([*mutable_problems(self), *announcing_problems(self)])
        return self

    @model_validator(mode="after")
    def _written_as_asked(self) -> Self:
        types = self.column_types()
        for key in self.partition_by:
            if types[key] not in PARTITION_TYPES:
                raise ValueError(f"{key!r} is a {types[key]}; tables are partitioned by {', '.join(PARTITION_TYPES)}")
        if self.evolve == "add_columns" and self.writer == "spark":
            raise ValueError("evolve: add_columns needs writer: fan_out; for a table Spark writes use evolve: rescue")
        if self.duplicates is not None and (self.writer == "spark" or "event_id" in self.partition_by):
            raise ValueError("duplicates are flagged with writer: fan_out, and not where event_id is a partition")
        return self

    def column_types(self) -> dict[str, str]:
        """Every column with its type, in the order of the table: the envelope first, or a notification's own last."""
        if self.announces is not None:
            return {column.name: column.type for column in self.columns} | NOTIFICATION_COLUMNS
        types = dict(ENVELOPE_COLUMNS) | {column.name: column.type for column in self.columns}
        types |= {RESCUED_COLUMN: "string"} if self.evolve in ("rescue", "add_columns") else {}
        types |= {DUPLICATE_COLUMN: "boolean"} if self.duplicates is not None else {}
        return types | (dict(MUTABLE_COLUMNS) if self.mutable is not None else {})


class QuarantineSpec(Spec):
    """How much of a row that did not fit is kept."""

    retain_raw_bytes: Bytes = 65_536


class StreamSpec(Spec):
    """How the pipeline's stream runs. Seconds throughout."""

    trigger_seconds: float = Field(default=60, gt=0)
    max_run_seconds: int = Field(default=14_400, ge=10)
    lease_ttl_seconds: int = Field(default=30, ge=3)
    stall_seconds: int = Field(default=900, ge=30, description="a batch that takes longer ends the job")
    driver_memory: str = Field(default="1g", pattern=r"^\d+[mg]$")
    tasks_per_batch: int = Field(default=2, ge=1)


class LiveTableSpec(Spec):
    """A gold table that is a streaming aggregation: counts per window and group."""

    name: Name
    reads: Name
    window_minutes: int = Field(default=60, ge=1)
    watermark_minutes: int = Field(default=180, ge=1)
    group_by: tuple[str, ...] = ()
    trigger_seconds: float = Field(default=60, gt=0)


class PipelineSpec(Spec):
    """`include/pipelines/<name>/pipeline.yaml`."""

    pipeline: Name
    description: str
    owner: str
    tags: tuple[str, ...] = ()
    source: SourceSpec
    unwrap: UnwrapSpec | None = None
    event: EventSpec
    tables: tuple[TableSpec, ...] = Field(min_length=1)
    quarantine: QuarantineSpec = QuarantineSpec()
    stream: StreamSpec = StreamSpec()
    live: tuple[LiveTableSpec, ...] = ()
    gold: GoldSpec = GoldSpec()
    maintenance: MaintenanceSpec = MaintenanceSpec()
    mutations: MutationsSpec | None = None
    watch: WatchSpec = WatchSpec()

    @model_validator(mode="before")
    @classmethod
    def _named_source(cls, declared: Any) -> Any:
        return chosen_source(declared) if isinstance(declared, dict) else declared

    @model_validator(mode="after")
    def _source_fits(self) -> Self:
        if self.unwrap is not None and self.source.format != "json":
            raise ValueError(f"unwrap is for format: json; {self.source.format} has no wrapper")
        if self.unwrap is not None and isinstance(self.source, DeltaSourceSpec):
            raise ValueError("unwrap is for objects and records; the rows of a table have no wrapper")
        if isinstance(self.source, RecordSourceSpec) and self.source.tombstones == "event" and self.unwrap is not None:
            raise ValueError("tombstones: event with unwrap: a record without value has nothing to unwrap")
        return self

    @model_validator(mode="after")
    def _tables_fit(self) -> Self:
        declared: list[TableSpec | LiveTableSpec | GoldTableSpec] = [*self.tables, *self.live, *self.gold.tables]
        names = [*RESERVED_TABLES, *(table.name for table in declared)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"table {', '.join(twice)} is declared twice in this pipeline")
        bronze = {table.name: table for table in self.tables}
        self._check_reads({name: table.partition_by for name, table in bronze.items()})
        flagging = [table.name for table in self.tables if table.duplicates is not None]
        if flagging and not self.event.id:
            raise ValueError(f"{', '.join(flagging)} flags duplicates, which are told by event.id; declare it")
        for live in self.live:
            if bronze[live.reads].evolve == "add_columns":
                raise ValueError(
                    f"{live.name!r} reads {live.reads!r}, whose columns change while it runs, which ends a live "
                    f"table's query; declare evolve: rescue for {live.reads!r}"
                )
            columns = bronze[live.reads].column_types()
            missing = [name for name in live.group_by if name not in columns]
            if missing:
                raise ValueError(f"{live.name!r} groups by {', '.join(missing)}, no column of {live.reads!r}")
        return self

    @model_validator(mode="after")
    def _mutations_fit(self) -> Self:
        raise_located(list(mutation_problems(self)))
        return self

    def _check_reads(self, bronze: dict[str, tuple[str, ...]]) -> None:
        """Refuse a reader of what is not there; bronze tables are given with their partition columns."""
        build_order(self.gold.tables)
        for_gold = bronze | ({self.mutations.names: (ORG_COLUMN,)} if self.mutations else {})
        for_gold |= {gold.name: (gold.partition_by,) for gold in self.gold.tables}
        for live in self.live:
            if live.reads not in bronze:
                raise ValueError(f"{live.name!r} reads {live.reads!r}, no table here; {nearest_of(live.reads, bronze)}")
        for gold in self.gold.tables:
            for read in gold.reads:
                if read not in for_gold:
                    raise ValueError(f"{gold.name!r} reads {read!r}, no table here; {nearest_of(read, for_gold)}")
                texts = [name for name in for_gold[read] if read not in bronze or self._is_text(read, name)]
                if gold.affects == "same" and gold.partition_by not in texts:
                    raise ValueError(
                        f"{gold.name!r} says `affects: same`, and {read!r} is not partitioned by {gold.partition_by!r} "
                        "of type string"
                    )

    def _is_text(self, table: str, column: str) -> bool:
        return self.table(table).column_types()[column] == "string"

    @property
    def event_tables(self) -> tuple[TableSpec, ...]:
        """The tables that events land in: all but those that only announce another."""
        return tuple(table for table in self.tables if table.announces is None)

    def table(self, name: str) -> TableSpec:
        """The bronze table called `name`.

        Raises:
            KeyError: there is none.
        """
        return {table.name: table for table in self.tables}[name]

    def fingerprint(self) -> str:
        """A short digest of everything declared, carried by each batch."""
        import hashlib

        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def as_mapping(self) -> dict[str, Any]:
        """The effective spec as plain data, for printing."""
        return self.model_dump(mode="json", exclude_defaults=False)
