"""What has to hold for an answer before readers see it: looked at in the rows of a build, before its commit."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaworks.errors import ConfigError, ContractError
from deltaworks.specs.gold import ChecksSpec, GoldTableSpec

#: Of each check that is broken so many examples are named.
_NAMED = 3


def broken_checks(table: GoldTableSpec, answer: DataFrame, before: DataFrame | None) -> list[str]:
    """What the rows of a build break of what is declared, a sentence each.

    Reads the answer once, and once more for each of `unique` and `max_drop`: it should be held in memory.

    Args:
        before: the rows of the same partitions that readers have now; None where there are none.

    Raises:
        ConfigError: GOLD_CHECK_INVALID, a check names a column the answer does not have.
    """
    checks = table.checks
    missing = sorted({*checks.unique, *checks.not_null} - {*answer.columns})
    if missing:
        raise ConfigError(
            "GOLD_CHECK_INVALID",
            f"The checks of gold table {table.name!r} name {', '.join(missing)}, no column of its answer.",
            hint=f"Its columns are {', '.join(answer.columns)}.",
        )
    broken = _counts(checks, answer)
    if checks.unique:
        broken += _copies(checks, answer)
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
    listed = "; ".join(f"{table}: {', '.join(found)}" for table, found in broken.items())
    raise ContractError(
        "GOLD_CHECK_FAILED",
        f"Answers of {pipeline!r} break their checks and were not published: {listed}.",
        hint="Readers have what was there before. Mend the inputs, the SQL, or a check that asks too much.",
    )


def _counts(checks: ChecksSpec, answer: DataFrame) -> list[str]:
    nulls = [F.sum(F.col(column).isNull().cast("long")).alias(column) for column in checks.not_null]
    found = answer.agg(F.count(F.lit(1)).alias("_rows"), *nulls).collect()[0].asDict()
    rows = int(found["_rows"])
    broken = [f"{rows} rows where at least {checks.min_rows} are expected"] if rows < checks.min_rows else []
    return broken + [f"{found[column]} rows without {column}" for column in checks.not_null if found[column]]


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
