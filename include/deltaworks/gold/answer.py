"""The answer of a gold table: its SQL run over the inputs' views, cut to what is rebuilt, and refused where it does not
fit what is declared."""

from __future__ import annotations

from pathlib import Path

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType

from deltaworks.errors import ConfigError
from deltaworks.gold.inputs import InputViews
from deltaworks.gold.plan import GoldPlan


def answer_of(spark: SparkSession, plan: GoldPlan, views: InputViews, *, sql: str, sql_path: Path) -> DataFrame:
    """What the SQL gives, cut to the dates or values that are rebuilt.

    Raises:
        ConfigError: GOLD_SQL_INVALID, GOLD_COLUMN_MISSING, GOLD_PARTITION_NOT_DATE or GOLD_PARTITION_NOT_TEXT.
    """
    column = plan.table.partition_by
    views.register(plan.table.reads, plan.input)
    try:
        answer = spark.sql(sql)
    except (AnalysisException, ParseException) as error:
        raise ConfigError(
            "GOLD_SQL_INVALID",
            f"{sql_path}: {error}",
            hint=f"It may read the views {', '.join(plan.table.reads)}.",
        ) from error
    if column not in answer.columns:
        raise ConfigError(
            "GOLD_COLUMN_MISSING",
            f"{sql_path}: the answer has no column {column!r}, by which {plan.table.name!r} is partitioned.",
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
    if plan.output.values is None:
        # A row without a value belongs to no partition that a later, partial rebuild could replace.
        return answer.filter(F.col(column).isNotNull())
    return answer.filter(F.col(column).isin(sorted(plan.output.values)))


def _check_text(plan: GoldPlan, answer: DataFrame, sql_path: Path) -> None:
    column = plan.table.partition_by
    if not isinstance(answer.schema[column].dataType, StringType):
        raise ConfigError(
            "GOLD_PARTITION_NOT_TEXT",
            f"{sql_path}: {column!r} is {answer.schema[column].dataType.simpleString()} in the answer and a text "
            "in its inputs, so that a value of these does not tell which partition changes.",
            hint=f"Take {column!r} over as it is, or declare `affects: all` for {plan.table.name!r}.",
        )


def same_columns(spark: SparkSession, uri: str, answer: DataFrame) -> bool:
    """Whether the table at `uri` has the answer's columns."""
    present = spark.read.format("delta").load(uri).schema
    return [(f.name, f.dataType.simpleString()) for f in present] == [
        (f.name, f.dataType.simpleString()) for f in answer.schema
    ]
