"""The bronze tables of a pipeline including quarantine: creates, checks and fences them, and chooses their writers.

A table that cannot be opened, or whose schema differs from its declaration, is reported as a problem, and the stream
holds its commits; the other tables start. Quarantine must open, because every batch may need it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field

from deltaworks.control import paths
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.provenance import user_metadata
from deltaworks.control.records.prepared import PreparedTable
from deltaworks.engine.notifications import source_by_notification_table
from deltaworks.errors import ContractError, DeltaworksError, FencedError, TransientError
from deltaworks.events.archive import ARCHIVE_PARTITION, ARCHIVE_SCHEMA
from deltaworks.events.evolution import EvolvedColumn, EvolvedColumns, evolved_columns
from deltaworks.events.reasons import QUARANTINE_PARTITION, QUARANTINE_SCHEMA, QUARANTINE_TABLE
from deltaworks.specs.descriptions import table_descriptions
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.pipeline_sections import ARCHIVE
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.changes import sql_literal
from deltaworks.tables.commit import TABLE_PROPERTIES, Step, check_owner_epoch, raise_owner_epoch, refresh
from deltaworks.tables.descriptions import describe_table, ensure_described
from deltaworks.tables.features import reasons_to_use_spark
from deltaworks.tables.lake import Lake
from deltaworks.tables.statistics import DEFAULT_COLUMNS, IndexedColumns
from deltaworks.tables.variant import delta_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
OPEN_THREADS = 8


class TableSet:
    """The tables of a pipeline.

    Attributes:
        handles: the open tables.
        problems: the error of each table that could not be opened.
        writer_by_table: the declared writer, or `spark` if the table has features that delta-rs does not support.
    """

    def __init__(
        self,
        lake: Lake,
        spec: PipelineSpec,
        *,
        spark: SparkSession | None = None,
        had_rows: Callable[[str], bool] = lambda table: False,
    ) -> None:
        """Creates the set; `open` opens the tables.

        Args:
            had_rows: whether a missing table had rows. Then it was dropped, which is an error; it is not created again.
        """
        self._had_rows = had_rows
        self._lake = lake
        self._spec = spec
        self._spark = spark
        self._declared = {
            table.name: (arrow_schema(table.column_types()), table.partition_by) for table in spec.tables
        } | {QUARANTINE_TABLE: (QUARANTINE_SCHEMA, QUARANTINE_PARTITION)}
        if spec.archive is not None:
            self._declared[ARCHIVE] = (ARCHIVE_SCHEMA, ARCHIVE_PARTITION)
        self._descriptions = table_descriptions(spec)
        self.writer_by_table: dict[str, str] = {table.name: table.writer for table in spec.tables}
        self.writer_by_table |= dict.fromkeys(spec.engine_tables, "fan_out")
        #: Announced table by notification table. The announced table is committed first.
        self.announced_table_of = source_by_notification_table(spec)
        self.handles: dict[str, DeltaTable] = {}
        self.problems: dict[str, DeltaworksError] = {}
        self._pending_columns: dict[str, list[EvolvedColumn]] = {}

    def open(self) -> None:
        """Opens every table, creates missing ones, and adds newly declared columns.

        Raises:
            DeltaworksError: quarantine cannot be opened.
        """
        with ThreadPoolExecutor(OPEN_THREADS) as pool:
            list(pool.map(self._try_to_open, self._declared))
        if QUARANTINE_TABLE in self.problems:
            raise self.problems[QUARANTINE_TABLE]

    def _try_to_open(self, name: str) -> None:
        try:
            self._open(name)
        except Exception as error:
            self.problems[name] = as_deltaworks_error(error)

    def _open(self, name: str) -> None:
        schema, partition_by = self._declared[name]
        key = paths.table(self._spec.pipeline, name)
        created = user_metadata(pipeline=self._spec.pipeline, batch="none", operation="create_table")
        self._check_not_dropped(name)
        self._create_clustered(name, created)
        # One Lake per thread, because handles are not shared.
        lake = Lake(self._lake.storage)
        handle = ensure_described(
            lake,
            key,
            schema,
            self._descriptions[name],
            user_metadata=created,
            partition_by=partition_by,
            properties=self._spec.maintenance.table_properties(),
        )
        self._choose_writer(name, handle)
        self._check_partitioning(name, handle)
        missing = missing_columns(handle, schema, name)
        if missing:
            self._add_columns(name, handle, missing, created)
            describe_table(lake, key, handle, self._descriptions[name], user_metadata=created)
        self.handles[name] = handle
        self.problems.pop(name, None)

    def _create_clustered(self, name: str, metadata: str) -> None:
        """Creates a clustered table, which only Spark can. Does nothing if it exists."""
        declared = next((table for table in self._spec.tables if table.name == name), None)
        if declared is None or not declared.cluster_by:
            return
        key = paths.table(self._spec.pipeline, name)
        if Lake(self._lake.storage).open(key) is not None:
            return
        if self._spark is None:
            raise TransientError(
                "SPARK_UNAVAILABLE",
                f"Table {name!r} of {self._spec.pipeline!r} is declared with cluster_by: only Spark can create it.",
                hint="Start the stream, which creates it.",
            )
        texts = self._descriptions[name].columns
        columns = ", ".join(
            f"`{column}` {kind}{_comment(texts.get(column))}" for column, kind in declared.column_types().items()
        )
        properties = {**TABLE_PROPERTIES, **self._spec.maintenance.table_properties()}
        property_list = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        # A separate session, because the commit's metadata is a session setting and other commits run concurrently.
        session = self._spark.newSession()
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", metadata)
        # DataFrameWriter ignores clustering for a table addressed by path.
        session.sql(
            f"CREATE TABLE IF NOT EXISTS delta.`{self._lake.storage.spark_uri(key)}` ({columns}) USING delta "
            f"CLUSTER BY ({', '.join(f'`{column}`' for column in declared.cluster_by)})"
            f"{_comment(self._descriptions[name].text)} TBLPROPERTIES ({property_list})"
        )

    def _check_not_dropped(self, name: str) -> None:
        # A missing archive is created empty, because its payloads cannot be restored from the source.
        if name != ARCHIVE and self._had_rows(name):
            raise ContractError(
                "TABLE_DROPPED",
                f"Table {name!r} of {self._spec.pipeline!r} is missing, but the ledger has its batches.",
                hint=(
                    f"Run `deltaworks recover table {self._spec.pipeline} {name}` to restore the table with its rows."
                ),
            )

    def _choose_writer(self, name: str, handle: DeltaTable) -> None:
        if self.writer_by_table[name] == "spark":
            return
        reasons = reasons_to_use_spark(handle)
        if not reasons:
            return
        if name == QUARANTINE_TABLE:
            raise ContractError(
                "QUARANTINE_FEATURES_UNSUPPORTED",
                f"The quarantine table of {self._spec.pipeline!r} has {', '.join(reasons)}, which batches do not "
                "support.",
            )
        self.writer_by_table[name] = "spark"
        log.warning(
            "pipeline=%s table=%s is written through Spark, because it has %s; declare `writer: spark` to make "
            "this explicit",
            self._spec.pipeline,
            name,
            ", ".join(reasons),
        )

    def _check_partitioning(self, name: str, handle: DeltaTable) -> None:
        on_disk, declared = list(handle.metadata().partition_columns), list(self._declared[name][1])
        if on_disk != declared:
            raise ContractError(
                "TABLE_PARTITIONING_DIFFERS",
                f"Table {name!r} is partitioned by {', '.join(on_disk) or 'nothing'} on disk and by "
                f"{', '.join(declared) or 'nothing'} in pipeline.yaml.",
            )

    def _add_columns(self, name: str, handle: DeltaTable, missing: list[Field], metadata: str) -> None:
        if self.writer_by_table[name] == "spark" and self._spark is not None:
            address = self._lake.storage.spark_uri(paths.table(self._spec.pipeline, name))
            columns = ", ".join(f"`{field.name}` {_ddl(field)}" for field in missing)
            self._spark.sql(f"ALTER TABLE delta.`{address}` ADD COLUMNS ({columns})")
        else:
            properties = CommitProperties(custom_metadata={"userMetadata": metadata})
            handle.alter.add_columns(missing, commit_properties=properties)
        refresh(handle)

    def reopen(self, name: str, owner: Step) -> None:
        """Opens and fences a table again, after a failure or after another writer changed it.

        Raises:
            DeltaworksError: the table still cannot be opened.
        """
        if name not in self._declared:
            raise ContractError(
                "TABLE_NOT_DECLARED",
                f"Pipeline {self._spec.pipeline!r} no longer declares table {name!r}, but batches have rows for it.",
            )
        declared = {table.name: table.writer for table in self._spec.tables}
        self.writer_by_table[name] = declared.get(name, "fan_out")
        try:
            self._open(name)
            self._fence(name, owner)
        except FencedError:
            raise
        except Exception as error:
            mapped = as_deltaworks_error(error)
            self.problems[name] = mapped
            raise mapped from error

    def fence(self, owner: Step) -> None:
        """Stores the owner epoch in every table committed through delta-rs, so that commits of former owners fail.
        Idempotent.

        Tables committed through Spark are skipped: their writer checks the epoch itself. A table that cannot be fenced
        is reported as a problem; for quarantine the error is raised.

        Raises:
            FencedError: a successor has taken over.
        """

        def fence_table(name: str) -> None:
            try:
                self._fence(name, owner)
            except FencedError:
                raise
            except Exception as error:
                if name == QUARANTINE_TABLE:
                    raise
                self.problems[name] = as_deltaworks_error(error)

        with ThreadPoolExecutor(OPEN_THREADS) as pool:
            list(pool.map(fence_table, list(self.handles)))

    def _fence(self, name: str, owner: Step) -> None:
        if self.writer_by_table[name] != "fan_out":
            return
        metadata = user_metadata(
            pipeline=self._spec.pipeline,
            batch="none",
            operation="raise_owner",
            step=owner.app_id,
            step_version=owner.version,
        )
        raise_owner_epoch(self.handles[name], owner, user_metadata=metadata)
        # Storing the epoch has no effect if a successor has stored a higher one; this check detects it.
        check_owner_epoch(self.handles[name], owner)

    def evolved(self) -> EvolvedColumns:
        """Returns the columns added at runtime by table, including columns of held batches.

        A table has no entry if it is not open or written by Spark; its new fields go to the rescued column.
        """
        columns = {}
        for table in self._spec.tables:
            if table.evolve != "add_columns" or self.writer_by_table[table.name] == "spark":
                continue
            if table.name in self.handles:
                present = evolved_columns(self.handles[table.name], table)
                names = {column.name for column in present}
                pending = [column for column in self._pending_columns.get(table.name, ()) if column.name not in names]
                columns[table.name] = (*present, *pending)
        return columns

    def indexed_columns(self) -> dict[str, IndexedColumns]:
        """Returns the statistics columns of the tables that do not use Delta's default."""
        by_table = {name: IndexedColumns.of(handle.metadata().configuration) for name, handle in self.handles.items()}
        return {name: indexed for name, indexed in by_table.items() if indexed != DEFAULT_COLUMNS}

    def add_pending_columns(self, prepared_table: PreparedTable) -> None:
        """Records the new columns of a held batch, so that later batches do not add conflicting ones."""
        columns = self._pending_columns.setdefault(prepared_table.table, [])
        for record in prepared_table.new_columns:
            column = EvolvedColumn(record["name"], tuple(record["path"]), record["type"])
            if column not in columns:
                columns.append(column)

    def is_storage_reachable(self) -> bool:
        """Returns whether quarantine can be read. If it can, a failing table has an error of its own and not a storage
        outage.
        """
        try:
            refresh(self.handles[QUARANTINE_TABLE])
        except Exception:
            return False
        return True


def _comment(text: str | None) -> str:
    """Returns a COMMENT clause of Spark SQL; empty without a text."""
    return f" COMMENT {sql_literal(text, 'string')}" if text else ""


def missing_columns(handle: DeltaTable, declared: pa.Schema, name: str) -> list[Field]:
    """Returns the declared columns that the table does not have.

    Raises:
        ContractError: TABLE_SCHEMA_DIFFERS, a column has another type than declared.
    """
    on_disk = {field.name: field for field in handle.schema().fields}
    fields = {field.name: field for field in delta_schema(declared).fields}
    mismatched = [
        f"{column} is {on_disk[column].type} on disk and {field.type} in pipeline.yaml"
        for column, field in fields.items()
        if column in on_disk and on_disk[column].type != field.type
    ]
    if mismatched:
        raise ContractError("TABLE_SCHEMA_DIFFERS", f"Table {name!r}: {'; '.join(mismatched)}.")
    return [Field(field.name, field.type, nullable=True) for column, field in fields.items() if column not in on_disk]


def _ddl(field: Field) -> str:
    """Returns the field's type in Spark DDL."""
    return _ddl_type(_type_json(field))


def _type_json(field: Field) -> object:
    import json

    return json.loads(field.to_json())["type"]


def _ddl_type(kind: object) -> str:
    if isinstance(kind, str):
        return kind
    render: dict[str, Callable[[dict[str, object]], str]] = {
        "array": lambda tree: f"array<{_ddl_type(tree['elementType'])}>",
        "map": lambda tree: f"map<{_ddl_type(tree['keyType'])},{_ddl_type(tree['valueType'])}>",
        "struct": lambda tree: (
            "struct<" + ",".join(f"`{field['name']}`:{_ddl_type(field['type'])}" for field in tree["fields"]) + ">"  # type: ignore[attr-defined]
        ),
    }
    if not isinstance(kind, dict):
        raise TypeError(f"{kind!r} is no type of a Delta schema")
    return render[str(kind["type"])](kind)
