"""The merge of a batch by delta-rs, in this process: on a machine's own cores it is several times as fast as Spark's.

The same rows come to the same values as by `merge.TableMerge`. delta-rs enforces no transactions, so a merge is made
from the very snapshot in which its step was looked for, without retries of its own: whatever is committed meanwhile
makes it fail, and the next attempt looks again.
"""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaworks.errors import ConcurrencyError
from deltaworks.mutations.merge import SOURCE, TARGET, Reach, as_type
from deltaworks.specs.mutation import DELETED_COLUMN, MUTATION_COLUMN, ORG_COLUMN
from deltaworks.specs.table import TableSpec
from deltaworks.tables.commit import Step, commit_step

#: What an update sets, as columns of the source: a field may be called like one of its other columns.
_SET = "set_"


class SmallMerge:
    """Merges stretches, which are collected here, into one mutable table.

    Args:
        stretches: as of `TableMerge`, few enough to be collected.
    """

    def __init__(self, table: TableSpec, stretches: DataFrame, reach: Reach, *, batch: int) -> None:
        assert table.mutable is not None
        types = table.column_types()
        given = [
            as_type(F.col("fields")[F.lit(name)], types[name]).alias(f"{_SET}{name}") for name in table.mutable.fields
        ]
        plain = (ORG_COLUMN, "id", "valid_from", "valid_to", "final_id", "deleted")
        self._mutable = table.mutable
        self._reach = reach
        self._batch = batch
        self._source: pa.Table = stretches.select(*plain, *given).toArrow()

    def execute(self, opened: DeltaTable, step: Step, user_metadata: str) -> None:
        """Merge into the table as `opened` has it, as one commit under `step`, which it must not have yet.

        Raises:
            ConcurrencyError: DELTA_CONFLICT, the table has got another commit since.
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
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=True),
        )
        try:
            done = merger.when_matched_update({**changes, MUTATION_COLUMN: f"CAST({self._batch} AS BIGINT)"}).execute()
        except CommitFailedError as error:
            raise ConcurrencyError(
                "DELTA_CONFLICT",
                f"Another writer committed to {opened.table_uri} while it was merged: {error}",
                hint="Run the job again; it starts from the table as it is then.",
            ) from error
        if not done["num_target_files_removed"]:
            # Nothing differed, so nothing was committed. That this step is done is said all the same, as Spark does.
            commit_step(opened, [], step=step, user_metadata=user_metadata)

    def condition(self) -> str:
        """The rows that come to something else than they are, as SQL."""
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
        """The columns that change, each with what it is and what it comes to."""
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
        """The literals that tell which files there is nothing to do in."""
        reach, org, origin = self._reach, f'{TARGET}."{ORG_COLUMN}"', f'{TARGET}."{self._mutable.origin}"'
        if reach.organisations is not None:
            named = f"{org} IN ({', '.join(map(_text, reach.organisations))})"
        else:
            named = f"{org} BETWEEN {_text(reach.first_organisation)} AND {_text(reach.last_organisation)}"
        found = [named, f"{origin} BETWEEN {_text(reach.first_id)} AND {_text(reach.last_id)}"]
        if reach.since is not None:
            found += [
                f'{TARGET}."event_time" >= {_time(reach.since)}',
                f'{TARGET}."event_date" >= {_date(reach.since)}',
            ]
        if reach.until is not None:
            found += [
                f'{TARGET}."event_time" < {_time(reach.until)}',
                f'{TARGET}."event_date" <= {_date(reach.until)}',
            ]
        return found


def _text(value: str | None) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def _time(value: dt.datetime) -> str:
    # A literal of SQL would have nanoseconds, which end in 2262.
    text = value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"arrow_cast('{text}', 'Timestamp(Microsecond, Some(\"UTC\"))')"


def _date(value: dt.datetime) -> str:
    return f"DATE '{value.astimezone(dt.UTC).date()}'"
