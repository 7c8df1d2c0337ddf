"""Merges a batch with delta-rs in this process, which is several times as fast as Spark on one machine.

The engine is chosen by batch size and free memory; Spark runs larger merges.

Rows get the same values as from `merge.TableMerge`. delta-rs does not enforce application transactions. So the merge
commits without retries from the snapshot that was searched for its step: after a concurrent commit it fails, and the
next attempt searches again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError

from deltaworks.errors import ConcurrencyError
from deltaworks.maintenance.table_health.measure import file_sizes_by_partition
from deltaworks.mutations.bounds import mutable_spec
from deltaworks.specs.mutation import DELETED_COLUMN, MUTATION_COLUMN, ORG_COLUMN
from deltaworks.specs.table import TableSpec
from deltaworks.specs.types import Decimal, Primitive, parse_type
from deltaworks.tables.commit import Step, commit_step, post_commit_properties
from deltaworks.tables.duckdb_session import free_memory_bytes
from deltaworks.tables.features import reasons_against_rewriting
from deltaworks.tables.lake import Lake

TARGET, SOURCE = "target", "source"
#: Columns of periods in the source of a merge.
PERIOD_COLUMNS = (ORG_COLUMN, "id", "valid_from", "valid_to", "final_id", "deleted")
#: Prefix of source columns with set values; avoids clashes with other source columns.
SET_PREFIX = "set_"
#: Maximum number of organisations listed in a condition; more are bounded by their range.
MAX_LISTED_ORGANISATIONS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectedRange:
    """The range of rows that a batch can change. `organisations` is None if there are too many to list.

    Times that are null are unbounded. `periods` is the number of periods; 0 means that nothing changes.
    """

    periods: int
    organisations: tuple[str, ...] | None = ()
    first_organisation: str | None = None
    last_organisation: str | None = None
    first_id: str | None = None
    last_id: str | None = None
    since: dt.datetime | None = None
    until: dt.datetime | None = None


class SmallMerge:
    """Merges periods into one mutable table.

    Args:
        source: the periods: PERIOD_COLUMNS, and the set value of each mutable field, in its type, as SET_PREFIX and
            its name.
    """

    def __init__(self, table: TableSpec, source: pa.Table, affected: AffectedRange, *, batch: int) -> None:
        self._mutable = mutable_spec(table)
        self._affected = affected
        self._batch = batch
        self._source = source

    def execute(self, snapshot: DeltaTable, step: Step, user_metadata: str) -> None:
        """Merges into `snapshot`, which must not contain `step`, as one commit under that step.

        Raises:
            ConcurrencyError: DELTA_CONFLICT if the table has a newer commit.
        """
        changes = {name: value for name, _, value in self._assignments()}
        merger = snapshot.merge(
            self._source,
            self.condition(),
            source_alias=SOURCE,
            target_alias=TARGET,
            writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": user_metadata},
                max_commit_retries=0,
                app_transactions=[Transaction(step.app_id, step.version)],
            ),
            post_commithook_properties=post_commit_properties(snapshot),
        )
        try:
            metrics = merger.when_matched_update(
                {**changes, MUTATION_COLUMN: f"CAST({self._batch} AS BIGINT)"}
            ).execute()
        except CommitFailedError as error:
            raise ConcurrencyError(
                "DELTA_CONFLICT", f"Another writer committed to {snapshot.table_uri} while it was merged: {error}"
            ) from error
        if not metrics["num_target_files_removed"]:
            # If nothing differs, delta-rs makes no commit. Record the step nevertheless, as Spark does.
            commit_step(snapshot, [], step=step, user_metadata=user_metadata)

    def condition(self) -> str:
        """Returns the SQL join condition of rows and periods, for rows whose values would change, with literals."""
        return " AND ".join([*self._pruning_conditions(), self.match_condition()])

    def match_condition(self) -> str:
        """Returns the join condition without the literals, whose syntax is that of delta-rs."""
        time, start, end = f'{TARGET}."event_time"', f'{SOURCE}."valid_from"', f'{SOURCE}."valid_to"'
        differs = [f"({present} IS DISTINCT FROM {value})" for _, present, value in self._assignments()]
        return " AND ".join(
            [
                f'{TARGET}."{ORG_COLUMN}" = {SOURCE}."{ORG_COLUMN}"',
                f'{TARGET}."{self._mutable.origin}" = {SOURCE}."id"',
                f"({start} IS NULL OR {time} >= {start})",
                f"({end} IS NULL OR {time} < {end})",
                f"({' OR '.join(differs)})",
            ]
        )

    def _assignments(self) -> list[tuple[str, str, str]]:
        """Returns the columns that change, each with its present and new value."""
        fields = [
            (name, f'{TARGET}."{name}"', f'coalesce({SOURCE}."{SET_PREFIX}{name}", {TARGET}."{origin}")')
            for name, origin in self._mutable.fields.items()
        ]
        return [
            (self._mutable.id, f'{TARGET}."{self._mutable.id}"', f'{SOURCE}."final_id"'),
            *fields,
            (DELETED_COLUMN, f'coalesce({TARGET}."{DELETED_COLUMN}", false)', f'{SOURCE}."deleted"'),
        ]

    def _pruning_conditions(self) -> list[str]:
        """Returns conditions with literals, which allow delta-rs to skip files."""
        affected, org, origin = self._affected, f'{TARGET}."{ORG_COLUMN}"', f'{TARGET}."{self._mutable.origin}"'
        if affected.organisations is not None:
            org_condition = f"{org} IN ({', '.join(map(_sql_text, affected.organisations))})"
        else:
            org_condition = (
                f"{org} BETWEEN {_sql_text(affected.first_organisation)} AND {_sql_text(affected.last_organisation)}"
            )
        conditions = [
            org_condition,
            f"{origin} BETWEEN {_sql_text(affected.first_id)} AND {_sql_text(affected.last_id)}",
        ]
        if affected.since is not None:
            conditions += [
                f'{TARGET}."event_time" >= {_sql_timestamp(affected.since)}',
                f'{TARGET}."event_date" >= {_sql_date(affected.since)}',
            ]
        if affected.until is not None:
            conditions += [
                f'{TARGET}."event_time" < {_sql_timestamp(affected.until)}',
                f'{TARGET}."event_date" <= {_sql_date(affected.until)}',
            ]
        return conditions


def _sql_text(value: str | None) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def _sql_timestamp(value: dt.datetime) -> str:
    # A SQL timestamp literal would have nanoseconds, whose range ends in 2262.
    text = value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"arrow_cast('{text}', 'Timestamp(Microsecond, Some(\"UTC\"))')"


def _sql_date(value: dt.datetime) -> str:
    return f"DATE '{value.astimezone(dt.UTC).date()}'"


Engine = Literal["spark", "delta_rs"]
#: Maximum number of periods collected on the driver for delta-rs; Spark runs larger batches.
MAX_PERIODS = 200_000
#: Memory per byte of rewritten files with delta-rs: 6 to 10 bytes were measured, depending on compression.
MEMORY_BYTES_PER_FILE_BYTE = 10
#: Share of free memory that a merge may use, since other processes share the machine.
MAX_MEMORY_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The engine of a merge, with the reasons if it is Spark. `target_bytes` is the maximum that the merge rewrites."""

    engine: Engine
    target_bytes: int
    reasons: tuple[str, ...] = ()


def plan_merge(lake: Lake, key: str, table: TableSpec, affected: AffectedRange, *, small_merge_bytes: int) -> MergePlan:
    """Chooses the engine for one table from its log. Reads no data.

    Args:
        small_merge_bytes: maximum bytes that delta-rs may rewrite; limited further by free memory.
    """
    snapshot = lake.open(key)
    if snapshot is None:
        return MergePlan("spark", 0, ("the table does not exist",))
    target_bytes = _affected_bytes(lake, key, affected)
    reasons = tuple(_reasons_for_spark(snapshot, table, affected, target_bytes, small_merge_bytes))
    return MergePlan("spark" if reasons else "delta_rs", target_bytes, reasons)


def _reasons_for_spark(
    snapshot: DeltaTable, table: TableSpec, affected: AffectedRange, target_bytes: int, small_merge_bytes: int
) -> Iterator[str]:
    fields = mutable_spec(table).fields
    if target_bytes > small_merge_bytes:
        yield f"{target_bytes:,} bytes may be rewritten, more than `small_merge_bytes`"
    elif target_bytes * MEMORY_BYTES_PER_FILE_BYTE > (free := free_memory_bytes()) * MAX_MEMORY_SHARE:
        yield f"{target_bytes:,} bytes may be rewritten, too many for the {free:,} bytes of memory that are free"
    if affected.periods > MAX_PERIODS:
        yield f"{affected.periods:,} periods are more than {MAX_PERIODS:,}"
    if mutable_spec(table).deletion_vectors:
        yield "deletion vectors are declared"
    types = table.column_types()
    for name in fields:
        if not isinstance(parse_type(types[name]), Primitive | Decimal):
            yield f"the field {name} is no plain value"
    yield from reasons_against_rewriting(snapshot)


def _affected_bytes(lake: Lake, key: str, affected: AffectedRange) -> int:
    """Returns the bytes of the affected organisations; of all files if the table is not partitioned by organisation."""
    total = 0
    for partition, sizes in file_sizes_by_partition(lake, key).items():
        values = dict(partition)
        if affected.organisations is None or ORG_COLUMN not in values or values[ORG_COLUMN] in affected.organisations:
            total += sum(sizes)
    return total
