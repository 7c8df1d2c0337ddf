"""Merges a batch by delta-rs in this process, which on one machine's cores is several times as fast as Spark.

The engine is chosen by the size of a batch and the free memory; Spark merges what does not fit.

Rows get the same values as from `merge.TableMerge`. delta-rs does not enforce application transactions, so a merge is
made from the very snapshot in which its step was searched for, without retries of its own: any commit in between makes
it fail, and the next attempt checks again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaworks.errors import ConcurrencyError
from deltaworks.maintenance.table_health.measure import file_sizes_by_partition
from deltaworks.mutations.bounds import mutable_spec
from deltaworks.mutations.merge import SOURCE, TARGET, Reach, as_type
from deltaworks.specs.mutation import DELETED_COLUMN, MUTATION_COLUMN, ORG_COLUMN
from deltaworks.specs.table import TableSpec
from deltaworks.specs.types import Decimal, Primitive, parse_type
from deltaworks.tables.commit import Step, commit_step, post_commit_properties
from deltaworks.tables.features import reasons_against_rewriting
from deltaworks.tables.free_memory import free_memory_bytes
from deltaworks.tables.lake import Lake

#: Prefix of the source columns with the values that updates set: a field may have the name of another source column.
_SET = "set_"


class SmallMerge:
    """Merges stretches, which the constructor collects, into one mutable table.

    Args:
        stretches: as of `TableMerge`, few enough to be collected.
    """

    def __init__(self, table: TableSpec, stretches: DataFrame, reach: Reach, *, batch: int) -> None:
        mutable = mutable_spec(table)
        types = table.column_types()
        set_values = [
            as_type(F.col("fields")[F.lit(name)], types[name]).alias(f"{_SET}{name}") for name in mutable.fields
        ]
        plain = (ORG_COLUMN, "id", "valid_from", "valid_to", "final_id", "deleted")
        self._mutable = mutable
        self._reach = reach
        self._batch = batch
        self._source: pa.Table = stretches.select(*plain, *set_values).toArrow()

    def execute(self, opened: DeltaTable, step: Step, user_metadata: str) -> None:
        """Merge into the snapshot `opened`, which must not have `step`, as one commit under it.

        Raises:
            ConcurrencyError: DELTA_CONFLICT, the table has had another commit since.
        """
        changes = {name: value for name, _, value in self._values()}
        merger = opened.merge(
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
            post_commithook_properties=post_commit_properties(opened),
        )
        try:
            metrics = merger.when_matched_update(
                {**changes, MUTATION_COLUMN: f"CAST({self._batch} AS BIGINT)"}
            ).execute()
        except CommitFailedError as error:
            raise ConcurrencyError(
                "DELTA_CONFLICT",
                f"Another writer committed to {opened.table_uri} while it was merged: {error}",
                hint="Run the job again; it starts from the table as it is then.",
            ) from error
        if not metrics["num_target_files_removed"]:
            # Nothing differed, so delta-rs committed nothing. The step is recorded all the same, as Spark does.
            commit_step(opened, [], step=step, user_metadata=user_metadata)

    def condition(self) -> str:
        """The SQL condition on pairs of rows and stretches whose values differ."""
        time, start, end = f'{TARGET}."event_time"', f'{SOURCE}."valid_from"', f'{SOURCE}."valid_to"'
        differs = [f"({present} IS DISTINCT FROM {value})" for _, present, value in self._values()]
        return " AND ".join(
            [
                *self._reached(),
                f'{TARGET}."{ORG_COLUMN}" = {SOURCE}."{ORG_COLUMN}"',
                f'{TARGET}."{self._mutable.origin}" = {SOURCE}."id"',
                f"({start} IS NULL OR {time} >= {start})",
                f"({end} IS NULL OR {time} < {end})",
                f"({' OR '.join(differs)})",
            ]
        )

    def _values(self) -> list[tuple[str, str, str]]:
        """The columns that change, each with its present and its new value."""
        fields = [
            (name, f'{TARGET}."{name}"', f'coalesce({SOURCE}."{_SET}{name}", {TARGET}."{origin}")')
            for name, origin in self._mutable.fields.items()
        ]
        return [
            (self._mutable.id, f'{TARGET}."{self._mutable.id}"', f'{SOURCE}."final_id"'),
            *fields,
            (DELETED_COLUMN, f'coalesce({TARGET}."{DELETED_COLUMN}", false)', f'{SOURCE}."deleted"'),
        ]

    def _reached(self) -> list[str]:
        """The conditions with literals by which files are skipped."""
        reach, org, origin = self._reach, f'{TARGET}."{ORG_COLUMN}"', f'{TARGET}."{self._mutable.origin}"'
        if reach.organisations is not None:
            named = f"{org} IN ({', '.join(map(_text, reach.organisations))})"
        else:
            named = f"{org} BETWEEN {_text(reach.first_organisation)} AND {_text(reach.last_organisation)}"
        conditions = [named, f"{origin} BETWEEN {_text(reach.first_id)} AND {_text(reach.last_id)}"]
        if reach.since is not None:
            conditions += [
                f'{TARGET}."event_time" >= {_time(reach.since)}',
                f'{TARGET}."event_date" >= {_date(reach.since)}',
            ]
        if reach.until is not None:
            conditions += [
                f'{TARGET}."event_time" < {_time(reach.until)}',
                f'{TARGET}."event_date" <= {_date(reach.until)}',
            ]
        return conditions


def _text(value: str | None) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def _time(value: dt.datetime) -> str:
    # A SQL literal would have nanoseconds, whose range ends in 2262.
    text = value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"arrow_cast('{text}', 'Timestamp(Microsecond, Some(\"UTC\"))')"


def _date(value: dt.datetime) -> str:
    return f"DATE '{value.astimezone(dt.UTC).date()}'"


Engine = Literal["spark", "delta_rs"]
#: The most stretches collected on the driver for a merge by delta-rs; a larger batch goes through Spark.
MAX_STRETCHES = 200_000
#: Bytes of memory that a merge by delta-rs takes for each byte of the files it rewrites: 6 to 10 were measured,
#: depending on how well they are compressed.
MEMORY_PER_BYTE = 10
#: The share of free memory that a merge may take: others share the machine.
SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The engine of a merge, with the reasons where it is Spark. The merge rewrites at most `target_bytes`."""

    engine: Engine
    target_bytes: int
    reasons: tuple[str, ...] = ()


def plan_merge(lake: Lake, key: str, table: TableSpec, reach: Reach, *, small_merge_bytes: int) -> MergePlan:
    """Choose the engine for one table, from its log. Reads no data.

    Args:
        small_merge_bytes: the most bytes delta-rs may rewrite; free memory may lower that.
    """
    opened = lake.open(key)
    if opened is None:
        return MergePlan("spark", 0, ("the table does not exist",))
    target_bytes = _reached_bytes(lake, key, reach)
    reasons = tuple(_reasons(opened, table, reach, target_bytes, small_merge_bytes))
    return MergePlan("spark" if reasons else "delta_rs", target_bytes, reasons)


def _reasons(
    opened: DeltaTable, table: TableSpec, reach: Reach, target_bytes: int, small_merge_bytes: int
) -> Iterator[str]:
    fields = mutable_spec(table).fields
    if target_bytes > small_merge_bytes:
        yield f"{target_bytes:,} bytes may be rewritten, more than `small_merge_bytes`"
    elif target_bytes * MEMORY_PER_BYTE > (free := free_memory_bytes()) * SHARE_OF_MEMORY:
        yield f"{target_bytes:,} bytes may be rewritten, too many for the {free:,} bytes of memory that are free"
    if reach.stretches > MAX_STRETCHES:
        yield f"{reach.stretches:,} stretches are more than {MAX_STRETCHES:,}"
    if mutable_spec(table).deletion_vectors:
        yield "rows are to be marked, as `deletion_vectors` says"
    types = table.column_types()
    for name in fields:
        if not isinstance(parse_type(types[name]), Primitive | Decimal):
            yield f"the field {name} is no plain value"
    yield from reasons_against_rewriting(opened)


def _reached_bytes(lake: Lake, key: str, reach: Reach) -> int:
    """The bytes of the organisations a batch reaches; of all files where the table is not partitioned by them."""
    total = 0
    for partition, sizes in file_sizes_by_partition(lake, key).items():
        values = dict(partition)
        if reach.organisations is None or ORG_COLUMN not in values or values[ORG_COLUMN] in reach.organisations:
            total += sum(sizes)
    return total
