"""The answer of a gold table: its SQL run over the inputs' views, cut to what is rebuilt, and checked.

An answer that does not fit what is declared, or that breaks a check, is refused before readers see it.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, TimestampType

from deltaworks.errors import ConfigError, ContractError
from deltaworks.gold.input_views import InputViews, rows_within
from deltaworks.gold.intervals import broken_intervals
from deltaworks.gold.plan import GoldPlan
from deltaworks.specs.gold import ChecksSpec, GoldTableSpec, view_name

#: Of each check that is broken so many examples are named.
_NAMED = 3
#: What a row says while it is written whose grain column does not lie in its date.
_BESIDE_ITS_DATE = "GOLD_GRAIN_BESIDE_DATE"


def answer_of(spark: SparkSession, plan: GoldPlan, views: InputViews, *, sql: str, sql_path: Path) -> DataFrame:
    """What the SQL gives, cut to the dates or values that are rebuilt.

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
        raise ConfigError(
            "GOLD_SQL_INVALID",
            f"{sql_path}: {error}",
            hint=f"It may read the views {', '.join(map(view_name, plan.table.reads))}.",
        ) from error
    grain = plan.table.grain
    for name, role in ((column, "partitioned"), *([] if grain is None else [(grain.column, "rebuilt")])):
        if name not in answer.columns:
            raise ConfigError(
                "GOLD_COLUMN_MISSING",
                f"{sql_path}: the answer has no column {name!r}, by which {plan.table.name!r} is {role}.",
                hint=f"Its columns are {', '.join(answer.columns)}.",
            )
    if plan.table.affects == "all":
        return answer
    if plan.table.affects == "same":
        _check_text(plan, answer, sql_path)
    elif not isinstance(answer.schema[column].dataType, DateType):
        raise ConfigError(
            "GOLD_PARTITION_NOT_DATE",
            f"{sql_path}: {column!r} is {answer.schema[column].dataType.simpleString()}, not a date, so that "
            f"changed dates of the inputs do not tell which partitions of {plan.table.name!r} change.",
            hint=f"Cast it to date, or declare `affects: all` for {plan.table.name!r}.",
        )
    if grain is not None:
        return _within_hours(plan, answer, grain.column, sql_path)
    if plan.output.values is None:
        # A row without a value belongs to no partition that a later, partial rebuild could replace.
        return answer.filter(F.col(column).isNotNull())
    return rows_within(answer, plan.output, column)


def _within_hours(plan: GoldPlan, answer: DataFrame, grain: str, sql_path: Path) -> DataFrame:
    """The answer cut to hours. A row that a later rebuild of its hour would not replace fails the write."""
    column = plan.table.partition_by
    if not isinstance(answer.schema[grain].dataType, TimestampType):
        raise ConfigError(
            "GOLD_GRAIN_NOT_TIME",
            f"{sql_path}: {grain!r} is {answer.schema[grain].dataType.simpleString()}, not a timestamp, so that it "
            f"does not tell which hours of {plan.table.name!r} a row is of.",
            hint=f"Take date_trunc('minute', event_time) AS {grain}, or leave `grain` out.",
        )
    inside = F.to_date(F.col(grain)) == F.col(column)
    rows = answer.filter(F.col(column).isNotNull())
    if plan.output.values is not None:
        # What lies beside its date stays, to be seen: cut off here, it would be missed by every rebuild.
        beside = ~F.coalesce(inside, F.lit(False))
        rows = rows.filter(F.expr(plan.output.condition(column, grain)) | beside)
    checked = F.when(inside, F.col(grain)).otherwise(F.raise_error(F.lit(_BESIDE_ITS_DATE)).cast("timestamp"))
    return rows.withColumn(grain, checked)


def beside_its_date(table: GoldTableSpec, sql_path: Path, error: Exception) -> ConfigError | None:
    """What an error of Spark's says of a row whose grain column does not lie in its date; None of any other."""
    if table.grain is None or _BESIDE_ITS_DATE not in str(error):
        return None
    return ConfigError(
        _BESIDE_ITS_DATE,
        f"{sql_path}: {table.grain.column!r} of a row does not lie in its {table.partition_by!r}, or has no value, so "
        "that no rebuild of an hour would replace the row.",
        hint=f"Derive both from one instant: to_date({table.grain.column}) AS {table.partition_by}.",
    )


def _check_text(plan: GoldPlan, answer: DataFrame, sql_path: Path) -> None:
    column = plan.table.partition_by
    if not isinstance(answer.schema[column].dataType, StringType):
        raise ConfigError(
            "GOLD_PARTITION_NOT_TEXT",
            f"{sql_path}: {column!r} is {answer.schema[column].dataType.simpleString()} in the answer and a text "
            "in its inputs, so that a value of these does not tell which partition changes.",
            hint=f"Take {column!r} over as it is, or declare `affects: all` for {plan.table.name!r}.",
        )


def broken_checks(table: GoldTableSpec, answer: DataFrame, before: DataFrame | None) -> list[str]:
    """What the rows of a build break of what is declared, a sentence each.

    Reads the answer once, and once more for each of `unique`, `intervals` and `max_drop`: it should be held in memory.

    Args:
        before: the rows of the same partitions that readers have now; None where there are none.

    Raises:
        ConfigError: GOLD_CHECK_INVALID, a check names a column the answer does not have.
    """
    checks = table.checks
    named = {*checks.unique, *checks.not_null}
    if checks.intervals is not None:
        named |= {*checks.intervals.by, checks.intervals.start, checks.intervals.end}
    missing = sorted(named - {*answer.columns})
    if missing:
        raise ConfigError(
            "GOLD_CHECK_INVALID",
            f"The checks of gold table {table.name!r} name {', '.join(missing)}, no column of its answer.",
            hint=f"Its columns are {', '.join(answer.columns)}.",
        )
    broken = _counts(checks, answer)
    if checks.unique:
        broken += _copies(checks, answer)
    if checks.intervals is not None:
        broken += broken_intervals(checks.intervals, answer)
    if checks.max_drop is not None and before is not None:
        broken += _drops(table.partition_by, checks.max_drop, answer, before)
    return broken


def refuse_broken(pipeline: str, broken: dict[str, list[str]]) -> None:
    """Say which tables were not published.

    Raises:
        ContractError: GOLD_CHECK_FAILED, naming each table with what is broken.
    """
    if not broken:
        return
    listed = "; ".join(f"{table}: {', '.join(checks)}" for table, checks in broken.items())
    raise ContractError(
        "GOLD_CHECK_FAILED",
        f"Answers of {pipeline!r} break their checks and were not published: {listed}.",
        hint="Readers have what was there before. Mend the inputs, the SQL, or a check that asks too much.",
    )


def _counts(checks: ChecksSpec, answer: DataFrame) -> list[str]:
    nulls = [F.sum(F.col(column).isNull().cast("long")).alias(column) for column in checks.not_null]
    counts = answer.agg(F.count(F.lit(1)).alias("_rows"), *nulls).collect()[0].asDict()
    rows = int(counts["_rows"])
    broken = [f"{rows} rows where at least {checks.min_rows} are expected"] if rows < checks.min_rows else []
    return broken + [f"{counts[column]} rows without {column}" for column in checks.not_null if counts[column]]


def _copies(checks: ChecksSpec, answer: DataFrame) -> list[str]:
    twice = answer.groupBy(*checks.unique).count().filter("count > 1")
    examples = twice.limit(_NAMED).collect()
    if not examples:
        return []
    named = "; ".join(", ".join(str(row[column]) for column in checks.unique) for row in examples)
    return [f"{twice.count()} values of ({', '.join(checks.unique)}) are there more than once, such as {named}"]


def _drops(column: str, most: float, answer: DataFrame, before: DataFrame) -> list[str]:
    had = before.groupBy(column).agg(F.count(F.lit(1)).alias("_had"))
    has = answer.groupBy(column).agg(F.count(F.lit(1)).alias("_has"))
    kept = had.join(has, on=column, how="left").withColumn("_has", F.coalesce("_has", F.lit(0)))
    less = kept.filter(F.col("_has") < F.col("_had") * (1 - most)).orderBy(column)
    return [
        f"{column} {row[column]} would fall from {row['_had']} rows to {row['_has']}"
        for row in less.limit(_NAMED).collect()
    ]
