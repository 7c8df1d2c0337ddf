"""Generates rows of an engagement table: organisations with power-law sizes, one day after another, some rows late.

All values of a row are computed from its number and the seed with Spark expressions over `spark.range`. So any range of
rows can be generated again with the same values, on any number of cores, and ten million rows take seconds.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.errors import ConfigError

FIRST_DAY = dt.date(2026, 1, 1)
#: Average number of activities per contact in a loaded table.
ROWS_PER_CONTACT = 25
_TYPES = ("email_sent", "email_opened", "call", "meeting", "task", "note")
_TEMPLATES = 200
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Sizes of an experiment. Organisation 0 is the largest; with `exponent` 0 all have the same size.

    A batch has `rows / days / batches_per_day` rows, as many as a stream lands in `1 / batches_per_day` days. A round
    adds
    `batches_per_round` batches to the loaded table and runs one mutation batch that renames `update_share` of the
        contacts.

    Raises:
        ConfigError: EXPERIMENT_SIZES_INVALID.
    """

    rows: int = 1_000_000
    orgs: int = 100
    exponent: float = 1.1
    days: int = 24
    batches_per_day: int = 1
    batches_per_round: int = 12
    update_share: float = 0.02
    seed: int = 1

    def __post_init__(self) -> None:
        counts = (self.orgs, self.days, self.batches_per_day, self.batches_per_round, self.rows_per_batch)
        if min(counts) < 1 or self.exponent < 0 or not 0 < self.update_share <= 1:
            raise ConfigError(
                "EXPERIMENT_SIZES_INVALID",
                f"{self} cannot be run: a count is below 1 (a batch has {self.rows_per_batch} rows), the exponent is "
                "negative or the share of updates is not within 0 and 1.",
            )

    @property
    def rows_per_batch(self) -> int:
        """Number of rows in one batch of the stream."""
        return self.rows // max(1, self.days * self.batches_per_day)

    @property
    def load_batches(self) -> int:
        """Number of batches loaded before the first measured round."""
        return self.days * self.batches_per_day

    @property
    def requests(self) -> int:
        """Number of requests in one mutation batch. Several can refer to the same contact."""
        return max(1, round(self.update_share * self.rows / ROWS_PER_CONTACT))

    def day_of_batch(self, batch: int) -> dt.date:
        """Returns the day on which a batch arrives."""
        return FIRST_DAY + dt.timedelta(days=batch // self.batches_per_day)


def org_id(rank: int) -> str:
    """Returns the id of the organisation with this rank by size; 0 is the largest."""
    return f"org-{rank:06d}"


def batch_rows(spark: SparkSession, workload: Workload, batch: int) -> DataFrame:
    """Returns the rows of one batch, with the columns of the engagement table."""
    first = batch * workload.rows_per_batch
    numbers = spark.range(first, first + workload.rows_per_batch).withColumnRenamed("id", "number")
    return _activities(_with_org_and_contact(numbers, workload), workload, batch)


def rename_requests(spark: SparkSession, workload: Workload, round_number: int, batches: int) -> DataFrame:
    """Returns renames of contacts from the first `batches` batches: columns `org_id`, `id` and `new_id`, with unique
    ids.

    Contacts are those of randomly drawn activities, so an organisation's requests are proportional to its rows.
    """
    rows = batches * workload.rows_per_batch
    sampled = spark.range(workload.requests).select(
        F.floor(_pseudo_random(F.col("id"), workload.seed, f"request {round_number}") * rows).alias("number")
    )
    contacts = _with_org_and_contact(sampled, workload).select("org_id", F.col("contact_id").alias("id")).distinct()
    return contacts.withColumn("new_id", F.concat("id", F.lit(f"-r{round_number}")))


def _cumulative(rank: float, exponent: float) -> float:
    """Returns the integral of x**-exponent from 1 to `rank`, an invertible approximation of the sum of sizes."""
    if math.isclose(exponent, 1):
        return math.log(rank)
    return float((rank ** (1 - exponent) - 1) / (1 - exponent))


def _pseudo_random(number: Column, seed: int, purpose: str) -> Column:
    """Returns a pseudo-random number in [0, 1) computed from `number`, the seed and a purpose."""
    return F.shiftrightunsigned(F.xxhash64(number, F.lit(seed), F.lit(purpose)), 12) / F.lit(float(1 << 52))


def _with_org_and_contact(numbers: DataFrame, workload: Workload) -> DataFrame:
    """Adds the organisation and the contact of each row number."""
    exponent, seed = workload.exponent, workload.seed
    total_size = _cumulative(workload.orgs + 1, exponent)
    cumulative_size = _pseudo_random(F.col("number"), seed, "org") * F.lit(total_size)
    if math.isclose(exponent, 1):
        position = F.exp(cumulative_size)
    else:
        position = F.pow(cumulative_size * F.lit(1 - exponent) + 1, F.lit(1 / (1 - exponent)))
    # Rounding errors of the inverse may exceed either bound.
    rank = F.greatest(F.lit(0), F.least(F.lit(workload.orgs - 1), F.floor(position).cast("int") - 1))
    contacts_of_org = (
        F.pow(F.col("rank") + 1.5, F.lit(-exponent)) / F.lit(total_size) * F.lit(workload.rows / ROWS_PER_CONTACT)
    )
    contact = F.floor(_pseudo_random(F.col("number"), seed, "contact") * F.greatest(F.lit(1.0), contacts_of_org))
    return (
        numbers.withColumn("rank", rank)
        .withColumn("org_id", F.concat(F.lit("org-"), F.lpad(F.col("rank").cast("string"), 6, "0")))
        .withColumn("contact_id", F.concat(F.lit("c-"), F.lower(F.hex(F.xxhash64("rank", contact)))))
    )


def _activities(positions: DataFrame, workload: Workload, batch: int) -> DataFrame:
    number, seed = F.col("number"), workload.seed
    lateness, tail = _pseudo_random(number, seed, "late"), _pseudo_random(number, seed, "tail")
    days_late = F.when(lateness < 0.93, 0).when(lateness < 0.99, 1).otherwise(2 + F.floor(tail * 12)).cast("int")
    date = F.date_sub(F.lit(workload.day_of_batch(batch)), days_late)
    second = F.floor(_pseudo_random(number, seed, "second") * _DAY_SECONDS)
    kind = F.floor(F.pow(_pseudo_random(number, seed, "type"), F.lit(2.0)) * len(_TYPES)).cast("int")
    template = F.concat(F.lit("t-"), F.floor(_pseudo_random(number, seed, "template") * _TEMPLATES))
    columns: Mapping[str, Column] = {
        "org_id": F.col("org_id"),
        "engagement_id": F.concat(F.lit("e-"), F.lower(F.hex(F.xxhash64(number, F.lit(seed), F.lit("id"))))),
        "contact_id": F.col("contact_id"),
        "origin_contact_id": F.col("contact_id"),
        "lead_id": F.when(
            _pseudo_random(number, seed, "lead") < 0.3,
            F.concat(F.lit("l-"), F.lower(F.hex(F.xxhash64(F.floor(number / 40), F.lit("lead"))))),
        ),
        "activity_type": F.element_at(F.array(*(F.lit(name) for name in _TYPES)), kind + 1),
        "engagement_date": date,
        "event_time": F.timestamp_seconds(F.unix_date(date).cast("long") * _DAY_SECONDS + second),
        "template_id": template,
        "origin_template_id": template,
        "_ingested_at": F.lit(dt.datetime.combine(workload.day_of_batch(batch), dt.time(), dt.UTC)),
        "_batch_id": F.lit(batch).cast("long"),
        "_deleted": F.lit(None).cast("boolean"),
        "_mutation": F.lit(None).cast("long"),
    }
    return positions.select(*(column.alias(name) for name, column in columns.items()))
