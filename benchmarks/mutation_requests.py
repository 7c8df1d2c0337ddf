"""Requests to resolve, made by Spark: chains of renames over organisations of uneven size, one long chain, one hub."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.games_files import bench_folder

_ORGS = 1000
_START = 1_767_225_600


def requests_file(spark: SparkSession, *, requests: int, longest: int, hub: int) -> Path:
    """The folder of a Parquet table with that many requests, made once.

    Chains of one to four renames (of one or two, where `longest` is 2), one chain of `longest`, and `hub` merges of as
    many ids into one id that is renamed after them.
    """
    folder = bench_folder() / f"requests-{requests}-{longest}-{hub}"
    if not (folder / "_SUCCESS").exists():
        short = min(4, longest)
        # As many chains as give more than is needed; the cut takes the end of the last ones.
        chains = spark.range((requests * 2) // (short + 1) + 10).select(
            F.col("id").alias("chain"), (F.pmod(F.xxhash64("id"), F.lit(short)).cast("int") + 1).alias("length")
        )
        long = spark.range(1).select(F.lit(-1).cast("long").alias("chain"), F.lit(longest).alias("length"))
        renames = _chain(chains).limit(requests - longest - (hub + 1 if hub else 0))
        _request_rows(renames.unionByName(_chain(long)), hub).write.mode("overwrite").parquet(str(folder))
    return folder


def _chain(chains: DataFrame) -> DataFrame:
    hops = chains.select("chain", F.explode(F.sequence(F.lit(0), F.col("length") - 1)).alias("hop"))
    # A cubed uniform number: a few organisations have most of the chains, as in life.
    share = F.pmod(F.xxhash64("chain", F.lit("org")), F.lit(10_000)) / 10_000
    return hops.select(
        "chain",
        "hop",
        F.concat(F.lit("org-"), F.floor(F.pow(share, 3) * _ORGS)).alias("org_id"),
        F.lit("rename").alias("op"),
        F.concat_ws("-", F.lit("contact"), "chain", "hop").alias("id"),
        F.concat_ws("-", F.lit("contact"), "chain", F.col("hop") + 1).alias("new_id"),
        F.timestamp_seconds(F.lit(_START) + F.col("hop") * 3600 + F.pmod("chain", F.lit(3600))).alias("time"),
    )


def _request_rows(renames: DataFrame, hub: int) -> DataFrame:
    columns = ("org_id", "op", "id", "new_id", "time")
    spokes = renames.sparkSession.range(hub).select(
        F.lit("org-0").alias("org_id"),
        F.lit("merge").alias("op"),
        F.concat(F.lit("spoke-"), "id").alias("id"),
        F.lit("hub").alias("new_id"),
        F.timestamp_seconds(F.lit(_START) + F.col("id")).alias("time"),
    )
    onward = renames.sparkSession.range(1 if hub else 0).select(
        F.lit("org-0").alias("org_id"),
        F.lit("rename").alias("op"),
        F.lit("hub").alias("id"),
        F.lit("after-the-hub").alias("new_id"),
        F.timestamp_seconds(F.lit(_START + hub)).alias("time"),
    )
    everything = renames.select(*columns).unionByName(spokes).unionByName(onward)
    return everything.select(
        *columns,
        F.lit(None).cast("map<string,string>").alias("fields"),
        F.lit(0).cast("long").alias("seq"),
    ).orderBy(F.xxhash64("id"))
