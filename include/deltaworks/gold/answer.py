"""Runs the SQL of a gold table over its input views, selects the rows to rebuild, and checks the result.

A result that does not fit the declaration or fails a check is rejected before it is published.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, TimestampType

from deltaworks.errors import ConfigError, ContractError
from deltaworks.gold.input_views import InputViews, filter_part
from deltaworks.gold.plan import GoldPlan, interval_failures
from deltaworks.specs.gold import ChecksSpec, GoldTableSpec, view_name

#: The place in SQL that an error of Spark names.
_POSITION = re.compile(r"\bline (\d+),? pos \d+")
_MAX_LINE_LENGTH = 120
#: Number of examples listed per failed check.
MAX_EXAMPLES = 3
#: Raised by Spark while it writes a row whose grain column lies outside its date.
_GRAIN_OUTSIDE_DATE = "GOLD_GRAIN_OUTSIDE_DATE"


def compute_answer(spark: SparkSession, plan: GoldPlan, views: InputViews, *, sql: str, sql_path: Path) -> DataFrame:
    """Runs the table's SQL and returns the rows of the dates or values to rebuild.

    Raises:
        ConfigError: GOLD_SQL_INVALID, GOLD_COLUMN_MISSING, GOLD_PARTITION_NOT_DATE, GOLD_PARTITION_NOT_TEXT or
            GOLD_GRAIN_NOT_TIME.
    """
    column = plan.table.partition_by
    for name in plan.table.reads:
        views.register([name], plan.input_of(name), sql=sql)
    try:
        answer = spark.sql(sql)
    except (AnalysisException, ParseException) as error:
        raise invalid_sql_error(error, plan.table, sql=sql, sql_path=sql_path) from error
    grain = plan.table.grain
    for name, role in ((column, "partitioned"), *([] if grain is None else [(grain.column, "rebuilt")])):
        if name not in answer.columns:
            raise ConfigError(
                "GOLD_COLUMN_MISSING",
                f"{sql_path}: the result has no column {name!r}, by which {plan.table.name!r} is {role}.",
                hint=f"Its columns are {', '.join(answer.columns)}.",
            )
    if plan.table.affects == "all":
        return answer
    if plan.table.affects == "same":
        _require_text_partition(plan, answer, sql_path)
    elif not isinstance(answer.schema[column].dataType, DateType):
        raise ConfigError(
            "GOLD_PARTITION_NOT_DATE",
            f"{sql_path}: {column!r} is {answer.schema[column].dataType.simpleString()}, not a date, so changed "
            f"input dates cannot be mapped to partitions of {plan.table.name!r}.",
            hint=f"Cast it to date, or declare `affects: all` for {plan.table.name!r}.",
        )
    if grain is not None:
        return _filter_hours(plan, answer, grain.column, sql_path)
    if plan.output.values is None:
        # Drop rows without a partition value, because a partial rebuild could not replace them.
        return answer.filter(F.col(column).isNotNull())
    return filter_part(answer, plan.output, column)


def invalid_sql_error(error: Exception, table: GoldTableSpec, *, sql: str, sql_path: Path) -> ConfigError:
    """Returns the error of SQL that Spark rejects: its problem, and the line of the SQL at fault."""
    text = str(error).strip()
    problem, _, rest = text.partition(" SQLSTATE: ")
    position, lines = _POSITION.search(rest), sql.splitlines()
    number = int(position[1]) if position else 0
    line = lines[number - 1].strip()[:_MAX_LINE_LENGTH] if 0 < number <= len(lines) else ""
    hint = "Correct the SQL, then run `deltaworks pipelines check`."
    if "[TABLE_OR_VIEW_NOT_FOUND]" in problem:
        hint = f"Available views: {', '.join(map(view_name, table.reads))}."
    return ConfigError(
        "GOLD_SQL_INVALID",
        f"{table.name}: {sql_path}{f':{number}' if number else ''}: {problem.splitlines()[0].rstrip('.')}"
        f"{f', in: {line}' if line else '.'}",
        hint=hint,
    )


def _filter_hours(plan: GoldPlan, answer: DataFrame, grain: str, sql_path: Path) -> DataFrame:
    """Returns the rows of the hours to rebuild. The write fails on rows that no rebuild of their hour would replace."""
    column = plan.table.partition_by
    if not isinstance(answer.schema[grain].dataType, TimestampType):
        raise ConfigError(
            "GOLD_GRAIN_NOT_TIME",
            f"{sql_path}: {grain!r} is {answer.schema[grain].dataType.simpleString()}, not a timestamp, so rows "
            f"of {plan.table.name!r} cannot be assigned to hours.",
            hint=f"Use date_trunc('minute', event_time) AS {grain}, or remove `grain`.",
        )
    is_in_date = F.to_date(F.col(grain)) == F.col(column)
    rows = answer.filter(F.col(column).isNotNull())
    if plan.output.values is not None:
        # Keep rows outside their date, so that the write fails on them. If they were filtered, no rebuild would include
        # them.
        is_outside_date = ~F.coalesce(is_in_date, F.lit(False))
        rows = rows.filter(F.expr(plan.output.condition(column, grain)) | is_outside_date)
    checked = F.when(is_in_date, F.col(grain)).otherwise(F.raise_error(F.lit(_GRAIN_OUTSIDE_DATE)).cast("timestamp"))
    return rows.withColumn(grain, checked)


def grain_outside_date_error(table: GoldTableSpec, sql_path: Path, error: Exception) -> ConfigError | None:
    """Converts Spark's error for a row whose grain column lies outside its date; returns None for any other error."""
    if table.grain is None or _GRAIN_OUTSIDE_DATE not in str(error):
        return None
    return ConfigError(
        _GRAIN_OUTSIDE_DATE,
        f"{sql_path}: {table.grain.column!r} of a row is null or outside its {table.partition_by!r}, so no "
        "rebuild of an hour would replace the row.",
        hint=f"Derive both from one timestamp: to_date({table.grain.column}) AS {table.partition_by}.",
    )


def _require_text_partition(plan: GoldPlan, answer: DataFrame, sql_path: Path) -> None:
    column = plan.table.partition_by
    if not isinstance(answer.schema[column].dataType, StringType):
        raise ConfigError(
            "GOLD_PARTITION_NOT_TEXT",
            f"{sql_path}: {column!r} is {answer.schema[column].dataType.simpleString()} in the result but a "
            "string in the inputs, so changed input values cannot be mapped to partitions.",
            hint=f"Select {column!r} unchanged, or declare `affects: all` for {plan.table.name!r}.",
        )


def failed_checks(
    table: GoldTableSpec, answer: DataFrame, published: DataFrame | None, *, allow_empty: bool = False
) -> list[str]:
    """Returns the declared checks that a result fails, one sentence each.

    Scans the result once, and once more for each of `unique`, `intervals` and `max_drop`. Cache it first.

    Args:
        published: the published rows of the same partitions; None if the table does not exist.
        allow_empty: whether no row is right, in spite of `min_rows`.

    Raises:
        ConfigError: GOLD_CHECK_INVALID, a check names a column that the result does not have.
    """
    checks = table.checks
    checked_columns = {*checks.unique, *checks.not_null}
    if checks.intervals is not None:
        checked_columns |= {*checks.intervals.by, checks.intervals.start, checks.intervals.end}
    missing = sorted(checked_columns - {*answer.columns})
    if missing:
        raise ConfigError(
            "GOLD_CHECK_INVALID",
            f"The checks of gold table {table.name!r} name columns its SQL does not return: {', '.join(missing)}.",
            hint=f"Its columns are {', '.join(answer.columns)}.",
        )
    failures = _row_count_failures(checks, answer, allow_empty=allow_empty)
    if checks.unique:
        failures += _uniqueness_failures(checks, answer)
    if checks.intervals is not None:
        failures += interval_failures(checks.intervals, answer)
    if checks.max_drop is not None and published is not None:
        failures += _row_drop_failures(table.partition_by, checks.max_drop, answer, published)
    return failures


def raise_failed_checks(pipeline: str, failed_by_table: dict[str, list[str]]) -> None:
    """Raises if any table failed its checks.

    Raises:
        ContractError: GOLD_CHECK_FAILED, with the failed checks of each table.
    """
    if not failed_by_table:
        return
    listed = "; ".join(f"{table}: {', '.join(checks)}" for table, checks in failed_by_table.items())
    raise ContractError(
        "GOLD_CHECK_FAILED", f"Gold tables of {pipeline!r} failed their checks and were not published: {listed}."
    )


def _row_count_failures(checks: ChecksSpec, answer: DataFrame, *, allow_empty: bool) -> list[str]:
    nulls = [F.sum(F.col(column).isNull().cast("long")).alias(column) for column in checks.not_null]
    counts = answer.agg(F.count(F.lit(1)).alias("_rows"), *nulls).collect()[0].asDict()
    return describe_counts(checks, int(counts["_rows"]), counts, allow_empty=allow_empty)


def describe_counts(checks: ChecksSpec, rows: int, nulls: Mapping[str, int], *, allow_empty: bool) -> list[str]:
    """Returns the failures of `min_rows` and `not_null` for a number of rows and of nulls by column."""
    too_few = rows < checks.min_rows and not (allow_empty and rows == 0)
    failures = [f"{rows} rows where at least {checks.min_rows} are expected"] if too_few else []
    return failures + [f"{nulls[column]} rows without {column}" for column in checks.not_null if nulls[column]]


def _uniqueness_failures(checks: ChecksSpec, answer: DataFrame) -> list[str]:
    duplicated = answer.groupBy(*checks.unique).count().filter("count > 1")
    examples = duplicated.limit(MAX_EXAMPLES).collect()
    if not examples:
        return []
    return [describe_duplicates(checks, duplicated.count(), [row.asDict() for row in examples])]


def describe_duplicates(checks: ChecksSpec, values: int, examples: Sequence[Mapping[str, Any]]) -> str:
    """Returns the failure of `unique` with some of the duplicated values."""
    named = "; ".join(", ".join(str(row[column]) for column in checks.unique) for row in examples)
    return f"{values} values of ({', '.join(checks.unique)}) are duplicated, such as {named}"


def _row_drop_failures(column: str, max_drop: float, answer: DataFrame, published: DataFrame) -> list[str]:
    published_counts = published.groupBy(column).agg(F.count(F.lit(1)).alias("_had"))
    new_counts = answer.groupBy(column).agg(F.count(F.lit(1)).alias("_has"))
    compared = published_counts.join(new_counts, on=column, how="left").withColumn("_has", F.coalesce("_has", F.lit(0)))
    dropped = compared.filter(F.col("_has") < F.col("_had") * (1 - max_drop)).orderBy(column)
    return [
        f"{column} {row[column]} would fall from {row['_had']} rows to {row['_has']}"
        for row in dropped.limit(MAX_EXAMPLES).collect()
    ]
