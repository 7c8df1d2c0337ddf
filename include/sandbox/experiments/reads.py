"""The queries of an experiment, as a page about an organisation, a contact or a day would run them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sandbox.experiments.engagement_rows import Workload, batch_rows, org_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A named aggregation that groups by its first column."""

    name: str
    where: str
    select: str


def reads_of(spark: SparkSession, workload: Workload, batches: int) -> list[Read]:
    """Returns the queries for a table with its first `batches` batches, for a huge, a medium and a small organisation.

    Their dates are from the middle of the table's time range, where files are neither the newest nor the most
    compacted.
    """
    huge, middle, small = (org_id(rank) for rank in (0, workload.orgs // 10, workload.orgs - 1))
    day = workload.day_of_batch(batches // 2)
    week = f"engagement_date BETWEEN DATE'{day}' AND DATE'{day + dt.timedelta(days=6)}'"
    kinds = "activity_type, count(*), count(DISTINCT contact_id), max(event_time)"
    days = "engagement_date, count(*), count(DISTINCT contact_id)"
    first_contact = (
        batch_rows(spark, workload, batches // 2).where(F.col("org_id") == huge).agg(F.min("origin_contact_id"))
    )
    row = first_contact.first()
    contact = row[0] if row is not None and row[0] is not None else "none"
    return [
        Read(name="week_of_huge_org", where=f"org_id = '{huge}' AND {week}", select=kinds),
        Read(name="week_of_middle_org", where=f"org_id = '{middle}' AND {week}", select=kinds),
        Read(name="week_of_small_org", where=f"org_id = '{small}' AND {week}", select=kinds),
        Read(name="all_of_huge_org", where=f"org_id = '{huge}'", select=days),
        Read(name="all_of_small_org", where=f"org_id = '{small}'", select=days),
        Read(
            name="history_of_contact",
            where=f"org_id = '{huge}' AND origin_contact_id = '{contact}'",
            select="contact_id, count(*), min(event_time), max(event_time)",
        ),
        Read(name="day_of_all_orgs", where=f"engagement_date = DATE'{day}'", select=kinds),
    ]
