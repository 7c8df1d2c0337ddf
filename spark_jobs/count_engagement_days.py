"""A sample reader of table changes: `spark-submit spark_jobs/count_engagement_days.py --table engagement.activities`.

Maintains a table with the number of activities and contacts of each organisation and day, and how often rows of the day
changed. A run recounts the days whose rows changed since the last run. Counts and read position are committed together.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.control.job import run_job
from deltaworks.mutations.read_changes import commit_position, last_committed_position, read_changes
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.spark_session import build_session

READER, DAY = "engagement_days", ["org_id", "engagement_date"]
KEY = paths.reader(READER)
COLUMNS = "org_id STRING, engagement_date DATE, activities LONG, contacts LONG, changes LONG"


def count_days(spark: SparkSession, catalog: Catalog, table: str) -> bool:
    """Recounts the changed days; returns whether any row had changed."""
    lake = Lake(catalog.environment.lake)
    changes = read_changes(spark, table, last_committed_position(lake, KEY), tombstones=True, catalog=catalog)
    if changes.is_empty:
        return False
    counts = lake.storage.spark_uri(KEY)
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{counts}` ({COLUMNS}) USING delta")
    changed = changes.rows.dropna(subset=DAY).groupBy(*DAY).agg(F.count("*").alias("changes"))
    living = changes.snapshot.join(F.broadcast(changed.select(*DAY)), DAY, "left_semi").groupBy(*DAY)
    now = living.agg(F.count("*").alias("activities"), F.countDistinct("contact_id").alias("contacts"))
    changed.join(now, DAY, "left").fillna(0, ["activities", "contacts"]).createOrReplaceTempView("days_now")
    with commit_position(spark, READER, changes.position):
        spark.sql(
            f"MERGE INTO delta.`{counts}` t USING days_now s "
            "ON t.org_id = s.org_id AND t.engagement_date = s.engagement_date WHEN MATCHED THEN UPDATE SET "
            "activities = s.activities, contacts = s.contacts, changes = t.changes + s.changes "
            "WHEN NOT MATCHED THEN INSERT *"
        ).collect()
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", default="engagement.activities")
    arguments, catalog = parser.parse_args(), load_catalog(skip_invalid=True)
    spark = build_session(catalog.environment, app_name=f"count.{READER}", share=catalog.environment.shares.of("gold"))
    count_days(spark, catalog, arguments.table)
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
